"""The first answer of several: a slow one has the next one asked, a failed one at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from keylane.errors import ConfigInvalid, UpstreamLost
from keylane.proxy.net.hedge import first_answer
from tests.virtual_time import run_virtual

Way = Callable[[], Awaitable[str]]


class Ways:
    """Ways that answer after so many seconds; a negative number: they fail then."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.begun: list[tuple[int, float]] = []
        self.cancelled: list[int] = []
        self.hedged: list[int] = []

    async def first(self) -> tuple[str, float]:
        found = await first_answer(
            [self._way(number) for number in range(len(self.seconds))], on_hedge=self.hedged.append
        )
        return found, now_s()

    def _way(self, number: int) -> Way:
        async def way() -> str:
            self.begun.append((number, now_s()))
            try:
                await asyncio.sleep(abs(self.seconds[number]))
            except asyncio.CancelledError:
                self.cancelled.append(number)
                raise
            if self.seconds[number] < 0:
                raise UpstreamLost(f"way {number}")
            return f"way {number}"

        return way


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_one_that_answers_is_asked_alone() -> None:
    """Nothing else is begun."""
    ways = Ways(0.9, 0.0)

    assert run_virtual(ways.first) == ("way 0", 0.9)
    assert ways.begun == [(0, 0.0)] and ways.hedged == []


def test_one_that_hangs_costs_a_second() -> None:
    """Two that hang cost two; a way that is not needed any more is cancelled."""
    ways = Ways(600, 600, 0.5, 0.0)

    assert run_virtual(ways.first) == ("way 2", 2.5)
    assert ways.begun == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert ways.cancelled == [0, 1] and ways.hedged == [0, 1]


def test_a_failure_has_the_next_one_begun_at_once() -> None:
    """And is no slowness."""
    ways = Ways(-0.1, 0.2)

    found, at_s = run_virtual(ways.first)
    assert found == "way 1" and at_s == pytest.approx(0.3)
    assert ways.hedged == []


def test_a_slow_one_may_still_be_the_first() -> None:
    """Its answer counts, whatever way was asked beside it."""
    assert run_virtual(Ways(1.5, 600).first) == ("way 0", 1.5)
    assert run_virtual(Ways(5, -0.1).first) == ("way 0", 5.0)


def test_all_that_failed_are_named() -> None:
    """In the order in which they failed."""
    with pytest.raises(UpstreamLost, match="way 1; way 0"):
        run_virtual(Ways(-3, -0.1).first)


def test_what_no_other_way_heals_is_raised_as_it_is() -> None:
    """An old cluster is old at all of its brokers."""

    async def old() -> str:
        raise ConfigInvalid("too old")

    async def main() -> str:
        return await first_answer([old, old])

    with pytest.raises(ConfigInvalid, match="too old"):
        run_virtual(main)
