"""When offsets of running groups are committed again: once a turn, soon after a start, bounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.proxy.commits import refreshes as refreshes_module
from keylane.proxy.commits.refreshes import AGAIN_S_MAX, RETENTION_PARTS, SPREAD_S_MAX, Refreshes

HOUR_S = 3600.0


def turns(refreshes: Refreshes, group: str, until_s: float, step_s: float) -> list[float]:
    """The times at which a member that beats every `step_s` finds its group due."""
    count = int(until_s / step_s)
    return [n * step_s for n in range(count) if refreshes.is_due(group, n * step_s)]


def test_a_group_is_due_soon_after_a_start_and_then_once_an_interval() -> None:
    """However many members beat; two groups do not come at the same moment."""
    refreshes = Refreshes(12 * HOUR_S)

    mine = turns(refreshes, "a", 40 * HOUR_S, 10.0)
    others = turns(refreshes, "b", 40 * HOUR_S, 10.0)

    assert len(mine) == 4
    assert 0 < mine[0] <= SPREAD_S_MAX + 10.0
    assert [later - earlier for earlier, later in pairwise(mine)] == [12 * HOUR_S] * 3
    assert mine[0] != others[0]


def test_a_short_retention_counts_for_turns_that_were_given_before() -> None:
    """Brokers are asked while groups run already."""
    refreshes = Refreshes(12 * HOUR_S)
    before = turns(refreshes, "a", HOUR_S, 10.0)

    refreshes.note_retention(60.0)

    assert len(before) == 1
    assert refreshes.interval_s == 60.0 / RETENTION_PARTS
    assert refreshes.is_due("a", HOUR_S)
    assert not refreshes.is_due("a", HOUR_S + 14.0)
    assert refreshes.is_due("a", HOUR_S + 15.0)
    refreshes.note_retention(30 * 24 * HOUR_S)
    assert refreshes.interval_s == 12 * HOUR_S


def test_what_failed_is_tried_again_soon() -> None:
    """Well before the next turn."""
    refreshes = Refreshes(12 * HOUR_S)
    (due_s,) = turns(refreshes, "a", HOUR_S, 10.0)

    refreshes.try_again("a", due_s)

    assert not refreshes.is_due("a", due_s + AGAIN_S_MAX - 1)
    assert refreshes.is_due("a", due_s + AGAIN_S_MAX)


def test_groups_that_are_not_seen_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unseen first; a group that comes back gets a turn again."""
    monkeypatch.setattr(refreshes_module, "GROUPS_MAX", 2)
    refreshes = Refreshes(HOUR_S)
    for group in "abc":
        refreshes.is_due(group, 0.0)

    assert [refreshes.knows(group) for group in "abc"] == [False, True, True]


@given(
    retention_s=st.floats(60.0, 30 * 24 * HOUR_S),
    beat_s=st.floats(0.5, 10.0),
    started_s=st.floats(0, 1e6),
)
def test_an_offset_is_committed_again_within_half_of_its_retention(
    retention_s, beat_s, started_s
) -> None:
    """After a start too: a quarter, the spread, and the way from one heartbeat to the next."""
    refreshes = Refreshes(12 * HOUR_S)
    refreshes.note_retention(retention_s)
    last_s = now_s = started_s
    for _ in range(3):
        allowed_s = retention_s / 2 + beat_s
        first_s = last_s + min(refreshes.interval_s / RETENTION_PARTS, SPREAD_S_MAX)
        for now_s in (last_s, first_s, last_s + refreshes.interval_s, last_s + allowed_s):
            if refreshes.is_due("a", now_s):
                break
        else:
            raise AssertionError(f"not due within {allowed_s} s")
        assert now_s - last_s <= allowed_s
        last_s = now_s


def test_a_group_that_is_gone_has_no_turn() -> None:
    """Should it come back, it is new."""
    refreshes = Refreshes(HOUR_S)
    refreshes.is_due("a", 0.0)

    refreshes.forget("a")
    refreshes.forget("a")

    assert not refreshes.knows("a")
