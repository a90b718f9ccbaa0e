"""Queues of members as expressions of Spark: when each record arrives, is worked on, and is done.

A member is a queue with one server that takes records in order of their arrival. With arrivals a,
work w and its running sum S, the n-th record is done at

    finish(n) = S(n) + max over k <= n of (a(k) - S(k - 1))

which is Lindley's recursion finish(n) = max(a(n), finish(n - 1)) + w(n), written out. All times are
whole microseconds, and exact.

Windows over a whole queue would need memory that grows with it: Spark holds a MiB of heap for each
file that a window has spilled. So a queue is cut into blocks of some 200,000 records. With S and
the maximum of one block alone, a record is done at S(n) + max(that maximum, end of the blocks
before), and these ends follow from a row of each block by the same formula. Blocks of one queue
run side by side.

Source: D. V. Lindley, The theory of queues with a single server, 1952. G. E. P. Box and M. E.
Muller, A note on the generation of random normal deviates, 1958.

Frames have records in rows: partition int, offset bigint, key_hash bigint (of the offset where the
record has no key), keyless boolean, time_us bigint (since 1970), bytes bigint; and work_us bigint
where it was measured. Nothing here starts a job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from keylane.keyrange.lane import LaneLayout
from keylane.pipeline import expressions
from keylane.pipeline.simulate.model import PERCENTILES, Arrivals, RecordFacts, WorkModel

BLOCK_RECORDS: Final = 200_000
"""Records of a block, about: 20 MB for each of the two windows over it, so that none spills."""
QUEUE: Final = ("scenario", "place")
_UNIT_BITS: Final = 53
"""Of a fraction in a double."""
_PLACE_SEED: Final = 7
"""Any other than that of lanes: a place of a member has keys of all its lanes."""


def plain_records(records: DataFrame) -> DataFrame:
    """Return the rows that this module works on, of the rows of Spark's Kafka source."""
    return records.select(
        "partition",
        "offset",
        expressions.key_hash(),
        F.col("key").isNull().alias("keyless"),
        F.unix_micros("timestamp").alias("time_us"),
        expressions.record_bytes(),
    )


def with_work(records: DataFrame, work: WorkModel) -> DataFrame:
    """Add `work_us`: the time that a member takes for each record."""
    mean_us = F.lit(1000.0 * work.base_ms) + F.col("bytes") * F.lit(work.per_kb_ms)
    factor = _spread(work)
    if factor is not None:
        mean_us = mean_us * factor
    return records.withColumn("work_us", F.round(mean_us).cast("bigint"))


def with_measured_work(
    records: DataFrame, measured: DataFrame, work: WorkModel | None
) -> DataFrame:
    """Add `work_us` from rows of (partition, offset, work_ms).

    A record with several rows takes their mean. `work` gives what those lack; without it, that is
    null.
    """
    place = (
        F.col("partition").cast("int").alias("partition"),
        F.col("offset").cast("bigint").alias("offset"),
    )
    # A record that came again was measured again: two rows would be two records.
    known = measured.groupBy(*place).agg(
        F.round(F.avg(F.col("work_ms").cast("double")) * 1000).cast("bigint").alias("known_us")
    )
    missing = F.lit(None).cast("bigint")
    each = records.withColumn("work_us", missing) if work is None else with_work(records, work)
    both = each.join(known, ["partition", "offset"], "left")
    return both.withColumn("work_us", F.coalesce("known_us", "work_us")).drop("known_us")


def log_blocks(records: DataFrame) -> DataFrame:
    """Cut partitions into blocks of offsets: `block`, and the latest time so far in it, `high_us`.

    Each is to be held, as is `highs_before`: `in_log_order` joins both.
    """
    block = F.floor(F.col("offset") / BLOCK_RECORDS)
    log = Window.partitionBy("partition", "block").orderBy("offset")
    high_us = F.max("time_us").over(log.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return records.withColumn("block", block).withColumn("high_us", high_us)


def highs_before(blocks: DataFrame) -> DataFrame:
    """The latest time in the blocks before each: partition, block, `before_us`, null in the first.

    A row of each block of `log_blocks`.
    """
    highs = blocks.groupBy("partition", "block").agg(F.max("high_us").alias("high_us"))
    log = Window.partitionBy("partition").orderBy("block")
    before_us = F.max("high_us").over(log.rowsBetween(Window.unboundedPreceding, -1))
    return highs.select("partition", "block", before_us.alias("before_us"))


def in_log_order(blocks: DataFrame, before: DataFrame) -> DataFrame:
    """Make times ascend in each partition; `raised_us` is what a record's own time lacked.

    Producers stamp records before they send them, so a log has earlier times behind later ones. A
    consumer gets none of them before those in front. `before` are `highs_before`.
    """
    return (
        blocks.join(before, ["partition", "block"])
        .withColumn("at_us", F.greatest("high_us", "before_us"))  # passes over null
        .withColumn("raised_us", F.col("at_us") - F.col("time_us"))
        .drop("time_us", "block", "high_us", "before_us")
        .withColumnRenamed("at_us", "time_us")
    )


def place(
    records: DataFrame,
    layouts: Sequence[LaneLayout],
    owners: DataFrame,
    parallel: int,
) -> DataFrame:
    """Give each record, once for each scenario, the member that gets it, and its place there.

    owners: (layout, partition, lane, scenario, member), every lane of every layout in each of its
    scenarios once; small enough for each worker's memory. A member with `parallel` places has each
    key in one of them.
    """
    slot = F.lit(0)
    if parallel > 1:
        slot = F.pmod(F.xxhash64("key_hash", F.lit(_PLACE_SEED)), F.lit(parallel))
    placed = with_lanes(records, layouts).join(F.broadcast(owners), ["layout", "partition", "lane"])
    return placed.withColumn("place", F.col("member") * parallel + slot).drop("layout", "lane")


def with_lanes(records: DataFrame, layouts: Sequence[LaneLayout]) -> DataFrame:
    """Return each record once for each layout, with (layout, lane)."""
    pairs = []
    for number, layout in enumerate(layouts):
        cuts = [layout.key_split(part).cuts for part in range(layout.partition_count)]
        pairs.append(F.struct(F.lit(number).alias("layout"), expressions.lane_of(cuts)))
    return records.select("*", F.explode(F.array(*pairs)).alias("at")).select(
        *records.columns, "at.layout", "at.lane"
    )


def with_arrivals(
    placed: DataFrame, arrivals: Arrivals, facts: RecordFacts, rate: float | None
) -> DataFrame:
    """Add `arrival_us`, from the first record on; `rate` stretches times to so many per second."""
    if arrivals == "backlog":
        return placed.withColumn("arrival_us", F.lit(0).cast("bigint"))
    since = F.col("time_us") - F.lit(facts.first_us)
    if rate is not None and facts.rate is not None:
        since = F.floor(since * F.lit(facts.rate / rate)).cast("bigint")
    return placed.withColumn("arrival_us", since)


def block_length_us(facts: RecordFacts, places: int) -> int:
    """The time that a block of a queue spans, where `places` share all records."""
    blocks = math.ceil(facts.records / (places * BLOCK_RECORDS))
    return math.ceil((facts.last_us - facts.first_us + 1) / blocks)


def queue_blocks(placed: DataFrame, lengths_us: Sequence[int]) -> DataFrame:
    """Cut queues into blocks of time: `block`, and of each alone `sum_us` and `begin_us`.

    `lengths_us` has the length of a block by scenario. `sum_us` is S, `begin_us` the maximum (see
    the top). Cost: a sort of each block. It is to be held, as is `ends_before`: `serve` joins both.
    """
    length_us = F.get(F.array(*(F.lit(one).cast("bigint") for one in lengths_us)), "scenario")
    block = F.floor(F.col("time_us") / length_us)
    line = Window.partitionBy(*QUEUE, "block").orderBy("time_us", "partition", "offset")
    so_far = line.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    summed = placed.withColumn("block", block).withColumn("sum_us", F.sum("work_us").over(so_far))
    begins = F.col("arrival_us") - (F.col("sum_us") - F.col("work_us"))
    return summed.select(
        *QUEUE,
        "block",
        "member",
        "partition",
        "key_hash",
        "keyless",
        "arrival_us",
        "work_us",
        "sum_us",
        F.max(begins).over(so_far).alias("begin_us"),
    )


def ends_before(blocks: DataFrame) -> DataFrame:
    """The end of the work of all blocks before each: scenario, place, block, `before_us`.

    A row of each block of `queue_blocks`; null in the first of a queue.
    """
    wholes = blocks.groupBy(*QUEUE, "block").agg(
        F.max("sum_us").alias("sum_us"), F.max("begin_us").alias("begin_us")
    )
    line = Window.partitionBy(*QUEUE).orderBy("block")
    before = line.rowsBetween(Window.unboundedPreceding, -1)
    done_us = F.coalesce(F.sum("sum_us").over(before), F.lit(0))
    starts = wholes.withColumn("done_us", done_us).withColumn(
        "start_us", F.col("begin_us") - F.col("done_us")
    )
    before_us = F.col("done_us") + F.max("start_us").over(before)
    return starts.select(*QUEUE, "block", before_us.alias("before_us"))


def serve(blocks: DataFrame, before: DataFrame) -> DataFrame:
    """Give each record of `queue_blocks` its `wait_us` and `finish_us`; `before` is `ends_before`.

    `wait_3_us` is `wait_us` with three digits. It stands in a column, since a percentile would
    interpret its expression for each record: hold the frame.
    """
    finish_us = F.col("sum_us") + F.greatest("begin_us", "before_us")  # passes over null
    done = blocks.join(before, [*QUEUE, "block"]).withColumn("finish_us", finish_us)
    waited = F.col("finish_us") - F.col("work_us") - F.col("arrival_us")
    return done.select(
        "scenario",
        "member",
        "place",
        "partition",
        "key_hash",
        "keyless",
        "work_us",
        "finish_us",
        waited.alias("wait_us"),
    ).withColumn("wait_3_us", three_digits("wait_us"))


def wait_figures() -> list[Column]:
    """Aggregates of `serve`: records, wait_us (their sum), wait_max_us, wait_percentiles_us.

    Percentiles are of times with three digits, so that their memory is bounded, and any two runs
    agree.
    """
    return [
        F.count(F.lit(1)).alias("records"),
        F.sum("wait_us").alias("wait_us"),
        F.max("wait_us").alias("wait_max_us"),
        percentiles("wait_3_us").alias("wait_percentiles_us"),
    ]


def key_means(served: DataFrame) -> DataFrame:
    """Mean wait of each key, over the keys of a scenario: (scenario, keys, key_..._us)."""
    keys = served.where(~F.col("keyless")).groupBy("scenario", "partition", "key_hash")
    means = keys.agg(F.round(F.avg("wait_us")).cast("bigint").alias("mean_us"))
    return (
        means.withColumn("mean_3_us", three_digits("mean_us"))
        .groupBy("scenario")
        .agg(
            F.count(F.lit(1)).alias("keys"),
            F.max("mean_us").alias("key_max_us"),
            percentiles("mean_3_us").alias("key_percentiles_us"),
        )
    )


def percentiles(name: str) -> Column:
    """PERCENTILES of a column of `three_digits`."""
    return F.percentile(F.col(name), list(PERCENTILES))


def three_digits(name: str) -> Column:
    """Round whole numbers from 0 to three digits: at most 900 values per power of ten."""
    # log10 of a power of ten is exact in Java, so that no number gets a digit too few.
    digits = f"greatest(cast(floor(log10(greatest({name}, 1))) as int) - 2, 0)"
    step = f"cast(pow(10, {digits}) as bigint)"
    return F.expr(f"(({name} + {step} div 2) div {step}) * {step}")


def _spread(work: WorkModel) -> Column | None:
    """A factor of mean 1 for each record; None: it is 1."""
    if work.spread == "constant":
        return None
    exponential = -F.ln(_unit(work.seed, 0))
    if work.spread == "exponential":
        return exponential
    angle = F.lit(2.0) * F.pi() * _unit(work.seed, 1)
    normal = F.sqrt(F.lit(2.0) * exponential) * F.cos(angle)
    return F.exp(F.lit(work.sigma) * normal - F.lit(work.sigma**2 / 2))


def _unit(seed: int, draw: int) -> Column:
    """A number above 0 and below 1, by a record's place."""
    hashed = F.xxhash64("partition", "offset", F.lit(seed).cast("bigint"), F.lit(draw))
    whole = F.shiftrightunsigned(hashed, 64 - _UNIT_BITS).cast("double")
    # The 53 bits and a half need 54: the largest would be rounded to 1, whose logarithm is 0, fine.
    return (whole + F.lit(0.5)) / F.lit(float(1 << _UNIT_BITS))
