"""Lanes hold exactly the records that a direct consumer gets: every field, every kind of log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from tests.integration.harness import CODECS
from tests.integration.keylane_process import PATIENCE

KEPT = {"retention.ms": "-1"}
"""The records' timestamps are years old: retention would delete them in the middle of a test."""


def read_all(bootstrap: str, topic: str, partitions: int, **options: Any) -> dict[Any, Any]:
    """All records to the log end, by (partition modulo 2, offset); partitions are assigned."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"read-{topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            **options,
        }
    )
    lanes = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]
    consumer.assign(lanes)
    found: dict[Any, Any] = {}
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(30)
        assert message is not None, f"only {sorted(ended)} came to their end"
        number = message.partition()
        assert number is not None
        error = message.error()
        if error is not None:
            assert error.name() == "_PARTITION_EOF", error
            ended.add(number)
            continue
        place = (number % 2, message.offset())
        assert place not in found, f"{place} came twice"
        found[place] = (
            message.key(),
            message.value(),
            message.headers(),
            message.timestamp(),
        )
    consumer.close()
    return found


def produce_everything(bootstrap: str, topic: str) -> None:
    """Null and empty keys and values, headers, timestamps, every codec, batches of 1 and many."""
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        for number in range(200):
            headers: list[Any] = [("trace", f"{number}".encode()), ("empty", b""), ("null", None)]
            producer.produce(
                topic,
                key=[None, b"", f"key-{number % 50}".encode(), b"\x00\xff" * 40][number % 4],
                value=[None, b"", b"v" * number, f"{codec}-{number}".encode()][number % 4 - 1],
                headers=headers[: number % 4],
                timestamp=1_700_000_000_000 + (number * 7919) % 100_000,
                partition=number % 2,
            )
            if number % 10 == 0:
                producer.flush(30)
        assert producer.flush(30) == 0


@pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("lanes", [1, 16])
def test_every_field_of_every_record(time_type, lanes, kafka, shared_keylane, topic) -> None:
    """Key, value, headers, timestamp and its type are those that a direct consumer sees."""
    name = topic("plain", partitions=2, config={"message.timestamp.type": time_type, **KEPT})
    produce_everything(kafka, name)

    direct = read_all(kafka, name, 2)
    on_lanes = read_all(shared_keylane.bootstrap, f"{name}.lanes-{lanes}", 2 * lanes)

    assert len(direct) == 1000
    assert on_lanes == direct


def test_a_record_larger_than_all_limits(kafka, shared_keylane, topic) -> None:
    """A record of 900 kB comes through with fetch limits of 1 kB, as KIP-74 wants it."""
    name = topic("lanes4", partitions=2)
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(20):
        producer.produce(name, key=f"k{number}", value=b"x" * 900_000, partition=number % 2)
    assert producer.flush(30) == 0

    found = read_all(
        shared_keylane.bootstrap,
        name,
        8,
        **{"fetch.message.max.bytes": 1024, "fetch.max.bytes": 1_000_000},
    )

    assert len(found) == 20


@pytest.fixture
def compacting(tmp_path: Path) -> Iterator[str]:
    """A broker whose cleaner pauses for 200 ms, by default 15 s."""
    properties = {"log.cleaner.backoff.ms": "200"}
    with EmbeddedKafka(tmp_path / "kafka", properties=properties) as running:
        yield running.bootstrap


def test_a_compacted_topic(compacting, keylane) -> None:
    """After compaction lanes hold what is left, at the same offsets."""
    from tests.integration.conftest import make_topic_factory

    bootstrap = compacting
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = make_topic_factory(admin, "compacted")(
        "compacted",
        partitions=2,
        config={
            "cleanup.policy": "compact",
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "1000",
            "delete.retention.ms": "100",
        },
    )
    producer = Producer({"bootstrap.servers": bootstrap})
    count = 30_000
    for number in range(count):
        value = None if number % 97 == 0 else b"%06d" % number + b"x" * 200
        producer.produce(name, key=f"key-{number % 300}", value=value, partition=number % 2)
        if number % 500 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
    proxy = keylane(f"{name}=8", bootstrap=bootstrap)
    direct = read_all(bootstrap, name, 2)
    until_s = time.monotonic() + 60 * PATIENCE
    while len(direct) >= count * 3 // 4:
        assert time.monotonic() < until_s, f"{len(direct)} of {count} records are left"
        direct = read_all(bootstrap, name, 2)

    on_lanes = read_all(proxy.bootstrap, name, 16)

    # The cleaner may go on between the two: what is there later was there before.
    again = read_all(bootstrap, name, 2)
    assert again.items() <= on_lanes.items() <= direct.items()


def test_deleted_records_are_out_of_range(kafka, shared_keylane, topic, java, tmp_path) -> None:
    """A position below the log start is out of range: the client resets and reads the rest."""
    name = topic("lanes4", partitions=2, config=KEPT)
    produce_everything(kafka, name)
    everything = read_all(kafka, name, 2)
    wanted = tmp_path / "delete.json"
    wanted.write_text(
        '{"version": 1, "partitions": ['
        f'{{"topic": "{name}", "partition": 0, "offset": 100}},'
        f'{{"topic": "{name}", "partition": 1, "offset": 200}}]}}'
    )
    consumer = Consumer(
        {
            "bootstrap.servers": shared_keylane.bootstrap,
            "group.id": f"g-{name}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(name, lane, 0) for lane in range(8)])
    assert consumer.poll(30) is not None
    java.run("kafka-delete-records", "--bootstrap-server", kafka, "--offset-json-file", wanted)

    consumer.assign([TopicPartition(name, lane, 5) for lane in range(8)])
    found: set[tuple[int, int]] = set()
    ended: set[int] = set()
    while len(ended) < 8:
        message = consumer.poll(30)
        assert message is not None
        number, offset = message.partition(), message.offset()
        assert number is not None
        assert offset is not None
        error = message.error()
        if error is not None:
            assert error.name() == "_PARTITION_EOF", error
            ended.add(number)
        else:
            found.add((number % 2, offset))
    consumer.close()

    left = {place for place in everything if place[1] >= (100, 200)[place[0]]}
    assert left <= found
    assert read_all(shared_keylane.bootstrap, name, 8).keys() == left


def test_offsets_by_time_are_the_partitions(kafka, shared_keylane, topic) -> None:
    """offsets_for_times of a lane is its partition's; latest and earliest are as direct."""
    name = topic("lanes4", partitions=2, config=KEPT)
    produce_everything(kafka, name)
    direct = Consumer({"bootstrap.servers": kafka, "group.id": "t"})
    on_lanes = Consumer({"bootstrap.servers": shared_keylane.bootstrap, "group.id": "t"})
    moment = 1_700_000_050_000

    of_partitions = direct.offsets_for_times(
        [TopicPartition(name, number, moment) for number in range(2)], timeout=30
    )
    of_lanes = on_lanes.offsets_for_times(
        [TopicPartition(name, number, moment) for number in range(8)], timeout=30
    )

    expected = [part.offset for part in of_partitions]
    assert [part.offset for part in of_lanes] == expected * 4
    for lane in range(8):
        marks = on_lanes.get_watermark_offsets(TopicPartition(name, lane), timeout=30)
        assert marks == direct.get_watermark_offsets(TopicPartition(name, lane % 2), timeout=30)
    direct.close()
    on_lanes.close()
