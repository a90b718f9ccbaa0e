"""Read a topic with keylane's client and with aiokafka: records per second, CPU per record.

    python -m bench.client_reads [--megabytes 200] [--turns 3]

One broker, one topic of one partition, the same log for both, in turns in this process. Both get
whole lists (`getmany`) and look at every record's offset and value. CPU is this process's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter, process_time
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as StockPartition
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.client import Consumer, TopicPartition
from keylane.client.records import RecordList
from keylane.embedded import EmbeddedKafka

SIZES_BYTES: Final = (100, 1_000)
POLL_RECORDS: Final = 5_000
POLL_TIMEOUT_MS: Final = 1_000


class Turn(NamedTuple):
    """One pass over the log."""

    wall_s: float
    cpu_s: float


def size_of_records(records: RecordList) -> int:
    """Look at record after record."""
    size = 0
    for record in records:
        size += len(record.value or b"")
    return size


def size_of_values(records: RecordList) -> int:
    """Look at the values alone."""
    return sum(map(len, filter(None, records.values)))


async def read_keylane(
    size_of: Callable[[RecordList], int], bootstrap: str, topic: str, count: int
) -> Turn:
    """Read the log with keylane's client."""
    consumer = Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=POLL_RECORDS
    )
    consumer.assign([TopicPartition(topic, 0)])
    async with consumer:
        started, cpu = perf_counter(), process_time()
        seen = size = 0
        while seen < count:
            for records in (await consumer.getmany(timeout_ms=POLL_TIMEOUT_MS)).values():
                size += size_of(records)
                seen += len(records)
        return Turn(perf_counter() - started, process_time() - cpu)


async def read_aiokafka(bootstrap: str, topic: str, count: int) -> Turn:
    """Read the log with aiokafka."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=POLL_RECORDS
    )
    consumer.assign([StockPartition(topic, 0)])
    await consumer.start()
    try:
        started, cpu = perf_counter(), process_time()
        seen = size = 0
        while seen < count:
            for records in (await consumer.getmany(timeout_ms=POLL_TIMEOUT_MS)).values():
                for record in records:
                    size += len(record.value)
                seen += len(records)
        return Turn(perf_counter() - started, process_time() - cpu)
    finally:
        await consumer.stop()


READERS: Final[dict[str, Callable[[str, str, int], Awaitable[Turn]]]] = {
    "keylane": partial(read_keylane, size_of_records),
    "keylane, values": partial(read_keylane, size_of_values),
    "aiokafka": read_aiokafka,
}


def fill(bootstrap: str, size_bytes: int, count: int) -> str:
    """Write the log; returns the topic."""
    topic = f"reads-{size_bytes}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 16_384,
         "queue.buffering.max.messages": 10_000_000}
    )  # fmt: skip
    value = bytes(range(256)) * (size_bytes // 256 + 1)
    for index in range(count):
        producer.produce(topic, value[:size_bytes], key=b"%08d" % (index % 1_000))
        if index % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    return topic


async def measure(bootstrap: str, topic: str, count: int, turns: int) -> None:
    """Print the figures of a log."""
    found: dict[str, list[Turn]] = {name: [] for name in READERS}
    for _ in range(turns):
        for name, read in READERS.items():
            found[name].append(await read(bootstrap, topic, count))
    for name, of_reader in found.items():
        rate = statistics.median(count / turn.wall_s for turn in of_reader)
        cpu_s = statistics.median(turn.cpu_s for turn in of_reader)
        print(
            f"{topic:12} {name:16} {rate:10,.0f} records/s  "
            f"{1e6 * cpu_s / count:6.2f} CPU s per million records",
            flush=True,
        )


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description="read with keylane's client and with aiokafka")
    parser.add_argument("--megabytes", type=int, default=200, help="of each log")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(folder) as kafka:
        for size_bytes in SIZES_BYTES:
            count = arguments.megabytes * 1_000_000 // (size_bytes + 20)
            topic = fill(kafka.bootstrap, size_bytes, count)
            asyncio.run(measure(kafka.bootstrap, topic, count, arguments.turns))


if __name__ == "__main__":
    main()
