"""Verdicts of the simulation's judge on lanes in the hands of a consumer group's members."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from tests.long.chaos_history import Commit, Place
from tests.simulation.hands import Hands, Quiet
from tests.simulation.possession import Possession, Unheard

STALE, UNKNOWN = 113, 25


def had(member: str, from_s: float, until_s: float = inf, *, epoch: int = 3) -> Possession:
    """Lane 0 in a member's hands."""
    return Possession(f"{member}-id", 0, from_s, epoch, until_s)


def hands(*possessions: Possession, a_until_s: float = inf) -> Hands:
    """The broker has members a and b, and a until some time."""
    return Hands("g", possessions, {"a-id": [(0.0, a_until_s)], "b-id": [(0.0, inf)]})


@pytest.mark.parametrize(
    ("first", "a_until_s", "is_breach"),
    [
        (had("a", 1.0, 5.0), inf, False),
        (had("a", 1.0, 5.1), inf, True),
        (had("a", 1.0), inf, True),
        (had("a", 1.0), 5.0, False),
        (had("b", 1.0, 5.1), inf, False),
    ],
    ids=["in time", "late", "never", "ended by the broker", "the same member"],
)
def test_a_lane_is_at_one_member_of_the_broker_s(first, a_until_s, is_breach) -> None:
    """b has it from second 5 on; what a zombie still reads is as direct."""
    found = hands(first, had("b", 5.0), a_until_s=a_until_s).at_two()

    assert bool(found) is is_breach


def test_a_lane_at_two_beside_one_that_came_later() -> None:
    """a keeps it while b has it twice: the second time is found as well."""
    found = hands(had("b", 1.0, 2.0), had("a", 3.0), had("b", 4.0, 5.0)).at_two()

    assert found


@pytest.mark.parametrize(
    ("from_s", "until_s", "is_breach"), [(4.0, inf, True), (6.0, inf, False), (4.0, 3.5, False)]
)
def test_nothing_changes_hands_in_a_quiet_time(from_s, until_s, is_breach) -> None:
    """From second 3 to 6, from a member that the broker has ended and that still reads."""
    quiet = [Quiet(3.0, 6.0)]

    found = hands(had("a", 1.0, until_s), had("b", from_s), a_until_s=2.0).too_soon(quiet)

    assert bool(found) is is_breach


@pytest.mark.parametrize(
    ("possession", "error", "is_breach"),
    [
        (had("a", 1.0), STALE, True),
        (had("a", 1.0), UNKNOWN, False),
        (had("a", 1.0, epoch=5), STALE, False),
        (had("a", 1.0, 4.5), STALE, False),
        (had("b", 1.0), STALE, False),
    ],
    ids=["had it", "another error", "given later", "given up", "of another"],
)
def test_a_commit_under_an_older_epoch_counts(possession, error, is_breach) -> None:
    """Asked for in epoch 4, and answered a second later: a had the lane all the time."""
    commit = Commit("a", Place("t", 0), 7, 4, 4.0, 5.0, error)

    assert bool(hands(possession).stale([commit])) is is_breach


def test_a_commit_of_a_member_that_the_broker_has_ended() -> None:
    """It may be refused for any reason."""
    commit = Commit("a", Place("t", 0), 7, 4, 4.0, 5.0, STALE)

    assert not hands(had("a", 1.0), a_until_s=4.5).stale([commit])


def test_a_commit_of_a_member_whose_heartbeat_was_lost() -> None:
    """Its epoch may have moved on, which neither it nor keylane has learnt."""
    commit = Commit("a", Place("t", 0), 7, 4, 4.0, 5.0, STALE)
    judge = hands(had("a", 1.0))

    assert not replace(judge, unheard=[Unheard("a-id", 3.0, 4.5)]).stale([commit])
    assert replace(judge, unheard=[Unheard("a-id", 3.0, 3.5)]).stale([commit])
