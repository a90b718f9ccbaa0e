"""keylane/assign.py: the standalone call, its ranges, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import keylane
from keylane.assign import Assignment, name_members
from keylane.assignor.model import Member
from keylane.assignor.range_plan import RangePlan
from keylane.errors import ConfigInvalid
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX, WHOLE, KeyRange, merge_ranges
from tests.reference.murmur2 import default_partition

N = HASH_MAX
LOWER, UPPER = KeyRange(0, N // 2 - 1), KeyRange(N // 2, N)
PLAN = RangePlan(
    topic="orders",
    lane_count=3,
    cuts=((100, 200), (10, 20)),
    epoch=1,
    predicted=((90, 5, 5), (30, 30, 40)),
)


def assert_covers(assignment: Assignment, topics: dict[str, int]) -> None:
    """Every hash of every partition is at exactly one member."""
    found: dict[tuple[str, int], list[KeyRange]] = {}
    for parts in assignment.values():
        for place, ranges in parts.items():
            found.setdefault(place, []).extend(ranges or [KeyRange(0, N)])
    assert set(found) == {(topic, p) for topic, count in topics.items() for p in range(count)}
    for cut in found.values():
        assert merge_ranges(cut) == WHOLE
        assert sum(part.hi - part.lo + 1 for part in cut) == N + 1


@pytest.mark.parametrize("strategy", ["round-robin", "range", "sticky-load"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12, 40])
def test_every_hash_is_at_one_member(strategy: Any, count: int) -> None:
    """Parts are disjoint and complete for each strategy, with few and with many members."""
    topics = {"orders": 3, "payments": 2}

    assignment = keylane.assign(topics, count, strategy=strategy)

    assert_covers(assignment, topics)
    assert list(assignment) == name_members(count)
    assert all(assignment.values())


def test_the_worked_example_by_the_standalone_call() -> None:
    """The worked example; M3 has the whole partition, written as nothing."""
    assignment = keylane.assign({"tp": 3}, ["M1", "M2", "M3", "M4", "M5"], strategy="round-robin")

    assert assignment == {
        "M1": {("tp", 0): (LOWER,)},
        "M2": {("tp", 1): (LOWER,)},
        "M3": {("tp", 2): ()},
        "M4": {("tp", 0): (UPPER,)},
        "M5": {("tp", 1): (UPPER,)},
    }


def test_whole_partitions_have_an_empty_tuple() -> None:
    """Members in the number of partitions get one each, without ranges."""
    assignment = keylane.assign({"t": 2}, 2)

    assert sorted(tuple(parts.items()) for parts in assignment.values()) == [
        ((("t", 0), ()),),
        ((("t", 1), ()),),
    ]


def test_a_plan_brings_cuts_and_loads() -> None:
    """The lane with nearly all of a partition's load is alone at one of two members."""
    assignment = keylane.assign({"orders": 2}, 2, plans=[PLAN])

    assert_covers(assignment, {"orders": 2})
    held = {place: ranges for parts in assignment.values() for place, ranges in parts.items()}
    assert held["orders", 1] == ()
    alone = keylane.assign({"orders": 2}, 3, plans=[PLAN])
    assert {("orders", 0): (KeyRange(0, 99),)} in alone.values()


def test_measured_loads_go_before_predicted_ones() -> None:
    """Loads that are given replace those of the plan."""
    loads = {("orders", index): 1.0 for index in range(6)}

    assignment = keylane.assign({"orders": 2}, 6, plans=[PLAN], loads=loads)

    assert all(len(parts) == 1 and all(parts.values()) for parts in assignment.values())


def test_members_may_say_what_they_own() -> None:
    """A member that owns a lane keeps it."""
    first = Member(member_id="a", topics=frozenset("t"), owned=(("t", 3), ("t", 1)))
    second = Member(member_id="b", topics=frozenset("t"), owned=(("t", 0), ("t", 2)))

    assignment = keylane.assign({"t": 2}, [first, second], lanes=2)

    assert assignment["a"] == {("t", 1): ()}
    assert assignment["b"] == {("t", 0): ()}


def test_member_names_keep_their_order() -> None:
    """Eleven members have two digits each."""
    assert name_members(11)[::10] == ["member-00", "member-10"]


def test_ranges_by_murmur2_are_lanes_of_kafkas_partitioner() -> None:
    """Each key is at one member, whose ranges hold all that the partitioner puts beside it."""
    layout = LaneLayout(2, 4, hash="murmur2")

    assignment = keylane.assign({"t": 2}, 3, lanes=4, hash="murmur2")

    owner: dict[int, str] = {}
    for key in (b"key-%d" % number for number in range(300)):
        partition, index = default_partition(key, 2), default_partition(key, 8)
        (member,) = [
            member
            for member, parts in assignment.items()
            for part in parts.get(("t", partition), ())
            if part.contains(layout.key_hash.point(key))
        ]
        assert owner.setdefault(index, member) == member
    assert sorted(owner) == list(range(8))


def test_neighbours_are_merged() -> None:
    """Ranges that touch become one, others stay apart."""
    ranges = [KeyRange(50, 60), KeyRange(0, 9), KeyRange(10, 20)]

    assert merge_ranges(ranges) == (KeyRange(0, 20), KeyRange(50, 60))


@pytest.mark.parametrize(
    ("topics", "members", "options", "message"),
    [
        ({}, 1, {}, "topics"),
        ({"t": 0}, 1, {}, "topic t"),
        ({"t": 10**9}, 1, {}, "topic t"),
        ({"t": 1}, 0, {}, "members"),
        ({"t": 1}, [], {}, "members"),
        ({"t": 1}, ["a", "b", "a"], {}, "a is named twice"),
        ({"t": 1}, 1, {"lanes": 0}, "lanes"),
        ({"t": 1}, 1, {"lanes": 1025}, "lanes"),
        ({"t": 100_000}, 1, {"lanes": 1024}, "lanes: 102400000"),
        ({"t": 1}, 1, {"strategy": "best"}, "strategy best"),
        ({"t": 1}, 1, {"strategy": "range", "lanes": 4}, "sticky-load alone"),
        ({"t": 1}, 1, {"hash": "murmur2"}, "needs a number of lanes"),
        ({"orders": 2}, 1, {"hash": "murmur2", "lanes": 3, "plans": [PLAN]}, "takes no plan"),
        ({"t": 1}, 1, {"hash": "murmur2", "strategy": "range"}, "cuts by members"),
        ({"orders": 2}, 1, {"plans": [PLAN, PLAN]}, "two are for one topic"),
        ({"t": 2}, 1, {"plans": [PLAN]}, "not among the topics"),
        ({"orders": 3}, 1, {"plans": [PLAN]}, "has 2 partitions"),
        ({"orders": 2}, 1, {"plans": [PLAN], "lanes": 4}, "has 3 lanes"),
    ],
)
def test_what_does_not_fit_is_refused(
    topics: dict[str, int], members: Any, options: dict[str, Any], message: str
) -> None:
    """The error says which argument, and how far it may go."""
    with pytest.raises(ConfigInvalid, match=message):
        keylane.assign(topics, members, **options)
