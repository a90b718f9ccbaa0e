"""Batches larger than their share: refused once, or read when there is room; nothing is skipped."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest

from keylane.errors import AnswerTooLarge
from keylane.proxy.lanes.read_memory import LARGE_OVERHEAD_BYTES, Gates, ReadRoom
from keylane.tasks import spawn
from tests.reference.batches import write_batch
from tests.reference.broker_log import BrokerLog
from tests.reference.lane_bench import MIB, A, B, Bench, next_offset_of, offsets_of
from tests.virtual_time import run_virtual

LITTLE = {"batch_bytes_max": 64 * 1024, "filtering_bytes_max": 64 * 1024, "read_bytes_max": 32768}


def log_with(value: bytes, form: str) -> BrokerLog:
    """Two records, a batch of one large record of lane 0, two records."""
    log = BrokerLog()
    log.append((A, b"v"), (B, b"v"))
    large = log.append((A, value), form=form)
    log.wires[-1] = write_batch(large)
    log.append((A, b"v"), (B, b"v"))
    return log


@pytest.mark.parametrize("form", ["zstd", "zstd-sized", "gzip", "lz4", "snappy", "none"])
def test_a_batch_beyond_its_share_is_refused_once(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Good data first, then CORRUPT_MESSAGE out of memory, at every fetch of every client."""

    async def main() -> None:
        log = log_with(bytes(80 * 1024), form)
        bench = Bench(log, options=LITTLE)

        good = await bench.fetch({0: 0, 1: 0})
        first = await bench.fetch_one(0, 2)
        asked = len(log.fetches)
        errors = [await bench.fetch_one(0, 2, cursor=f"m{number}") for number in range(5)]
        others = await bench.fetch_one(0, 2, isolation=1)

        assert [offsets_of(answer) for answer in good] == [[0], [1]]
        assert {answer.error_code for answer in (first, others, *errors)} == {2}
        assert len(log.fetches) == asked, "nothing is read again"
        assert bench.stats.batches_refused == 1
        assert bench.fetcher.cache.bytes_used <= bench.fetcher.cache.bytes_max

    with caplog.at_level(logging.WARNING):
        run_virtual(main)
    # asyncio logs what the garbage of other tests was about, whenever it is collected.
    (record,) = (each for each in caplog.records if each.name.startswith("keylane"))
    assert "batch refused: its lanes stop there topic=orders partition=0 offset=2" in (
        record.message
    )


def test_a_wire_size_beyond_every_room_is_refused_before_it_comes() -> None:
    """The broker's answer is not taken; what is behind the batch can be read."""

    async def main() -> None:
        log = log_with(random.Random(1).randbytes(64 * 1024 + LARGE_OVERHEAD_BYTES), "none")
        bench = Bench(log, options=LITTLE)

        error = await bench.fetch_one(0, 2)
        behind = await bench.fetch_one(0, 3)

        assert error.error_code == 2 and offsets_of(behind) == [3]
        await asyncio.sleep(1)  # until the reads ahead have ended
        assert bench.stats.batches_refused == 1
        assert bench.stats.filtering_bytes == 0, "all room is given back"

    run_virtual(main)


@pytest.mark.parametrize("form", ["zstd", "zstd-sized", "gzip", "lz4", "snappy", "none"])
def test_a_batch_within_its_share_is_read_in_room_of_its_own(form: str) -> None:
    """Larger than a block, and than the whole bound of filtering: all records come."""

    async def main() -> None:
        log = log_with(bytes(700 * 1024), form)
        bench = Bench(log, options=LITTLE | {"batch_bytes_max": MIB})

        offsets: list[int] = []
        position = 0
        while position < log.end:
            answer = await bench.fetch_one(0, position)
            assert answer.error_code == 0
            offsets += offsets_of(answer)
            position = next_offset_of(answer)

        assert offsets == [0, 2, 3]
        await asyncio.sleep(1)  # until the reads ahead have ended
        assert bench.stats.batches_refused == bench.stats.filtering_bytes == 0

    run_virtual(main)


def test_a_cut_log_is_read_anew() -> None:
    """A refused offset is another batch's once the log was cut there."""

    async def main() -> None:
        log = log_with(bytes(80 * 1024), "zstd")
        bench = Bench(log, options=LITTLE)
        assert (await bench.fetch_one(0, 2)).error_code == 2

        bench.fetcher.forget_cut(next(iter(bench.fetcher._readers)).at.topic_id, 0, 2)
        asked = len(log.fetches)
        await bench.fetch_one(0, 2)

        assert len(log.fetches) > asked

    run_virtual(main)


def test_answers_being_gathered_are_bounded() -> None:
    """Requests that wait for more than there is get what there is, once they hold too much."""

    async def main() -> None:
        log = BrokerLog()
        for _ in range(20):
            log.append((A, bytes(1000)), (B, bytes(1000)))
        patient: dict[str, Any] = {"min_bytes": MIB, "max_wait_ms": 600_000}
        bench = Bench(log, options={"gathering_bytes_max": 100_000})
        started_s = bench.now_s()

        answers = await asyncio.gather(
            *(bench.fetch({0: 0, 1: 0}, cursor=f"m{number}", **patient) for number in range(10))
        )

        assert bench.now_s() - started_s < 600, "somebody was answered for the others' sake"
        assert all(offsets_of(answer) for pair in answers for answer in pair)
        assert bench.stats.gathering_bytes == 0

    run_virtual(main)


def test_reads_of_all_sizes_come_to_an_end() -> None:
    """No two wait for each other; every gate holds at most its bound, and nothing in the end."""

    async def main() -> None:
        chance = random.Random(5)
        gates = Gates.of(100_000, 50_000)
        done: list[int] = []

        def check() -> None:
            for gate in (gates.filtering, gates.large_answers, gates.large_batches):
                assert 0 <= gate.bytes_used <= gate.bytes_max

        async def read(number: int) -> None:
            room = ReadRoom(gates, read_bytes=4_000, block_bytes=25_000)
            room.broker_id = number % 3
            wire_bytes = chance.choice([10, 4_000, 90_000])
            try:
                await asyncio.sleep(chance.random())
                for _ in range(chance.randrange(3)):  # connections that are lost, and asked again
                    if wire_bytes > 10 and not room.take(wire_bytes):
                        await room.for_answer(wire_bytes)
                    await asyncio.sleep(chance.random())
                await room.for_records(wire_bytes)
                for _ in range(chance.randrange(4)):
                    if room.is_large or chance.random() < 0.4:
                        await room.for_batch(chance.choice([25_000, 50_000]))
                    await asyncio.sleep(chance.random())
                    room.batch_done()
                    check()
            finally:
                room.leave()
            done.append(number)

        tasks = [spawn(read(number), f"read {number}") for number in range(200)]
        await asyncio.sleep(3)
        for task in tasks[::7]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

        assert len(done) >= 200 - len(tasks[::7])
        assert gates.bytes_used == 0

    run_virtual(main)


def test_an_answer_beyond_all_room() -> None:
    """It is refused before a byte of it is taken; the order of gates is what it was."""

    async def main() -> None:
        gates = Gates.of(100_000, 50_000)
        room = ReadRoom(gates, read_bytes=4_000, block_bytes=25_000)
        with pytest.raises(AnswerTooLarge) as caught:
            await room.for_answer(gates.large_answers.bytes_max + 1)
        assert caught.value.size_bytes == gates.large_answers.bytes_max + 1
        room.leave()
        assert gates.bytes_used == 0

    run_virtual(main)
