"""A lane of a real proxy holds exactly the records that Spark SQL says it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.assignor.cut_planner import plan_ranges
from keylane.assignor.range_plan import RangePlan, write_plan
from keylane.errors import ConfigInvalid
from keylane.keyrange.space import split_even
from keylane.pipeline import expressions
from keylane.pipeline.migration.job import MigrationRequest, SideRequest, run_migration
from keylane.pipeline.profile.loads import run_profile
from keylane.pipeline.topic_range import find_range, read_range
from tests.integration.conftest import KeylaneFactory, TopicFactory
from tests.spark.test_profile import fill

PARTITIONS, LANES = 2, 5
Loads = dict[int, tuple[int, int, int]]


def by_lane(records: DataFrame, lane_index: str) -> Loads:
    """Records, bytes and a sum over offsets and hashes, by lane index."""
    each = records.select(
        F.expr(lane_index).alias("lane_index"),
        expressions.record_bytes(),
        F.xxhash64("offset", expressions.key_hash()).cast("decimal(38,0)").alias("what"),
    )
    sums = each.groupBy("lane_index").agg(F.count("*"), F.sum("bytes"), F.sum("what"))
    return {row[0]: (row[1], row[2], int(row[3])) for row in sums.collect()}


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_lane_holds_what_sql_predicts(
    spark: SparkSession,
    kafka: str,
    topic: TopicFactory,
    keylane: KeylaneFactory,
    tmp_path: Path,
    is_planned: bool,
) -> None:
    """Even lanes and those of a plan, to the byte; some keys are null or empty."""
    name = topic(partitions=PARTITIONS)
    fill(kafka, name, 8_000)
    direct = find_range(spark, kafka, name)
    profile = run_profile(spark, direct, progress=lambda text: None)
    plan, _ = plan_ranges(profile, LANES)
    (tmp_path / "plan.json").write_bytes(write_plan(plan))
    even = [part.lo for part in split_even(LANES)[1:]]
    cuts = plan.cuts if is_planned else (even,) * PARTITIONS
    rule = f"{name}={tmp_path / 'plan.json'}" if is_planned else f"{name}={LANES}"

    proxy = keylane(rule)
    lanes = find_range(spark, proxy.bootstrap, name, may_be="lanes")
    found = by_lane(read_range(spark, lanes), "partition")

    records = read_range(spark, direct).withColumn("key_hash", expressions.key_hash())
    placed = records.withColumn("lane", expressions.lane_of(cuts))
    predicted = by_lane(placed, f"lane * {PARTITIONS} + partition")
    assert lanes.partition_count == PARTITIONS * LANES
    assert found == predicted
    assert sum(load[0] for load in found.values()) == 8_000
    if is_planned:
        assert {index: load[1] for index, load in found.items()} == weights(plan)


@pytest.mark.parametrize("is_ruled", [False, True], ids=["by its name", "by a rule"])
def test_lanes_are_not_taken_for_partitions(
    spark: SparkSession, kafka: str, topic: TopicFactory, keylane: KeylaneFactory, is_ruled: bool
) -> None:
    """Jobs that count offsets per partition would show lanes that others commit as uncommitted."""
    name = topic(partitions=PARTITIONS)
    fill(kafka, name, 10)
    proxy = keylane(*([f"{name}={LANES}"] if is_ruled else []))
    shown = name if is_ruled else f"{name}.lanes-{LANES}"

    with pytest.raises(ConfigInvalid) as refused:
        find_range(spark, proxy.bootstrap, shown)

    assert str(refused.value) == (
        f"topic {shown} at {proxy.bootstrap}: its {PARTITIONS * LANES} partitions are lanes;"
        f" name {name} and the brokers' address"
    )
    if not is_ruled:
        assert find_range(spark, proxy.bootstrap, name) == replace(
            find_range(spark, kafka, name), bootstrap=proxy.bootstrap
        )


def test_a_name_like_that_of_lanes_is_none_at_kafka(
    spark: SparkSession, kafka: str, topic: TopicFactory
) -> None:
    """A topic of Kafka's own may have such a name, and one of the shorter name beside it."""
    name = f"{topic(partitions=1)}.lanes-2"
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)
    try:
        fill(kafka, name, 10)

        assert find_range(spark, kafka, name).partition_count == 2
    finally:  # keylane does not start where names mean two topics
        admin.delete_topics([name])[name].result(60)


def test_a_topic_and_its_lanes_have_the_same_records_in_the_same_order(
    spark: SparkSession, kafka: str, topic: TopicFactory, keylane: KeylaneFactory
) -> None:
    """`verify-migration` of a topic at Kafka, and of its lanes at keylane."""
    name = topic(partitions=PARTITIONS)
    fill(kafka, name, 2_000)
    proxy = keylane()
    request = MigrationRequest(
        before=SideRequest(bootstrap=kafka, topic=name),
        after=SideRequest(bootstrap=proxy.bootstrap, topic=f"{name}.lanes-{LANES}"),
    )

    verdict = run_migration(spark, request, progress=lambda text: None).verdict

    assert (verdict.status, verdict.reasons) == ("same", [])
    assert verdict.records == {"before": 2_000, "after": 2_000}


def weights(plan: RangePlan) -> dict[int, float]:
    """Predicted bytes by lane index."""
    return {index: weight for (_, index), weight in plan.loads().items()}
