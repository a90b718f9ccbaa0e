"""Kafka's own Java clients on lanes and on plain topics."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.harness import Group, produce

KEYS = [f"key-{number}" for number in range(200)]
ASSIGNORS = "org.apache.kafka.clients.consumer."


@pytest.mark.parametrize(
    "assignor",
    [pytest.param("RangeAssignor", marks=pytest.mark.long), "CooperativeStickyAssignor"],
)
def test_eight_java_members_share_two_partitions(assignor, kafka, shared_keylane, topic) -> None:
    """8 VerifiableConsumers: each record once, each key at one member and in order."""
    name = topic("lanes16", partitions=2)

    options = {"assignor": ASSIGNORS + assignor, "session_timeout_ms": 30_000}
    with Group(shared_keylane.bootstrap, name, f"g-{name}", **options) as group:
        group.add("java", 8)
        group.wait_for_lanes(32, timeout_s=120)
        values = produce(kafka, name, KEYS, rounds=10)
        group.wait_for_values(values)
        group.wait_for_commits()

    assert group.seen.values() == dict.fromkeys(values, 1)
    assert group.seen.busy() == set(group.processes)
    group.seen.assert_keys_in_order()


def test_the_console_consumer_reads_all_lanes(kafka, shared_keylane, topic, java) -> None:
    """kafka-console-consumer, with CRC checking on as by default, sees every record once."""
    name = topic("lanes4", partitions=2)
    values = produce(kafka, name, KEYS, rounds=5)

    reported = java.run(
        "kafka-console-consumer",
        *("--bootstrap-server", shared_keylane.bootstrap, "--topic", name),
        *("--group", f"g-{name}", "--from-beginning", "--max-messages", str(len(values))),
        *("--command-property", "check.crcs=true"),
    )

    assert sorted(reported.stdout.split()) == sorted(values)


def test_a_lane_name_beside_the_untouched_topic(kafka, shared_keylane, topic) -> None:
    """`t.lanes-8` gives lanes of a topic that is plain under its own name, at the same time."""
    name = topic("plain", partitions=2)
    values = produce(kafka, name, KEYS, rounds=5)

    with (
        Group(shared_keylane.bootstrap, f"{name}.lanes-8", f"g-lanes-{name}") as on_lanes,
        Group(shared_keylane.bootstrap, name, f"g-plain-{name}") as plain,
    ):
        on_lanes.add("confluent", 3)
        plain.add("aiokafka", 1)
        on_lanes.wait_for_values(values)
        plain.wait_for_values(values)

    assert {sighting.lane for sighting in plain.seen.sightings} == {0, 1}
    assert len({sighting.lane for sighting in on_lanes.seen.sightings}) > 8


@pytest.mark.parametrize("library", ["java", pytest.param("confluent", marks=pytest.mark.long)])
def test_kip_848_members_work_on_plain_topics(library, kafka, shared_keylane, topic) -> None:
    """`group.protocol=consumer` passes through where there are no lanes."""
    name = topic("plain", partitions=4)

    with Group(shared_keylane.bootstrap, name, f"g-{name}", protocol="consumer") as group:
        group.add(library, 2)
        group.wait_for_lanes(4)
        values = produce(kafka, name, KEYS, rounds=5)
        group.wait_for_values(values)

    assert group.seen.values() == dict.fromkeys(values, 1)


def test_the_console_consumer_reads_lanes_by_kip_848(kafka, shared_keylane, topic, java) -> None:
    """`group.protocol=consumer`: kafka-console-consumer sees every record of a lane topic once."""
    name = topic("lanes4", partitions=1)
    values = produce(kafka, name, KEYS, rounds=1)

    reported = java.run(
        "kafka-console-consumer",
        *("--bootstrap-server", shared_keylane.bootstrap, "--topic", name),
        *("--group", f"g-{name}", "--from-beginning", "--max-messages", str(len(values))),
        *("--command-property", "group.protocol=consumer", "--timeout-ms", "120000"),
    )

    assert sorted(reported.stdout.split()) == sorted(values)


def test_share_consumers_see_whole_partitions(kafka, shared_keylane, topic, java) -> None:
    """A share group reads a plain topic and a lane topic's whole partitions as direct."""
    for label in ("plain", "lanes4"):
        name = topic(label, partitions=2)
        group = f"share-{name}"
        java.run(
            "kafka-configs",
            *("--bootstrap-server", kafka, "--alter", "--entity-type", "groups"),
            *("--entity-name", group, "--add-config", "share.auto.offset.reset=earliest"),
        )
        values = produce(kafka, name, KEYS, rounds=2)

        reported = java.run(
            "kafka-console-share-consumer",
            *("--bootstrap-server", shared_keylane.bootstrap, "--topic", name),
            *("--group", group, "--max-messages", str(len(values))),
        )

        assert sorted(reported.stdout.split()) == sorted(values)


def test_a_java_idempotent_producer_writes_into_lanes(shared_keylane, topic, java, kafka) -> None:
    """kafka-producer-perf-test (idempotent by default) into lanes: all records arrive, direct."""
    name = topic("lanes16", partitions=2)

    java.run(
        "kafka-producer-perf-test",
        *("--topic", name, "--num-records", "20000", "--record-size", "200"),
        *("--throughput", "-1", "--bootstrap-server", shared_keylane.bootstrap),
    )

    reported = java.run("kafka-get-offsets", "--bootstrap-server", kafka, "--topic", name)
    ends = [int(line.rsplit(":", 1)[1]) for line in reported.stdout.split()]
    assert sum(ends) == 20000


def test_librdkafka_keys_land_where_they_do_direct(kafka, shared_keylane, topic) -> None:
    """The default partitioners over P*L lanes pick the same partition as over P partitions."""
    name = topic("lanes16", partitions=3)
    placed: dict[str, dict[str, int]] = {"lanes": {}, "direct": {}}

    for how, bootstrap in (("lanes", shared_keylane.bootstrap), ("direct", kafka)):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
            }
        )

        def note(error: Any, message: Any, how: str = how) -> None:
            placed[how][message.key().decode()] = -1 if error else message.partition() % 3

        for key in KEYS:
            producer.produce(name, key=key, value=f"{how}:0", on_delivery=note)
        assert producer.flush(30) == 0

    assert placed["lanes"] == placed["direct"]
    assert -1 not in placed["lanes"].values()
