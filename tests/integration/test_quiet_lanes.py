"""Lanes without records for long: answers without records are no error to stock clients."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from keylane.keyrange.lane import LaneLayout
from tests.reference.broker_log import keys_of_lane

RECORDS = 60
RESTARTS = 20


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_librdkafka_reads_one_lane_while_the_others_are_quiet(
    isolation_level, kafka, shared_keylane, topic
) -> None:
    """Sixty answers in a row that only move a lane on are no error to the application.

    librdkafka doubles its fetch size after each answer without a record, from 1 MiB on, and at
    1 GiB says MSG_SIZE_TOO_LARGE instead: so the eleventh was one.
    """
    name = topic("lanes4", partitions=1)
    producer = Producer({"bootstrap.servers": kafka})
    consumer = Consumer(
        {
            "bootstrap.servers": shared_keylane.bootstrap,
            "group.id": f"g-{name}",
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
        }
    )
    try:
        consumer.subscribe([name])
        values = []
        for number in range(RECORDS):
            # One at a time: each is its own answer, with three lanes that are empty.
            producer.produce(name, value=str(number), key="always the same")
            assert producer.flush(30) == 0
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None, message.error()
            values.append(message.value())
    finally:
        consumer.close()

    assert values == [str(number).encode() for number in range(RECORDS)]


def test_librdkafka_starts_again_inside_of_a_batch(kafka, shared_keylane, topic) -> None:
    """A lane that is taken over where it was committed, behind its last record of a batch.

    That batch has nothing for it any more. Each time it came, librdkafka doubled its fetch size,
    so that a group that had rebalanced ten times got MSG_SIZE_TOO_LARGE.
    """
    name = topic("lanes4", partitions=1)
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 100})
    consumer = Consumer(
        {
            "bootstrap.servers": shared_keylane.bootstrap,
            "group.id": f"g-{name}",
            "fetch.wait.max.ms": 10,  # else the next fetch waits behind the one before
        }
    )
    layout = LaneLayout(1, 4)
    first, second = (keys_of_lane(lane, layout)[0] for lane in (0, 1))
    values = []
    try:
        position = 0
        for number in range(RESTARTS):
            consumer.assign([TopicPartition(name, 0, position)])
            # Time for the answer that has nothing; one that comes too late proves nothing.
            early = consumer.poll(0.3)
            assert early is None, early.error()
            producer.produce(name, value=str(number), key=first)
            producer.produce(name, value="behind it, in the same batch", key=second)
            assert producer.flush(30) == 0
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None, message.error()
            values.append(message.value())
            position = (message.offset() or 0) + 1
    finally:
        consumer.close()

    assert values == [str(number).encode() for number in range(RESTARTS)]
