"""assignor/checks.py: what is wrong with a plan is named, and nothing else."""

from __future__ import annotations

import pytest

from keylane.assignor.checks import find_faults
from keylane.assignor.model import Lane, LaneTopic, Member, find_owners, member_order

TOPIC = LaneTopic(name="t", partition_count=2, lane_count=2)
A = Member(member_id="a", topics=frozenset({"t"}))
B = Member(member_id="b", topics=frozenset({"t"}))
OTHER = Member(member_id="o", topics=frozenset({"x"}))
ALONE = Member(member_id="n", topics=frozenset({"t"}), shares=False)


def lanes(*indexes: int) -> tuple[Lane, ...]:
    return tuple(("t", index) for index in indexes)


def test_a_good_plan_has_no_faults() -> None:
    """All four lanes are at one member each."""
    assert find_faults({"a": lanes(0, 3), "b": lanes(1, 2)}, [A, B], [TOPIC]) == []


def test_overlap_is_found() -> None:
    """A lane at two members is named with both."""
    faults = find_faults({"a": lanes(0, 1), "b": lanes(1, 2, 3)}, [A, B], [TOPIC])

    assert faults == ["lane 1 of t overlaps: at a, b"]


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        ({"a": lanes(0, 1, 2)}, "gap: lane 3 of t has no member"),
        ({"a": lanes(0, 1, 2, 3, 4)}, "lane 4 of t does not exist"),
        ({"a": lanes(0, 1, 2, 3, -1)}, "lane -1 of t does not exist"),
        ({"a": lanes(0, 1, 2, 3, 3)}, "lane 3 of t overlaps: at a, a"),
        ({"a": lanes(0, 1, 2, 3), "z": ()}, "z is no member"),
        (
            {"a": lanes(0, 1, 2), "o": lanes(3)},
            "lane 3 of t is at o, which does not subscribe to it",
        ),
        (
            {"a": lanes(0, 1, 3), "n": lanes(2)},
            "n does not share, but has a part of partition 0 of t",
        ),
    ],
)
def test_each_fault_is_named(plan: dict[str, tuple[Lane, ...]], fault: str) -> None:
    """One fault in the plan gives one line that says where."""
    assert find_faults(plan, [A, B, OTHER, ALONE], [TOPIC]) == [fault]


def test_a_topic_without_subscribers_has_no_gaps() -> None:
    """Lanes that no member asked for need no owner."""
    assert find_faults({"o": ()}, [OTHER], [TOPIC]) == []


def test_withheld_lanes_are_no_gaps_but_must_be_free() -> None:
    """The first step of a cooperative rebalance leaves lanes out; handing one out is a fault."""
    plan = {"a": lanes(0, 1), "b": lanes(2)}

    assert find_faults(plan, [A, B], [TOPIC], withheld=lanes(3)) == []
    assert find_faults(plan, [A, B], [TOPIC], withheld=lanes(2, 3)) == [
        "lane 2 of t is withheld, but at b"
    ]


def test_static_members_come_first() -> None:
    """A static member that comes back with another id keeps its place."""
    static = Member(member_id="z-9", topics=frozenset(), instance_id="a")

    assert member_order([B, static, A]) == [static, A, B]


def test_two_members_of_one_id_are_refused() -> None:
    """An id names one member."""
    with pytest.raises(ValueError, match="same id"):
        member_order([A, A])


def test_the_newest_claim_owns_a_lane() -> None:
    """A member that was away claims lanes of an older generation in vain (KIP-792)."""
    old = Member(member_id="a", topics=A.topics, owned=lanes(0, 1), generation_id=4)
    new = Member(member_id="b", topics=A.topics, owned=lanes(1), generation_id=5)

    assert find_owners([new, old]) == {("t", 0): [old], ("t", 1): [new]}


@pytest.mark.parametrize(("partitions", "lane_count"), [(0, 1), (1, 0), (-1, 4)])
def test_a_topic_without_lanes_is_refused(partitions: int, lane_count: int) -> None:
    """Counts start at one."""
    with pytest.raises(ValueError, match="topic t"):
        LaneTopic(name="t", partition_count=partitions, lane_count=lane_count)


def test_racks_are_of_all_partitions_or_none() -> None:
    """Two partitions need the racks of two."""
    with pytest.raises(ValueError, match="racks of 1"):
        LaneTopic(name="t", partition_count=2, lane_count=1, partition_racks=(frozenset({"r"}),))


def test_a_part_of_a_topic_that_is_not_split_is_a_fault() -> None:
    """Members that share may have no part of it either."""
    topic = LaneTopic(name="t", partition_count=1, lane_count=2, is_split=False)
    members = [Member(member_id=name, topics=frozenset("t")) for name in "ab"]

    faults = find_faults({"a": (("t", 0),), "b": (("t", 1),)}, members, [topic])

    assert len(faults) == 2 and all("part of partition 0 of t" in text for text in faults)
    assert not find_faults({"a": (("t", 0), ("t", 1)), "b": ()}, members, [topic])
