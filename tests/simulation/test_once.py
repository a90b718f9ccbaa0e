"""The judge's check for two members at one lane in one generation."""

from __future__ import annotations

import pytest

from tests.long.chaos_history import Commit, Event, GroupHistory, Place
from tests.simulation.once import two_at_once

DELETED = [("g0", 5.0)]


@pytest.mark.parametrize(
    ("asked_s", "answered_s", "is_two"),
    [(4.0, 4.5, False), (4.0, 5.5, False), (6.0, 6.5, True)],
)
def test_a_commit_counts_in_the_group_that_it_was_asked_of(
    asked_s: float, answered_s: float, is_two: bool
) -> None:
    """Its answer may come when the group has been deleted: generations have begun anew by then."""
    place = Place("t0", 3)
    events: list[Event] = [
        Commit("g0m0.1", place, 16, 1, asked_s, answered_s),
        Commit("g0m0.2", place, 16, 1, 9.0, 9.5),
    ]

    group = GroupHistory(group="g0", partitions={"t0": 2}, lane_of=lambda *_: 0, events=events)
    found = two_at_once(group, DELETED)

    assert bool(found) is is_two
