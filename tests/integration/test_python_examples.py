"""Programs of docs/python.md, as they are published: each against a real broker and keylane."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.keyrange.hash import key_hash
from keylane.keyrange.space import split_even
from keylane.tasks import spawn

from .conftest import KeylaneFactory, TopicFactory
from .keylane_process import PATIENCE, KeylaneProcess
from .share_wire import alter_group, wait_until

FOLDER: Final = Path(__file__).parents[2] / "docs" / "examples" / "python"
KEYS: Final = [f"customer-{number}" for number in range(10)]
ROUNDS: Final = 6
LIMIT_S: Final = 60.0 * PATIENCE
RUN_HERE: Final = {"consumer", "workers", "by_hand", "exactly_once", "share", "ranges"}


@dataclass
class Program:
    """A program at work, and the lines that it has printed."""

    process: asyncio.subprocess.Process
    lines: list[list[str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_done(self, count: int) -> None:
        """Wait until so many records are done. Raises: AssertionError, TimeoutError."""
        await until([self], lambda: len(self.done()) >= count)

    async def stop(self) -> int:
        """Send SIGTERM, read the rest, return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            await self.ended.wait()
            return await self.process.wait()

    def done(self) -> list[tuple[str, str]]:
        """Return key and value of each record that is done, in order."""
        return [(words[1], words[2]) for words in self.lines if words[0] == "DONE"]

    def assert_keys_in_order(self) -> None:
        """The values of each key that are numbers ascend."""
        by_key: dict[str, list[int]] = {}
        for key, value in self.done():
            if value.isdecimal():
                by_key.setdefault(key, []).append(int(value))
        assert all(numbers == sorted(set(numbers)) for numbers in by_key.values()), by_key

    async def read(self) -> None:
        """Take lines until the program ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().split())
            self.changed.set()
        self.ended.set()
        self.changed.set()


async def until(programs: Sequence[Program], is_so: Callable[[], bool]) -> None:
    """Wait for lines of programs. Raises: AssertionError, one has ended; TimeoutError."""
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            assert not any(each.ended.is_set() for each in programs), [p.lines for p in programs]
            waits = [spawn(each.changed.wait(), "lines") for each in programs]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each, wait in zip(programs, waits, strict=True):
                each.changed.clear()
                wait.cancel()


@asynccontextmanager
async def running(name: str, *args: str) -> AsyncIterator[Program]:
    """Run a program of the folder; it is killed where the test leaves it running."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(FOLDER / f"{name}.py"), *args, stdout=asyncio.subprocess.PIPE
    )
    program = Program(process)
    reading = spawn(program.read(), "lines")
    try:
        yield program
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


def write(bootstrap: str, topic: str, records: list[tuple[str, str]]) -> None:
    """Write records of partition 0, in order."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value in records:
        producer.produce(topic, value, key, partition=0)
    assert producer.flush(30) == 0


def numbered() -> list[tuple[str, str]]:
    """Six numbered values of each of ten keys."""
    return [(key, str(number)) for number in range(ROUNDS) for key in KEYS]


def offset_of(admin: AdminClient, group: str, topic: str) -> int:
    """Return the offset that Kafka has of the group in partition 0."""
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    (found,) = admin.list_consumer_group_offsets([wanted])[group].result().topic_partitions
    offset: int = found.offset
    return offset


def programs() -> Iterator[str]:
    """Names of the programs in the folder."""
    return (path.stem for path in FOLDER.glob("*.py"))


def test_every_program_is_run() -> None:
    """Each file of the folder has its test here, so that none is published untried."""
    assert set(programs()) == RUN_HERE


@pytest.mark.parametrize("name", ["consumer", "by_hand"])
@pytest.mark.parametrize(("label", "count"), [("plain", 1), ("lanes4", 2)])
async def test_members_share_the_work(
    kafka: str,
    admin: AdminClient,
    shared_keylane: KeylaneProcess,
    topic: TopicFactory,
    name: str,
    label: str,
    count: int,
) -> None:
    """One program on a partition, and two on its lanes: each record once, in key order."""
    orders = topic(label)
    args = (shared_keylane.bootstrap, f"{orders}-group", orders)
    written: list[tuple[str, str]] = []

    async with AsyncExitStack() as stack:
        group = [await stack.enter_async_context(running(name, *args)) for _ in range(count)]

        def done() -> list[tuple[str, str]]:
            return [record for program in group for record in program.done()]

        def is_done(total: int) -> bool:
            return len(done()) >= total

        while len(written) < len(KEYS) * ROUNDS or not all(each.done() for each in group):
            wave = [(key, str(len(written))) for key in KEYS]
            await asyncio.to_thread(write, kafka, orders, wave)
            written += wave
            await until(group, partial(is_done, len(written)))
        statuses = [await each.stop() for each in group]

    assert statuses == [0] * count
    assert [each.lines[-1] for each in group] == [["CLOSED"]] * count
    assert Counter(done()) == Counter(written)
    for each in group:
        each.assert_keys_in_order()
    assert offset_of(admin, args[1], orders) == len(written)


async def test_workers_retry_and_write_letters(
    kafka: str, admin: AdminClient, shared_keylane: KeylaneProcess, topic: TopicFactory
) -> None:
    """A failure that passes is done in its turn, one that does not becomes a letter."""
    orders, dead = topic("lanes4"), topic("dead")
    group = f"{orders}-group"
    records = [("a", "later"), ("a", "1"), ("b", "never"), ("b", "2"), ("c", "3")]
    await asyncio.to_thread(write, kafka, orders, records)
    letters = AIOKafkaConsumer(dead, bootstrap_servers=kafka, auto_offset_reset="earliest")

    async with (
        running("workers", shared_keylane.bootstrap, group, orders, dead) as program,
        letters,
    ):
        await program.until_done(4)
        async with asyncio.timeout(LIMIT_S):
            letter = await letters.getone()
        status = await program.stop()

    assert (status, program.lines[-1]) == (0, ["CLOSED"])
    assert [value for key, value in program.done() if key == "a"] == ["later", "1"]
    assert (letter.key, letter.value) == (b"b", b"never")
    assert dict(letter.headers)["__dlq.errors.message"] == b"ValueError: no such order"
    assert offset_of(admin, group, orders) == len(records)


async def test_results_are_written_exactly_once(
    kafka: str, admin: AdminClient, shared_keylane: KeylaneProcess, topic: TopicFactory
) -> None:
    """Each result is there once, in key order, with the offset of its record."""
    orders, results = topic("lanes4"), topic("results")
    group = f"{orders}-group"
    await asyncio.to_thread(write, kafka, orders, numbered())
    reader = AIOKafkaConsumer(
        results,
        bootstrap_servers=kafka,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    found: list[tuple[str, str]] = []

    bootstrap = shared_keylane.bootstrap
    async with running("exactly_once", bootstrap, group, orders, results, group) as program, reader:
        async with asyncio.timeout(LIMIT_S):
            while len(found) < len(numbered()):
                record = await reader.getone()
                found.append((record.key.decode(), record.value.decode()))
        status = await program.stop()

    assert (status, program.lines) == (0, [["CLOSED"]])
    assert Counter(found) == Counter(numbered())
    assert [number for key, number in found if key == KEYS[0]] == list(map(str, range(ROUNDS)))
    # A commit is answered before its markers are written: offsets may follow the results.
    wait_until(lambda: offset_of(admin, group, orders) >= len(numbered()), "the group's offset")
    assert offset_of(admin, group, orders) == len(numbered())


async def test_a_share_group_in_key_order(
    kafka: str, keylane: KeylaneFactory, topic: TopicFactory
) -> None:
    """The handler has each record once, in key order."""
    orders = topic("share")
    group = f"{orders}-group"
    proxy = keylane(args=["--share-order", f"{group}=key"])
    await asyncio.to_thread(alter_group, kafka, group, share_auto_offset_reset="earliest")
    await asyncio.to_thread(write, kafka, orders, numbered())

    async with running("share", proxy.bootstrap, group, orders) as program:
        await program.until_done(len(numbered()))
        status = await program.stop()

    assert (status, program.lines[-1]) == (0, ["CLOSED"])
    assert Counter(program.done()) == Counter(numbered())
    program.assert_keys_in_order()


async def test_parts_of_the_keys(
    kafka: str, admin: AdminClient, shared_keylane: KeylaneProcess, topic: TopicFactory
) -> None:
    """Two programs have the keys of each half; a record without a commit holds Kafka's offset."""
    orders = topic("lanes4")
    group = f"{orders}-group"
    records = numbered()
    records[33] = (records[33][0], "later")
    await asyncio.to_thread(write, kafka, orders, records)

    low_part, _ = split_even(2)
    is_low = [low_part.contains(key_hash(key.encode())) for key, _ in records]
    wanted = [record for record in records if record[1] != "later"]

    bootstrap = shared_keylane.bootstrap
    async with (
        running("ranges", bootstrap, group, orders, "0", "2") as low,
        running("ranges", bootstrap, group, orders, "1", "2") as high,
    ):
        await low.until_done(sum(is_low) - is_low[33])
        await high.until_done(len(records) - sum(is_low) - (not is_low[33]))
        statuses = [await low.stop(), await high.stop()]

    assert statuses == [0, 0]
    assert Counter(low.done() + high.done()) == Counter(wanted)
    assert not {key for key, _ in low.done()} & {key for key, _ in high.done()}
    assert offset_of(admin, group, orders) == 33
    closed = (low if is_low[33] else high).lines[-1]
    assert closed[:2] == ["CLOSED", "(33,"]
