"""proxy/scans/log_times.py: ages by thinned points are close to those by all of them."""

from __future__ import annotations

import uuid

import hypothesis.strategies as st
from hypothesis import given

from keylane.proxy.scans.log_times import POINTS_MAX, Age, LogTimes, PartitionTimes

TOPIC = uuid.UUID(int=1)
STEP_S = 10.0


class AllPoints:
    """The naive twin: keeps each point."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = []

    def note(self, now_s: float, end: int) -> None:
        self.points = [(at_s, known) for at_s, known in self.points if known <= end]
        self.points.append((now_s, end))

    def bracket(self, offset: int) -> tuple[float, float] | None:
        """Return times between which the record at an offset came; None: before all, or not."""
        before = [at_s for at_s, end in self.points if end <= offset]
        after = [at_s for at_s, end in self.points if end > offset]
        return (before[-1], after[0]) if before and after else None


def test_the_time_of_a_record_lies_between_two_ends() -> None:
    """As evenly as offsets lie; 0 behind the end, a lower bound before the first point."""
    times = PartitionTimes()
    assert times.age(0, 0.0) is None
    for now_s, end in ((100.0, 50), (110.0, 50), (120.0, 60)):
        times.note(now_s, end)
        times.check()

    assert times.age(60, 125.0) == Age(0.0, is_exact=True)
    assert times.age(50, 125.0) == Age(14.5, is_exact=True)
    assert times.age(59, 125.0) == Age(5.5, is_exact=True)
    assert times.age(49, 125.0) == Age(25.0, is_exact=False)


def test_a_log_that_stands_takes_two_points() -> None:
    """So that the time at which it moves on is known, after any time."""
    times = PartitionTimes()
    for step in range(10_000):
        times.note(step * STEP_S, 7)
    times.note(100_000.0, 8)

    assert len(times._times) == 3
    assert times.age(7, 100_000.0) == Age(5.0, is_exact=True)


def test_two_distant_points_are_an_estimate() -> None:
    """A record between them came at some time."""
    times = PartitionTimes()
    times.note(0.0, 0)
    times.note(100.0, 10)

    age = times.age(5, 100.0)

    assert age is not None and not age.is_exact and 0 <= age.seconds <= 100


def test_a_cut_log_forgets_what_it_denies() -> None:
    """Ends above the new one are of the log before."""
    times = PartitionTimes()
    for now_s, end in ((0.0, 0), (10.0, 100), (20.0, 50)):
        times.note(now_s, end)
        times.check()

    assert (times.end, times.noted_s) == (50, 20.0)
    assert times.age(50, 20.0) == Age(0.0, is_exact=True)


def test_a_late_answer_changes_nothing() -> None:
    """Two callers may ask at once."""
    times = PartitionTimes()
    times.note(10.0, 5)
    times.note(9.0, 3)

    assert (times.end, times.noted_s) == (5, 10.0)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=400), st.data())
def test_thinned_points_are_as_good_as_their_age_allows(flow, data) -> None:
    """The age is within a bracket of all points, up to a part of the age."""
    times, twin = PartitionTimes(), AllPoints()
    now_s, end = 0.0, 0
    for grown in flow:
        now_s, end = now_s + STEP_S, end + grown
        times.note(now_s, end)
        twin.note(now_s, end)
        times.check()
    offset = data.draw(st.integers(0, max(0, end - 1)))
    bracket = twin.bracket(offset)

    age = times.age(offset, now_s)

    assert age is not None and age.seconds >= 0
    if bracket is not None:
        since_s, until_s = now_s - bracket[0], now_s - bracket[1]
        slack_s = 0.5 * since_s if len(flow) > POINTS_MAX else 0.0
        assert until_s - slack_s <= age.seconds <= since_s + slack_s


@given(st.lists(st.integers(1, 20), min_size=1, max_size=300))
def test_later_offsets_are_younger(flow) -> None:
    """Ages never grow with the offset."""
    times, now_s, end = PartitionTimes(), 0.0, 0
    for grown in flow:
        now_s, end = now_s + STEP_S, end + grown
        times.note(now_s, end)

    found = [times.age(offset, now_s) for offset in range(0, end + 1, max(1, end // 50))]

    seconds = [age.seconds for age in found if age is not None]
    assert seconds == sorted(seconds, reverse=True)


def test_partitions_that_were_not_seen_for_longest_are_forgotten() -> None:
    """Memory is bounded."""
    book = LogTimes(partitions_max=2)
    for partition in (0, 1, 0, 2):
        book.note({(TOPIC, partition): 5}, float(partition + 1))

    assert [book.end((TOPIC, partition)) for partition in range(3)] == [5, -1, 5]
    assert book.age((TOPIC, 1), 0, 9.0) is None
    assert book.noted_s((TOPIC, 1)) == float("-inf")
