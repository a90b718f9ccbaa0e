"""Kafka's admin tools on groups that read lanes."""

from __future__ import annotations

import pytest

from tests.integration.harness import Group, produce
from tests.integration.test_group_handover import log_ends, stable_offsets

KEYS = [f"key-{number}" for number in range(100)]


@pytest.fixture
def consumed(kafka, shared_keylane, topic) -> tuple[str, str, list[str]]:
    """A lane topic that a group has read to its end: (topic, group, values)."""
    name = topic("lanes4", partitions=2)
    values = produce(kafka, name, KEYS, rounds=5)
    with Group(shared_keylane.bootstrap, name, f"g-{name}") as group:
        group.add("confluent", 2)
        group.wait_for_values(values)
        group.wait_for_commits()
    return name, f"g-{name}", values


def rows(text: str, topic: str) -> list[list[str]]:
    """The columns of a consumer-groups table for one topic."""
    return [line.split() for line in text.splitlines() if topic in line.split()]


def test_describing_a_group_shows_lanes_without_lag(consumed, shared_keylane, java) -> None:
    """kafka-consumer-groups lists 8 lanes, each with lag 0, as all is committed."""
    name, group, _ = consumed

    reported = java.run(
        "kafka-consumer-groups",
        *("--bootstrap-server", shared_keylane.bootstrap, "--describe", "--group", group),
    )

    header = next(line.split() for line in reported.stdout.splitlines() if "LAG" in line)
    lanes = rows(reported.stdout, name)
    assert sorted(int(row[header.index("PARTITION")]) for row in lanes) == list(range(8))
    assert {row[header.index("LAG")] for row in lanes} == {"0"}


def test_a_reset_to_earliest_reads_everything_again(consumed, kafka, shared_keylane, java) -> None:
    """--reset-offsets --to-earliest through keylane: every record comes again, once."""
    name, group, values = consumed

    java.run(
        "kafka-consumer-groups",
        *("--bootstrap-server", shared_keylane.bootstrap, "--group", group),
        *("--reset-offsets", "--to-earliest", "--topic", name, "--execute"),
    )

    assert stable_offsets(kafka, group, name, 2) == [0, 0]
    with Group(shared_keylane.bootstrap, name, group) as again:
        again.add("aiokafka", 2)
        again.wait_for_values(values)
        again.wait_for_commits()
    assert again.seen.values() == dict.fromkeys(values, 1)
    assert stable_offsets(kafka, group, name, 2) == log_ends(kafka, name, 2)


def test_a_reset_directly_on_kafka_is_taken_over(consumed, kafka, shared_keylane, java) -> None:
    """Lanes start again at an offset that was moved back on Kafka itself."""
    name, group, values = consumed

    java.run(
        "kafka-consumer-groups",
        *("--bootstrap-server", kafka, "--group", group),
        *("--reset-offsets", "--to-earliest", "--topic", name, "--execute"),
    )

    with Group(shared_keylane.bootstrap, name, group) as again:
        again.add("aiokafka", 2)
        again.wait_for_values(values)
    assert set(again.seen.values()) == set(values)


def test_one_lane_can_be_reset(consumed, shared_keylane, java) -> None:
    """A reset of lane 3 alone brings back that lane's records and no other."""
    name, group, _ = consumed

    java.run(
        "kafka-consumer-groups",
        *("--bootstrap-server", shared_keylane.bootstrap, "--group", group),
        *("--reset-offsets", "--to-earliest", "--topic", f"{name}:3", "--execute"),
    )

    with Group(shared_keylane.bootstrap, name, group) as again:
        again.add("confluent", 2)
        again.wait(lambda seen: bool(seen.sightings), timeout_s=60, what="records of lane 3")
        again.wait_for_commits()
    assert {sighting.lane for sighting in again.seen.sightings} == {3}


def test_deleted_offsets_are_gone(consumed, kafka, shared_keylane, java) -> None:
    """--delete-offsets of the topic: the broker and every lane have no commit any more."""
    name, group, values = consumed

    java.run(
        "kafka-consumer-groups",
        *("--bootstrap-server", shared_keylane.bootstrap, "--group", group),
        *("--delete-offsets", "--topic", name),
    )

    assert stable_offsets(kafka, group, name, 2) == [-1001, -1001]
    with Group(shared_keylane.bootstrap, name, group) as again:
        again.add("confluent", 2)
        again.wait_for_values(values)
    assert again.seen.values() == dict.fromkeys(values, 1)


def test_a_deleted_group_starts_from_nothing(consumed, kafka, shared_keylane, java) -> None:
    """--delete of the group through keylane forgets its lanes as well."""
    name, group, values = consumed

    java.run(
        "kafka-consumer-groups",
        *("--bootstrap-server", shared_keylane.bootstrap, "--group", group, "--delete"),
    )

    with Group(shared_keylane.bootstrap, name, group) as again:
        again.add("aiokafka", 2)
        again.wait_for_values(values)
    assert again.seen.values() == dict.fromkeys(values, 1)


def test_describing_a_lane_topic_shows_lanes(consumed, shared_keylane, java) -> None:
    """kafka-topics through keylane shows 2 partitions of 4 lanes as 8 partitions."""
    name, _, _ = consumed

    reported = java.run(
        "kafka-topics",
        *("--bootstrap-server", shared_keylane.bootstrap, "--describe", "--topic", name),
    )

    assert "PartitionCount: 8" in reported.stdout
