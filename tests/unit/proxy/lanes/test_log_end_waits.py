"""Fetches at the log's end: which of them wait for new data, and what ends the wait."""

from __future__ import annotations

import asyncio

import pytest

from keylane.tasks import spawn
from tests.reference.broker_log import BrokerLog
from tests.reference.lane_bench import (
    WAIT_S,
    A,
    Bench,
    interleaved_log,
    next_offset_of,
    offsets_of,
)
from tests.virtual_time import run_virtual


def test_a_lane_of_markers_up_to_the_end_is_answered_once_it_is_read() -> None:
    """Every lane gets the markers of transactions: they end no wait, and begin none."""

    async def main() -> None:
        log = BrokerLog()
        log.append((A, b"v"), producer_id=5)
        log.append_marker(5, commit=True)
        bench = Bench(log)

        answer = await bench.fetch_one(1, 0, isolation=1)
        known_s = bench.now_s()
        again = await bench.fetch_one(1, 2, isolation=1)

        assert offsets_of(answer) == [] and next_offset_of(answer) == 2 and known_s < WAIT_S
        assert again.records == () and bench.now_s() - known_s == pytest.approx(WAIT_S)

    run_virtual(main)


def test_a_hurried_fetch_does_not_wait_for_new_data() -> None:
    """A request behind it would wait as long; other connections go on waiting."""

    async def main() -> None:
        bench = Bench(interleaved_log())
        await bench.fetch_one(0, 40, cursor="spark")
        hurried = spawn(bench.fetch_one(0, 51, cursor="spark", max_wait_ms=90_000), "hurried")
        patient = spawn(bench.fetch_one(1, 51, cursor="member", max_wait_ms=90_000), "patient")
        await asyncio.sleep(1)

        bench.fetcher.hurry("spark")
        bench.fetcher.hurry("unknown")

        assert (await hurried).records == () and bench.now_s() < 2
        assert not patient.done()
        bench.fetcher.hurry("spark")  # nothing waits any more
        patient.cancel()

    run_virtual(main)


def test_a_hurried_fetch_still_gets_what_is_upstream() -> None:
    """As at the end of `max_wait_ms`: an empty answer would cost the client another round."""

    async def main() -> None:
        bench = Bench(interleaved_log())
        fetching = spawn(bench.fetch_one(0, 40, cursor="spark", max_wait_ms=90_000), "fetch")
        await asyncio.sleep(0)

        bench.fetcher.hurry("spark")

        assert offsets_of(await fetching) == [40, 42, 44, 46, 48, 50]

    run_virtual(main)
