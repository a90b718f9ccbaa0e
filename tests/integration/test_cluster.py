"""A cluster of three brokers: lanes follow their partitions' leaders."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.harness import Group
from tests.integration.made_topics import make_topic

KEYS = [f"key-{number}" for number in range(100)]


def produce_durably(bootstrap: str, topic: str, rounds: range) -> list[str]:
    """Produce numbered values per key with acks=all; wait for every ack."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
        }
    )
    values = [f"{key}:{number}" for number in rounds for key in KEYS]
    for value in values:
        producer.produce(topic, key=value.split(":")[0], value=value)
    assert producer.flush(90) == 0
    return values


def test_a_broker_of_three_dies_under_load(tmp_path, keylane) -> None:
    """kill -9 of one of three brokers: its lanes go on at the new leaders; nothing is lost."""
    with EmbeddedKafka(tmp_path / "kafka", node_count=3, heap_mb=384) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = NewTopic("orders", 3, 3, config={"min.insync.replicas": "2"})
        make_topic(admin, wanted)
        proxy = keylane("orders=4", bootstrap=cluster.bootstrap)
        # A member that is put out in the outage may still read what others have committed since.
        with Group(proxy.bootstrap, "orders", "g-orders", session_timeout_ms=30_000) as group:
            group.add("aiokafka", 2)
            group.add("confluent", 2)
            group.wait_for_lanes(12, timeout_s=90)
            values = produce_durably(cluster.bootstrap, "orders", range(10))
            group.wait_for_values(values)

            cluster.nodes[1].kill()
            values += produce_durably(cluster.bootstrap, "orders", range(10, 20))
            group.wait_for_values(values, timeout_s=120)
            cluster.start()
            values += produce_durably(cluster.bootstrap, "orders", range(20, 30))
            group.wait_for_values(values, timeout_s=120)
            group.wait_for_commits(timeout_s=60)

        group.seen.assert_nothing_committed_again()
