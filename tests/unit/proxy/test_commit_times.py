"""proxy/commit_times.py: the last commit of each lane, within a bound."""

from __future__ import annotations

from keylane.proxy import commit_times as commit_times_module
from keylane.proxy.commit_times import CommitTimes


def test_each_lane_has_its_own_time() -> None:
    """Lane 1 twice, lane 2 once, lane 0 never; other groups and topics know nothing."""
    times = CommitTimes()

    times.note("g", "orders", 3, [1, 2], 1000)
    times.note("g", "orders", 3, [1], 2000)

    assert [times.last_ms("g", "orders", index) for index in range(4)] == [None, 2000, 1000, None]
    assert times.last_ms("g", "other", 1) is None
    assert times.last_ms("other", "orders", 1) is None


def test_another_lane_count_starts_anew() -> None:
    """Lane indexes mean other lanes then."""
    times = CommitTimes()
    times.note("g", "orders", 4, [3], 1000)

    times.note("g", "orders", 2, [0], 2000)

    assert [times.last_ms("g", "orders", index) for index in (0, 1, 3)] == [2000, None, None]
    assert times.entry_count == 2


def test_memory_is_bounded(monkeypatch) -> None:
    """Beyond the bound the group that committed longest ago is forgotten."""
    monkeypatch.setattr(commit_times_module, "ENTRIES_MAX", 4)
    times = CommitTimes()

    for now_ms, group in enumerate("abac", start=1):
        times.note(group, "orders", 2, [0], now_ms)

    assert times.entry_count == 4
    assert [times.last_ms(group, "orders", 0) for group in "abc"] == [3, None, 4]
