"""Failures and moves: kills under load, roll-back to Kafka, coming from Kafka, the stall."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.keyrange.hash import key_hash
from keylane.keyrange.lane import LaneLayout
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import CODECS, Group, produce

KEYS = [f"key-{number}" for number in range(100)]
OUTAGE_MS = 30_000
"""Session time-out of members that live through an outage. One that is put out meanwhile may still
read what it has fetched, after others have committed that."""


def stable_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """Return what the broker itself holds for the group; -1001 where it holds nothing."""
    wanted = ConsumerGroupTopicPartitions(
        group, [TopicPartition(topic, number) for number in range(partitions)]
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_consumer_group_offsets([wanted])[group].result(30)
    return [part.offset for part in found.topic_partitions]


def log_ends(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """Return the log end offsets by the broker."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1]
        for number in range(partitions)
    ]
    consumer.close()
    return ends


@contextmanager
def steady_production(
    bootstrap: str, topic: str, codecs: Sequence[str] = CODECS
) -> Iterator[list[str]]:
    """Produces rounds until the block ends; the list holds what was acknowledged."""
    values: list[str] = []
    stopping = threading.Event()

    def run() -> None:
        number = 0
        while not stopping.wait(0.02):
            values.extend(produce(bootstrap, topic, KEYS, 5, first=number, codecs=codecs))
            number += 5

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield values
    finally:
        stopping.set()
        thread.join()


def assert_nothing_lost(group: Group, values: list[str]) -> None:
    """Every value reached the group, and nothing that was committed came again."""
    group.wait_for_values(values, timeout_s=90)
    group.wait_for_commits()
    group.seen.assert_nothing_committed_again()


@pytest.mark.parametrize("library", [pytest.param("aiokafka", marks=pytest.mark.long), "confluent"])
def test_a_killed_member_loses_nothing(library, kafka, shared_keylane, topic) -> None:
    """kill -9 of two members under load: their lanes go on at others from their commits."""
    name = topic("lanes4", partitions=2)
    with Group(shared_keylane.bootstrap, name, f"g-{name}", assignor="roundrobin") as group:
        members = group.add(library, 4)
        group.wait_for_lanes(8)

        with steady_production(kafka, name) as values:
            group.wait(lambda seen: len(seen.sightings) > 2000, timeout_s=60, what="some records")
            group.kill(members[0])
            group.kill(members[1])
            group.wait_for_lanes(8)

        assert_nothing_lost(group, values)


def test_a_killed_proxy_loses_nothing(kafka, keylane, topic) -> None:
    """kill -9 of the proxy under load, then a start: members go on from their commits."""
    name = topic("orders", partitions=2)
    proxy = keylane(f"{name}=4")
    with Group(proxy.bootstrap, name, f"g-{name}", session_timeout_ms=OUTAGE_MS) as group:
        group.add("aiokafka", 2)
        group.add("confluent", 2)
        group.wait_for_lanes(8)

        with steady_production(kafka, name) as values:
            group.wait(lambda seen: len(seen.sightings) > 2000, timeout_s=60, what="some records")
            proxy.kill()
            proxy.start()
            seen_before = len(group.seen.sightings)
            group.wait(
                lambda seen: len(seen.sightings) > seen_before + 2000,
                timeout_s=90,
                what="records after the restart",
            )

        assert_nothing_lost(group, values)


def test_a_killed_broker_loses_nothing(own_broker, keylane) -> None:
    """kill -9 of the broker under load, then a start: nothing lost, nothing committed again."""
    bootstrap = own_broker.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = make_topic_factory(admin, "broker-killed")("orders", partitions=2)
    proxy = keylane(f"{name}=4", bootstrap=bootstrap)
    with Group(proxy.bootstrap, name, f"g-{name}", session_timeout_ms=OUTAGE_MS) as group:
        group.add("aiokafka", 2)
        group.add("confluent", 2)
        group.wait_for_lanes(8)
        values = produce(bootstrap, name, KEYS, 30)
        group.wait(lambda seen: len(seen.sightings) > 500, timeout_s=60, what="some records")

        own_broker.kill()
        own_broker.start()
        values += produce(bootstrap, name, KEYS, 30, first=30)

        assert_nothing_lost(group, values)


def test_a_group_leaves_for_kafka_and_comes_back(kafka, shared_keylane, topic) -> None:
    """Roll-back: directly on Kafka the group goes on from the stable offset; and back again."""
    name = topic("lanes4", partitions=2)
    group_id = f"g-{name}"
    first = produce(kafka, name, KEYS, 10)
    with Group(shared_keylane.bootstrap, name, group_id) as on_lanes:
        on_lanes.add("aiokafka", 4)
        on_lanes.wait_for_values(first)
        on_lanes.wait_for_commits()
    assert stable_offsets(kafka, group_id, name, 2) == log_ends(kafka, name, 2)

    second = produce(kafka, name, KEYS, 10, first=10)
    with Group(kafka, name, group_id) as direct:
        direct.add("aiokafka", 2)
        direct.wait_for_values(second)
        direct.wait_for_commits()
    third = produce(kafka, name, KEYS, 10, first=20)
    with Group(shared_keylane.bootstrap, name, group_id) as again:
        again.add("confluent", 4)
        again.wait_for_values(third)
        again.wait_for_commits()

    assert direct.seen.values() == dict.fromkeys(second, 1)
    assert again.seen.values() == dict.fromkeys(third, 1)


def test_a_group_with_direct_history_starts_where_it_stood(kafka, shared_keylane, topic) -> None:
    """Offsets committed directly on Kafka are where every lane starts."""
    name = topic("lanes4", partitions=2)
    group_id = f"g-{name}"
    first = produce(kafka, name, KEYS, 5)
    with Group(kafka, name, group_id) as direct:
        direct.add("confluent", 1)
        direct.wait_for_values(first)
        direct.wait_for_commits()
    second = produce(kafka, name, KEYS, 5, first=5)

    with Group(shared_keylane.bootstrap, name, group_id) as on_lanes:
        on_lanes.add("kafka-python", 3)
        on_lanes.wait_for_values(second)
        on_lanes.wait_for_commits()

    assert on_lanes.seen.values() == dict.fromkeys(second, 1)


def test_the_stable_offset_does_not_stall_when_one_lane_has_all_keys(kafka, keylane, topic) -> None:
    """All keys in one lane of 16: the broker's own offset reaches the log end, and stays."""
    name = topic("orders", partitions=1)
    group_id = f"g-{name}"
    first_lane = LaneLayout(1, 16).key_range(0, 0)
    keys = [f"key-{n}" for n in range(5000) if first_lane.contains(key_hash(f"key-{n}".encode()))]
    assert len(keys) > 50
    proxy = keylane(f"{name}=16")
    with Group(proxy.bootstrap, name, group_id) as group:
        group.add("confluent", 4)
        group.wait_for_lanes(16)
        values = produce(kafka, name, keys, 10)
        group.wait_for_values(values)
        group.wait_for_commits()
    ends = log_ends(kafka, name, 1)
    assert stable_offsets(kafka, group_id, name, 1) == ends

    proxy.restart()

    with Group(proxy.bootstrap, name, group_id) as again:
        again.add("confluent", 4)
        again.wait_for_lanes(16)
        more = produce(kafka, name, keys, 1, first=10)
        again.wait_for_values(more)
        again.wait_for_commits()
    assert again.seen.values() == dict.fromkeys(more, 1)
    assert stable_offsets(kafka, group_id, name, 1) == log_ends(kafka, name, 1)
