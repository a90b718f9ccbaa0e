"""The embedded Kafka: it serves, it survives kill -9, it leaves nothing behind.

In:    the fixtures of `conftest`.  Out: verdicts.
Shell: a real broker.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
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

    assert psutil.wait_procs([java], timeout=30)[1] == []


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


def consume(bootstrap: str, topic: str, *, partitions: int, timeout_s: float = 30.0) -> list[bytes]:
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
        if message.error():
            open_count -= 1  # the end of a partition
        else:
            values.append(message.value() or b"")
    consumer.close()
    assert open_count == 0, f"no end of {open_count} partitions after {timeout_s} s"
    return values
