"""Waits of records, from produce time to the first commit that covers them: DataFrames only.

The produce time is the timestamp of the record, by the producer's clock or by the broker's, as the
topic is set. The commit time is that of the group's journal, or of the report of the commit.

Commits are not joined to records by comparing each with each. Both are put into one column of
offsets per partition and part of the hash space; sorted downwards, the least commit time so far is
the first commit that covers a record. That is one sort, whatever the number of commits.

Percentiles come from counts per wait: waits from 2,048 ms on are rounded down, by less than a
thousandth, so that each group has few thousand distinct waits and its percentiles need no sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from keylane.keyrange.space import HASH_MAX
from keylane.pipeline import expressions
from keylane.pipeline.waits.history import EXACT, LOST, OTHER_HASH

GRID_BITS: Final = 8
"""Parts of the hash space are looked up by 256 equal pieces, of which each meets a few."""
WAIT_BITS: Final = 11
"""Bits of a wait that are kept."""
QUANTILES: Final = (0.5, 0.9, 0.99)
COMMIT, PROCESS = "commit", "process"
KNOWN, OPEN, UNTIMED, DOUBTFUL = "known", "open", "untimed", "doubtful"
"""States of a wait: known; not committed (or processed) yet; without a produce time; committed at
a time that the journal has lost."""
STATES: Final = (KNOWN, OPEN, UNTIMED, DOUBTFUL)
LANE: Final = ("p", "lo", "hi")


def produced_records(raw: DataFrame) -> DataFrame:
    """Records of Spark's Kafka source: p, o, h, keyless, produced_ms, stamp.

    `stamp` is Kafka's timestamp type: 0 the producer's clock, 1 the broker's, -1 none.
    """
    time_ms = F.unix_millis("timestamp")
    # A producer may send -1, which stands for none in Kafka.
    has_time = (F.col("timestampType") >= 0) & (time_ms >= 0)
    return raw.select(
        F.col("partition").alias("p"),
        F.col("offset").alias("o"),
        expressions.key_hash().alias("h"),
        F.col("key").isNull().alias("keyless"),
        F.when(has_time, time_ms).alias("produced_ms"),
        F.when(has_time, F.col("timestampType")).otherwise(-1).alias("stamp"),
    )


def report_commits(parsed: DataFrame) -> DataFrame:
    """Commits of `rules.parse_values`: p, lo, hi, position, t_ms, doubt, is_report."""
    listed = parsed.where(~F.col("bad") & (F.col("k") == "c"))
    time_ms = F.unix_millis(F.timestamp_micros("t")).alias("t_ms")
    rows = listed.select(time_ms, F.explode("l").alias("row")).select(
        F.col("row")[0].try_cast("int").alias("p"),
        F.col("row")[1].cast("bigint").alias("lo"),
        F.col("row")[2].cast("bigint").alias("hi"),
        F.col("row")[3].cast("bigint").alias("position"),
        "t_ms",
    )
    # Each audit partition has a copy.
    commits = rows.groupBy("p", "lo", "hi", "position").agg(F.min("t_ms").alias("t_ms"))
    return commits.select("*", F.lit(EXACT).alias("doubt"), F.lit(True).alias("is_report"))


def processed_reports(parsed: DataFrame) -> DataFrame:
    """Reports of processed records of `rules.parse_values`: p, o, m, t."""
    return parsed.where(~F.col("bad") & (F.col("k") == "r")).select("p", "o", "m", "t")


def with_reports(
    records: DataFrame, reports: DataFrame | None, *, oldest_ms: int | None = None
) -> DataFrame:
    """`records` with the first report of each: `member`, `processed_ms`, `predates`.

    `reports` are `processed_reports`; None: there are none. `oldest_ms`: time of the oldest
    report where the audit topic has lost some, else None. A record that is older (`predates`) may
    have been processed and committed before, without a report of it today; a later one not.
    """
    member, time = F.lit(None).cast("string"), F.lit(None).cast("bigint")
    predates = F.lit(False)
    if oldest_ms is not None:
        predates = F.coalesce(F.col("produced_ms") < oldest_ms, F.lit(True))
    if reports is None:
        return records.select(
            "*", member.alias("member"), time.alias("processed_ms"), predates.alias("predates")
        )
    own = reports.select("p", "o", F.col("m").alias("member"), "t")
    rows = records.select("*", member.alias("member"), time.alias("t"))
    found = (
        rows.unionByName(own, allowMissingColumns=True)
        .groupBy("p", "o")
        .agg(
            *(F.max(name).alias(name) for name in ("h", "keyless", "produced_ms", "stamp")),
            F.min_by("member", "t").alias("member"),
            F.unix_millis(F.timestamp_micros(F.min("t"))).alias("processed_ms"),
        )
        .where(F.col("stamp").isNotNull())  # a report of what the input does not hold
    )
    return found.withColumn("predates", predates)


def lane_bounds(*ranges: DataFrame) -> DataFrame:
    """Parts of the hash space that no range of `ranges` (p, lo, hi) cuts: p, lo, hi.

    With one lane count these are the lanes; with several, the pieces that they have in common.
    """
    starts = None
    for frame in ranges:
        behind = F.when(F.col("hi") < HASH_MAX, F.col("hi") + 1)
        found = frame.select("p", F.explode(F.array(F.lit(0), "lo", behind)).alias("lo"))
        starts = found if starts is None else starts.unionAll(found)
    assert starts is not None, "at least one frame"
    distinct = starts.where(F.col("lo").isNotNull()).distinct()
    following = F.lead("lo").over(Window.partitionBy("p").orderBy("lo"))
    return distinct.withColumn("hi", F.coalesce(following - 1, F.lit(HASH_MAX)))


def with_commits(records: DataFrame, commits: DataFrame, bounds: DataFrame) -> DataFrame:
    """`records` of `with_reports` with their lane, and the first commit that covers each.

    `commits` are those of the journal, of reports (`is_report`), or both: what the journal is in
    doubt of is known by reports. Adds lo, hi, committed_ms, doubt; the last two are null where no
    commit covers a record.
    """
    grid = _grid(bounds)
    # One number, so that a running least needs no struct: a tie is in doubt before it is exact.
    code = F.shiftleft("t_ms", 2) + (F.lit(OTHER_HASH) - F.col("doubt"))
    spread = commits.select("*", code.alias("code"), F.explode(_pieces()).alias("piece"))
    parts = spread.join(F.broadcast(grid), ["p", "piece"]).withColumn("part", F.explode("parts"))
    inside = F.col("part.lo").between(F.col("lo"), F.col("hi"))
    once = F.col("piece") == expressions.bucket("part.lo", GRID_BITS)
    last = F.col("position") - 1  # the last offset that a commit covers
    own = parts.where(inside & once).select(
        "p", F.col("part.lo").alias("lo"), last.alias("o"), "is_report", "code"
    )
    marks = own.groupBy("p", "lo", "o").agg(
        F.min(F.when(~F.col("is_report"), F.col("code"))).alias("by_journal"),
        F.min(F.when(F.col("is_report"), F.col("code"))).alias("by_report"),
    )
    placed = records.withColumn("piece", expressions.bucket("h", GRID_BITS))
    placed = placed.join(F.broadcast(grid), ["p", "piece"], "left")
    part = F.try_element_at(F.filter("parts", lambda x: x["lo"] <= F.col("h")), F.lit(-1))
    placed = placed.withColumn("part", part).select(
        *records.columns,
        F.coalesce("part.lo", F.lit(0)).alias("lo"),
        F.coalesce("part.hi", F.lit(HASH_MAX)).alias("hi"),
    )
    # At one offset the commit comes first: it covers the record.
    rows = placed.withColumn("is_record", F.lit(1)).unionByName(
        marks.withColumn("is_record", F.lit(0)), allowMissingColumns=True
    )
    downwards = Window.partitionBy("p", "lo").orderBy(F.desc("o"), "is_record")
    so_far = downwards.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sources = ("by_journal", "by_report")
    found = rows.select(
        *placed.columns, "is_record", *(F.min(name).over(so_far).alias(name) for name in sources)
    )
    return _first_commit(found.where("is_record = 1").drop("is_record"))


def _first_commit(found: DataFrame) -> DataFrame:
    """Replace the codes of both sources by `committed_ms` and `doubt`."""
    journal_doubt = F.lit(OTHER_HASH) - F.col("by_journal").bitwiseAND(F.lit(3).cast("bigint"))
    report_doubt = F.when(F.col("predates"), LOST).otherwise(EXACT)
    journal_ms, report_ms = F.shiftright("by_journal", 2), F.shiftright("by_report", 2)
    is_sure = F.coalesce(journal_doubt == EXACT, F.lit(False))
    takes_report = F.col("by_report").isNotNull()
    time_ms = F.when(is_sure, F.least(journal_ms, report_ms)).otherwise(
        F.when(takes_report, report_ms).otherwise(journal_ms)
    )
    doubt = F.when(is_sure, EXACT).otherwise(
        F.when(takes_report, report_doubt).otherwise(journal_doubt.cast("int"))
    )
    return found.select("*", time_ms.alias("committed_ms"), doubt.alias("doubt")).drop(
        "by_journal", "by_report"
    )


def _pieces() -> Column:
    """Pieces of the hash space that the range `lo` to `hi` meets."""
    return F.sequence(*(expressions.bucket(end, GRID_BITS) for end in ("lo", "hi")))


def _grid(bounds: DataFrame) -> DataFrame:
    """Parts by partition and piece of the hash space: p, piece, parts (lo, hi), ascending."""
    part, piece = F.struct("lo", "hi").alias("part"), F.explode(_pieces()).alias("piece")
    spread = bounds.select("p", part, piece)
    return spread.groupBy("p", "piece").agg(F.sort_array(F.collect_list("part")).alias("parts"))


def wait_counts(waits: DataFrame, *, slice_s: int, has_reports: bool) -> DataFrame:
    """Records per figure, lane, member, slice of produce time, state and wait.

    figure, p, lo, hi, member, slice (seconds since 1970), state, wait, records, total, least,
    most, negative. All downstream tables are sums of these rows.
    """
    slice_start = F.floor(F.col("produced_ms") / (1000 * slice_s)) * slice_s
    figures = [_figure(COMMIT, "committed_ms", (F.col("doubt") > EXACT))]
    if has_reports:
        figures.append(_figure(PROCESS, "processed_ms", F.col("predates")))
    each = waits.select(
        *LANE, "member", slice_start.alias("slice"), F.explode(F.array(*figures)).alias("f")
    ).select(*LANE, "member", "slice", "f.*")
    return each.groupBy(
        "figure", *LANE, "member", "slice", "state", rounded("ms").alias("wait")
    ).agg(
        F.count(F.lit(1)).alias("records"),
        F.sum("ms").alias("total"),
        F.min("ms").alias("least"),
        F.max("ms").alias("most"),
        F.count_if(F.col("ms") < 0).alias("negative"),
    )


def _figure(name: str, end: str, is_doubtful: Column) -> Column:
    state = (
        F.when(F.col(end).isNull(), OPEN)
        .when(is_doubtful, DOUBTFUL)
        .when(F.col("produced_ms").isNull(), UNTIMED)
        .otherwise(KNOWN)
    )
    wait = F.when(state == KNOWN, F.col(end) - F.col("produced_ms"))
    return F.struct(F.lit(name).alias("figure"), state.alias("state"), wait.alias("ms"))


def rounded(wait: str) -> Column:
    """A wait in ms, rounded down to its first 11 bits; towards zero below it."""
    size = F.abs(F.col(wait))
    spare = F.greatest(F.length(F.bin(size)) - WAIT_BITS, F.lit(0))
    kept = F.call_function("shiftleft", F.call_function("shiftright", size, spare), spare)
    return F.when(F.col(wait) < 0, -kept).otherwise(kept)


def summed(counts: DataFrame, *sets: Sequence[str]) -> DataFrame:
    """`wait_counts` by figure and each of `sets` of columns: records by state, and waits in ms.

    figure, the columns of all sets (null in rows of another set), `by` (the set's number), records,
    known, open, untimed, doubtful, negative, mean_ms, min_ms, max_ms, p50_ms, p90_ms, p99_ms; waits
    are null where none is known.
    """
    columns = list(dict.fromkeys(name for each in sets for name in each))
    known = F.col("state") == KNOWN
    quantiles = F.percentile("wait", F.array(*map(F.lit, QUANTILES)), F.col("records"))
    # Sums per distinct wait first: a percentile sorts the rows that it gets, and of a set these
    # are bounded, where rows of `counts` may be nearly as many as records.
    finest = ("state", "wait")
    marks = [
        sum((name not in each) << at for at, name in enumerate(reversed(columns), len(finest)))
        for each in sets
    ]
    by_wait = counts.groupingSets(
        [["figure", *each, *finest] for each in sets], "figure", *columns, *finest
    ).agg(
        F.grouping_id().alias("by"),
        *(F.sum(name).alias(name) for name in ("records", "negative", "total")),
        F.min("least").alias("least"),
        F.max("most").alias("most"),
    )
    found = by_wait.groupBy("figure", *columns, "by").agg(
        F.sum("records").alias("count"),
        *(
            F.sum(F.when(F.col("state") == state, F.col("records")).otherwise(0)).alias(state)
            for state in STATES
        ),
        F.sum("negative").alias("below"),
        (F.sum("total") / F.sum(F.when(known, F.col("records")))).alias("mean_ms"),
        F.min("least").alias("min_ms"),
        F.max("most").alias("max_ms"),
        quantiles.alias("quantiles"),
    )
    names = [F.col("quantiles")[i].alias(f"p{100 * q:g}_ms") for i, q in enumerate(QUANTILES)]
    number = F.array_position(F.array(*map(F.lit, marks)), F.col("by").cast("int")) - 1
    renamed = found.withColumnsRenamed({"count": "records", "below": "negative"})
    return renamed.select("*", *names).drop("quantiles").withColumn("by", number)


def slow_keys(waits: DataFrame, count: int, *, rank: str = "mean") -> DataFrame:
    """Keys that wait longest until the commit: p, h, records, known, mean_ms, max_ms, total_ms, o.

    `o` is the offset of the record that waited longest. `rank`: by mean, max or total. Records
    without a key are left out.
    """
    wait = F.when(F.col("doubt") == EXACT, F.col("committed_ms") - F.col("produced_ms"))
    each = waits.where(~F.col("keyless")).select("p", "h", "o", wait.alias("ms"))
    found = each.groupBy("p", "h").agg(
        F.count(F.lit(1)).alias("records"),
        F.count("ms").alias("known"),
        F.avg("ms").alias("mean_ms"),
        F.max("ms").alias("max_ms"),
        F.sum("ms").alias("total_ms"),
        F.max_by("o", F.when(F.col("ms").isNotNull(), F.struct("ms", -F.col("o")))).alias("o"),
    )
    found = found.where(F.col("known") > 0)
    return found.orderBy(F.desc(f"{rank}_ms"), "h", "p").limit(count)
