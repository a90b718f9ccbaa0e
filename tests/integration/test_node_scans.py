"""Nodes publish their scans to each other: stable offsets reach the log end at any node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.harness import produce
from tests.integration.keylane_process import PATIENCE
from tests.integration.nodes import Nodes, coordinator_node, leading_nodes
from tests.integration.share_wire import wait_until

KEYS = [f"key-{number}" for number in range(100)]
PARTITIONS, LANES = 4, 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker for this module: all nodes of one cluster form one group."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running.bootstrap


def stable_offsets(admin: AdminClient, topic: str, group: str) -> dict[int, int]:
    """Return the offsets of Kafka's own group, by partition."""
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    wanted = [ConsumerGroupTopicPartitions(group, places)]
    found = admin.list_consumer_group_offsets(wanted)[group].result(60)
    return {place.partition: place.offset for place in found.topic_partitions}


def are_at(admin: AdminClient, topic: str, group: str, ends: dict[int, int]) -> bool:
    """Return whether Kafka's own group stands at these offsets."""
    return stable_offsets(admin, topic, group) == ends


def test_the_last_commit_brings_the_stable_offset_to_the_log_end(
    cluster: str, tmp_path: Path
) -> None:
    """Another node has read the partition a moment before, and no record follows."""
    topic, group = "scanned", "g-scanned"
    admin = AdminClient({"bootstrap.servers": cluster})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    with Nodes(cluster, [f"{topic}={LANES}"], folder=tmp_path, count=2) as nodes:
        # The first node learns a moment after the second one that they agree.
        wait_until(
            lambda: set(leading_nodes(nodes.bootstrap, topic).values()) == {0, 1},
            "partitions at both nodes",
        )
        consumer = Consumer(
            {
                "bootstrap.servers": nodes.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        ends = dict.fromkeys(range(PARTITIONS), 0)
        commit_s = []
        for round_number in range(5):
            values = set(produce(cluster, topic, KEYS, rounds=1, first=round_number))
            until_s = time.monotonic() + 60 * PATIENCE
            while values and time.monotonic() < until_s:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    values.discard((message.value() or b"").decode())
            assert not values
            started_s = time.monotonic()
            consumer.commit(asynchronous=False)
            commit_s.append(time.monotonic() - started_s)

            ends = {
                partition: consumer_end(cluster, topic, partition)
                for partition in range(PARTITIONS)
            }
            # A scan that takes longer than a commit waits for counts with the next heartbeat.
            wait_until(
                partial(are_at, admin, topic, group, ends),
                f"stable offsets at the ends of round {round_number}, commits took {commit_s}",
            )
        consumer.close()
        print("commits took", commit_s, "at node", coordinator_node(nodes.bootstrap, group))

    assert sum(ends.values()) == 5 * len(KEYS)
    assert not any("Traceback" in node.log for node in nodes.processes)


def consumer_end(cluster: str, topic: str, partition: int) -> int:
    """Return the end offset of a partition's log."""
    consumer = Consumer({"bootstrap.servers": cluster, "group.id": "unused"})
    end: int = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
    consumer.close()
    return end
