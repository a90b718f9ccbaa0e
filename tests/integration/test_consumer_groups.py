"""Groups of stock consumers on lanes: more members than partitions, every key in order."""

from __future__ import annotations

import pytest

from tests.integration.harness import Group, produce

KEYS = [f"key-{number}" for number in range(200)]
MEMBER_COUNT = 8
LANE_COUNT = 32  # 2 partitions of 16 lanes


@pytest.mark.parametrize(
    ("library", "assignor"),
    [
        pytest.param("aiokafka", "roundrobin", marks=pytest.mark.long),
        ("aiokafka", "sticky"),
        pytest.param("confluent", "roundrobin", marks=pytest.mark.long),
        ("confluent", "cooperative-sticky"),
        ("kafka-python", "range"),
    ],
)
def test_eight_members_share_two_partitions(
    library, assignor, kafka, shared_keylane, topic
) -> None:
    """All 8 members get records; each record once; each key at one member and in order."""
    name = topic("lanes16", partitions=2)

    with Group(shared_keylane.bootstrap, name, f"g-{name}", assignor=assignor) as group:
        group.add(library, MEMBER_COUNT)
        group.wait_for_lanes(LANE_COUNT)
        values = produce(kafka, name, KEYS, rounds=20)
        group.wait_for_values(values)
        group.wait_for_commits()

    seen = group.seen
    assert seen.values() == dict.fromkeys(values, 1)
    assert seen.busy() == set(group.processes)
    seen.assert_keys_in_order()


def test_libraries_mix_in_one_group(kafka, shared_keylane, topic) -> None:
    """aiokafka, librdkafka and kafka-python members share lanes in one group."""
    name = topic("lanes4", partitions=2)

    with Group(shared_keylane.bootstrap, name, f"g-{name}", assignor="roundrobin") as group:
        group.add("aiokafka", 3)
        group.add("confluent", 3)
        group.wait_for_lanes(8)
        values = produce(kafka, name, KEYS, rounds=10)
        group.wait_for_values(values)

    assert group.seen.values() == dict.fromkeys(values, 1)
    group.seen.assert_keys_in_order()


def test_records_without_a_key_spread_over_lanes(kafka, shared_keylane, topic) -> None:
    """Records without a key reach every member, each once."""
    name = topic("lanes16", partitions=1)
    from confluent_kafka import Producer

    with Group(shared_keylane.bootstrap, name, f"g-{name}") as group:
        group.add("aiokafka", 4)
        group.wait_for_lanes(16)
        producer = Producer({"bootstrap.servers": kafka})
        values = [f"x:{number}" for number in range(2000)]
        for value in values:
            producer.produce(name, value=value)
        assert producer.flush(30) == 0
        group.wait_for_values(values)

    assert group.seen.values() == dict.fromkeys(values, 1)
    assert group.seen.busy() == set(group.processes)
