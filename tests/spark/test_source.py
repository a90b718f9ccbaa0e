"""pipeline/source.py: physical offsets, exact limits and lag, lanes that change between batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.embedded import EmbeddedKafka
from keylane.pipeline.read import read_lanes
from keylane.pipeline.source import KeylaneSource, SourceOptions
from keylane.pipeline.source_lanes import LaneTask, read_lane
from tests.integration.conftest import TopicFactory
from tests.integration.keylane_process import KeylaneProcess

PARTITIONS = 2
TIMEOUT_S = 120


def fill(kafka: str, topic: str, count: int) -> None:
    """Records with keys, without, with an empty key, and without a value."""
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 20})
    for number in range(count):
        key = None if number % 7 == 0 else b"" if number % 11 == 0 else b"key-%d" % (number % 40)
        value = None if number % 13 == 0 else b"%d" % number
        producer.produce(topic, value, key, partition=number % PARTITIONS, timestamp=1000 + number)
    assert producer.flush(60) == 0


def test_a_batch_is_what_sparks_own_source_reads(
    spark: SparkSession, kafka: str, topic: TopicFactory, shared_keylane: KeylaneProcess
) -> None:
    """Every column of every record, a task per lane, each lane's offsets ascending."""
    orders = topic("orders", partitions=PARTITIONS)
    fill(kafka, orders, 3000)
    spark.dataSource.register(KeylaneSource)
    own = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka)
    own_rows = own.option("subscribe", orders).load()

    frame = (
        spark.read.format("keylane")
        .option("bootstrap", shared_keylane.bootstrap)
        .option("topic", orders)
        .option("lanes", 4)
        .option("endingOffsets", '{"0": 1400, "1": 1500}')
        .load()
    )

    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    found = frame.select(*columns, "lane", F.spark_partition_id().alias("task")).collect()
    assert frame.rdd.getNumPartitions() == 8
    wanted = own_rows.where("partition = 1 or offset < 1400").select(columns).collect()
    assert sorted(tuple(map(repr, row[:7])) for row in found) == sorted(
        tuple(map(repr, row)) for row in wanted
    )
    last: dict[tuple[int, int], int] = {}
    for row in found:
        place = (row["partition"], row["lane"])
        assert row["offset"] > last.get(place, -1)
        last[place] = row["offset"]
    assert len({(row["task"], row["partition"], row["lane"]) for row in found}) == 8


def test_a_stream_limits_exactly_and_lanes_may_change(
    spark: SparkSession,
    kafka: str,
    topic: TopicFactory,
    shared_keylane: KeylaneProcess,
    tmp_path: Path,
) -> None:
    """Batches of 500 records, first of 2 lanes, then of 5: each record once; lag to the record."""
    orders = topic("orders", partitions=PARTITIONS)
    fill(kafka, orders, 2000)
    spark.dataSource.register(KeylaneSource)
    lanes_file = tmp_path / "lanes"
    lanes_file.write_text("2\n")
    seen: list[tuple[int, int]] = []

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows = batch.select("partition", "offset").collect()
        seen.extend((row["partition"], row["offset"]) for row in rows)
        lanes_file.write_text("5\n" if batch_id >= 1 else "2\n")

    def run() -> list[dict[str, object]]:
        query = (
            spark.readStream.format("keylane")
            .option("bootstrap", shared_keylane.bootstrap)
            .option("topic", orders)
            .option("lanesFile", str(lanes_file))
            .option("maxRecordsPerTrigger", 500)
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(TIMEOUT_S)
        return [json.loads(progress.json) for progress in query.recentProgress]

    progress = run()
    fill(kafka, orders, 300)
    progress += run()

    assert sorted(seen) == [(p, offset) for p in range(PARTITIONS) for offset in range(1150)]
    sizes = [reported["numInputRows"] for reported in progress if reported["numInputRows"]]
    assert sizes == [500, 500, 500, 500, 300]
    first = progress[0]["sources"]
    assert isinstance(first, list)
    ends = first[0]["endOffset"][orders]
    latest = first[0]["latestOffset"][orders]
    assert sum(latest[place] - ends[place] for place in latest) == 1500


def test_a_broker_without_lanes_and_wrong_options_are_reported(
    spark: SparkSession, kafka: str, topic: TopicFactory
) -> None:
    """One line names the option, or asks whether the address is a proxy's."""
    orders = topic("orders")
    spark.dataSource.register(KeylaneSource)
    reader = spark.read.format("keylane").option("bootstrap", kafka)

    with pytest.raises(PySparkException, match=r"is .* a keylane proxy\?"):
        reader.option("topic", orders).option("lanes", 4).load().count()
    with pytest.raises(PySparkException, match="lanes: expected a number from 1 to 1024"):
        reader.option("topic", orders).option("lanes", "x").load().count()


def test_lanes_whose_ends_hold_no_record_are_read_whole_by_both_ways(
    spark: SparkSession,
    kafka: str,
    topic: TopicFactory,
    admin: AdminClient,
    shared_keylane: KeylaneProcess,
) -> None:
    """Markers, an aborted transaction, and lanes without any record; then a start that is gone.

    Waits at the log's end are set to be longer than kafka-clients waits for an answer
    (`default.api.timeout.ms`): a fetch that holds up the requests behind it fails the task.
    """
    orders = topic("orders", partitions=1)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": orders})
    producer.init_transactions(30)
    for is_kept in (True, False):
        producer.begin_transaction()
        for number in range(30):
            producer.produce(orders, b"%d" % number, b"key-%d" % (number % 3))
        if is_kept:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)
    spark.dataSource.register(KeylaneSource)
    proxy, committed = shared_keylane.bootstrap, {"kafka.isolation.level": "read_committed"}
    reader = spark.read.format("keylane").option("bootstrap", proxy).option("topic", orders)
    reader = reader.options(**committed).option("lanes", 8)
    waits = committed | {"kafka.fetch.max.wait.ms": "100000"}

    for frame in (read_lanes(spark, proxy, orders, 8, options=waits), reader.load()):
        assert frame.rdd.getNumPartitions() == 8
        offsets = sorted(row["offset"] for row in frame.select("offset").collect())
        assert offsets == list(range(30))

    deleted = admin.delete_records([TopicPartition(orders, 0, 20)])
    next(iter(deleted.values())).result(30)
    with pytest.raises(PySparkException, match="the records are gone"):
        reader.option("startingOffsets", '{"0": 10}').load().count()


@pytest.mark.long
def test_a_broker_that_starts_again_is_read_on(own_broker: EmbeddedKafka) -> None:
    """Killed in the middle of a lane: no record is left out, none comes twice."""
    producer = Producer({"bootstrap.servers": own_broker.bootstrap, "batch.size": 2000})
    for number in range(2000):
        producer.produce("orders", b"%d" % number * 20)
    assert producer.flush(60) == 0
    few = {"queued.min.messages": "1", "fetch.message.max.bytes": "2000"}
    task = LaneTask(
        bootstrap=own_broker.bootstrap, topic="orders", view="orders", partition=0, lane=0,
        index=0, view_partitions=1, start=0, end=2000, settings=few,
    )  # fmt: skip

    batches = read_lane(task)
    first = next(batches)["offset"].to_pylist()
    own_broker.kill()
    own_broker.start()
    rest = [offset for batch in batches for offset in batch["offset"].to_pylist()]

    assert len(first) < 1000
    assert first + rest == list(range(2000))


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_consumer_that_is_kept_reads_what_the_topic_has_become(
    lanes: int,
    kafka: str,
    admin: AdminClient,
    topic: TopicFactory,
    shared_keylane: KeylaneProcess,
) -> None:
    """At the log's end again; with partitions added (to lanes none are); of a topic made anew."""
    orders = topic("orders", partitions=2)
    bootstrap = kafka if lanes == 1 else shared_keylane.bootstrap
    given = {"bootstrap": bootstrap, "topic": orders, "lanes": str(lanes)}

    def read_all() -> dict[int, list[bytes]]:
        """Values by partition, as one worker of Spark reads them."""
        options = SourceOptions.read(given)
        bounds = options.bounds()
        found: dict[int, list[bytes]] = {partition: [] for partition in bounds.ends}
        for task in options.tasks(bounds.starts, bounds.ends):
            for batch in read_lane(task.value):
                found[task.value.partition] += batch["value"].to_pylist()
        return {partition: sorted(values) for partition, values in found.items()}

    def produce(mark: str, partition_count: int) -> dict[int, list[bytes]]:
        producer = Producer({"bootstrap.servers": kafka})
        values = {
            partition: sorted(f"{mark} {partition} {number}".encode() for number in range(20))
            for partition in range(partition_count)
        }
        for partition, each in values.items():
            for value in each:
                producer.produce(orders, value, value, partition=partition)
        assert producer.flush(60) == 0
        return values

    first = produce("first", 2)
    assert read_all() == first
    assert read_all() == first
    count = 2
    if lanes == 1:
        count = 3
        admin.create_partitions([NewPartitions(orders, 3)])[orders].result(30)
        second = produce("second", 3)
        assert read_all() == {place: first.get(place, []) + second[place] for place in range(3)}
    admin.delete_topics([orders])[orders].result(30)
    admin.create_topics([NewTopic(orders, count, 1)])[orders].result(30)
    third = produce("third", count)
    assert read_all() == third
