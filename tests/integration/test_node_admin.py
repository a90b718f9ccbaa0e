"""Kafka's own tools through two nodes: broker ids of either mean the broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from keylane.wire.header import ApiKey
from tests.integration.harness import produce
from tests.integration.nodes import NODE_ID_STEP, Nodes
from tests.integration.share_wire import PlainWire, call, wait_until
from tests.integration.test_admin_lanes import delete_records, starts

HERE, THERE = 0, NODE_ID_STEP
"""Number that the nodes 0 and 1 add to a broker's id."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two brokers, 1 and 2."""
    folder = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka(folder, node_count=2, heap_mb=384) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def nodes(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Nodes 0 and 1."""
    with Nodes(cluster, ["lanes*=4"], folder=tmp_path_factory.mktemp("nodes"), count=2) as running:
        yield running
        assert not any("Traceback" in node.log for node in running.processes)


def replicas(bootstrap: str, topic: str) -> dict[int, list[int]]:
    partitions = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30)
    return {n: each.replicas for n, each in partitions.topics[topic].partitions.items()}


def create(java, cluster: str, nodes: Nodes, topic: str, *partitions: tuple[int, ...]) -> None:
    """Create a topic by kafka-topics, with these replicas; wait until each broker knows it."""
    assignment = ",".join(":".join(map(str, brokers)) for brokers in partitions)
    java.run(
        "kafka-topics",
        *("--bootstrap-server", nodes.bootstrap, "--create", "--topic", topic),
        *("--replica-assignment", assignment),
    )
    asked = [{"name": topic}]
    for broker in cluster.split(","):
        with PlainWire(broker) as wire:
            code = -1
            while code != 0:
                answer = call(
                    wire, ApiKey.METADATA, 12, topics=asked, allow_auto_topic_creation=False
                )
                code = int(answer.topics[0].error_code)


def test_replicas_are_chosen_shown_and_moved(cluster, nodes, java, tmp_path: Path) -> None:
    """kafka-topics and kafka-reassign-partitions; lanes show at one node per partition."""
    create(java, cluster, nodes, "lanes-a", (THERE + 1, HERE + 2), (2, THERE + 1), (1, 2), (2, 1))
    assert replicas(cluster, "lanes-a") == {0: [1, 2], 1: [2, 1], 2: [1, 2], 3: [2, 1]}

    shown = replicas(nodes.bootstrap, "lanes-a")
    assert shown == replicas(nodes[1].bootstrap, "lanes-a") and len(shown) == 16
    places = [shown[index][0] // NODE_ID_STEP for index in range(4)]
    assert sorted(places) == [0, 0, 1, 1]
    assert all(
        ids == [places[index % 4] * NODE_ID_STEP + broker for broker in ([1, 2], [2, 1])[index % 2]]
        for index, ids in shown.items()
    )

    target = 1 if places[0] else 0
    moved = {"topic": "lanes-a", "partition": 0, "replicas": [target * NODE_ID_STEP + 2]}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}), encoding="utf-8")
    tool = "kafka-reassign-partitions", "--bootstrap-server", nodes.bootstrap
    java.run(*tool, "--reassignment-json-file", plan, "--execute")
    for _ in range(30):
        verified = java.run(*tool, "--reassignment-json-file", plan, "--verify").stdout
        if "is completed" in verified:
            break

    assert "Reassignment of partition lanes-a-0 is completed" in verified
    wait_until(lambda: replicas(cluster, "lanes-a")[0] == [2], "both brokers know the new replica")
    assert "No partition reassignments found" in java.run(*tool, "--list").stdout


def test_records_of_lanes_are_deleted_at_the_nodes_of_their_partitions(
    cluster, nodes, java
) -> None:
    """All lanes of a partition are at one node and one leader, so they come in one request."""
    create(java, cluster, nodes, "lanes-c", (1, 2), (2, 1), (1, 2), (2, 1))
    for partition in range(4):
        produce(cluster, "lanes-c", ["a", "b"], rounds=5, partition=partition)

    every = delete_records(nodes.bootstrap, "lanes-c", {lane: 4 + lane for lane in range(16)})
    alone = delete_records(nodes[1].bootstrap, "lanes-c", {5: 9})

    assert every == {lane: 4 + lane % 4 for lane in range(16)}
    assert alone == {5: KafkaError.POLICY_VIOLATION}
    assert starts(cluster, "lanes-c", 4) == [4, 5, 6, 7]


def test_a_broker_is_configured_by_the_id_that_clients_know(cluster, nodes, java) -> None:
    """kafka-configs asks the very broker that is named, and finds its answer by that name."""
    tool = "kafka-configs", "--bootstrap-server", nodes.bootstrap, "--entity-type", "brokers"
    named = "--entity-name", str(THERE + 2)

    java.run(*tool, *named, "--alter", "--add-config", "log.cleaner.threads=2")

    assert "log.cleaner.threads=2" in java.run(*tool, *named, "--describe").stdout
    direct = "kafka-configs", "--bootstrap-server", cluster, "--entity-type", "brokers"
    assert "log.cleaner.threads=2" in java.run(*direct, "--entity-name", "2", "--describe").stdout
    other = java.run(*direct, "--entity-name", "1", "--describe").stdout
    assert "log.cleaner.threads=2" not in other
    loggers = "--entity-type", "broker-loggers", *named, "--describe"
    reported = java.run("kafka-configs", "--bootstrap-server", nodes.bootstrap, *loggers).stdout
    assert "kafka.server" in reported


def test_groups_are_listed_once(cluster, nodes, java) -> None:
    """librdkafka's admin client adds up the answers of all pairs."""
    create(java, cluster, nodes, "lanes-b", (1, 2), (2, 1))
    groups = {f"g-{number}" for number in range(8)}
    for group in groups:
        consumer = Consumer(
            {
                "bootstrap.servers": nodes.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["lanes-b"])
        while not consumer.assignment():
            consumer.poll(1)
        consumer.close()

    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    listed = admin.list_consumer_groups(request_timeout=30).result().valid

    seen = sorted(entry.group_id for entry in listed if entry.group_id in groups)
    assert seen == sorted(groups)
    reported = java.run("kafka-consumer-groups", "--bootstrap-server", nodes.bootstrap, "--list")
    assert sorted(line for line in reported.stdout.split() if line in groups) == sorted(groups)


def test_tools_that_ask_every_broker_work(nodes, java) -> None:
    """Each pair answers for its broker."""
    ids = {HERE + 1, HERE + 2, THERE + 1, THERE + 2}

    versions = java.run("kafka-broker-api-versions", "--bootstrap-server", nodes.bootstrap).stdout
    folders = java.run(
        "kafka-log-dirs", "--bootstrap-server", nodes.bootstrap, "--describe"
    ).stdout.splitlines()

    assert all(f"(id: {broker} " in versions for broker in ids)
    described = json.loads(next(line for line in folders if line.startswith("{")))
    assert {entry["broker"] for entry in described["brokers"]} == ids
