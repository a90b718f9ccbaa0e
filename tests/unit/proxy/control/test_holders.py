"""Members that hold lanes, by the description of their group: on both sides of keylane."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

from keylane.assignor.marks import LaneCounts, mark
from keylane.config.node import LaneRule
from keylane.proxy.control.holders import read_holding
from keylane.proxy.groups.group_plans import NOTHING_HELD, LanesBefore
from keylane.proxy.topics.registry import TopicRegistry
from tests.transcript.consumer_protocol import assignment, subscription

SAID = subscription("orders")
MARKED = mark(SAID, "range", {"orders": LaneCounts("orders", 2)}.get)
ZERO, ONE = [("orders", 0), ("orders", 2)], [("orders", 1), ("orders", 3)]


def registry() -> TopicRegistry:
    """orders: 2 partitions of 2 lanes."""
    rules = (LaneRule(topic="orders", lanes=2),)
    found = TopicRegistry(rules, lane_name_pattern="{topic}.lanes-{lanes}")
    found.learn("orders", uuid.UUID(int=1), 2)
    return found


def described(members: dict[str, tuple[bytes, list[tuple[str, int]]]]) -> Any:
    """A broker's description."""
    entries = [
        SimpleNamespace(
            member_id=name,
            group_instance_id=None,
            member_metadata=metadata,
            member_assignment=assignment(lanes),
        )
        for name, (metadata, lanes) in members.items()
    ]
    return SimpleNamespace(protocol_type="consumer", members=entries)


def test_a_direct_member_has_all_lanes_of_its_partition() -> None:
    """The broker has the number of the partition, which is a lane to the others."""
    group = described({"a": (MARKED, ONE), "d": (SAID, [("orders", 0)])})

    found = read_holding(group, NOTHING_HELD, registry())

    assert found.direct == {"d"}
    assert found.owners == dict.fromkeys(ZERO, "d") | dict.fromkeys(ONE, "a")


def test_a_member_of_a_direct_leader_has_what_it_was_answered() -> None:
    """The broker has the partition for it as well; this node knows better."""
    group = described({"a": (MARKED, [("orders", 1)]), "d": (SAID, [("orders", 0)])})
    held = LanesBefore(7, {"a": tuple(ONE), "d": tuple(ZERO), "gone": (("orders", 9),)})

    found = read_holding(group, held, registry())

    assert found.owners == dict.fromkeys(ZERO, "d") | dict.fromkeys(ONE, "a")


def test_members_from_before_the_mark_have_lanes() -> None:
    """They have joined through an earlier version: a partition has no such number."""
    group = described({"a": (SAID, ONE), "b": (SAID, ZERO)})

    found = read_holding(group, NOTHING_HELD, registry())

    assert found.direct == frozenset()
    assert found.owners == dict.fromkeys(ONE, "a") | dict.fromkeys(ZERO, "b")
