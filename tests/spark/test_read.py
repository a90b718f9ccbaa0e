"""Lanes through Spark's own Kafka source: tasks, key order, restarts, real-time mode, progress."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from keylane.errors import ConfigInvalid
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.brokers import SparkAdmin
from keylane.pipeline.checkpoint import apply_migration, plan_migration
from keylane.pipeline.keyed_state import LaneFold, all_states
from keylane.pipeline.listener import LaneProgressListener
from keylane.pipeline.read import (
    count_slots,
    lane_options,
    lane_topic,
    read_lanes,
    require_slots,
    start_real_time,
)
from keylane.pipeline.storage import LocalFolder
from tests.integration.conftest import TopicFactory
from tests.integration.keylane_process import KeylaneProcess

PARTITIONS, KEYS = 2, 60
TIMEOUT_S = 120


def chain(state: bytes | None, key: bytes, offset: int, value: bytes | None) -> bytes:
    """A fold whose result shows any other order: the hash of all values so far."""
    import xxhash

    return xxhash.xxh64_digest(
        value or b"", seed=int.from_bytes(state or b"\0", "big") & (2**64 - 1)
    )


def fill(kafka: str, topic: str, first: int, count: int) -> None:
    """Numbered records of keys, each key in one partition."""
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 20})
    for number in range(first, first + count):
        key = number % KEYS
        producer.produce(topic, b"%d" % number, b"key-%d" % key, partition=key % PARTITIONS)
    assert producer.flush(60) == 0


def expected_states(count: int) -> dict[tuple[int, bytes], bytes]:
    """Return the result of `chain` when each key's records are taken once, in order."""
    states: dict[tuple[int, bytes], bytes] = {}
    for number in range(count):
        key = number % KEYS
        place = (key % PARTITIONS, b"key-%d" % key)
        states[place] = chain(states.get(place), place[1], 0, b"%d" % number)
    return states


def wait_until(condition: Callable[[], bool], query: StreamingQuery, what: str) -> None:
    """Wait for a query to have come far enough; its failure is the test's."""
    deadline_s = time.monotonic() + TIMEOUT_S
    tick = threading.Event()
    while not condition():
        error = query.exception()
        assert error is None, error
        assert time.monotonic() < deadline_s, f"not within {TIMEOUT_S} s: {what}"
        tick.wait(0.1)


def test_a_task_per_lane_and_every_key_in_one(
    spark: SparkSession, kafka: str, topic: TopicFactory, shared_keylane: KeylaneProcess
) -> None:
    """Two partitions are eight tasks through keylane; cut by offset (the control) keys are not."""
    orders = topic("orders", partitions=PARTITIONS)
    fill(kafka, orders, 0, 4000)
    lanes = read_lanes(spark, shared_keylane.bootstrap, orders, 4)
    cut = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", orders)
        .option("minPartitions", "8")
        .load()
    )

    found = {}
    for name, frame in (("lanes", lanes), ("cut", cut)):
        rows = frame.select("key", F.spark_partition_id()).collect()
        tasks = defaultdict(set)
        for key, task in rows:
            tasks[key].add(task)
        split = sum(len(numbers) > 1 for numbers in tasks.values())
        found[name] = (frame.rdd.getNumPartitions(), len(rows), split)

    assert found["lanes"] == (8, 4000, 0)
    assert found["cut"][:2] == (8, 4000)
    assert found["cut"][2] > KEYS // 2


def test_folded_without_a_shuffle_restarted_and_moved_to_more_lanes(
    spark: SparkSession,
    kafka: str,
    topic: TopicFactory,
    shared_keylane: KeylaneProcess,
    tmp_path: Path,
) -> None:
    """Stopped in the middle, restarted, its checkpoint migrated from 4 to 8 lanes: all exact."""
    orders, total = topic("orders", partitions=PARTITIONS), 9000
    fill(kafka, orders, 0, 6000)
    checkpoint, states = tmp_path / "checkpoint", tmp_path / "states"
    reported: dict[int, list[tuple[int, int, int, int]]] = {}

    def start(lanes: int, *, to_the_end: bool) -> StreamingQuery:
        # The query that is stopped in the middle has 60 small batches: it cannot be done by then.
        records = 1000 if to_the_end else 100
        options = lane_options(shared_keylane.bootstrap, orders, lanes, records_per_trigger=records)
        frame = spark.readStream.format("kafka").options(**options).load()
        layout = LaneLayout(partition_count=PARTITIONS, lane_count=lanes)
        fold = LaneFold(states, layout, chain, lambda batch, rows: reported.update({batch: rows}))
        writer = frame.writeStream.foreachBatch(fold).option("checkpointLocation", str(checkpoint))
        trigger = {"availableNow": True} if to_the_end else {"processingTime": "0 seconds"}
        return writer.trigger(**trigger).start()

    listener = LaneProgressListener(spark, kafka, f"{orders}-spark")
    spark.streams.addListener(listener)
    first = start(4, to_the_end=False)
    wait_until(lambda: len(reported) >= 2, first, "two batches")
    first.stop()
    assert len(reported) < 60  # it was cut off in the middle
    assert start(4, to_the_end=True).awaitTermination(TIMEOUT_S)
    half = {key: state for key, (_, state) in all_states(states, LaneLayout(2, 4)).items()}
    migration = plan_migration(
        LocalFolder(checkpoint), lane_topic(orders, 4), lane_topic(orders, 8)
    )
    apply_migration(migration)
    fill(kafka, orders, 6000, total - 6000)
    last = start(8, to_the_end=True)
    assert last.awaitTermination(TIMEOUT_S)

    plan = str(last._jsq.explainInternal(False))
    assert "Scan" in plan and "Exchange" not in plan
    assert half == expected_states(6000)
    whole = {key: state for key, (_, state) in all_states(states, LaneLayout(2, 8)).items()}
    assert whole == expected_states(total)
    rows = [row for batch in reported.values() for row in batch]
    assert sum(row[1] for row in rows) == total
    assert sum(row[3] for row in rows) == 0
    assert {row[0] for row in rows} == set(range(16))
    ends = {0: total // 2, 1: total // 2}
    with SparkAdmin(spark, kafka) as admin:
        # The batch that was cut off may have no progress event: only the last commit is sure.
        wait_until(
            lambda: admin.committed(f"{orders}-spark", orders) == ends,
            last,
            "the listener's last commit",
        )
    spark.streams.removeListener(listener)
    listener.close()
    assert listener.failure_count == 0


def test_real_time_mode_needs_a_slot_per_lane(
    spark: SparkSession,
    kafka: str,
    topic: TopicFactory,
    shared_keylane: KeylaneProcess,
    tmp_path: Path,
) -> None:
    """Two lanes on two slots pass records on at once; eight lanes are refused with the numbers."""
    orders, sink = topic("orders"), topic("sink")
    proxy = shared_keylane.bootstrap

    def writer(lanes: int):
        frame = spark.readStream.format("kafka").options(**lane_options(proxy, orders, lanes))
        rows = frame.load().select("key", F.concat("value", F.lit("!")).alias("value"))
        out = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", kafka)
        return out.option("topic", sink).option("checkpointLocation", str(tmp_path / str(lanes)))

    with pytest.raises(ConfigInvalid, match=rf"8 lanes need 8 slots.* has {count_slots(spark)}"):
        start_real_time(writer(8), bootstrap=proxy, topic=orders, lanes=8, batch="5 seconds")
    query = start_real_time(writer(2), bootstrap=proxy, topic=orders, lanes=2, batch="5 seconds")
    fill_one(kafka, orders, 200)
    values = drain(kafka, sink, 200, query)
    query.stop()

    numbers = defaultdict(list)
    for key, value in values:
        numbers[key].append(int(value.rstrip(b"!")))
    assert sorted(number for reported in numbers.values() for number in reported) == list(
        range(200)
    )
    assert all(reported == sorted(reported) for reported in numbers.values())
    require_slots(spark, 1, topic=orders)


def fill_one(kafka: str, topic: str, count: int) -> None:
    """Records of ten keys into a topic of one partition."""
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"key-%d" % (number % 10))
    assert producer.flush(60) == 0


def drain(kafka: str, topic: str, count: int, query: StreamingQuery) -> list[tuple[bytes, bytes]]:
    """The first `count` records of a topic, as soon as they are there."""
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[tuple[bytes, bytes]] = []

    def has_all() -> bool:
        for message in consumer.consume(500, timeout=0.2):
            key, value = message.key(), message.value()
            assert message.error() is None and isinstance(key, bytes) and isinstance(value, bytes)
            found.append((key, value))
        return len(found) >= count

    wait_until(has_all, query, f"{count} records in {topic}")
    consumer.close()
    return found


def test_options_that_cut_by_offset_are_refused() -> None:
    """minPartitions would put a key into several tasks; limits count each lane."""
    options = lane_options("h:1", "orders", 4, records_per_trigger=1000)

    assert options["maxOffsetsPerTrigger"] == "4000"
    assert options["subscribe"] == "orders.lanes-4"
    with pytest.raises(ConfigInvalid, match="minPartitions: it cuts by offset"):
        lane_options("h:1", "orders", 4, options={"minPartitions": "8"})
    with pytest.raises(ConfigInvalid, match="lanes must be 1 to 1024"):
        lane_topic("orders", 0)
    assert xxhash.xxh64_digest(b"1", seed=0) == chain(None, b"", 0, b"1")
