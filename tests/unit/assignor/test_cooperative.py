"""assignor/cooperative.py: a lane that is read by one member is given to no other."""

from __future__ import annotations

from dataclasses import replace

from keylane.assignor.cooperative import find_withheld, first_step
from keylane.assignor.model import Lane, LaneTopic, Member

TOPIC = LaneTopic(name="t", partition_count=2, lane_count=2)


def lanes(*indexes: int) -> tuple[Lane, ...]:
    return tuple(("t", index) for index in indexes)


def member(member_id: str, *owned: int, generation_id: int = 7, shares: bool = True) -> Member:
    return Member(
        member_id=member_id,
        topics=frozenset({"t"}),
        owned=lanes(*owned),
        generation_id=generation_id,
        shares=shares,
    )


def test_a_moving_lane_waits_for_its_owner() -> None:
    """The old owner loses lane 3, the new one gets it in the next rebalance."""
    target = {"a": lanes(0, 1, 2), "b": lanes(3)}

    step = first_step(target, [member("a", 0, 1, 2, 3), member("b")])

    assert step == {"a": lanes(0, 1, 2), "b": ()}
    assert find_withheld(target, step) == frozenset(lanes(3))
    assert first_step(target, [member("a", 0, 1, 2), member("b")]) == target


def test_lanes_of_a_dead_member_move_at_once() -> None:
    """A member that has left the group gives nothing up."""
    target = {"a": lanes(0, 1), "b": lanes(2, 3)}

    assert first_step(target, [member("a", 0, 1), member("b")]) == target


def test_a_double_claim_is_taken_from_both() -> None:
    """Two members that claim lane 1 in one generation both stop; then it is handed out."""
    target = {"a": lanes(0, 1), "b": lanes(2, 3)}

    step = first_step(target, [member("a", 0, 1), member("b", 1, 2, 3)])

    assert step == {"a": lanes(0), "b": lanes(2, 3)}


def test_an_outdated_claim_does_not_stop_the_owner() -> None:
    """The owner of the newest generation reads on although another still claims its lane."""
    target = {"a": lanes(0, 1), "b": lanes(2, 3)}

    step = first_step(target, [member("a", 0, 1), member("b", 1, 2, 3, generation_id=6)])

    assert step == target


def test_a_lane_with_an_outdated_claim_waits_all_the_same() -> None:
    """Any member that may still read a lane has to stop first, whatever its generation."""
    target = {"a": lanes(0), "b": lanes(1, 2, 3)}

    step = first_step(target, [member("a", 0, 1, generation_id=2), member("b", 2, 3)])

    assert step == {"a": lanes(0), "b": lanes(2, 3)}


def test_a_member_that_does_not_share_gets_a_partition_in_one_piece() -> None:
    """Partition 0 waits as a whole while one of its lanes is read elsewhere."""
    target = {"a": lanes(1, 3), "n": lanes(0, 2)}
    members = [member("a", 1, 2, 3), member("n", shares=False)]

    step = first_step(target, members, [TOPIC])

    assert step == {"a": lanes(1, 3), "n": ()}
    assert find_withheld(target, step) == frozenset(lanes(0, 2))
    assert first_step(target, [member("a", 1, 3), members[1]], [TOPIC]) == target


def test_a_member_that_stops_sharing_keeps_what_it_reads() -> None:
    """Its own lane stays, the others of the partition follow when they are free."""
    target = {"a": lanes(1, 3), "n": lanes(0, 2)}

    step = first_step(target, [member("a", 1, 2, 3), member("n", 0, shares=False)], [TOPIC])

    assert step == {"a": lanes(1, 3), "n": lanes(0)}


def test_a_topic_that_is_not_split_is_handed_over_whole() -> None:
    """No member gets a part of its partition while another still reads the rest."""
    topic = LaneTopic(name="t", partition_count=1, lane_count=2, is_split=False)
    members = [
        Member(member_id="a", topics=frozenset("t"), owned=(("t", 0),), generation_id=1),
        Member(member_id="b", topics=frozenset("t"), owned=(("t", 1),), generation_id=1),
        Member(member_id="c", topics=frozenset("t")),
    ]

    mixed = first_step({"a": (), "b": (), "c": (("t", 0), ("t", 1))}, members[1:], [topic])
    split = first_step(
        {"a": (), "b": (), "c": (("t", 0), ("t", 1))}, members[1:], [replace(topic, is_split=True)]
    )

    assert mixed["c"] == ()
    assert split["c"] == (("t", 0),)
