"""Runs of the workers on virtual time, beside a script: handlers, waits, what came out."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers import Workers
from keylane.tasks import spawn
from tests.reference.worker_source import FakeSource
from tests.virtual_time import run_virtual

NEVER_S = 1e6
Script = Callable[[FakeSource, Workers], Coroutine[Any, Any, None]]


class Journal:
    """A handler that notes begin and end of each record, and takes as long as `work_s` says."""

    def __init__(self, work_s: Callable[[ConsumerRecord], float] = lambda record: 1.0) -> None:
        self.work_s = work_s
        self.begun: list[ConsumerRecord] = []
        self.ended: list[ConsumerRecord] = []
        self.cancelled: list[ConsumerRecord] = []
        self.at_work: Counter[tuple[TopicPartition, bytes | None]] = Counter()
        self.most_at_once = 0

    async def __call__(self, record: ConsumerRecord) -> None:
        self.begun.append(record)
        turn = (record.topic_partition, record.key)
        self.at_work[turn] += 1
        assert record.key is None or self.at_work[turn] == 1
        self.most_at_once = max(self.most_at_once, self.at_work.total())
        try:
            await asyncio.sleep(self.work_s(record))
        except asyncio.CancelledError:
            self.cancelled.append(record)
            raise
        else:
            self.ended.append(record)
        finally:
            self.at_work[turn] -= 1


def run(
    source_of: Callable[[], FakeSource],
    handle: Callable[[ConsumerRecord], Any],
    script: Script,
    **options: Any,
) -> FakeSource:
    """Run workers beside a script that ends them, on virtual time; errors of both are raised."""

    async def main() -> FakeSource:
        source = source_of()
        async with Workers(source, handle, signals=False, progress=False, **options) as workers:
            running = spawn(workers.run(), "run")
            scripted = spawn(script(source, workers), "script")
            await asyncio.wait([running, scripted], return_when=asyncio.FIRST_COMPLETED)
            if not scripted.done():
                scripted.cancel()
            elif scripted.exception() is not None:
                running.cancel()
                await scripted
            await running
        return source

    return run_virtual(main)


async def when(is_so: Callable[[], bool], limit_s: float = 10_000) -> None:
    """Wait on the virtual clock until something holds."""
    async with asyncio.timeout(limit_s):
        while not is_so():  # noqa: ASYNC110 - the clock is virtual, the condition anything
            await asyncio.sleep(0.001)


def stop_after(seconds: float) -> Script:
    async def script(source: FakeSource, workers: Workers) -> None:
        await asyncio.sleep(seconds)
        workers.stop()

    return script


def stop_when_done(count: int) -> Script:
    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(source.done) == count)
        workers.stop()

    return script


def offsets(records: Iterable[ConsumerRecord]) -> list[int]:
    return [each.offset for each in records]


def by_key(records: Iterable[ConsumerRecord]) -> dict[bytes | None, list[int]]:
    found: dict[bytes | None, list[int]] = defaultdict(list)
    for each in records:
        found[each.key].append(each.offset)
    return found
