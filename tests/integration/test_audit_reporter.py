"""keylane/audit: both reporters against a real broker."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from confluent_kafka import Consumer

from keylane.audit import AsyncAuditReporter, AuditReporter, generation_of, lane_places
from keylane.audit.record import audit_partition
from keylane.errors import AuditUnwritten
from keylane.keyrange.hash import key_hash
from keylane.keyrange.lane import LaneLayout

from .conftest import TopicFactory

PLACES = lane_places(LaneLayout(partition_count=2, lane_count=2))
AUDIT_PARTITIONS = 3


def read_all(kafka: str, topic: str, count: int) -> dict[int, list[dict[str, Any]]]:
    """Values by audit partition, in the order of its log."""
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    while sum(map(len, found.values())) < count:
        for message in consumer.consume(1000, timeout=0.5):
            value, partition = message.value(), message.partition()
            assert message.error() is None and value is not None and partition is not None
            found[partition].append(json.loads(value))
    consumer.close()
    return found


def assert_is_reported(
    found: dict[int, list[dict[str, Any]]], records: int, generation: int
) -> None:
    """Assignment, records in order, and commit in every audit partition; each key in its own."""
    reported: list[int] = []
    assert len(found) == AUDIT_PARTITIONS
    for partition, values in found.items():
        kinds = [value["k"] for value in values]
        assert kinds == ["a", *["r"] * (len(kinds) - 2), "c"]
        rows = values[1:-1]
        offsets = [row["o"] for row in rows]
        assert offsets == sorted(offsets)
        reported += offsets
        for row in rows:
            hashed = int(row["h"])
            assert hashed == key_hash(b"key-%d" % row["o"])
            assert audit_partition(row["p"], hashed, AUDIT_PARTITIONS) == partition
            assert (row["p"], row["g"], row["s"]) == (1, generation, 1)
            assert row["m"].startswith("member/")
    assert sorted(reported) == list(range(records))


def test_a_confluent_member_reports(kafka: str, topic: TopicFactory) -> None:
    """300 records through a buffer of 50; a topic that does not exist is an error at once."""
    name = topic("audit", partitions=AUDIT_PARTITIONS)
    settings = {"bootstrap.servers": kafka}

    with AuditReporter(
        settings, name, member="member", place_of=PLACES, records_max=50
    ) as reporter:
        reporter.assigned([1], generation=4)
        for offset in range(300):
            reporter.processed(1, offset, b"key-%d" % offset)
        reporter.flush()
        reporter.committed({1: 300})

    assert_is_reported(read_all(kafka, name, 300 + 2 * AUDIT_PARTITIONS), 300, 4)
    with pytest.raises(AuditUnwritten, match="Unknown topic"):
        AuditReporter(
            {**settings, "allow.auto.create.topics": False},
            f"{name}-none",
            member="member",
            place_of=PLACES,
        )


async def test_an_aiokafka_member_reports(kafka: str, topic: TopicFactory) -> None:
    """The same on an event loop."""
    name = topic("audit", partitions=AUDIT_PARTITIONS)

    async with AsyncAuditReporter(
        kafka, name, member="member", place_of=PLACES, records_max=50
    ) as reporter:
        await reporter.assigned([1], generation=9)
        for offset in range(300):
            await reporter.processed(1, offset, b"key-%d" % offset)
        await reporter.flush()
        await reporter.committed({1: 300})

    assert_is_reported(read_all(kafka, name, 300 + 2 * AUDIT_PARTITIONS), 300, 9)


def test_reports_that_cannot_be_written_are_an_error() -> None:
    """No broker answers: constructor and flush raise."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}

    with pytest.raises(AuditUnwritten):
        AuditReporter(settings, "audit", member="m", place_of=PLACES, timeout_s=0.5)


def test_the_generation_of_a_confluent_consumer(kafka: str, topic: TopicFactory) -> None:
    """-1 before it has joined, Kafka's own number afterwards."""
    name = topic("orders")
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": name, "log_level": 0})
    before = generation_of(consumer)
    seen: list[int] = []
    consumer.subscribe([name], on_assign=lambda _, lanes: seen.append(generation_of(consumer)))

    while not seen:
        consumer.poll(0.2)
    consumer.close()

    assert (before, seen) == (-1, [1])
