"""Records that a member gets ahead of its polls: what it works off in half a second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.share.pace import AHEAD_S, POLLS_MAX, Pace


def cycles(pace: Pace, poll: int, record_s: float, times: int) -> list[int]:
    """Records of each request of a member that works on each record for `record_s`."""
    now_s, found = 0.0, []
    for _ in range(times):
        count = pace.ask(poll, now_s, is_free=True)
        pace.give(count, now_s)
        now_s += count * record_s
        found.append(count)
    return found


def test_a_member_that_works_fast_gets_several_polls() -> None:
    """It begins with one, and gets twice as many each time, up to the bound."""
    assert cycles(Pace(), 10, 0.001, 5) == [10, 20, 40, 80, 80]


def test_a_poll_of_a_tenth_of_a_second_is_given_five_times() -> None:
    """Five polls are half a second of work."""
    assert cycles(Pace(), 10, 0.01, 5) == [10, 20, 40, 50, 50]


def test_a_member_that_works_slowly_gets_one_poll() -> None:
    """Its keys would wait for long, and the locks of the last records would end."""
    assert cycles(Pace(), 1, 20.0, 4) == [1, 1, 1, 1]


def test_a_member_that_becomes_slow_gets_one_poll_at_once() -> None:
    """Growth is slow, the way back is not."""
    pace = Pace()
    assert cycles(pace, 10, 0.001, 3)[-1] == 40
    assert pace.ask(10, 100.0, is_free=True) == 10


def test_a_member_that_fetches_ahead_of_its_work_gets_one_poll() -> None:
    """It asks at once for more, however long it works: its requests say nothing of its pace."""
    pace = Pace()
    assert cycles(pace, 10, 0.001, 3)[-1] == 40
    found = []
    for now_s in (1.0, 1.001, 1.002):
        found.append(pace.ask(10, now_s, is_free=False))
        pace.give(found[-1], now_s)
    assert found == [10, 10, 10]


def test_waiting_for_records_says_nothing_of_the_pace() -> None:
    """Requests that were answered without records change nothing."""
    pace = Pace()
    assert cycles(pace, 10, 0.001, 2)[-1] == 20
    found = [pace.ask(10, now_s, is_free=True) for now_s in (0.04, 0.5, 60.0)]
    assert found == [40, 40, 40]


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.floats(0, 60), st.booleans()), min_size=1, max_size=20
    )
)
def test_the_work_given_ahead_is_bounded(steps: list[tuple[int, float, bool]]) -> None:
    """By the last pace, no more than one poll goes beyond half a second."""
    pace, now_s, known = Pace(), 0.0, None
    for poll, seconds, gives in steps:
        if known is not None:
            known = known[0], known[1] + seconds
        now_s += seconds
        count = pace.ask(poll, now_s, is_free=True)
        assert count % poll == 0 and poll <= count <= POLLS_MAX * poll
        if known is not None and known[0]:
            record_s = known[1] / known[0]
            assert (count - poll) * record_s <= AHEAD_S * (1 + 1e-9) + 1e-9
        known = (count, 0.0) if gives else None
        if gives:
            pace.give(count, now_s)


@pytest.mark.parametrize("records_max", [0, -1])
def test_a_request_for_no_records_is_no_poll(records_max: int) -> None:
    """It acknowledges, and says nothing of the pace."""
    pace = Pace()
    assert cycles(pace, 10, 0.001, 2)[-1] == 20
    assert pace.ask(records_max, 0.02, is_free=True) <= 0
    assert pace.ask(10, 0.04, is_free=True) == 40
