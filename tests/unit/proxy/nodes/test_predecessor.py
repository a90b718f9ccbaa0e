"""A node that comes back looks before it joins: what it makes of what it sees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.proxy.nodes.gate.seals import Seals
from keylane.proxy.nodes.gate.verdicts import Received, receive
from keylane.proxy.nodes.messages import write_hello
from keylane.proxy.nodes.predecessor import Predecessor
from keylane.proxy.topics.node_values import Hello, NodeInfo

SESSION_S = 10.0
PATIENCE_S = 13.0


def seen(state: str, *metadata: bytes, error_code: ErrorCode = ErrorCode.none) -> SimpleNamespace:
    """The group as DescribeGroups shows it."""
    members = [
        SimpleNamespace(member_id=f"m{place}", member_metadata=data)
        for place, data in enumerate(metadata)
    ]
    return SimpleNamespace(group_state=state, members=members, error_code=error_code)


def received(described: SimpleNamespace) -> Received:
    """The nodes among the members."""
    said = {member.member_id: member.member_metadata for member in described.members}
    return receive(said, Seals(lambda: "cluster", tuple))


def hello(number: int) -> bytes:
    return write_hello(
        Hello(node=NodeInfo(number=number, bootstrap=("old", 9092)), ic_partition_count=7)
    )


@pytest.mark.parametrize(
    ("described", "is_awaited"),
    [
        (seen("Stable", hello(1), hello(3)), True),
        (seen("Stable", hello(1), hello(2)), False),
        (seen("Stable", b"no subscription", hello(3)), True),
        (seen("Stable", b"no subscription"), False),
        (seen("CompletingRebalance", b"", b""), True),
        (seen("PreparingRebalance", b"", b""), False),
        (seen("Empty"), False),
        (seen("Dead"), False),
        (seen("", error_code=ErrorCode.group_authorization_failed), False),
    ],
)
def test_it_waits_only_where_joining_would_cost_the_others(described, is_awaited) -> None:
    """And where what is seen says nothing, it joins: the leader decides."""
    assert Predecessor(SESSION_S).is_awaited(described, received(described), 3, 0.0) is is_awaited


def test_it_waits_no_longer_than_a_dead_one_can_stay(caplog) -> None:
    """The awaited node is logged once; after it has joined, the next one is awaited anew."""
    predecessor, taken = Predecessor(SESSION_S), seen("Stable", hello(3))

    def awaited(now_s: float) -> Any:
        return predecessor.is_awaited(taken, received(taken), 3, now_s)

    assert [awaited(100.0), awaited(100.0 + PATIENCE_S - 0.1)] == [True, True]
    assert not awaited(100.0 + PATIENCE_S)
    predecessor.forget()

    assert awaited(200.0)
    reported = [record.getMessage() for record in caplog.records]
    assert (
        reported
        == ["another node with this number is waited for node=3 place=old:9092 seconds_max=13"] * 2
    )
