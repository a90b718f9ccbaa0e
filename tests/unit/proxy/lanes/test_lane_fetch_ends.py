"""What is kept for readers ends: claims, connections; and how many readers there may be."""

from __future__ import annotations

import asyncio

from keylane.keyrange.key_split import PartitionSplit
from keylane.proxy.lanes.fetcher import READER_IDLE_S
from keylane.tasks import spawn
from keylane.wire.batch import CODEC_LZ4
from tests.reference.lane_bench import (
    FOUR,
    TOPIC_ID,
    TWO,
    WAIT_S,
    A,
    B,
    Bench,
    interleaved_log,
    offsets_of,
)
from tests.virtual_time import run_virtual


def test_claims_end_while_others_listen() -> None:
    """A client that gave a lane up, and reads others, holds none of it half a minute later."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        await bench.fetch({0: 40, 1: 40}, cursor="old owner")
        listening = spawn(bench.fetch_one(1, 51, cursor="old owner", max_wait_ms=90_000), "poll")
        await asyncio.sleep(1)
        await bench.fetch_one(0, 40, cursor="new owner")
        await bench.fetch_one(0, 51, cursor="new owner", max_wait_ms=0)
        log.append((A, b"new"))
        await bench.fetch_one(0, 51, cursor="new owner")
        lanes = next(iter(bench.fetcher._readers.values())).log.lanes
        held = bench.fetcher.cache.bytes_used

        for _ in range(41):
            await asyncio.sleep(1)
            await bench.fetch_one(0, 52, cursor="new owner", max_wait_ms=0)

        assert held > 0 and bench.fetcher.cache.bytes_used == 0
        assert list(lanes[0].claims) == ["new owner"]
        assert list(lanes[1].claims) == ["old owner"], "its request waits"
        log.append((B, b"new"))
        assert offsets_of(await listening) == [52]

    run_virtual(main)


def test_nothing_is_kept_for_a_lane_that_no_connection_asks_for() -> None:
    """For some minutes it waits, then not: others read that lane elsewhere. It may come back."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        held = bench.fetcher.cache.bytes_used

        for _ in range(45):
            log.append((A, b"new"), (B, b"new"))
            await bench.fetch_one(0, log.end - 2)
            await asyncio.sleep(10)
        kept, fetches = bench.fetcher.cache.bytes_used, bench.stats.upstream_fetches
        late = await bench.fetch_one(1, 40, cursor="late")

        assert held > 0 and kept == 0
        assert offsets_of(late) == [41, 43, 45, 47, 49, *range(52, log.end, 2)]
        assert bench.stats.upstream_fetches > fetches

    run_virtual(main)


def test_a_connection_that_is_not_used_is_closed() -> None:
    """The tail's, half a minute after a lane that lay behind; opened again when needed."""

    async def main() -> None:
        log = interleaved_log()
        log.lead(1)
        bench = Bench(log, options={"cache_bytes_max": 0})
        await bench.fetch_one(0, 40)
        await bench.fetch_one(1, 40, cursor="m2")
        both = log.open_count - log.closed_count

        for _ in range(50):
            await bench.fetch_one(0, 51, max_wait_ms=1000)
        resting = log.open_count - log.closed_count
        again = await bench.fetch_one(1, 40, cursor="m2")

        assert (both, resting) == (2, 1)
        assert offsets_of(again) == [41, 43, 45, 47, 49]

    run_virtual(main)


def test_what_is_left_of_a_closed_reader_is_small() -> None:
    """No lanes, runs and claims, whatever still refers to it: the collector comes late."""

    async def main() -> None:
        bench = Bench(interleaved_log())
        await bench.fetch({0: 40, 1: 40})
        (reader,) = bench.fetcher._readers.values()
        lanes_before = {*map(id, reader.log.lanes)}

        await asyncio.sleep(READER_IDLE_S + 1)
        bench.fetcher.sweep(bench.now_s())

        assert not bench.fetcher._readers and len(lanes_before) == 2
        assert len({*map(id, reader.log.lanes)}) == 1
        assert not reader.log.lanes[0].runs and not reader.log.lanes[0].claims
        reader.log.check()

    run_virtual(main)


def test_lanes_beyond_the_bound_are_refused_beside_those_within() -> None:
    """Refused lanes are answered when the wait is over, so that no client asks in a circle."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log, options={"lane_names_max": 1})
        await bench.fetch_one(0, 40, chosen_name="orders.lanes-2")

        began_s = bench.now_s()
        bench.key_split = FOUR.key_split(0)
        answers = await bench.fetch({0: 40, 3: 40}, chosen_name="orders.lanes-4")
        waited_s = bench.now_s() - began_s
        mine = await bench.fetch_one(0, 40)

        assert [(a.error_code, a.records) for a in answers] == [(29, ()), (29, ())]
        assert waited_s == WAIT_S and mine.error_code == 0, "configured lanes have no bound"
        assert (bench.stats.readers, bench.stats.lane_name_readers) == (2, 1)
        assert bench.stats.readers_refused == 1

    run_virtual(main)


def test_a_reader_in_whose_place_another_one_is_closes_after_its_last_fetch() -> None:
    """Each of isolation level and codec; a fetch that waits goes on; one that comes back stays."""

    async def main() -> None:
        log = interleaved_log(base=0)
        bench = Bench(log)
        at = PartitionSplit(TOPIC_ID, 0, TWO.key_split(0))
        await bench.fetch_one(0, 0)
        await bench.fetch_one(0, 0, isolation=1, codec=CODEC_LZ4)

        bench.fetcher.retire(at)
        closed = bench.stats.readers
        waiting = spawn(bench.fetch_one(0, log.end), "waits")
        await asyncio.sleep(WAIT_S / 5)
        bench.fetcher.retire(at)
        bench.fetcher.retire(at._replace(partition=1))
        kept = bench.stats.readers
        log.append((A, b"later"))
        answer = await waiting
        after = bench.stats.readers
        again = spawn(bench.fetch_one(0, log.end), "waits again")
        await asyncio.sleep(WAIT_S / 5)
        bench.fetcher.retire(at)
        await bench.fetch_one(1, 0)
        await again

        assert (closed, kept, after) == (0, 1, 0)
        assert offsets_of(answer) == [11]
        assert bench.stats.readers == 1

    run_virtual(main)
