"""Time that the workers add to each record, by kind of handler: a source in memory, no Kafka.

    python -m bench.client_workers [--records 200000] [--uvloop]

"own" is the time of the handler alone, called in a plain loop; the rest is the workers'. Threads
and processes also pay for the hand-over to another thread or process and back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Unpack

from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers import Workers
from keylane.client.workers.executors import Handler
from keylane.client.workers.settings import WorkerOptions
from keylane.client.workers.source import PlainSettings

POLL_RECORDS: Final = 500
PARTITIONS: Final = 8
BUSY_STEPS: Final = 6_000
END_MS: Final = 5
"""Marks come in groups before a poll: at the end, polls are short, so that the last ones come."""


class MemorySource:
    """Gives so many records, as fast as they are asked for; stops the run after the last one."""

    settings = PlainSettings("bench")

    def __init__(self, count: int, key_count: int) -> None:
        self._places = [TopicPartition("orders", number) for number in range(PARTITIONS)]
        keys = [b"customer-%d" % number for number in range(key_count)]
        per_poll = POLL_RECORDS // PARTITIONS
        self._records = [
            ConsumerRecord("orders", place.partition, offset, 0, keys[at % key_count], b"x" * 100)
            for start in range(0, count // PARTITIONS, per_poll)
            for place in self._places
            for offset in range(start, start + per_poll)
            for at in (offset * PARTITIONS + place.partition,)
        ]
        self._given = self.done_count = 0
        self.count = len(self._records)
        self.all_done = asyncio.Event()

    async def getmany(
        self,
        *_partitions: TopicPartition,
        timeout_ms: int = 0,
        max_records: int | None = None,
        max_partition_records: int | None = None,  # noqa: ARG002 - its records are mixed
    ) -> list[ConsumerRecord]:
        """Return the next records; at the end, wait for the time-out."""
        if self._given == self.count:
            if timeout_ms:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(timeout_ms, END_MS) / 1000):
                        await self.all_done.wait()
            return []
        first = self._given
        self._given = min(self.count, first + min(POLL_RECORDS, max_records or POLL_RECORDS))
        return self._records[first : self._given]

    def mark_done(self, *records: ConsumerRecord) -> None:
        """Count."""
        self.done_count += len(records)
        if self.done_count == self.count:
            self.all_done.set()

    async def commit(self) -> None:
        """Nothing."""

    def assignment(self) -> frozenset[TopicPartition]:
        """Return all."""
        return frozenset(self._places)

    def paused(self) -> frozenset[TopicPartition]:
        """Return none: the bound on queued records does here."""
        return frozenset()

    def pause(self, *partitions: TopicPartition) -> None:
        """Nothing."""

    def resume(self, *partitions: TopicPartition) -> None:
        """Nothing."""

    def to_be_revoked(self) -> frozenset[TopicPartition]:
        """Return none."""
        return frozenset()

    def lost(self) -> frozenset[TopicPartition]:
        """Return none."""
        return frozenset()

    def delay_revoke(self, _partitions: Collection[TopicPartition], /) -> bool:
        """Nothing is revoked."""
        return True


async def nothing(record: ConsumerRecord) -> None:
    """A coroutine handler that is done at once."""


async def one_wait(_record: ConsumerRecord) -> None:
    """A coroutine handler that waits for the loop once."""
    await asyncio.sleep(0)


async def busy(_record: ConsumerRecord) -> None:
    """A coroutine handler with about 100 us of work for the CPU."""
    sum(range(BUSY_STEPS))


def plain(record: ConsumerRecord) -> None:
    """A plain handler that is done at once."""


async def time_alone(handle: Callable[[ConsumerRecord], Awaitable[Any]], count: int) -> float:
    """Return the time per record of a handler without workers, in seconds."""
    record = ConsumerRecord("orders", 0, 0, 0, b"k", b"v")
    started_s = time.perf_counter()
    for _ in range(count):
        await handle(record)
    return (time.perf_counter() - started_s) / count


async def time_run(
    handle: Handler, count: int, key_count: int, **options: Unpack[WorkerOptions]
) -> float:
    """Return the time per record of a run, in seconds."""
    source = MemorySource(count, key_count)
    options = {**options, "signals": False, "progress": False}
    async with Workers(source, handle, **options) as workers:
        started_s = time.perf_counter()

        async def stop() -> None:
            await source.all_done.wait()
            workers.stop()

        async with asyncio.TaskGroup() as group:
            group.create_task(stop())
            group.create_task(workers.run())
        return (time.perf_counter() - started_s) / source.count


async def run_all(count: int) -> None:
    """Run each case once and print its line."""
    few = count // 10
    cases: tuple[tuple[str, Handler, int, int, WorkerOptions], ...] = (
        ("coroutine, nothing to do", nothing, count, 10_000, {}),
        ("coroutine, nothing, order=none", nothing, count, 10_000, {"order": "none"}),
        ("coroutine, nothing, 100 hot keys", nothing, count, 100, {}),
        ("coroutine, one wait", one_wait, count, 10_000, {}),
        ("coroutine, one wait, 8 hot keys", one_wait, few, 1, {}),
        ("coroutine, nothing, time limit", nothing, count, 10_000, {"timeout_s": 30.0}),
        ("coroutine, some 100 us of CPU", busy, few, 10_000, {}),
        ("thread, nothing to do", plain, few, 10_000, {}),
        ("process, nothing to do, 2", plain, few, 10_000,
         {"executor": "processes", "concurrency": 2}),
    )  # fmt: skip
    for name, handle, records, key_count, options in cases:
        own_s = 0.0 if handle is plain else await time_alone(handle, 10_000)
        run_s = await time_run(handle, records, key_count, **options)
        print(
            f"{name:36} {run_s * 1e6:7.2f} us/record   own {own_s * 1e6:6.2f}"
            f"   added {(run_s - own_s) * 1e6:6.2f}   {1 / run_s:9,.0f} records/s",
            flush=True,
        )


def main() -> None:
    """Read the arguments, run."""
    parser = argparse.ArgumentParser(description="measure what the workers add to a record")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--uvloop", action="store_true")
    arguments = parser.parse_args()
    if arguments.uvloop:
        import uvloop  # noqa: PLC0415 - only where it is asked for

        uvloop.run(run_all(arguments.records))
    else:
        asyncio.run(run_all(arguments.records))


if __name__ == "__main__":
    main()
