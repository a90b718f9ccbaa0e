"""proxy/groups/group_plans.py: one generation per group, bounded, the idlest forgotten first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.proxy.groups.group_plans import (
    NOTHING_HELD,
    Generations,
    Joined,
    JoinedMember,
    LanesBefore,
    Planned,
)


def joined(generation_id: int, *, size_bytes: int = 10) -> Joined:
    member = JoinedMember(member_id="m", instance_id=None, metadata=bytes(size_bytes))
    return Joined(
        generation_id=generation_id, leader_id="m", protocol_name="range", members=(member,)
    )


def planned(generation_id: int, lane_count: int = 3) -> Planned:
    lanes = {"m": tuple(("t", index) for index in range(lane_count))}
    return Planned(
        generation_id=generation_id,
        lanes=lanes,
        target=lanes,
        signature=(),
        withheld_count=0,
        moved_count=0,
    )


def test_a_generation_is_found_by_its_number_only() -> None:
    """An old leader's SyncGroup must not be planned with the members of a newer generation."""
    generations = Generations()

    generations.note_joined("g", joined(4))
    generations.note_joined("g", joined(5))

    assert generations.joined("g", 4) is None
    assert generations.joined("g", 5) == joined(5)
    assert generations.joined("other", 5) is None
    assert generations.newest("g") == 5


def test_a_plan_outlives_the_next_join() -> None:
    """The next generation starts from what was dealt out."""
    generations = Generations()
    generations.note_planned("g", planned(4))

    generations.note_joined("g", joined(5))

    assert generations.planned("g") == planned(4)
    assert generations.planned("other") is None
    assert list(generations.groups()) == ["g"]


def test_trouble_is_logged_once_per_plan() -> None:
    """A group that rebalances without end does not fill the log."""
    generations = Generations()

    reported = [generations.warn_once("g"), generations.warn_once("g")]
    generations.note_planned("g", planned(1))

    assert [*reported, generations.warn_once("g")] == [True, False, True]


def test_a_static_member_is_known_by_its_instance() -> None:
    """Its member id changes with each start."""
    before = JoinedMember(member_id="a-1", instance_id="a", metadata=b"")
    after = JoinedMember(member_id="a-2", instance_id="a", metadata=b"")
    dynamic = JoinedMember(member_id="a", instance_id=None, metadata=b"")

    assert before.identity == after.identity != dynamic.identity


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3000)), min_size=1, max_size=40
    )
)
def test_memory_is_bounded(steps: list[tuple[int, bool, int]]) -> None:
    """Whatever is noted: the cost is right and within its bound, the last group is known."""
    generations = Generations(cost_max=4000)

    for number, (group, is_plan, size) in enumerate(steps):
        if is_plan:
            generations.note_planned(f"g{group}", planned(number, size // 64))
        else:
            generations.note_joined(f"g{group}", joined(number, size_bytes=size))
        generations.check()

    assert f"g{steps[-1][0]}" in generations.groups()


def test_the_newest_lanes_are_held_whichever_side_dealt_them_out() -> None:
    """A generation that the client dealt out comes behind one of keylane, and before the next."""
    generations = Generations()
    before = generations.held("g")
    seen = LanesBefore(6, {"m": (("t", 9),)})

    generations.note_planned("g", planned(5))
    dealt = generations.held("g")
    generations.note_seen("g", joined(6), seen)
    found = generations.held("g")
    generations.note_planned("g", planned(7))

    assert before is NOTHING_HELD
    assert dealt == LanesBefore(5, planned(5).lanes)
    assert found is seen
    assert generations.held("g").generation_id == 7


def test_members_and_lanes_of_a_generation_are_current() -> None:
    """A plan without its members, or of another generation, says nothing about this one."""
    generations = Generations()
    generations.note_joined("g", joined(4))
    unplanned = generations.current("g", 4)
    generations.note_planned("g", planned(4))
    seen = LanesBefore(5, {})
    generations.note_seen("g", joined(5), seen)

    assert unplanned is None
    assert generations.current("g", 4) == (joined(4), LanesBefore(4, planned(4).lanes))
    assert generations.current("g", 5) == (joined(5), seen)
    assert generations.current("g", 6) is None


def test_a_leader_is_known_for_its_generation() -> None:
    """Until keylane has no part in the group's newest generation any more."""
    generations = Generations()
    generations.note_leader("other", 4, "m")
    generations.note_joined("g", joined(4))
    first = generations.leader("g", 4)

    generations.note_leader("g", 5, "n")
    second = generations.leader("g", 4), generations.leader("g", 5)
    generations.note_left_out("g")
    generations.note_left_out("other")

    assert (first, second) == ("m", (None, "n"))
    assert generations.leader("g", 5) is None
    assert generations.newest("g") is None
    assert "other" not in generations
