"""proxy/control/watch/progress.py: records done per second, and members that are stuck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given

from keylane.proxy.control.watch.progress import STUCK_S, GroupProgress, ProgressBook


@dataclass(frozen=True)
class Lane:
    """A lane at the time of a sample."""

    lane_index: int
    member_id: str | None
    committed: int | None
    log_end: int
    lag_is_exact: bool = True
    topic: str = "orders"

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else self.log_end - self.committed


class Dense:
    """Each offset is a record of the lane."""

    is_sure = True

    def count(self, topic: str, index: int, start: int, end: int) -> int:
        del topic, index
        return end - start

    def has_records(self, topic: str, index: int, start: int) -> bool:
        del topic, index, start
        return self.is_sure


def play(steps: Sequence[Sequence[Lane]], *, step_s: float = 10.0) -> GroupProgress:
    """Samples, one each `step_s`."""
    progress = GroupProgress()
    for number, lanes in enumerate(steps):
        progress.note(lanes, Dense(), number * step_s)
    return progress


def test_a_steady_member_has_its_rate() -> None:
    """100 records each 10 s are 10 per second, from the second sample on."""
    steps = [[Lane(0, "a", 100 * number, 5_000)] for number in range(20)]

    assert play(steps[:1]).done_per_s("orders", 0) is None
    for count in (2, 5, 20):
        assert play(steps[:count]).done_per_s("orders", 0) == pytest.approx(10, rel=0.1)
    assert play(steps).done_per_s("orders", 1) is None
    assert play(steps).done_per_s("other", 0) is None


def test_a_lane_without_a_commit_has_no_rate() -> None:
    """Its first commit says nothing of the time before."""
    steps = [[Lane(0, "a", None, 50)], [Lane(0, "a", 40, 50)]]

    assert play(steps[:1] * 3).done_per_s("orders", 0) is None
    assert play(steps).done_per_s("orders", 0) == 0


def test_a_reset_is_no_work() -> None:
    """Offsets that go back are not done backwards, nor are they done."""
    steps = [[Lane(0, "a", 100, 200)], [Lane(0, "a", 0, 200)]]

    assert play(steps).done_per_s("orders", 0) == 0


def test_a_member_that_leaves_records_is_stuck() -> None:
    """From a minute on, and no more once it commits."""
    waiting = [Lane(0, "a", 5, 100), Lane(1, "b", 100, 100)]
    progress = play([waiting] * 7)

    assert progress.stuck(STUCK_S - 1) == {}
    assert progress.stuck(STUCK_S) == {"a": STUCK_S}
    progress.note([Lane(0, "a", 6, 100), waiting[1]], Dense(), 70.0)
    assert progress.stuck(STUCK_S + 20) == {}


def test_one_lane_that_moves_is_progress() -> None:
    """The member works; its other lane waits for its turn."""
    steps = [[Lane(0, "a", 5, 100), Lane(1, "a", number, 100)] for number in range(10)]

    assert play(steps).stuck(100.0) == {}


def test_a_report_is_newer_than_the_last_sample() -> None:
    """After 70 s the member is stuck by the sample; by the report at hand its lane has moved."""
    progress = play([[Lane(0, "a", 5, 100), Lane(1, "b", None, 100)]], step_s=70.0)

    assert progress.stuck(70.0) == {"a": 70.0}
    assert progress.has_moved(Lane(0, "a", 6, 100))
    progress.note([Lane(0, "a", 6, 100), Lane(1, "b", None, 100)], Dense(), 70.0)
    assert progress.stuck(70.0) == {}
    assert not progress.has_moved(Lane(0, "a", 6, 100))


@pytest.mark.parametrize(
    ("lane", "has_moved"),
    [
        (Lane(0, "a", 5, 200), False),
        (Lane(1, "b", None, 100), False),
        (Lane(1, "b", 0, 100), True),
        (Lane(0, "a", None, 100), True),
        (Lane(0, "b", 5, 100), True),
        (Lane(0, None, 5, 100), True),
        (Lane(2, "a", 5, 100), True),
        (Lane(0, "a", 5, 100, topic="other"), True),
    ],
)
def test_a_lane_has_moved_by_its_commit_or_its_member(lane, has_moved) -> None:
    """Or where no sample has it; the end of the log alone is no move."""
    progress = play([[Lane(0, "a", 5, 100), Lane(1, "b", None, 100)]])

    assert progress.has_moved(lane) is has_moved


def test_a_new_member_has_its_minute() -> None:
    """Lanes that have waited at another member have moved when they came."""
    steps = [[Lane(0, "a", 5, 100)]] * 7 + [[Lane(0, "b", 5, 100)]] * 5
    progress = play(steps)

    assert progress.stuck(110.0) == {}
    assert progress.stuck(70.0 + STUCK_S) == {"b": STUCK_S}


def test_a_member_without_records_waits() -> None:
    """Nor is one stuck whose lag may be nothing but other lanes' records."""
    assert play([[Lane(0, "a", 100, 100)]] * 20).stuck(1_000.0) == {}
    assert play([[Lane(0, "a", None, 100)]] * 20).stuck(1_000.0) == {}
    progress, unsure = GroupProgress(), Dense()
    unsure.is_sure = False
    for number in range(20):
        progress.note([Lane(0, "a", 5, 100, lag_is_exact=False)], unsure, number * 10.0)
    assert progress.stuck(1_000.0) == {}


def test_records_that_came_late_give_time() -> None:
    """The minute begins when the records wait, not when the member last did something."""
    steps = [[Lane(0, "a", 100, 100)]] * 30 + [[Lane(0, "a", 100, 200)]] * 2
    progress = play(steps)

    assert progress.stuck(320.0) == {}
    assert progress.stuck(300.0 + STUCK_S) == {"a": STUCK_S}


def test_a_topic_that_was_made_anew_begins_anew() -> None:
    """It has another number of lanes."""
    steps = [[Lane(0, "a", 5, 100)], [Lane(0, "a", 50, 100), Lane(1, "a", 60, 100)]]

    assert play(steps).done_per_s("orders", 0) == 0


@given(st.lists(st.integers(0, 100), min_size=2, max_size=60))
def test_the_rate_is_never_above_the_busiest_step(done) -> None:
    """Nor below the laziest one."""
    total, steps = 0, [[Lane(0, "a", 0, 10**6)]]
    for count in done:
        total += count
        steps.append([Lane(0, "a", total, 10**6)])

    rate = play(steps).done_per_s("orders", 0)

    assert rate is not None
    # A step counts as done at its end, so the first ones weigh a sixth too much at most.
    assert min(done) / 10 <= rate * 1.001 and rate <= max(done) / 10 * 1.1


def test_the_lanes_of_all_groups_are_bounded() -> None:
    """The group that was sampled the longest ago goes first."""
    book = ProgressBook(lanes_max=10)
    for group in ("a", "b", "c"):
        book.note(group, [Lane(index, "m", 0, 9) for index in range(4)], Dense(), 0.0)

    assert book.of("a").topics == {}
    assert book.of("c").topics.keys() == {"orders"}
    book.keep({"b"})
    assert book.of("c").topics == {}
