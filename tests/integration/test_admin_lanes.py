"""Stock admin tools on lane topics and lane names: partitions are those that the client sees."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.integration.harness import produce
from tests.integration.share_wire import wait_until

KEYS = [f"key-{number}" for number in range(40)]
PARTITIONS, LANES = 2, 8
"""Partitions and lane indexes of topics with the label lanes4."""


def starts(bootstrap: str, topic: str, count: int) -> list[int]:
    """The first offset of each partition that a client sees."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks"})
    try:
        places = [TopicPartition(topic, index) for index in range(count)]
        return [consumer.get_watermark_offsets(place, timeout=30)[0] for place in places]
    finally:
        consumer.close()


def delete_records(bootstrap: str, topic: str, offsets: dict[int, int]) -> dict[int, Any]:
    """Delete by librdkafka; return per index the low watermark, or the error code."""
    wanted = [TopicPartition(topic, index, offset) for index, offset in offsets.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found: dict[int, Any] = {}
    for place, future in admin.delete_records(wanted, request_timeout=30).items():
        try:
            found[place.partition] = future.result().low_watermark
        except KafkaException as error:
            found[place.partition] = error.args[0].code()
    return found


def failure(java, name: str, *args: str | Path) -> str:
    """Run a tool, which may fail, and return its output."""
    try:
        done = java.run(name, *args)
    except subprocess.CalledProcessError as error:
        return f"{error.stdout}{error.stderr}"
    return f"{done.stdout}{done.stderr}"


def test_records_of_other_lanes_are_never_deleted(kafka, shared_keylane, topic) -> None:
    """By one lane: refused, nothing is gone. By all lanes of a partition: the lowest offset."""
    name = topic("lanes4", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(kafka, name, KEYS, rounds=5, partition=partition)

    alone = delete_records(shared_keylane.bootstrap, name, {0: 100, 3: 100})
    untouched = starts(kafka, name, PARTITIONS)
    even = delete_records(shared_keylane.bootstrap, name, {0: 100, 2: 90, 4: 30, 6: -1})

    assert alone == dict.fromkeys((0, 3), KafkaError.POLICY_VIOLATION)
    assert untouched == [0, 0]
    assert even == dict.fromkeys((0, 2, 4, 6), 30)
    assert starts(kafka, name, PARTITIONS) == [30, 0]
    read = offsets_of(shared_keylane.bootstrap, name)
    assert read == {0: set(range(30, 200)), 1: set(range(200))}


def offsets_of(bootstrap: str, topic: str) -> dict[int, set[int]]:
    """Read all lanes from their beginning; return offsets by partition."""
    found: dict[int, set[int]] = {partition: set() for partition in range(PARTITIONS)}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(LANES)])
        left = set(range(LANES))
        while left:
            message = consumer.poll(30)
            assert message is not None, f"lanes {left} did not end"
            lane, offset, error = message.partition(), message.offset(), message.error()
            assert lane is not None and offset is not None
            if error is None:
                found[lane % PARTITIONS].add(offset)
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                left.discard(lane)
    finally:
        consumer.close()
    return found


def test_records_before_all_lanes_are_deleted_by_kafkas_tool(
    kafka, shared_keylane, topic, java, tmp_path: Path
) -> None:
    """kafka-delete-records of a lane name; of one lane it prints why nothing is deleted."""
    name = topic("plain", partitions=1)
    produce(kafka, name, KEYS, rounds=5)
    lanes = f"{name}.lanes-3"
    plan = tmp_path / "plan.json"
    tool = "--bootstrap-server", shared_keylane.bootstrap, "--offset-json-file", plan

    def run(*offsets: int) -> str:
        entries = [{"topic": lanes, "partition": n, "offset": at} for n, at in enumerate(offsets)]
        plan.write_text(json.dumps({"version": 1, "partitions": entries}))
        return failure(java, "kafka-delete-records", *tool)

    refused = run(40, 40)
    assert "PolicyViolationException" in refused
    assert starts(kafka, name, 1) == [0]
    done = run(40, 50, 60)

    assert f"partition: {lanes}-2\tlow_watermark: 40" in done
    assert starts(kafka, name, 1) == [40]


def test_a_lane_topic_is_given_no_partitions_by_a_count_of_lanes(
    kafka, shared_keylane, topic, java, admin
) -> None:
    """kafka-topics --alter --partitions prints the reason, librdkafka gets it; direct it works."""
    name = topic("lanes4", partitions=PARTITIONS)
    printed = failure(
        java,
        "kafka-topics",
        *("--bootstrap-server", shared_keylane.bootstrap, "--alter", "--topic", name),
        *("--partitions", "20"),
    )
    assert "seen as 2 partitions of 4 lanes each" in printed

    through = AdminClient({"bootstrap.servers": shared_keylane.bootstrap})
    for seen in (name, f"{name}.lanes-8"):
        with pytest.raises(KafkaException, match="a count of 20 is one of lanes"):
            through.create_partitions([NewPartitions(seen, 20)])[seen].result()

    assert len(admin.list_topics(name, timeout=30).topics[name].partitions) == PARTITIONS


def test_lane_names_are_neither_made_nor_deleted(shared_keylane, topic, java, admin) -> None:
    """kafka-topics --create prints why not; the topic of a lane name stays, and goes by its own."""
    name = topic("plain", partitions=1)
    lanes = f"{name}.lanes-4"
    tool = "--bootstrap-server", shared_keylane.bootstrap, "--topic", lanes

    created = failure(java, "kafka-topics", *tool, "--create", "--partitions", "1")
    through = AdminClient({"bootstrap.servers": shared_keylane.bootstrap})
    with pytest.raises(KafkaException, match="would hide a topic of that name"):
        through.create_topics([NewTopic(lanes, 1, 1)])[lanes].result()
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):  # v1, which has no messages
        through.delete_topics([lanes])[lanes].result()

    assert f"means lanes of the topic {name}" in created
    assert lanes not in admin.list_topics(timeout=30).topics
    assert name in admin.list_topics(timeout=30).topics
    through.delete_topics([name])[name].result()
    # The controller has deleted it; a broker names it until it has applied that.
    wait_until(lambda: name not in admin.list_topics(timeout=30).topics, "the topic is gone")


def test_leaders_are_elected_by_lanes(shared_keylane, topic, java) -> None:
    """kafka-leader-election of a lane of a lane topic, and of a lane name; none is unknown."""
    name = topic("lanes4", partitions=PARTITIONS)
    tool = "--bootstrap-server", shared_keylane.bootstrap, "--election-type", "preferred"
    for seen, index in ((name, 7), (f"{name}.lanes-8", 15)):
        printed = failure(
            java, "kafka-leader-election", *tool, "--topic", seen, "--partition", str(index)
        )
        assert f"Valid replica already elected for partitions {seen}-{index}" in printed
        absent = failure(java, "kafka-leader-election", *tool, "--topic", seen, "--partition", "16")
        assert "UnknownTopicOrPartition" in absent


def test_producers_and_transactions_are_shown_by_lanes(kafka, shared_keylane, topic, java) -> None:
    """kafka-transactions: the producers of a lane, a transaction's lanes, and none that hangs."""
    name = topic("lanes4", partitions=PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": shared_keylane.bootstrap,
            "transactional.id": f"t-{name}",
            # It is open while four tools start and end: the default of a minute may pass.
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, value="open", partition=5)
    assert producer.flush(30) == 0
    tool = "--bootstrap-server", shared_keylane.bootstrap

    lane = ("describe-producers", "--topic", name, "--partition", "7")
    producers = java.run("kafka-transactions", *tool, *lane).stdout
    described = java.run(
        "kafka-transactions", *tool, "describe", "--transactional-id", f"t-{name}"
    ).stdout
    hanging = java.run(
        "kafka-transactions",
        *tool,
        "find-hanging",
        "--topic",
        name,
        "--max-transaction-timeout",
        "0",
    ).stdout
    refused = failure(
        java, "kafka-transactions", *tool,
        "abort", "--topic", name, "--partition", "7", "--start-offset", "0",
    )  # fmt: skip
    producer.commit_transaction(30)

    assert len(producers.strip().splitlines()) == 2  # the head, and the one producer
    assert all(f"{name}-{index}" in described for index in (1, 3, 5, 7))
    assert f"{name}-0" not in described
    assert "ProducerId" in hanging and name not in hanging
    assert "The node does not support WRITE_TXN_MARKERS" in refused


def test_log_folders_are_shown_by_lanes(kafka, shared_keylane, topic, java) -> None:
    """kafka-log-dirs: sizes of all lanes add up to those of the partitions."""
    name = topic("lanes4", partitions=PARTITIONS)
    produce(kafka, name, KEYS, rounds=5)

    def sizes(bootstrap: str) -> dict[str, int]:
        args = ("--bootstrap-server", bootstrap, "--describe", "--topic-list", name)
        lines = java.run("kafka-log-dirs", *args).stdout.splitlines()
        printed = json.loads(next(line for line in lines if line.startswith("{")))
        return {
            part["partition"]: part["size"]
            for broker in printed["brokers"]
            for folder in broker["logDirs"]
            for part in folder["partitions"]
        }

    direct, seen = sizes(kafka), sizes(shared_keylane.bootstrap)

    assert set(seen) == {f"{name}-{index}" for index in range(LANES)}
    assert len(direct) == PARTITIONS and sum(seen.values()) == sum(direct.values()) > 0


def test_replicas_are_moved_by_lanes(shared_keylane, topic, java, tmp_path: Path) -> None:
    """kafka-reassign-partitions with a throttle, of all lanes and of a lane name."""
    name = topic("lanes4", partitions=PARTITIONS)
    plan = tmp_path / "plan.json"
    tool = "--bootstrap-server", shared_keylane.bootstrap, "--reassignment-json-file", plan

    def run(*args: str, topic: str, replicas: dict[int, list[int]]) -> str:
        entries = [
            {"topic": topic, "partition": index, "replicas": ids} for index, ids in replicas.items()
        ]
        plan.write_text(json.dumps({"version": 1, "partitions": entries}))
        return failure(java, "kafka-reassign-partitions", *tool, *args)

    every = {index: [1] for index in range(LANES)}
    done = run("--execute", "--throttle", "1000000", topic=name, replicas=every)
    verified = run("--verify", topic=name, replicas=every)
    moved = run("--execute", topic=f"{name}.lanes-2", replicas={3: [1]})

    assert "Successfully started partition reassignment" in done
    assert f"Reassignment of partition {name}-7 is completed" in verified
    assert "Successfully started partition reassignment" in moved


def test_configuration_is_that_of_the_topic(kafka, shared_keylane, topic, java) -> None:
    """kafka-configs: changed under a lane name, read under all names."""
    name = topic("lanes4", partitions=PARTITIONS)

    def configs(bootstrap: str, topic: str, *args: str) -> str:
        entity = ("--entity-type", "topics", "--entity-name", topic)
        return java.run("kafka-configs", "--bootstrap-server", bootstrap, *entity, *args).stdout

    lanes = f"{name}.lanes-8"
    throttled = "leader.replication.throttled.replicas"
    configs(shared_keylane.bootstrap, lanes, "--alter", "--add-config", "retention.ms=77777777")
    configs(shared_keylane.bootstrap, name, "--alter", "--add-config", f"{throttled}=[3:1,5:1]")

    assert "retention.ms=77777777" in configs(kafka, name, "--describe")
    through = AdminClient({"bootstrap.servers": shared_keylane.bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, lanes)
    printed = through.describe_configs([resource])[resource].result()
    assert printed["retention.ms"].value == "77777777"
    assert printed[throttled].value == ",".join(f"{lane}:1" for lane in range(1, 16, 2))
    assert f"{throttled}=1:1 " in configs(kafka, name, "--describe")
    assert f"{throttled}=1:1,3:1,5:1,7:1 " in configs(shared_keylane.bootstrap, name, "--describe")


@pytest.mark.long
def test_share_groups_have_whole_partitions(kafka, shared_keylane, topic, java) -> None:
    """kafka-share-groups resets what its lanes agree on; a lane name is refused with a reason."""
    name = topic("lanes4", partitions=PARTITIONS)
    group = f"share-{name}"
    java.run(
        "kafka-configs",
        *("--bootstrap-server", kafka, "--alter", "--entity-type", "groups"),
        *("--entity-name", group, "--add-config", "share.auto.offset.reset=earliest"),
    )
    values = produce(kafka, name, KEYS, rounds=2)
    read = ("--group", group, "--max-messages", str(len(values)))
    server = "--bootstrap-server", shared_keylane.bootstrap
    java.run("kafka-console-share-consumer", *server, "--topic", name, *read)
    tool = *server, "--group", group

    reset = java.run(
        "kafka-share-groups",
        *tool,
        "--reset-offsets",
        "--topic",
        name,
        "--to-earliest",
        "--execute",
    ).stdout
    described = java.run("kafka-share-groups", *tool, "--describe", "--offsets").stdout
    again = java.run("kafka-console-share-consumer", *server, "--topic", name, *read).stdout
    lane = failure(
        java, "kafka-share-groups", *tool, "--reset-offsets", "--topic", f"{name}:5",
        "--to-earliest", "--execute",
    )  # fmt: skip
    lanes = f"{name}.lanes-2"
    waits = *read, "--timeout-ms", "60000"
    refused = failure(java, "kafka-console-share-consumer", *server, "--topic", lanes, *waits)

    rows = [line.split() for line in described.splitlines() if name in line and group in line]
    assert sorted(row[2] for row in rows) == ["0", "1"]
    assert all(row[3] == "0" for row in rows)
    assert name in reset
    assert sorted(again.split()) == sorted(values)
    assert f"Failed altering group offsets for the following partitions: [{name}-5]" in lane
    assert "share groups do not know" in refused
