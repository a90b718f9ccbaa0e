"""Lanes whose batches are compressed again: real clients read them, and less is sent."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Producer

from tests.integration.test_record_fidelity import KEPT, produce_everything, read_all


async def read_values(bootstrap: str, topic: str, lanes: int, count: int) -> list[bytes]:
    """Read with aiokafka, which has its own codecs."""
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True)
    await consumer.start()
    try:
        parts = [TopicPartition(topic, lane) for lane in range(lanes)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_stock_clients_read_lanes_that_are_compressed_again(
    codec, kafka, keylane, topic, java
) -> None:
    """librdkafka field for field, the Java client and aiokafka value for value; CRCs checked."""
    name = topic("packed", partitions=2, config=KEPT)
    produce_everything(kafka, name)
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 50})
    values = [f"{codec}-{number} ".encode() * 40 for number in range(2_000)]
    for number, value in enumerate(values):
        producer.produce(name, key=f"key-{number % 99}", value=value, partition=number % 2)
    assert producer.flush(30) == 0
    proxy = keylane(args=("--set", f"lanes=[{{topic: {name}, lanes: 4, compression: {codec}}}]"))

    direct = read_all(kafka, name, 2)
    on_lanes = read_all(proxy.bootstrap, name, 8)
    with urllib.request.urlopen(f"http://{proxy.control}/metrics", timeout=30) as answer:
        counted = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines())
    plain = read_all(proxy.bootstrap, f"{name}.lanes-4", 8)
    reported = java.run(
        "kafka-console-consumer",
        *("--bootstrap-server", proxy.bootstrap, "--topic", name, "--from-beginning"),
        *("--group", f"g-{name}", "--max-messages", str(len(direct))),
        *("--command-property", "check.crcs=true"),
    )
    found = asyncio.run(read_values(proxy.bootstrap, name, 8, len(direct)))

    assert len(direct) == 3_000
    assert on_lanes == plain == direct
    assert sum(line.startswith(f"{codec}-") for line in reported.stdout.split("\n")) >= len(values)
    assert sorted(map(bytes, filter(None, found))) == sorted(
        filter(None, (record[1] for record in direct.values()))
    )
    assert float(counted["keylane_lane_bytes_total"]) * 3 < sum(map(len, values))
