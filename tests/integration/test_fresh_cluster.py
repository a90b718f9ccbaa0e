"""Brokers that cannot make their offsets topic yet: requests without a group are served."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess

CAUSE = (
    "topic __consumer_offsets cannot be made: offsets.topic.replication.factor is 3, and the"
    " cluster has 1 broker (INVALID_REPLICATION_FACTOR)"
)
KEYS = [f"key-{number}" for number in range(20)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """One broker that has to keep three replicas of group offsets, Kafka's default."""
    properties = {"offsets.topic.replication.factor": "3"}
    with EmbeddedKafka(tmp_path / "kafka", properties=properties) as running:
        yield running


@pytest.fixture
def node(broker: EmbeddedKafka, tmp_path: Path) -> Iterator[KeylaneProcess]:
    """A node in front of it, which is to become ready all the same."""
    process = KeylaneProcess(broker.bootstrap, ["lanes4-*=4"], log_path=tmp_path / "keylane.log")
    yield process
    process.stop()


def test_groups_are_served_as_soon_as_their_topic_can_be_made(
    broker: EmbeddedKafka, node: KeylaneProcess
) -> None:
    """Until then records go in and out, by lanes too; log and `/readyz` say what is missing."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = make_topic_factory(admin, "fresh")("lanes4")
    node.start()

    produce(node.bootstrap, name, KEYS, rounds=2)
    values = read_lanes(node, name, lanes=4)

    assert len(values) == 2 * len(KEYS)
    node.wait_for_log(f"groups on lanes are not served yet reason={CAUSE}")
    assert readiness(node) == f"ok\nmissing: groups on lanes: {CAUSE}\n"
    with pytest.raises(KafkaException):
        commit(node, name, timeout_s=3)

    # What an operator may do about it; another is to start the brokers that are missing.
    (made,) = admin.create_topics([NewTopic("__consumer_offsets", 5, 1)]).values()
    made.result(30)
    node.wait_for_log("groups on lanes are served")

    commit(node, name, timeout_s=90)
    assert readiness(node) == "ok\n"


def test_a_node_that_still_waits_stops_in_order(node: KeylaneProcess) -> None:
    """SIGTERM ends it with exit code 0, as one that serves groups."""
    node.start()

    assert node.stop() == 0


def read_lanes(node: KeylaneProcess, topic: str, *, lanes: int) -> list[bytes]:
    """Every record, by a consumer that assigns lanes to itself and commits nothing."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, lane, 0) for lane in range(lanes)])
    values: list[bytes] = []
    open_count = lanes
    while open_count:
        message = consumer.poll(60)
        assert message is not None, "no record and no end of a lane in a minute"
        error = message.error()
        if error is None:
            values.append(message.value() or b"")
        elif error.code() == KafkaError._PARTITION_EOF:  # others are of a coordinator that is away
            open_count -= 1
    consumer.close()
    return values


def commit(node: KeylaneProcess, topic: str, *, timeout_s: float) -> None:
    """Commit one lane, and read it back. Raises: KafkaException."""
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "fresh"})
    try:
        # Asking first: it ends after its time-out where there is no coordinator.
        consumer.committed([TopicPartition(topic, 2)], timeout=timeout_s)
        consumer.commit(offsets=[TopicPartition(topic, 2, 7)], asynchronous=False)
        (place,) = consumer.committed([TopicPartition(topic, 2)], timeout=timeout_s)
        assert place.offset == 7
    finally:
        consumer.close()


def readiness(node: KeylaneProcess) -> str:
    """Return what `/readyz` answers with status 200."""
    with urllib.request.urlopen(f"http://{node.control}/readyz", timeout=30) as answer:
        return str(answer.read().decode())
