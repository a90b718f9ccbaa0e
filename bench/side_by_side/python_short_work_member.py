"""A process that spends 100 us of CPU on each record, one of a key at a time.

python -m bench.side_by_side.python_short_work_member WAY BOOTSTRAP TOPIC COUNT WORK_US

WAY is `workers`, or `pool`: aiokafka with the pool that people write by hand, a queue per worker
and the key's hash to choose it, and commits of the lowest offset that is not done.
Prints the seconds from the first record to the last one, and the CPU seconds of that time.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from keylane.client import Consumer, ConsumerRecord
from keylane.client.workers import Workers

CONCURRENCY: Final = 64
QUEUED_MAX: Final = 1_000
COMMIT_S: Final = 1.0


class Clock:
    """Time and CPU of the run, from the first record on."""

    def __init__(self, count: int, work_us: int) -> None:
        self.left, self._work_s = count, work_us / 1e6
        self._began: tuple[float, float] | None = None
        self.end = asyncio.Event()

    def work(self) -> None:
        """Spend CPU, as a handler that computes does."""
        if self._began is None:
            self._began = time.perf_counter(), time.process_time()
        until_s = time.perf_counter() + self._work_s
        while time.perf_counter() < until_s:
            pass
        self.left -= 1
        if self.left == 0:
            self.end.set()

    def report(self) -> None:
        """Print what it took."""
        assert self._began is not None
        wall_s, cpu_s = self._began
        print(time.perf_counter() - wall_s, time.process_time() - cpu_s, flush=True)


async def run_workers(bootstrap: str, topic: str, clock: Clock) -> None:
    """Work with `Workers`."""

    async def handle(_: ConsumerRecord) -> None:
        clock.work()

    async with (
        Consumer(
            topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest"
        ) as consumer,
        Workers(consumer, handle, concurrency=CONCURRENCY, progress=False) as workers,
    ):
        running = asyncio.ensure_future(workers.run())  # noqa: TID251 -- a program of its user's
        await clock.end.wait()
        clock.report()
        workers.stop()
        await running


async def run_pool(bootstrap: str, topic: str, clock: Clock) -> None:
    """Work with aiokafka and a pool by hand."""
    from aiokafka import AIOKafkaConsumer, TopicPartition  # noqa: PLC0415

    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    await consumer.start()
    queues: list[asyncio.Queue[Any]] = [
        asyncio.Queue(QUEUED_MAX // CONCURRENCY) for _ in range(CONCURRENCY)
    ]
    unfinished: dict[int, None] = {}
    furthest = 0

    async def worker(queue: asyncio.Queue[Any]) -> None:
        while True:
            record = await queue.get()
            clock.work()
            del unfinished[record.offset]

    async def commit() -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            lowest = next(iter(unfinished), furthest)
            await consumer.commit({TopicPartition(topic, 0): lowest})

    tasks = [asyncio.ensure_future(worker(queue)) for queue in queues]  # noqa: TID251
    tasks.append(asyncio.ensure_future(commit()))  # noqa: TID251
    fed = asyncio.ensure_future(clock.end.wait())  # noqa: TID251
    while not clock.end.is_set():
        getting = asyncio.ensure_future(consumer.getmany(timeout_ms=500))  # noqa: TID251
        await asyncio.wait({getting, fed}, return_when=asyncio.FIRST_COMPLETED)
        if not getting.done():
            getting.cancel()
            break
        for records in getting.result().values():
            for record in records:
                unfinished[record.offset] = None
                furthest = record.offset + 1
                await queues[hash(record.key) % CONCURRENCY].put(record)
    await clock.end.wait()
    clock.report()
    for task in tasks:
        task.cancel()
    await consumer.stop()


WAYS: Final[dict[str, Callable[..., Any]]] = {"workers": run_workers, "pool": run_pool}


async def main() -> None:
    """Read argv and run."""
    way, bootstrap, topic, count, work_us = sys.argv[1:]
    await WAYS[way](bootstrap, topic, Clock(int(count), int(work_us)))


if __name__ == "__main__":
    asyncio.run(main())
