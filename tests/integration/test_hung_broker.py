"""One broker of three is stopped (SIGSTOP): it takes connections and answers nothing."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka

from .made_topics import make_topic

HUNG = 1
"""The first of the list that keylane and clients begin with."""
LANES = 2
PARTITIONS = {1: 0, 2: 1, 3: 2}
"""The partition that only this broker has, by broker."""
WAIT_S = 180.0
"""Seconds after which a test counts as hanging."""


def produce(bootstrap: str, broker: int, numbers: range) -> set[str]:
    """Keyed values into the partition of one broker."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    values = [f"{broker}:{number}" for number in numbers]
    for number, value in zip(numbers, values, strict=True):
        producer.produce("orders", value, f"key-{number}", PARTITIONS[broker])
    assert producer.flush(WAIT_S) == 0
    return set(values)


def lanes_of(topic: str, lanes: int, *brokers: int) -> list[TopicPartition]:
    """Return all lanes of the partitions of these brokers, from their start."""
    return [
        TopicPartition(topic, lane * len(PARTITIONS) + PARTITIONS[broker], 0)
        for broker in brokers
        for lane in range(lanes)
    ]


def read(consumer: Consumer, wanted: set[str]) -> dict[tuple[str, int], int]:
    """Read until all values have come; the next offset of each lane."""
    ends: dict[tuple[str, int], int] = {}
    missing, until_s = set(wanted), time.monotonic() + WAIT_S
    while missing:
        assert time.monotonic() < until_s, f"{len(missing)} values did not come"
        message: Any = consumer.poll(1.0)
        if message is not None and message.error() is None:
            missing.discard(message.value().decode())
            ends[message.topic(), message.partition()] = message.offset() + 1
    return ends


def commit(consumer: Consumer, ends: dict[tuple[str, int], int]) -> None:
    """Commit until it succeeds: replicas of Kafka's own offsets hang as well at first.

    Lanes stand there then, or behind offsets without a record of theirs.
    """
    offsets = [TopicPartition(topic, index, end) for (topic, index), end in ends.items()]
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            answered = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            answered = None
        if answered and all(each.error is None for each in answered):
            found = consumer.committed(offsets, timeout=60)
            assert all(at.offset >= ends[at.topic, at.partition] for at in found)
            return
        assert time.monotonic() < until_s, "the commit was not taken"


def consumer_of(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )


def group_elsewhere(admin: AdminClient) -> str:
    """A group whose coordinator goes on."""
    numbers, until_s = itertools.count(), time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < until_s, "no group has its coordinator elsewhere"
        group = f"g{next(numbers)}"
        try:
            described = admin.describe_consumer_groups([group])[group].result(60)
        except KafkaException:  # its coordinator may still load: the topic is new
            continue
        if described.coordinator.id not in (HUNG, -1):
            return group


@pytest.mark.timeout(900)
def test_a_broker_that_hangs_holds_up_what_it_leads_alone(tmp_path, keylane) -> None:
    """Lanes of the others deliver all, a client that starts finds its way, groups commit.

    When it goes on, its lanes do, too.
    """
    with EmbeddedKafka(tmp_path / "kafka", node_count=3, heap_mb=384) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        placed = [[broker] for broker in sorted(PARTITIONS, key=lambda b: PARTITIONS[b])]
        make_topic(admin, NewTopic("orders", len(placed), replica_assignment=placed))
        proxy = keylane(f"orders={LANES}", bootstrap=cluster.bootstrap)
        group = group_elsewhere(admin)
        for_others = ",".join(node.address for node in cluster.nodes[1:])
        before = {broker: produce(cluster.bootstrap, broker, range(20)) for broker in PARTITIONS}
        running = consumer_of(proxy.bootstrap, group)
        started: Consumer | None = None
        try:
            running.assign(lanes_of("orders", LANES, *PARTITIONS))
            commit(running, read(running, set().union(*before.values())))

            pid = cluster.nodes[HUNG - 1].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                others = produce(for_others, 2, range(20, 60)) | produce(
                    for_others, 3, range(20, 60)
                )
                ends = read(running, others)
                commit(running, ends)

                started = consumer_of(proxy.bootstrap, f"{group}-new")
                started.assign(lanes_of("orders.lanes-5", 5, 2, 3))  # not read before
                read(started, before[2] | before[3] | others)
            finally:
                os.kill(pid, signal.SIGCONT)
            ends = read(running, produce(cluster.bootstrap, HUNG, range(20, 40)))
            commit(running, ends)
        finally:
            running.close()
            if started is not None:
                started.close()
