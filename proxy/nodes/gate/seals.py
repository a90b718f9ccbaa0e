"""Hellos and verdicts as they go over the wire: written and proved, checked and read.

Source: docs/decisions/033; `proofs`, `messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from keylane.assignor.protocol import read_subscription
from keylane.errors import FrameInvalid, NodeInvalid
from keylane.offsets.records.journal import TOPIC_NAME
from keylane.proxy.nodes.gate.proofs import (
    SIGNED,
    hello_scope,
    is_sealed,
    seal,
    unseal,
    verdict_scope,
)
from keylane.proxy.nodes.messages import read_hello, read_verdict, write_hello
from keylane.proxy.topics.node_values import GROUP, Hello, Membership


@dataclass(frozen=True, slots=True)
class NodeTrust:
    """The secrets by which nodes know each other, and a call for each member without them."""

    secrets: Callable[[], Sequence[bytes]] = tuple
    """Without any, nodes believe each other."""
    on_stranger: Callable[[], None] = lambda: None


NO_TRUST: Final = NodeTrust()


class Seals:
    """Messages of members of the nodes' group, with proofs where this node has a secret."""

    def __init__(
        self, cluster_id: Callable[[], str], secrets: Callable[[], Sequence[bytes]]
    ) -> None:
        """`secrets` are asked for at each message: the first one signs, any verifies."""
        self._cluster_id, self._secrets = cluster_id, secrets

    def write_hello(self, hello: Hello, member_id: str) -> bytes:
        """Return the metadata of JoinGroup, for the member that we are to be."""
        scope = hello_scope(self._cluster_id(), GROUP, member_id)
        return seal(write_hello(hello), self._secrets(), scope)

    def read_hello(self, metadata: bytes, member_id: str, *, mutual: bool = False) -> Hello:
        """Return what a node said when it joined. Raises: NodeInvalid.

        mutual: it counts only if it can take our word as well. One that signs cannot, where this
        node has no secret.
        """
        scope = hello_scope(self._cluster_id(), GROUP, member_id)
        try:
            body = unseal(metadata, self._secrets(), scope)
            if mutual and is_sealed(metadata) and not self._secrets():
                raise NodeInvalid(SIGNED)
        except NodeInvalid as error:
            raise NodeInvalid(f"member {member_id}: {error}") from None
        return read_hello(body, member_id)

    def seal_verdict(
        self, written: bytes, generation_id: int, *, leader: str, member_id: str
    ) -> bytes:
        """Return the leader's message to a member, proved."""
        scope = verdict_scope(self._cluster_id(), GROUP, generation_id, leader, member_id)
        return seal(written, self._secrets(), scope)

    def read_verdict(
        self, assignment: bytes, *, generation_id: int, number: int, leader: str, member_id: str
    ) -> Membership | str:
        """Return what the leader said to us: the nodes, or why we are none. Raises: NodeInvalid."""
        scope = verdict_scope(self._cluster_id(), GROUP, generation_id, leader, member_id)
        try:
            body = unseal(assignment, self._secrets(), scope)
        except NodeInvalid as error:
            raise NodeInvalid(f"the leader's assignment: {error}") from None
        return read_verdict(body, generation_id=generation_id, number=number)


def is_node_like(metadata: bytes) -> bool:
    """Return whether a keylane of any version, with any secret, may have written it.

    Such a member may hold a lease; anything else holds none.
    """
    try:
        return TOPIC_NAME in read_subscription(metadata).topics
    except FrameInvalid:
        return False
