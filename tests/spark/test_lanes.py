"""A lane of a real proxy holds exactly the records that Spark SQL says it holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.assignor.cut_planner import plan_ranges
from keylane.assignor.range_plan import RangePlan, write_plan
from keylane.keyrange.space import split_even
from keylane.pipeline import expressions
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
    lanes = find_range(spark, proxy.bootstrap, name)
    found = by_lane(read_range(spark, lanes), "partition")

    records = read_range(spark, direct).withColumn("key_hash", expressions.key_hash())
    placed = records.withColumn("lane", expressions.lane_of(cuts))
    predicted = by_lane(placed, f"lane * {PARTITIONS} + partition")
    assert lanes.partition_count == PARTITIONS * LANES
    assert found == predicted
    assert sum(load[0] for load in found.values()) == 8_000
    if is_planned:
        assert {index: load[1] for index, load in found.items()} == weights(plan)


def weights(plan: RangePlan) -> dict[int, float]:
    """Predicted bytes by lane index."""
    return {index: weight for (_, index), weight in plan.loads().items()}
