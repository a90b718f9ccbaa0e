"""proxy/groups/load_turns.py: when load is looked at, and which member is asked to join again."""

from __future__ import annotations

from keylane.proxy.groups.load_turns import LoadTurn, LoadTurns


def test_load_is_weighed_after_a_tenth_of_the_interval() -> None:
    """The first heartbeat of a generation is for a look, the ones after a minute to weigh."""
    turns = LoadTurns(600.0)

    seen = [turns.next("g", 1, at_s) for at_s in (0.0, 3.0, 59.0, 60.0, 63.0, 120.0)]

    assert seen == [LoadTurn.LOOK, None, None, LoadTurn.WEIGH, None, LoadTurn.WEIGH]


def test_two_rebalances_are_asked_for_at_intervals() -> None:
    """The generation after one that was asked for is left alone for the whole interval."""
    turns = LoadTurns(600.0)
    turns.next("g", 1, 0.0)

    assert turns.ask("g", 1, 60.0)
    seen = [turns.next("g", 1, 130.0), turns.next("g", 2, 140.0), turns.next("g", 2, 659.0)]

    assert seen == [None, LoadTurn.LOOK, None]
    assert turns.next("g", 2, 660.0) is LoadTurn.WEIGH


def test_the_leader_alone_is_asked() -> None:
    """Another member's JoinGroup begins no rebalance, and would only make it stop for a moment."""
    turns = LoadTurns(600.0)
    turns.next("g", 1, 0.0)
    before = turns.is_asked("g", "leader", "leader")

    turns.ask("g", 1, 60.0)

    assert not before
    assert turns.is_asked("g", "leader", "leader")
    assert not turns.is_asked("g", "follower", "leader")
    assert not turns.is_asked("other", "leader", "leader")


def test_one_member_is_asked_for_an_unknown_leader() -> None:
    """The answer to its JoinGroup names the leader; a second member would stop for nothing."""
    turns = LoadTurns(600.0)
    turns.next("g", 1, 0.0)
    turns.ask("g", 1, 60.0)

    asked = [turns.is_asked("g", name, None) for name in "bcb"]

    assert asked == [True, False, True]
    assert not turns.is_asked("g", "b", "leader")


def test_a_new_generation_is_not_asked_for_what_was() -> None:
    """The group rebalanced meanwhile: its lanes were assigned by load with that."""
    turns = LoadTurns(600.0)
    turns.next("g", 1, 0.0)
    turns.next("g", 2, 1.0)

    assert not turns.ask("g", 1, 60.0)
    assert not turns.is_asked("g", "leader", "leader")
