"""An idempotent producer into lanes whose partitions move to a node that joins."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.keylane_process import PATIENCE, KeylaneProcess
from tests.integration.nodes import Nodes, leading_nodes

PARTITIONS, LANES = 4, 4


class LaneProducer:
    """librdkafka, idempotent, numbers per lane; knows what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic, self.number = topic, 0
        self.acknowledged: set[bytes] = set()
        self.errors: list[KafkaError] = []
        self._client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": 1000,
                "linger.ms": 5,
                "log_level": 2,
            }
        )

    def run(self, count: int) -> None:
        """Produce `count` more values to each lane."""
        for _ in range(count):
            for lane in range(PARTITIONS * LANES):
                value = f"{lane}:{self.number}".encode()
                self._client.produce(self.topic, value, partition=lane, on_delivery=self._delivered)
            self.number += 1
            self._client.poll(0.01)

    def leaders(self) -> set[int]:
        """Ask for the leaders of lanes; what is produced from then on goes to them."""
        found = self._client.list_topics(self.topic, timeout=30).topics[self.topic]
        return {lane.leader for lane in found.partitions.values()}

    def flush(self) -> None:
        """Wait for all acknowledgements."""
        assert self._client.flush(60) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged.add(message.value() or b"")


def has_produced(node: KeylaneProcess) -> bool:
    """Return whether a producer has come to this node."""
    with urllib.request.urlopen(f"http://{node.control}/metrics", timeout=60) as answer:
        return 'keylane_requests_total{api="Produce"}' in answer.read().decode()


def read_all(bootstrap: str, topic: str) -> list[bytes]:
    """Values of all partitions, in the order of each partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "all", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    values, ends = [], 0
    while ends < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            values.append(message.value() or b"")
        else:
            ends += 1
    consumer.close()
    return values


def test_a_producer_goes_on_when_a_node_joins(tmp_path: Path) -> None:
    """Half of its lanes move: nothing is lost or written twice, each lane is in order."""
    topic = "orders"
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
        with Nodes(kafka.bootstrap, [f"{topic}={LANES}"], folder=tmp_path, count=2) as nodes:
            nodes[1].stop()
            producer = LaneProducer(nodes.bootstrap, topic)
            producer.run(100)
            deadline_s = time.monotonic() + 60
            while set(leading_nodes(nodes[0].bootstrap, topic).values()) != {0}:
                assert time.monotonic() < deadline_s, "the node that left is still named"
                producer.run(1)
            # librdkafka stops for a batch that it has in hand when a lane's leader changes, even
            # one that it has not sent: it may have been written there.
            producer.flush()

            nodes.start()
            deadline_s = time.monotonic() + 60 * PATIENCE
            # Both nodes first: the producer asks one of them now and the other one later, and a
            # leader that went back would be one more change.
            while (
                not all(
                    set(leading_nodes(each.bootstrap, topic).values()) == {0, 1}
                    for each in nodes.processes
                )
                or len(producer.leaders()) == 1
            ):
                assert time.monotonic() < deadline_s, "no lane has moved"
                time.sleep(0.1)  # a move has no event that a client gets; the deadline bounds it
            producer.run(100)
            producer.flush()
            assert set(leading_nodes(nodes.bootstrap, topic).values()) == {0, 1}
            assert has_produced(nodes[1])
        values = read_all(kafka.bootstrap, topic)

    assert producer.errors == []
    assert Counter(values) == Counter(producer.acknowledged)
    for lane in range(PARTITIONS * LANES):
        numbers = [int(v.split(b":")[1]) for v in values if v.startswith(b"%d:" % lane)]
        assert numbers == list(range(producer.number))
