"""Verdicts of a generation's leader for each member: the nodes, and what each serves.

Source: docs/decisions/020, 033.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keylane.errors import NodeInvalid
from keylane.proxy.nodes.gate.seals import Seals, is_node_like
from keylane.proxy.nodes.messages import write_membership, write_refusal
from keylane.proxy.nodes.owner_plan import admit, plan_owners
from keylane.proxy.topics.node_values import (
    NO_GENERATION,
    NO_NODE,
    Hello,
    Membership,
    serving_nodes,
)

log = logging.getLogger("keylane.nodes")


@dataclass(frozen=True, slots=True)
class Received:
    """Members that joined, apart: nodes, and what did not prove to be one."""

    hellos: Mapping[str, Hello]
    """By member id."""
    strangers: Mapping[str, bool]
    """By member id; True: some keylane may have written its message."""
    reasons: Mapping[str, str]

    @property
    def is_established(self) -> bool:
        """Return whether one of the nodes was in an earlier generation, without a break."""
        return any(hello.since != NO_GENERATION for hello in self.hellos.values())


def receive(said: Mapping[str, bytes], seals: Seals, *, mutual: bool = True) -> Received:
    """Read what members said, by member id.

    mutual: only those are nodes that can take us for one, too (`Seals.read_hello`).
    """
    hellos: dict[str, Hello] = {}
    strangers: dict[str, bool] = {}
    reasons: dict[str, str] = {}
    for member_id, metadata in said.items():
        try:
            hellos[member_id] = seals.read_hello(metadata, member_id, mutual=mutual)
        except NodeInvalid as error:
            strangers[member_id] = is_node_like(metadata)
            reasons[member_id] = str(error).removeprefix(f"member {member_id}: ")
    return Received(hellos, strangers, reasons)


def decide(joined: Any, received: Received, seals: Seals, *, withholds: bool) -> dict[str, bytes]:
    """Return the leader's message to each member of a generation.

    withholds: no member may be given anything yet (`strangers`).
    """
    generation_id, leader = int(joined.generation_id), str(joined.leader)
    hellos = received.hellos
    admission = admit(hellos, leader=leader)
    for member_id, reason in admission.refused.items():
        log.error("node is not let in member_id=%s reason=%s", member_id, reason)
    unproven = {
        member_id: f"node_secret_file: the leader of the nodes takes this one for none: {reason}"
        for member_id, reason in received.reasons.items()
    }
    refused = {**unproven, **admission.refused}
    written = {member_id: write_refusal(generation_id, why) for member_id, why in refused.items()}
    nodes = {number: hellos[member_id] for number, member_id in admission.members.items()}
    if nodes:
        count = next(iter(nodes.values())).ic_partition_count
        serving = serving_nodes(hello.node for hello in nodes.values())
        claims = {number: nodes[number].claim for number in serving}
        membership = Membership(
            generation_id=generation_id,
            nodes=tuple(hello.node for hello in nodes.values()),
            owners=(NO_NODE,) * count if withholds else plan_owners(claims, count),
        )
        for number, member_id in admission.members.items():
            written[member_id] = write_membership(membership, number)
    return {
        member_id: seals.seal_verdict(each, generation_id, leader=leader, member_id=member_id)
        for member_id, each in written.items()
    }
