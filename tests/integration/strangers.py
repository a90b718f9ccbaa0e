"""A stranger in the nodes' group: joins at the broker itself, with any bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Final, Self

from kio.index import load_request_schema

from keylane.config.node import split_address
from keylane.proxy.nodes.messages import write_hello, write_membership
from keylane.proxy.topics.node_values import GROUP, PROTOCOL, Hello, Membership, NodeInfo
from tests.integration.raw import TIMEOUT_S, RawClient
from tests.transcript.entities import build

JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE = 11, 12, 13, 14, 15
BEAT_S: Final = 0.3
SESSION_MS: Final = 300_000
"""Longer than any node's: its place is not given up by itself."""
EVIL: Final = ("127.0.0.1", 65_111)
"""Of no connection: systems draw the ports of clients below."""
NUMBER: Final = 7
MEMBER_ID_REQUIRED: Final = 79

Say = Callable[[Any], dict[str, bytes]]
"""The stranger's assignment for each member when it leads, from JoinGroup's answer."""


class PlainClient(RawClient):
    """A raw client without TLS."""

    def __init__(self, bootstrap: str) -> None:
        host, port = split_address(bootstrap)
        opened: Any = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket = opened
        self.received, self.known = b"", {}

    def ask_values(self, api_key: int, version: int, **values: Any) -> Any:
        """Send a request of plain values and return the answer."""
        return self.ask(build(load_request_schema(api_key, version), values))

    def members(self) -> list[Any]:
        """Return the members of the nodes' group, by DescribeGroups."""
        answer = self.ask_values(DESCRIBE, 5, groups=[GROUP])
        return list(answer.groups[0].members)


def evil_hello(broker_id: int = 1) -> bytes:
    """Return the subscription of a node without a secret, with an address of the stranger's."""
    node = NodeInfo(number=NUMBER, bootstrap=EVIL, brokers={broker_id: EVIL}, control="http://e:1")
    return write_hello(Hello(node=node, ic_partition_count=5))


def claim_all(joined: Any) -> dict[str, bytes]:
    """A verdict by which the stranger serves everything."""
    node = NodeInfo(number=NUMBER, bootstrap=EVIL, brokers={1: EVIL})
    membership = Membership(
        generation_id=int(joined.generation_id), nodes=(node,), owners=(NUMBER,) * 5
    )
    return {str(one.member_id): write_membership(membership, NUMBER) for one in joined.members}


class Stranger:
    """A member that joins again and again, in a thread, until it is left."""

    def __init__(
        self,
        bootstrap: str,
        metadata: bytes,
        *,
        say: Say = lambda _joined: {},
        protocols: tuple[str, ...] = (PROTOCOL,),
        rejoins: bool = True,
    ) -> None:
        """rejoins: whether it comes back when it was put out."""
        self._client, self._say, self._rejoins = PlainClient(bootstrap), say, rejoins
        self._said = {
            "group_id": GROUP,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": SESSION_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": metadata} for name in protocols],
        }
        self._member_id = ""
        self._stopping = threading.Event()
        self.joined = threading.Event()
        """Set once it was in a generation."""
        self.is_out = threading.Event()
        """Set once it was put out."""
        self.assignments: list[bytes] = []
        self.led = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._client.__exit__()  # ends what it waits for
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self.is_out.is_set() and not self._rejoins:
                    return
                self._round()
        except OSError:
            return  # left, in the middle of a question

    def _round(self) -> None:
        joined = self._client.ask_values(JOIN, 7, member_id=self._member_id, **self._said)
        if joined.error_code != 0:
            is_named = joined.error_code == MEMBER_ID_REQUIRED
            self._member_id = str(joined.member_id) if is_named else ""
            self._stopping.wait(0.0 if is_named else BEAT_S)
            return
        is_leader = joined.leader == joined.member_id
        self.led += is_leader
        said = self._say(joined) if is_leader else {}
        given = [{"member_id": to, "assignment": what} for to, what in said.items()]
        client = {
            "group_id": GROUP,
            "generation_id": int(joined.generation_id),
            "member_id": self._member_id,
        }
        synced = self._client.ask_values(SYNC, 3, assignments=given, **client)
        code = int(synced.error_code)
        if code == 0:
            self.assignments.append(bytes(synced.assignment))
            self.joined.set()
        while code == 0 and not self._stopping.wait(BEAT_S):
            code = int(self._client.ask_values(HEARTBEAT, 3, **client).error_code)
        if code == 25:  # UNKNOWN_MEMBER_ID
            self._member_id = ""
            self.is_out.set()
