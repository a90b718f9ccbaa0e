"""The embedded Kafka: it serves, it survives kill -9, it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from keylane.errors import KafkaUnavailable

from .conftest import JavaTools, TopicFactory, make_topic_factory

VALUES = [f"value-{number}".encode() for number in range(100)]


def test_what_is_produced_is_consumed(kafka: str, topic: TopicFactory) -> None:
    """A stock client reads back every record it wrote."""
    name = topic(partitions=2)

    produce(kafka, name, VALUES)

    assert sorted(consume(kafka, name, partitions=2)) == sorted(VALUES)


def test_kafkas_own_tools_run(kafka: str, topic: TopicFactory, java: JavaTools) -> None:
    """kafka-topics describes the partition count that the topic was created with."""
    name = topic(partitions=3)

    described = java.run("kafka-topics", "--bootstrap-server", kafka, "--describe", "--topic", name)

    assert "PartitionCount: 3" in described.stdout


def test_records_survive_kill_9(own_broker: EmbeddedKafka) -> None:
    """Acknowledged records are still there after kill -9 and a start on the same folder."""
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    name = make_topic_factory(admin, "kill")()
    produce(own_broker.bootstrap, name, VALUES)

    own_broker.kill()
    own_broker.start()

    assert sorted(consume(own_broker.bootstrap, name, partitions=1)) == sorted(VALUES)


def test_broker_ends_with_its_owner(tmp_path: Path) -> None:
    """A broker whose owner was killed with -9 is gone seconds later."""
    script = (
        "import sys, time; from keylane.embedded import EmbeddedKafka\n"
        f"kafka = EmbeddedKafka({str(tmp_path)!r}).start()\n"
        "print(kafka.nodes[0].pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        java = psutil.Process(int(owner.stdout.readline()))

        owner.kill()

    assert psutil.wait_procs([java], timeout=90)[1] == []


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """A second `keylane kafka` on the folder ends with one line; the first goes on to serve."""
    with EmbeddedKafka(tmp_path) as kafka:
        name = make_topic_factory(AdminClient({"bootstrap.servers": kafka.bootstrap}), "lock")()
        properties = kafka.nodes[0].settings.properties_path.read_bytes()

        second = start_on(tmp_path)

        assert second.returncode == 1
        assert second.stderr == (
            f"keylane kafka: the data folder {tmp_path} is in use by process {os.getpid()},"
            " which runs Kafka on it; stop that process, or choose another folder\n"
        )
        assert kafka.nodes[0].settings.properties_path.read_bytes() == properties
        produce(kafka.bootstrap, name, VALUES)
        assert sorted(consume(kafka.bootstrap, name, partitions=1)) == sorted(VALUES)


def test_a_folder_is_in_use_until_its_last_broker_has_ended(tmp_path: Path) -> None:
    """The owner is killed with -9: the folder is refused as long as the broker still runs."""
    script = (
        "import sys, time; from keylane.embedded import EmbeddedKafka\n"
        f"kafka = EmbeddedKafka({str(tmp_path)!r}).start()\n"
        "print(kafka.nodes[0].pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        java = psutil.Process(int(owner.stdout.readline()))
        guard = java.parent()
        assert guard is not None
        guard.suspend()  # it cannot end the broker now, however long the second one takes
        try:
            owner.kill()
            owner.wait()
            second = start_on(tmp_path)
        finally:
            java.kill()
            guard.resume()

    assert second.returncode == 1
    assert f"process {owner.pid} has ended, and the Kafka that it started" in second.stderr
    assert psutil.wait_procs([java, guard], timeout=90)[1] == []
    with EmbeddedKafka(tmp_path) as kafka:
        assert kafka.nodes[0].running


def start_on(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `keylane kafka` on `folder`, which is expected to end by itself."""
    command = [sys.executable, "-m", "keylane", "kafka", "--data", str(folder), "--port", "0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_failed_start_says_why(tmp_path: Path) -> None:
    """A property that Kafka refuses is named in the error, with Kafka's own words."""
    kafka = EmbeddedKafka(tmp_path, properties={"log.segment.bytes": "1"})

    with pytest.raises(KafkaUnavailable, match=r"log\.segment\.bytes"):
        kafka.start()


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Produce `values` with keys of their own; returns once all are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number, value in enumerate(values):
        producer.produce(topic, value=value, key=str(number))
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str, *, partitions: int, timeout_s: float = 90.0) -> list[bytes]:
    """Every value of the topic, read from the start to the ends seen at the first read."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values: list[bytes] = []
    open_count = partitions
    deadline_s = time.monotonic() + timeout_s
    while open_count and time.monotonic() < deadline_s:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            values.append(message.value() or b"")
        elif error.code() == KafkaError._PARTITION_EOF:  # others pass: a broker may have just come
            open_count -= 1
    consumer.close()
    assert open_count == 0, f"no end of {open_count} partitions after {timeout_s} s"
    return values
