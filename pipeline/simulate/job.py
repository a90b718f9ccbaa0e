"""A simulation on Spark: facts of the records, members that get them, times in each queue.

Records are read once, and kept on the disks of the workers as rows of some 50 bytes, once for all
and twice per scenario. What reaches the driver has a row per lane, per member, and per heavy key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from keylane.advise.keys import SampledLanes
from keylane.embedded.resolve import Progress
from keylane.errors import ConfigInvalid, JobFailed
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.job import hold, spark_errors, tracked
from keylane.pipeline.simulate import queueing
from keylane.pipeline.simulate.deals import Owners, deal, deal_whole
from keylane.pipeline.simulate.model import (
    KeyMeans,
    KeyResult,
    MemberResult,
    RecordFacts,
    ScenarioResult,
    SimulatedGroup,
    Simulation,
    SimulationRequest,
    Waits,
    layouts_of,
    list_scenarios,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]


def run_simulation(
    spark: SparkSession,
    records: DataFrame,
    request: SimulationRequest,
    *,
    topic: str,
    partition_count: int,
    progress: Progress,
) -> Simulation:
    """Answer a request about records, in rows that `queueing` names; with `work_us`, if measured.

    Raises:
        ConfigInvalid: there are no records, their times or work are none, or the plan does not fit.
        JobFailed: Kafka or Spark failed; the text says with what.
    """
    layouts = layouts_of(request, partition_count)
    scenarios = list_scenarios(request, layouts)
    what = f"simulate {topic}"
    with spark_errors(what), tracked(spark, what, progress), ExitStack() as stack:
        if request.work is not None and "work_us" not in records.columns:
            records = queueing.with_work(records, request.work)
        log = hold(queueing.log_blocks(records), stack)
        base = queueing.in_log_order(log, hold(queueing.highs_before(log), stack))
        facts = _find_facts(base, request, topic=topic, partition_count=partition_count)
        heavy = _find_heavy(base, request.heavy_count)
        owners = _deal_all(request, scenarios, layouts, _sum_lanes(base, layouts))
        placed = queueing.place(
            base, layouts, _owner_rows(spark, scenarios, owners), request.parallel
        )
        arriving = queueing.with_arrivals(placed, request.arrivals, facts, request.rate)
        places = [one.members * request.parallel for one in scenarios]
        lengths_us = [queueing.block_length_us(facts, count) for count in places]
        queues = hold(queueing.queue_blocks(arriving, lengths_us), stack)
        served = queueing.serve(queues, hold(queueing.ends_before(queues), stack))
        tables = _Tables.of(spark, hold(served, stack), heavy)
    results = [
        _result(scenario, facts, request.parallel, owners[scenario.number], tables)
        for scenario in scenarios
    ]
    lost = [one.scenario.number for one in results if one.records != facts.records]
    if lost:
        raise JobFailed(f"{what}: Spark lost records between two reads of the topic")
    return Simulation(topic=topic, request=request, facts=facts, results=tuple(results))


def _find_facts(
    base: DataFrame, request: SimulationRequest, *, topic: str, partition_count: int
) -> RecordFacts:
    row = base.agg(
        F.count(F.lit(1)).alias("records"),
        F.sum("bytes").alias("bytes"),
        F.min("time_us").alias("first_us"),
        F.min(F.col("time_us") - F.col("raised_us")).alias("time_min_us"),
        F.max("time_us").alias("last_us"),
        F.count_if(F.col("raised_us") > 0).alias("raised"),
        F.max("raised_us").alias("raised_max_us"),
        F.sum("work_us").alias("work_us"),
        F.count_if(F.col("work_us").isNull()).alias("unknown"),
        F.count_if(F.col("work_us") < 0).alias("negative"),
    ).collect()[0]
    if not row["records"]:
        raise ConfigInvalid(f"topic {topic}: the range has offsets, but no records")
    if row["unknown"] or row["negative"]:
        raise ConfigInvalid(
            f"topic {topic}: of {row['records']:,} records, {row['unknown']:,} have no measured"
            f" work and {row['negative']:,} have less than 0; --work-ms gives what is missing"
        )
    if request.arrivals == "real" and row["time_min_us"] < 0:
        raise ConfigInvalid(f"topic {topic}: has records without a time, take --arrivals backlog")
    facts = RecordFacts(
        partition_count=partition_count,
        records=row["records"],
        bytes=row["bytes"],
        first_us=row["first_us"],
        last_us=row["last_us"],
        raised=row["raised"],
        raised_max_us=row["raised_max_us"],
        work_us=row["work_us"],
    )
    if request.rate is not None and facts.rate is None:
        raise ConfigInvalid(f"topic {topic}: all records have one time, --rate cannot stretch it")
    return facts


def _find_heavy(base: DataFrame, count: int) -> pa.Table:
    """The keys with most work: (partition, key_hash, key_work_us)."""
    keys = base.where(~F.col("keyless")).groupBy("partition", "key_hash")
    works = keys.agg(F.sum("work_us").alias("key_work_us"))
    return works.orderBy(F.desc("key_work_us"), "key_hash", "partition").limit(count).toArrow()


def _sum_lanes(base: DataFrame, layouts: Sequence[LaneLayout]) -> list[SampledLanes]:
    """Records and bytes of each lane, which is all that an assignor knows of them."""
    lanes = queueing.with_lanes(base, layouts).groupBy("layout", "partition", "lane")
    table = lanes.agg(F.count(F.lit(1)).alias("records"), F.sum("bytes").alias("bytes")).toArrow()
    found = []
    for number, layout in enumerate(layouts):
        own = table.filter(pa.compute.equal(table["layout"], number))
        shape = layout.partition_count, layout.lane_count
        places = own["partition"].to_numpy(), own["lane"].to_numpy()
        loads = []
        for name in ("records", "bytes"):
            loads.append(np.zeros(shape))
            loads[-1][places] = own[name].to_numpy()
        found.append(SampledLanes(loads[0], loads[1], np.zeros(shape)))
    return found


def _deal_all(
    request: SimulationRequest,
    scenarios: Sequence[SimulatedGroup],
    layouts: Sequence[LaneLayout],
    loads: Sequence[SampledLanes],
) -> dict[int, Owners]:
    return {
        one.number: deal_whole(layouts[0].partition_count, one.members)
        if one.way == "today"
        else deal(request.assignor, loads[one.layout], one.members)
        for one in scenarios
    }


def _owner_rows(
    spark: SparkSession, scenarios: Sequence[SimulatedGroup], owners: Mapping[int, Owners]
) -> DataFrame:
    parts = []
    for one in scenarios:
        dealt = owners[one.number]
        partitions, lanes = np.indices(dealt.shape).reshape(2, -1)
        columns = {
            "layout": np.full(dealt.size, one.layout),
            "partition": partitions,
            "lane": lanes,
            "scenario": np.full(dealt.size, one.number),
            "member": dealt.ravel(),
        }
        arrays = {name: pa.array(values, pa.int32()) for name, values in columns.items()}
        parts.append(pa.table(arrays))
    return spark.createDataFrame(pa.concat_tables(parts))


class _Tables:
    """Rows of the queues that reach the driver, by scenario."""

    def __init__(self) -> None:
        self.whole: dict[int, Row] = {}
        self.busiest_us: dict[int, int] = {}
        self.keys: dict[int, Row] = {}
        self.members: defaultdict[int, list[Row]] = defaultdict(list)
        self.heavy: defaultdict[int, list[Row]] = defaultdict(list)

    @classmethod
    def of(cls, spark: SparkSession, served: DataFrame, heavy: pa.Table) -> _Tables:
        """Run the jobs."""
        found = cls()
        figures = queueing.wait_figures()
        work = F.sum("work_us").alias("work_us")
        for row in _rows(
            served.groupBy("scenario", "member").agg(work, *figures).orderBy("scenario", "member")
        ):
            found.members[row["scenario"]].append(row)
        end = F.max("finish_us").alias("finish_us")
        for row in _rows(served.groupBy("scenario").agg(work, end, *figures)):
            found.whole[row["scenario"]] = row
        # A row per place of each member would be too many for the driver.
        places = served.groupBy("scenario", "place").agg(work)
        for row in _rows(places.groupBy("scenario").agg(F.max("work_us").alias("work_us"))):
            found.busiest_us[row["scenario"]] = row["work_us"]
        for row in _rows(queueing.key_means(served)):
            found.keys[row["scenario"]] = row
        if heavy.num_rows:
            names = ["partition", "key_hash"]
            chosen = served.where(~F.col("keyless"))
            chosen = chosen.join(F.broadcast(spark.createDataFrame(heavy)), names)
            by_key = chosen.groupBy("scenario", "key_work_us", *names).agg(*figures)
            for row in _rows(by_key.orderBy("scenario", F.desc("key_work_us"), *reversed(names))):
                found.heavy[row["scenario"]].append(row)
        return found


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return rows


def _result(
    scenario: SimulatedGroup, facts: RecordFacts, parallel: int, owners: Owners, tables: _Tables
) -> ScenarioResult:
    number = scenario.number
    whole = tables.whole[number]
    return ScenarioResult(
        scenario=scenario,
        records=whole["records"],
        work_ms=whole["work_us"] / 1000,
        span_ms=whole["finish_us"] / 1000,
        busiest_ms=tables.busiest_us[number] / 1000,
        parallel=parallel,
        waits=_waits(whole),
        key_means=_key_means(tables.keys.get(number)),
        members=tuple(_members(scenario, owners, parallel, whole, tables.members[number])),
        heavy=tuple(
            KeyResult(
                partition=row["partition"],
                key_hash=row["key_hash"],
                records=row["records"],
                work_share=row["key_work_us"] / max(facts.work_us, 1),
                waits=_waits(row),
            )
            for row in tables.heavy[number]
        ),
    )


def _members(
    scenario: SimulatedGroup, owners: Owners, parallel: int, whole: Row, rows: Sequence[Row]
) -> Iterator[MemberResult]:
    lanes = np.bincount(owners.ravel(), minlength=scenario.members)
    by_member = {row["member"]: row for row in rows}
    capacity_us = max(whole["finish_us"] * parallel, 1)
    for member in range(scenario.members):
        row = by_member.get(member)
        work_us = 0 if row is None else row["work_us"]
        yield MemberResult(
            member=member,
            lanes=int(lanes[member]),
            records=0 if row is None else row["records"],
            work_ms=work_us / 1000,
            utilisation=work_us / capacity_us,
            waits=None if row is None else _waits(row),
        )


def _waits(row: Row) -> Waits:
    p50, p95, p99 = (value / 1000 for value in row["wait_percentiles_us"])
    return Waits(
        mean_ms=row["wait_us"] / row["records"] / 1000,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=row["wait_max_us"] / 1000,
    )


def _key_means(row: Row | None) -> KeyMeans | None:
    if row is None:
        return None
    p50, p95, p99 = (value / 1000 for value in row["key_percentiles_us"])
    return KeyMeans(
        keys=row["keys"], p50_ms=p50, p95_ms=p95, p99_ms=p99, max_ms=row["key_max_us"] / 1000
    )
