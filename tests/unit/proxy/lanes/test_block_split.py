"""CPU time of splitting is added up over threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from keylane.proxy.lanes.block_split import timed
from keylane.proxy.runtime.stats import ProxyStats


def test_the_time_of_each_call_is_added() -> None:
    """Arguments and results pass; the clock is read before and after."""
    stats, times = ProxyStats(), iter([1.0, 1.5, 4.0, 6.0])
    clocked = timed(lambda a, *, b: a + b, stats, clock=lambda: next(times))

    results = [clocked(1, b=2), clocked(3, b=4)]

    assert results == [3, 7]
    assert stats.kernel_seconds == 2.5


def test_a_call_that_fails_counts() -> None:
    """What it raises passes, and its time is counted."""

    def fail() -> None:
        raise ValueError("bad batch")

    stats, times = ProxyStats(), iter([1.0, 3.0])

    with pytest.raises(ValueError, match="bad batch"):
        timed(fail, stats, clock=lambda: next(times))()

    assert stats.kernel_seconds == 2.0


def test_no_time_is_lost_between_threads() -> None:
    """A thousand calls from eight threads are all counted."""
    stats = ProxyStats()
    clocked = timed(lambda: None, stats, clock=iter(range(2000)).__next__)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(1000):
            pool.submit(clocked)

    assert stats.kernel_seconds >= 1000
