"""Stock consumers without a group that share partitions by key ranges, set by one HTTP call."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from keylane.keyrange.hash import key_hash
from keylane.keyrange.space import HASH_MAX, KeyRange
from tests.integration.harness import produce
from tests.integration.test_group_handover import log_ends, stable_offsets

KEYS = [f"key-{number}" for number in range(200)]
LOWER, UPPER = KeyRange(0, HASH_MAX // 2), KeyRange(HASH_MAX // 2 + 1, HASH_MAX)
WAIT_S = 60.0


def keys_in(*ranges: KeyRange) -> list[str]:
    """Return the keys that fall into the ranges."""
    return [key for key in KEYS if any(part.contains(key_hash(key.encode())) for part in ranges)]


def parts(topic: str, key_range: KeyRange, partitions: int = 2) -> list[dict[str, Any]]:
    """One range of every partition, as the control port takes it."""
    ranges = [[str(key_range.lo), str(key_range.hi)]]
    return [{"topic": topic, "partition": p, "ranges": ranges} for p in range(partitions)]


def assign(control: str, method: str, assignments: dict[str, Any]) -> None:
    """One call that sets, and deletes, the ranges of all these client ids."""
    url = f"http://{control}/assignments"
    with urlopen(url, timeout=WAIT_S) as current:
        headers = {"Content-Type": "application/json", "If-Match": current.headers["ETag"]}
    body = json.dumps({"assignments": assignments}).encode()
    with urlopen(Request(url, body, headers, method=method), timeout=WAIT_S) as answer:
        assert answer.status == 200


def librdkafka(bootstrap: str, client_id: str, group: str) -> Consumer:
    """Return a confluent-kafka consumer that commits only by call."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


def poll(consumer: Consumer, count: int) -> list[Message]:
    """As many records as asked for, those behind them are left; fails at an error."""
    records: list[Message] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(records) < count:
        assert time.monotonic() < deadline_s, f"not within {WAIT_S:g} s: {len(records)} records"
        for message in consumer.consume(count - len(records), timeout=0.2):
            assert message.error() is None, message.error()
            records.append(message)
    return records


def values(records: Iterable[Message]) -> list[str]:
    """Return the records' values."""
    return [(record.value() or b"").decode() for record in records]


@pytest.fixture
def shared(kafka, keylane, topic) -> tuple[Any, str, list[str]]:
    """A proxy, a topic of two partitions that may be shared, and what was produced there."""
    name = topic("orders", partitions=2)
    proxy = keylane(args=["--set", f"accept_range_fetch=[{name}]"])
    return proxy, name, produce(kafka, name, KEYS, 10)


def test_two_languages_read_disjoint_complete_halves(kafka, java, shared) -> None:
    """librdkafka and Java with plain assign and no group: each record at one, keys in order."""
    proxy, name, produced = shared
    assign(proxy.control, "PUT", {"rdkafka": parts(name, LOWER), "java": parts(name, UPPER)})
    lower, upper = ({f"{k}:{n}" for k in keys_in(r) for n in range(10)} for r in (LOWER, UPPER))

    consumer = librdkafka(proxy.bootstrap, "rdkafka", "none")
    consumer.assign([TopicPartition(name, p, OFFSET_BEGINNING) for p in range(2)])
    left = values(poll(consumer, len(lower)))
    assert not consumer.consume(1, timeout=2), "a record of the other half"
    consumer.close()
    right: list[str] = []
    for partition in range(2):
        read = java.run(
            "kafka-console-consumer", "--bootstrap-server", proxy.bootstrap, "--topic", name,
            "--partition", str(partition), "--offset", "earliest", "--timeout-ms", "10000",
            "--command-property", "client.id=java",
        )  # fmt: skip
        right += read.stdout.split()

    assert sorted(left) == sorted(lower) and sorted(right) == sorted(upper)
    assert sorted(left + right) == sorted(produced)
    for seen in (left, right):
        for key in KEYS:
            numbers = [int(v.rsplit(":", 1)[1]) for v in seen if v.rsplit(":", 1)[0] == key]
            assert numbers == sorted(numbers)
    refused = librdkafka(proxy.bootstrap, "java", "none")
    assign(proxy.control, "PATCH", {"java": parts(name, UPPER, partitions=1)})
    refused.assign([TopicPartition(name, 1, OFFSET_BEGINNING)])
    (reported,) = refused.consume(1, timeout=WAIT_S)
    error = reported.error()
    assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    refused.close()
    proxy.wait_for_log("client_id=java")
    proxy.wait_for_log("given partitions [0]")


def test_a_third_client_resumes_from_a_dead_ones_commits(kafka, shared) -> None:
    """One call hands the range over, over a restart; Kafka's offset follows all owners."""
    proxy, name, produced = shared
    group = f"g-{name}"
    assign(proxy.control, "PUT", {"alive": parts(name, LOWER), "dead": parts(name, UPPER)})
    alive, dead = (librdkafka(proxy.bootstrap, client, group) for client in ("alive", "dead"))
    for consumer in (alive, dead):
        consumer.assign([TopicPartition(name, p) for p in range(2)])
    first = poll(alive, 10 * len(keys_in(LOWER)))
    half = poll(dead, 5 * len(keys_in(UPPER)))
    for consumer, records in ((alive, first), (dead, half)):
        ends = {m.partition() or 0: (m.offset() or 0) + 1 for m in records}
        offsets = [TopicPartition(name, p, at) for p, at in ends.items()]
        assert all(
            part.error is None for part in consumer.commit(offsets=offsets, asynchronous=False)
        )
    committed = {place.partition: place.offset for place in dead.committed(dead.assignment())}
    # It reads on, and dies before it commits that: so much comes again, and nothing else.
    half += poll(dead, len(keys_in(UPPER)))
    dead.close()
    proxy.restart()

    assign(proxy.control, "PATCH", {"dead": None, "third": parts(name, UPPER)})
    third = librdkafka(proxy.bootstrap, "third", group)
    third.assign([TopicPartition(name, p) for p in range(2)])
    done = values(m for m in half if (m.offset() or 0) < committed[m.partition() or 0])
    expected = {f"{k}:{n}" for k in keys_in(UPPER) for n in range(10)} - set(done)
    resumed = poll(third, len(expected))
    third.commit(asynchronous=False)
    third.close()

    assert sorted(values(resumed)) == sorted(expected)
    assert set(values([*first, *half, *resumed])) == set(produced)
    assert stable_offsets(kafka, group, name, 2) == log_ends(kafka, name, 2)
    alive.close()
