"""proxy/commits/lane_uses.py: the last commit of each lane, within a bound."""

from __future__ import annotations

import uuid

from keylane.proxy.commits import lane_uses
from keylane.proxy.commits.lane_uses import TOPIC_BYTES, CommitTimes

ORDERS, OTHER = (uuid.UUID(int=1), "orders"), (uuid.UUID(int=2), "other")


def test_each_lane_has_its_own_time() -> None:
    """Lane 1 twice, lane 2 once, lane 0 never; other groups and topics know nothing."""
    times = CommitTimes()

    times.note("g", ORDERS, 3, [1, 2], 1000)
    times.note("g", ORDERS, 3, [1], 2000)

    assert [times.last_ms("g", ORDERS, index) for index in range(4)] == [None, 2000, 1000, None]
    assert times.last_ms("g", OTHER, 1) is None
    assert times.last_ms("other", ORDERS, 1) is None


def test_another_lane_count_starts_anew() -> None:
    """Lane indexes mean other lanes then."""
    times = CommitTimes()
    times.note("g", ORDERS, 4, [3], 1000)

    times.note("g", ORDERS, 2, [0], 2000)

    assert [times.last_ms("g", ORDERS, index) for index in (0, 1, 3)] == [2000, None, None]
    assert times.size_bytes == TOPIC_BYTES + 2 * 8


def test_a_topic_that_was_made_anew_has_no_times() -> None:
    """It has the name of the one that was deleted, and another id."""
    times = CommitTimes()
    times.note("g", ORDERS, 2, [0], 1000)

    assert times.last_ms("g", (uuid.UUID(int=3), "orders"), 0) is None


def test_memory_is_bounded(monkeypatch) -> None:
    """Beyond the bound the group that committed longest ago is forgotten, with all its topics."""
    each_bytes = TOPIC_BYTES + 2 * 8
    monkeypatch.setattr(lane_uses, "BYTES_MAX", 3 * each_bytes)
    times = CommitTimes()

    for now_ms, (group, topic) in enumerate(
        [("a", ORDERS), ("b", ORDERS), ("b", OTHER), ("a", ORDERS), ("c", ORDERS)], start=1
    ):
        times.note(group, topic, 2, [0], now_ms)

    assert times.size_bytes == 2 * each_bytes
    assert [times.last_ms(group, ORDERS, 0) for group in "abc"] == [4, None, 5]
    assert times.last_ms("b", OTHER, 0) is None


def test_one_group_may_have_more_than_the_bound(monkeypatch) -> None:
    """It is the one that commits."""
    monkeypatch.setattr(lane_uses, "BYTES_MAX", TOPIC_BYTES)
    times = CommitTimes()

    times.note("a", ORDERS, 2, [0], 1)
    times.note("a", OTHER, 2, [0], 2)

    assert [times.last_ms("a", topic, 0) for topic in (ORDERS, OTHER)] == [1, 2]


def test_what_a_group_keeps_no_state_of_is_forgotten() -> None:
    """Its other topics stay, and the group goes with the last one."""
    times = CommitTimes()
    for topic in (ORDERS, OTHER):
        times.note("a", topic, 2, [0], 1)

    times.keep("a", {ORDERS[0]})
    with_one = [times.last_ms("a", topic, 0) for topic in (ORDERS, OTHER)], times.size_bytes
    times.keep("a", set())
    times.keep("unknown", set())

    assert with_one == ([1, None], TOPIC_BYTES + 2 * 8)
    assert (times.last_ms("a", ORDERS, 0), times.size_bytes) == (None, 0)
