"""Transactions in lane topics: read_committed members see committed records only."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tests.integration.harness import Group

KEYS = [f"key-{number}" for number in range(50)]


def run_transactions(bootstrap: str, topic: str, count: int) -> tuple[list[str], list[str]]:
    """Every third transaction is aborted; returns (committed values, aborted values)."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"t-{topic}",
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions(30)
    committed: list[str] = []
    aborted: list[str] = []
    for number in range(count):
        producer.begin_transaction()
        values = [f"{key}:{number}" for key in KEYS]
        for key, value in zip(KEYS, values, strict=True):
            producer.produce(topic, key=key, value=value)
        assert producer.flush(30) == 0
        if number % 3 == 1:
            producer.abort_transaction(30)
            aborted += values
        else:
            producer.commit_transaction(30)
            committed += values
    return committed, aborted


@pytest.mark.parametrize("library", ["aiokafka", "confluent", "kafka-python"])
def test_read_committed_members_see_no_aborted_record(library, shared_keylane, topic) -> None:
    """A transactional producer through keylane into lanes: committed records once, no other."""
    name = topic("lanes4", partitions=2)

    # A member that is put out has its records come again.
    options = {"isolation": "read_committed", "session_timeout_ms": 30_000}
    with Group(shared_keylane.bootstrap, name, f"g-{name}", **options) as group:
        group.add(library, 4)
        group.wait_for_lanes(8)
        committed, aborted = run_transactions(shared_keylane.bootstrap, name, 12)
        group.wait_for_values(committed)
        group.wait_for_commits()

    assert aborted
    assert group.seen.values() == dict.fromkeys(committed, 1)
    group.seen.assert_keys_in_order()


def test_read_uncommitted_members_see_every_record(shared_keylane, topic) -> None:
    """Without read_committed, aborted records come as well, as they do direct."""
    name = topic("lanes4", partitions=1)
    committed, aborted = run_transactions(shared_keylane.bootstrap, name, 6)

    with Group(shared_keylane.bootstrap, name, f"g-{name}") as group:
        group.add("aiokafka", 2)
        group.wait_for_values(committed + aborted)

    assert set(group.seen.values()) == set(committed + aborted)
