"""One handler over plain Kafka, over lanes, and over an ordered share group, with real brokers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from keylane.client.consumer import Consumer
from keylane.client.settings import ConsumerOptions
from keylane.client.values import ConsumerRecord
from keylane.client.workers import DeadLetters, ExactlyOnce, Output, Retry, ShareSource, Workers
from keylane.tasks import spawn

from .conftest import KeylaneFactory, TopicFactory
from .harness import produce
from .keylane_process import PATIENCE, KeylaneProcess
from .share_wire import alter_group

KEYS: Final = [f"customer-{number}" for number in range(20)]
ROUNDS: Final = 15
LIMIT_S: Final = 60.0 * PATIENCE


class Handler:
    """Notes what is worked; a key that is worked by two at once is a failure."""

    def __init__(self, work_s: float = 0.005) -> None:
        self.work_s = work_s
        self.values: list[str] = []
        self.at_work: set[bytes] = set()
        self.changed = asyncio.Event()

    async def __call__(self, record: ConsumerRecord) -> None:
        assert record.key is not None and record.value is not None
        assert record.key not in self.at_work
        self.at_work.add(record.key)
        await asyncio.sleep(self.work_s)
        self.at_work.discard(record.key)
        self.values.append(record.value.decode())
        self.changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something holds that changes with a record."""
        async with asyncio.timeout(LIMIT_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    def rounds_of_keys(self) -> dict[str, list[int]]:
        """Return the numbers of each key's values, in the order of the work."""
        found: dict[str, list[int]] = defaultdict(list)
        for value in self.values:
            key, _, number = value.partition(":")
            found[key].append(int(number))
        return found


@pytest.mark.parametrize("label", ["plain", "lanes4"])
async def test_members_come_and_go(
    kafka: str, shared_keylane: KeylaneProcess, topic: TopicFactory, label: str
):
    """Two members, one of which joins and leaves at work: each record once, in key order."""
    bootstrap = kafka if label == "plain" else shared_keylane.bootstrap
    name = topic(label, partitions=4)
    values = await asyncio.to_thread(produce, bootstrap, name, KEYS, ROUNDS)
    handler = Handler(0.05)
    options: ConsumerOptions = {
        "bootstrap_servers": bootstrap,
        "group_id": f"{name}-group",
        "auto_offset_reset": "earliest",
    }

    async def member(stop: asyncio.Event) -> int:
        async with (
            Consumer(name, **options) as consumer,
            Workers(consumer, handler, signals=False, progress=False) as workers,
        ):
            running = spawn(workers.run(), "run")
            await stop.wait()
            workers.stop()
            await running
            return workers.tallies.done

    stops = [asyncio.Event(), asyncio.Event()]
    first = spawn(member(stops[0]), "first")
    await handler.until(lambda: len(handler.values) > 20)
    second = spawn(member(stops[1]), "second")
    await handler.until(lambda: len(handler.values) > 200)
    stops[1].set()
    second_done = await asyncio.wait_for(second, LIMIT_S)
    await handler.until(lambda: len(set(handler.values)) == len(values))
    stops[0].set()
    first_done = await asyncio.wait_for(first, LIMIT_S)

    assert first_done + second_done == len(values)
    assert handler.rounds_of_keys() == {key: list(range(ROUNDS)) for key in KEYS}
    async with Consumer(name, **options) as consumer:
        handler.changed.clear()
        assert len(await consumer.getmany(timeout_ms=3_000)) == 0  # all of it is committed


async def test_dead_letters_by_a_producer(kafka: str, topic: TopicFactory):
    """Letters of an aiokafka producer have the record and the reason."""
    name, dead = topic("orders"), topic("dead")
    await asyncio.to_thread(produce, kafka, name, ["ada"], 3)
    tried: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        tried.append(record.offset)
        if record.offset == 1:
            raise ValueError("no such order")

    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    letters = AIOKafkaConsumer(dead, bootstrap_servers=kafka, auto_offset_reset="earliest")
    async with (
        producer,
        letters,
        Consumer(
            name, bootstrap_servers=kafka, group_id=name, auto_offset_reset="earliest"
        ) as consumer,
        Workers(
            consumer,
            handle,
            retry=Retry(attempts=2, backoff_s=0.01),
            dead_letters=DeadLetters(dead, producer),
            signals=False,
            progress=False,
        ) as workers,
        asyncio.timeout(LIMIT_S),
    ):
        running = spawn(workers.run(), "run")
        letter = await letters.getone()
        workers.stop()
        await running

    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (b"ada", b"ada:1")
    assert headers["__dlq.errors.topic"] == name.encode()
    assert headers["__dlq.errors.offset"] == b"1"
    assert headers["__dlq.errors.delivery.count"] == b"2"


async def test_ordered_share_group(kafka: str, keylane: KeylaneFactory, topic: TopicFactory):
    """The same handler over an ordered share group: each record once, in key order."""
    name = topic("share", partitions=2)
    group = f"{name}-group"
    proxy = keylane(args=["--share-order", f"{group}=key"])
    await asyncio.to_thread(alter_group, kafka, group, share_auto_offset_reset="earliest")
    values = await asyncio.to_thread(produce, kafka, name, KEYS, ROUNDS)
    handler = Handler()
    config = {"bootstrap.servers": proxy.bootstrap, "group.id": group, "max.poll.records": 50}

    async with (
        ShareSource(config, [name]) as source,
        Workers(source, handler, signals=False, progress=False) as workers,
    ):
        running = spawn(workers.run(), "run")
        await handler.until(lambda: len(handler.values) >= len(values))
        workers.stop()
        await asyncio.wait_for(running, LIMIT_S)

    assert handler.rounds_of_keys() == {key: list(range(ROUNDS)) for key in KEYS}
    assert source.refused_count == 0


async def test_results_exactly_once(kafka: str, topic: TopicFactory):
    """Results in transactions: readers of committed records see each once, in key order."""
    name, out = topic("orders", partitions=3), topic("results")
    values = await asyncio.to_thread(produce, kafka, name, KEYS, ROUNDS)

    async def handle(record: ConsumerRecord) -> list[Output]:
        await asyncio.sleep(0.002)
        return [Output(out, record.key, record.value)]

    producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=f"{name}-1")
    results = AIOKafkaConsumer(
        out,
        bootstrap_servers=kafka,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    found = Handler()
    async with (
        producer,
        results,
        Consumer(
            name,
            bootstrap_servers=kafka,
            group_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
        ExactlyOnce(
            consumer, handle, producer, signals=False, progress=False, commit_interval_s=0.1
        ) as workers,
        asyncio.timeout(LIMIT_S),
    ):
        running = spawn(workers.run(), "run")
        while len(found.values) < len(values):
            record = await results.getone()
            found.values.append(record.value.decode())
        workers.stop()
        await running
        assert workers.tallies.commit_failures == 0

    assert found.rounds_of_keys() == {key: list(range(ROUNDS)) for key in KEYS}
