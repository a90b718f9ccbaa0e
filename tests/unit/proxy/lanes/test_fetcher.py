"""Fetches of lanes: one pass for all, bounded memory, limits, long polls."""

from __future__ import annotations

import asyncio

import pytest

from keylane.keyrange.key_split import owners_split
from keylane.keyrange.lane import LaneLayout
from keylane.tasks import spawn
from tests.reference.broker_log import BrokerLog, keys_of_lane, read_batches
from tests.reference.lane_bench import (
    FOUR,
    MIB,
    WAIT_S,
    A,
    B,
    Bench,
    interleaved_log,
    next_offset_of,
    offsets_of,
)
from tests.virtual_time import run_virtual


def test_the_second_lane_costs_no_upstream_fetch() -> None:
    """The slice that one pass found for the other lane is served from memory."""

    async def main() -> None:
        bench = Bench(interleaved_log())

        first = await bench.fetch_one(0, 40, cursor="m1")
        counted = (bench.stats.upstream_fetches, bench.stats.splits)
        second = await bench.fetch_one(1, 40, cursor="m2")

        assert offsets_of(first) == [40, 42, 44, 46, 48, 50]
        assert offsets_of(second) == [41, 43, 45, 47, 49]
        assert next_offset_of(first) == next_offset_of(second) == 51
        assert (bench.stats.upstream_fetches, bench.stats.splits) == counted
        assert bench.stats.cache_hits == 1
        assert bench.stats.cache_bytes == 0, "after fetch 2 nothing is cached"

    run_virtual(main)


@pytest.mark.parametrize("cache_bytes_max", [0, 3_000])
def test_over_the_bound_lanes_are_still_answered(cache_bytes_max: int) -> None:
    """The gauge stays below its bound, and what was evicted is read again."""

    async def main() -> None:
        log = interleaved_log(200, per_batch=4)
        bench = Bench(log, options={"cache_bytes_max": cache_bytes_max, "read_bytes_max": 600})
        position, seen = 40, []

        while position < log.end:
            position = next_offset_of(await bench.fetch_one(0, position, cursor="m1"))
            assert bench.fetcher.cache.bytes_used <= cache_bytes_max
        position = 40
        while position < log.end:
            answer = await bench.fetch_one(1, position, cursor="m2")
            seen += offsets_of(answer)
            position = next_offset_of(answer)
            assert bench.fetcher.cache.bytes_used <= cache_bytes_max

        assert seen == list(range(41, 240, 2))
        assert bench.stats.upstream_tail_fetches > 0

    run_virtual(main)


def test_a_batch_larger_than_both_bounds_is_served() -> None:
    """The cache's bound is not the bound of one batch, and the gate lets it go alone."""

    async def main() -> None:
        log = BrokerLog()
        log.append((A, b"x" * 300_000), (B, b"y" * 300_000))
        options = {"cache_bytes_max": 1000, "filtering_bytes_max": 100_000, "batch_bytes_max": MIB}
        bench = Bench(log, options=options)

        first = await bench.fetch_one(0, 0, max_bytes=1, partition_max_bytes=1)
        second = await bench.fetch_one(1, 0, cursor="m2")

        assert offsets_of(first) == [0] and offsets_of(second) == [1]
        assert bench.stats.filtering_bytes == 0
        assert bench.fetcher.cache.bytes_used == 0

    run_virtual(main)


def test_one_produced_batch_is_one_upstream_fetch() -> None:
    """Four members that wait at the log end are served by one read."""

    async def main() -> None:
        log = BrokerLog()
        bench = Bench(log, layout=FOUR)
        polls = [
            spawn(bench.fetch_one(lane, 0, cursor=f"m{lane}"), f"m{lane}") for lane in range(4)
        ]
        await asyncio.sleep(0.1)
        before = len(log.fetches)

        log.append(*[(keys_of_lane(lane, FOUR)[0], b"v") for lane in range(4)])
        answers = await asyncio.gather(*polls)

        assert [offsets_of(answer) for answer in answers] == [[0], [1], [2], [3]]
        assert before == len(log.fetches) == 2, "the first look, and the long poll"

    run_virtual(main)


def test_one_read_serves_all_owners_and_keeps_nothing_without_an_owner() -> None:
    """Lanes 0 and 2 of four are one client's, lane 1 another's; lane 3 has no owner."""

    async def main() -> None:
        log = BrokerLog()
        keys = [keys_of_lane(lane, FOUR)[0] for lane in range(4)]
        log.append(*[(key, b"v" * 1000) for key in keys])
        log.append((keys[3], b"v" * 10_000))
        ranges = FOUR.key_split(0).key_ranges()
        bench = Bench(log, key_split=owners_split([[ranges[0], ranges[2]], [ranges[1]]]))

        first = await bench.fetch_one(0, 0)
        kept = bench.fetcher.cache.bytes_used
        second = await bench.fetch_one(1, 0, cursor="m2")

        assert offsets_of(first) == [0, 2] and offsets_of(second) == [1]
        assert next_offset_of(first) == next_offset_of(second) == 5
        assert 1000 < kept < 4000 and len(log.fetches) == 1
        assert [block.last_record_offsets.tolist() for block in bench.scanned] == [[2, 1]]

    run_virtual(main)


def test_other_ranges_are_another_readers() -> None:
    """After a change each goes on at its own offset, and nothing of the old split is used."""

    async def main() -> None:
        log = interleaved_log(base=0)
        bench = Bench(log)
        await bench.fetch_one(0, 0)

        halves = bench.layout.key_split(0).key_ranges()
        bench.key_split = owners_split([[halves[1]], [halves[0]]])
        answer = await bench.fetch_one(0, 3)

        assert offsets_of(answer) == [3, 5, 7, 9]

    run_virtual(main)


def test_without_reserve_only_places_are_kept() -> None:
    """The size of values does not matter to the cache; lanes read for themselves."""

    async def main() -> None:
        log = BrokerLog()
        log.append((A, b"v" * 10_000), (B, b"v" * 10_000))
        log.append((A, b"v"))
        bench = Bench(log)

        first = await bench.fetch_one(0, 0, reserve=False)
        kept = bench.fetcher.cache.bytes_used
        second = await bench.fetch_one(1, 0, cursor="m2", reserve=False)

        assert offsets_of(first) == [0, 2] and offsets_of(second) == [1]
        assert kept == 0 and bench.stats.upstream_tail_fetches == 1

    run_virtual(main)


def test_a_slice_goes_once_it_is_sent() -> None:
    """Cache bytes drop by that entry, and a repeat reads upstream again."""

    async def main() -> None:
        bench = Bench(interleaved_log())
        await bench.fetch_one(0, 40)
        held = bench.fetcher.cache.bytes_used

        await bench.fetch_one(1, 40)
        after, before = bench.fetcher.cache.bytes_used, bench.stats.upstream_tail_fetches
        again = await bench.fetch_one(1, 40)

        assert held > 0 and after == 0
        assert offsets_of(again) == [41, 43, 45, 47, 49]
        assert bench.stats.upstream_tail_fetches == before + 1

    run_virtual(main)


def test_two_groups_on_a_lane_cost_one_read() -> None:
    """A slice waits until every connection that reads the lane has had it."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40, cursor="a", max_wait_ms=0)
        await bench.fetch_one(0, 51, cursor="a", max_wait_ms=0)
        await bench.fetch_one(0, 51, cursor="b", max_wait_ms=0)
        held = bench.fetcher.cache.bytes_used
        log.append((A, b"new"))

        first = await bench.fetch_one(0, 51, cursor="a")
        fetches = bench.stats.upstream_tail_fetches
        second = await bench.fetch_one(0, 51, cursor="b")

        assert offsets_of(first) == offsets_of(second) == [51]
        assert bench.stats.upstream_tail_fetches == fetches
        assert bench.fetcher.cache.bytes_used == held

    run_virtual(main)


def test_a_stuck_member_holds_up_no_other() -> None:
    """Seven lanes of a partition go on, in bounded memory, while one is never asked again."""

    async def main() -> None:
        layout = LaneLayout(1, 8)
        keys = [keys_of_lane(lane, layout)[0] for lane in range(8)]
        log = BrokerLog()
        for _ in range(100):
            log.append(*[(key, b"v" * 100) for key in keys])
        options = {"cache_bytes_max": 20_000, "read_bytes_max": 2_000}
        bench = Bench(log, layout=layout, options=options)
        await bench.fetch_one(7, 0, cursor="stuck", max_bytes=1)
        positions = dict.fromkeys(range(7), 0)

        while min(positions.values()) < log.end:
            answers = await bench.fetch(positions)
            for lane, answer in zip(positions, answers, strict=True):
                positions[lane] = next_offset_of(answer)
            assert bench.fetcher.cache.bytes_used <= 20_000

        assert bench.stats.upstream_tail_fetches <= 1
        assert bench.stats.cache_evictions > 0

    run_virtual(main)


def test_other_lanes_data_does_not_wake_a_long_poll() -> None:
    """It ends at its time with one empty header, so that the position moves."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        await bench.fetch_one(1, 40)
        await bench.fetch_one(1, 51, max_wait_ms=0)
        poll = spawn(bench.fetch_one(1, 51), "poll")
        start_s = bench.now_s()
        for _ in range(5):
            await asyncio.sleep(0.05)
            log.append((A, b"v"))

        answer = await poll

        assert bench.now_s() - start_s == pytest.approx(WAIT_S)
        (batch,) = read_batches(b"".join(answer.records))
        assert (batch.base, batch.last, batch.records) == (51, 55, [])

    run_virtual(main)


def test_empty_answers_always_advance() -> None:
    """A lane with nothing in 1,000 batches reaches the log end in a few answers."""

    async def main() -> None:
        log = BrokerLog()
        for _ in range(1_000):
            log.append((A, b"v" * 100))
        bench = Bench(log, options={"read_bytes_max": 10_000})
        position, count = 0, 0

        while position < log.end:
            answer = await bench.fetch_one(1, position)
            assert offsets_of(answer) == [] and next_offset_of(answer) > position
            position, count = next_offset_of(answer), count + 1

        assert count <= 3

    run_virtual(main)


def test_a_lane_of_gaps_is_answered_at_once_after_records() -> None:
    """A client that reads up to a known end does not wait for the last header."""

    async def main() -> None:
        log = interleaved_log(2)
        bench = Bench(log)
        await bench.fetch({0: 40, 1: 40})
        log.append((A, b"v"))
        await bench.fetch_one(0, 42)
        start_s = bench.now_s()

        answer = await bench.fetch_one(1, 42, cursor="m2")

        assert next_offset_of(answer) == 43 and bench.now_s() == start_s

    run_virtual(main)


def test_a_lane_without_records_up_to_the_end_is_answered_once_it_is_read() -> None:
    """Catching up over others' records ends at the log end, not at the end of the wait."""

    async def main() -> None:
        log = BrokerLog()
        for _ in range(100):
            log.append((A, b"v" * 100))
        bench = Bench(log, options={"read_bytes_max": 1_000})

        answer = await bench.fetch_one(1, 0)
        known_s = bench.now_s()
        again = await bench.fetch_one(1, 100)

        assert next_offset_of(answer) == 100 and known_s < WAIT_S
        assert again.records == () and bench.now_s() - known_s == pytest.approx(WAIT_S)

    run_virtual(main)


def test_min_bytes_waits_for_more() -> None:
    """Small data waits until there is enough, and comes at the end of the wait otherwise."""

    async def main() -> None:
        log = BrokerLog()
        log.append((A, b"v"))
        bench = Bench(log)
        poll = spawn(bench.fetch_one(0, 0, min_bytes=400), "poll")
        await asyncio.sleep(0.1)
        log.append((A, b"v" * 400))
        enough = await poll
        log.append((A, b"v"))
        start_s = bench.now_s()

        late = await bench.fetch_one(0, 2, min_bytes=400)

        assert offsets_of(enough) == [0, 1]
        assert offsets_of(late) == [2] and bench.now_s() - start_s == pytest.approx(WAIT_S)

    run_virtual(main)


def test_a_fetch_without_wait_gets_what_the_broker_has() -> None:
    """`max_wait_ms=0` bounds the wait for new data, not for data that exists."""

    async def main() -> None:
        bench = Bench(interleaved_log())

        answers = await bench.fetch({0: 40, 1: 40}, max_wait_ms=0)
        start_s = bench.now_s()
        at_end = await bench.fetch_one(0, 51, max_wait_ms=0)

        assert [len(offsets_of(answer)) for answer in answers] == [6, 5]
        assert at_end.records == () and bench.now_s() == start_s

    run_virtual(main)


def test_limits_cut_at_batches_and_the_first_batch_always_comes() -> None:
    """KIP-74: limits per lane and request, one batch at least for the first lane that has any."""

    async def main() -> None:
        log = interleaved_log(12, per_batch=2)
        bench = Bench(log)

        tiny = await bench.fetch({0: 40, 1: 40}, max_bytes=1)
        cut = await bench.fetch({0: 42, 1: 40}, partition_max_bytes=170)
        rest = await bench.fetch({0: 46, 1: 44})

        assert [offsets_of(answer) for answer in tiny] == [[40], []]
        assert [offsets_of(answer) for answer in cut] == [[42, 44], [41, 43]]
        assert all(answer.size_bytes <= 170 for answer in cut)
        assert [offsets_of(answer) for answer in rest] == [[46, 48, 50], [45, 47, 49, 51]]
        assert bench.stats.upstream_tail_fetches == 0

    run_virtual(main)


def test_an_offset_inside_a_batch_brings_the_whole_batch() -> None:
    """As a broker does; the client drops what it had."""

    async def main() -> None:
        bench = Bench(interleaved_log(10, per_batch=10))

        answer = await bench.fetch_one(0, 45)

        assert offsets_of(answer) == [40, 42, 44, 46, 48]

    run_virtual(main)


def test_a_lane_left_out_twice_is_waited_for() -> None:
    """A member with one lane in memory and one to be read again gets both in turn."""

    async def main() -> None:
        log = interleaved_log(400, per_batch=4)
        bench = Bench(log, options={"cache_bytes_max": 0, "read_bytes_max": 400})
        positions = {0: 40, 1: 200}

        for _ in range(8):
            answers = await bench.fetch(positions)
            for lane, answer in zip(positions, answers, strict=True):
                if answer.records:
                    positions[lane] = next_offset_of(answer)

        assert positions[0] > 44 and positions[1] > 204

    run_virtual(main)


def test_idle_readers_close_and_claims_end() -> None:
    """After a minute without a fetch the connections and the memory are given back."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        held = bench.fetcher.cache.bytes_used

        bench.fetcher.sweep(bench.now_s() + 40)
        still_held = bench.fetcher.cache.bytes_used
        bench.fetcher.sweep(bench.now_s() + 61)

        assert held == still_held > 0
        assert bench.fetcher.cache.bytes_used == 0 and bench.stats.readers == 0
        assert log.closed_count == log.open_count
        assert len(offsets_of(await bench.fetch_one(0, 40))) == 6

    run_virtual(main)


def test_a_connection_that_is_gone_holds_nothing_back() -> None:
    """After `release` slices that the other connection has had go, and none is kept any more."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40, cursor="a")
        await bench.fetch_one(0, 51, cursor="a", max_wait_ms=0)
        await bench.fetch_one(0, 51, cursor="b", max_wait_ms=0)
        log.append((A, b"new"))
        await bench.fetch_one(0, 51, cursor="a")
        held = bench.fetcher.cache.bytes_used

        bench.fetcher.release("b")
        left = bench.fetcher.cache.bytes_used
        log.append((A, b"new"))
        await bench.fetch_one(0, 52, cursor="a")

        assert 0 < left == bench.fetcher.cache.bytes_used < held

    run_virtual(main)


def test_a_cancelled_fetch_leaves_nothing_behind() -> None:
    """A client that goes away while it waits costs no listener and no data."""

    async def main() -> None:
        log = BrokerLog()
        bench = Bench(log)
        poll = spawn(bench.fetch_one(0, 0), "poll")
        await asyncio.sleep(0.1)

        poll.cancel()
        await asyncio.wait([poll])
        log.append((A, b"v"))
        answer = await bench.fetch_one(0, 0, cursor="m2")

        assert offsets_of(answer) == [0]
        assert not any(reader.listeners for reader in bench.fetcher._readers.values())

    run_virtual(main)


def test_stop_answers_fetches_that_wait() -> None:
    """Long polls end at once with an error that makes clients look elsewhere."""

    async def main() -> None:
        log = BrokerLog()
        bench = Bench(log)
        poll = spawn(bench.fetch_one(0, 0), "poll")
        await asyncio.sleep(0.1)

        await bench.fetcher.stop()

        assert (await poll).error_code == 6
        assert (await bench.fetch_one(0, 0)).error_code == 6
        assert log.closed_count == log.open_count

    run_virtual(main)
