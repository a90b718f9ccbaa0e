"""Judge consumers by their own reports: nothing lost, nothing twice, keys in order.

The format is that of `keylane.audit.record`.

The order of an audit partition is the order of processing; no clock is believed.

- *lost*: an offset of the input without a report. Offsets of both sides are bitmaps of 32,768
  bits, so a billion records are two tables of 30,000 rows; only buckets that differ are opened.
- *fenced*: a report of a member of an older generation, after a range was assigned to another.
  *overlap*: the same without an older generation: a range held by two members at once.
- *duplicated*: an offset twice in one session of a member, or again after a commit that covers it.
  Again without either is *redelivered*: what a killed member had not committed, and no finding.
- *out_of_order*: an offset of a key below one that its session has reported already, or one seen
  for the first time after a later one of its key.

One window over all reports finds the keys whose offsets do not ascend; all finer questions are
asked of these keys alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from keylane.audit.record import BUCKET_SHIFT, FORMAT_VERSION, PARTITION_STEP

if TYPE_CHECKING:
    from pyspark.sql.window import WindowSpec

VALUE_SCHEMA: Final = (
    "v int, k string, p int, o bigint, h string, m string, g int, s int, lo string, hi string,"
    " t bigint, l array<array<string>>"
)
KINDS: Final = ("lost", "duplicated", "out_of_order", "fenced", "overlap")
LOST, DUPLICATED, OUT_OF_ORDER, FENCED, OVERLAP = KINDS
REDELIVERED: Final = "redelivered"
FINDING_COLUMNS: Final = {
    "kind": "string",
    "partition": "int",
    "offset": "bigint",
    "key_hash": "bigint",
    "previous_offset": "bigint",
    "member": "string",
    "generation": "int",
    "other_member": "string",
    "other_generation": "int",
    "audit_partition": "int",
    "audit_offset": "bigint",
}
OF_REPORT: Final = {
    "partition": "p",
    "offset": "o",
    "key_hash": "h",
    "member": "m",
    "generation": "g",
    "audit_partition": "ap",
    "audit_offset": "ao",
}
"""Columns of a finding that are those of its report."""
SESSION: Final = ("p", "lo", "hi", "m", "g", "s")
BITMAP_BITS: Final = 32_768
"""Of Spark's bitmap functions: 4 KiB a bucket."""


@dataclass(frozen=True, slots=True)
class Reports:
    """An audit topic, parsed. `ap` and `ao` are its partition and offset."""

    records: DataFrame
    """ap, ao, p, o, h, m, g, s, lo, hi: one per processed record."""
    assigned: DataFrame
    """ap, ao, p, lo, hi, m, g, s: one per range that a member was given."""
    commits: DataFrame
    """ap, ao, p, lo, hi, position: one per range and commit."""


def parse_values(raw: DataFrame) -> DataFrame:
    """The audit topic's records (`partition`, `offset`, `value`) as columns; `bad` marks others.

    `inline` is a barrier: Spark's optimizer pushes a filter through a projection by copying what
    the projection computes, and not through a generator. Each value is parsed once.
    """
    json = F.from_json(F.col("value").cast("string"), VALUE_SCHEMA)
    parsed = raw.select(
        F.col("partition").alias("ap"), F.col("offset").alias("ao"), F.inline(F.array(json))
    )
    for name in ("h", "lo", "hi"):
        parsed = parsed.withColumn(name, F.col(name).try_cast("bigint"))
    whole = F.lit(True)
    for name in ("p", "o", "h", "m", "g", "s", "lo", "hi"):
        whole &= F.col(name).isNotNull()
    mark = F.col("m").isNotNull() & F.col("l").isNotNull()
    assigned = (F.col("k") == "a") & F.forall("l", lambda row: _is_numbers(row, 3))
    committed = (F.col("k") == "c") & F.forall("l", lambda row: _is_numbers(row, 4))
    good = (F.col("k") == "r") & whole | mark & (assigned | committed)
    good &= F.col("v") == FORMAT_VERSION
    return parsed.withColumn("bad", ~F.coalesce(good, F.lit(False)))


def _is_numbers(row: Column, count: int) -> Column:
    """The first `count` places of a mark's row can be read."""
    places = [F.get(row, F.lit(at)).try_cast("bigint").isNotNull() for at in range(count)]
    return reduce(and_, places)


def audit_partition_of(audit_partition_count: int) -> Column:
    """`keylane.audit.record.audit_partition` of the columns `p` and `h`."""
    bucket = F.shiftright(F.col("h"), BUCKET_SHIFT)
    return F.pmod(F.col("p") * PARTITION_STEP + bucket, F.lit(audit_partition_count)).cast("int")


def split_reports(parsed: DataFrame) -> Reports:
    """The three kinds of reports of `parse_values`, without what is bad."""
    good = parsed.where(~F.col("bad"))
    records = good.where(F.col("k") == "r").select(
        "ap", "ao", "p", "o", "h", "m", "g", "s", "lo", "hi"
    )
    listed = good.select("ap", "ao", "k", "m", "g", "s", F.explode("l").alias("row"))
    ranges = [
        F.col("row")[0].try_cast("int").alias("p"),
        F.col("row")[1].cast("bigint").alias("lo"),
        F.col("row")[2].cast("bigint").alias("hi"),
    ]
    assigned = listed.where(F.col("k") == "a").select("ap", "ao", *ranges, "m", "g", "s")
    position = F.col("row")[3].cast("bigint").alias("position")
    commits = listed.where(F.col("k") == "c").select("ap", "ao", *ranges, position)
    return Reports(records, assigned, commits)


def within(frame: DataFrame, starts: Sequence[int], ends: Sequence[int]) -> DataFrame:
    """Rows whose offset `o` lies in [start, end) of their partition `p`."""
    at = F.col("o")
    return frame.where((at >= _of_partition(starts)) & (at < _of_partition(ends)))


def _of_partition(offsets: Sequence[int]) -> Column:
    """The number that stands at `p`; null for a partition that there is not."""
    listed = F.array(*(F.lit(offset).cast("bigint") for offset in offsets))
    return F.get(listed, F.col("p"))


def offset_bitmaps(frame: DataFrame, p: str, o: str) -> DataFrame:
    """`p`, `bucket`, `bits`, `reports`: which offsets occur, and how many rows there were."""
    place = F.col(o) + 1  # Spark counts positions from 1
    return frame.groupBy(F.col(p).alias("p"), F.bitmap_bucket_number(place).alias("bucket")).agg(
        F.bitmap_construct_agg(F.bitmap_bit_position(place)).alias("bits"),
        F.count(F.lit(1)).alias("reports"),
    )


def missing_offsets(wanted: DataFrame, had: DataFrame) -> DataFrame:
    """`partition`, `offset` that are in the bitmaps `wanted` and not in `had`."""
    other = had.select("p", "bucket", F.col("bits").alias("had_bits"))
    differing = (
        wanted.join(other, ["p", "bucket"], "left")
        .withColumn("had_bits", F.coalesce("had_bits", F.expr("unhex(repeat('00', 4096))")))
        .where(F.col("bits") != F.col("had_bits"))
    )
    # Byte by byte first: most are equal, and comparing them is cheap.
    places = F.filter(
        F.sequence(F.lit(1), F.lit(BITMAP_BITS // 8)),
        lambda j: F.substring(F.col("bits"), j, 1) != F.substring(F.col("had_bits"), j, 1),
    )
    byte = "cast(conv(hex(substring({}, place, 1)), 16, 10) as int)"
    opened = differing.select("p", "bucket", "bits", "had_bits", F.explode(places).alias("place"))
    lacking = opened.select(
        "p",
        "bucket",
        "place",
        F.expr(f"{byte.format('bits')} & ~{byte.format('had_bits')}").alias("lacking"),
    )
    bits = F.filter(
        F.sequence(F.lit(0), F.lit(7)), lambda bit: F.call_function("getbit", "lacking", bit) == 1
    )
    offset = (F.col("bucket") - 1) * BITMAP_BITS + (F.col("place") - 1) * 8 + F.col("bit")
    return lacking.select("*", F.explode(bits).alias("bit")).select(
        F.col("p").alias("partition"), offset.cast("bigint").alias("offset")
    )


def tallies_of(parsed: DataFrame, audit_partition_count: int, starts: Sequence[int]) -> DataFrame:
    """Counts per member, range and audit partition: the one pass for all that is only counted.

    `kind` (r records, mark, bad), ap, p, lo, hi, m, g, s; `last_ao`, `reports`, and of these
    `misplaced` (not in their key's audit partition), `outside` (of the range that they name) and
    `below` (before `starts`). What is no record has nulls for p to s.

    An aggregate, and no `DataFrame.observe`: an observed metric counts a task of a repeated stage
    again, and this counts the rows that all other steps see.
    """
    is_record = ~F.col("bad") & (F.col("k") == "r")
    session = [F.when(is_record, F.col(name)).alias(name) for name in SESSION]
    kind = F.when(F.col("bad"), "bad").when(is_record, "r").otherwise("mark").alias("kind")
    misplaced = F.col("ap") != audit_partition_of(audit_partition_count)
    outside = ~F.col("h").between(F.col("lo"), F.col("hi"))
    return parsed.groupBy("ap", kind, *session).agg(
        F.max("ao").alias("last_ao"),
        F.count(F.lit(1)).alias("reports"),
        F.count_if(misplaced).alias("misplaced"),
        F.count_if(outside).alias("outside"),
        F.count_if(F.col("o") < _of_partition(starts)).alias("below"),
    )


def sum_tallies(tallies: DataFrame, partition_count: int) -> dict[str, int]:
    """Sums of `tallies_of`: `rows`, `records`, `bad`, `stray`, `misplaced`, `outside`, `below`.

    `rows` are all of the audit topic; `stray` are of partitions that the input does not have.
    """
    is_record = F.col("kind") == "r"
    is_stray = is_record & ~F.col("p").between(0, partition_count - 1)
    sums = {
        "rows": F.lit(True),
        "records": is_record,
        "bad": F.col("kind") == "bad",
        "stray": is_stray,
    }
    of_records = ("misplaced", "outside", "below")
    row = tallies.agg(
        *(F.sum(F.when(chosen, F.col("reports"))).alias(name) for name, chosen in sums.items()),
        *(F.sum(F.when(is_record, F.col(name))).alias(name) for name in of_records),
    ).first()
    assert row is not None  # an aggregate without groups has one row
    return {name: count or 0 for name, count in row.asDict().items()}


def sessions_of(tallies: DataFrame, assigned: DataFrame) -> DataFrame:
    """A row per member, range and audit partition: ap, p, lo, hi, m, g, s, `last_ao`, `reports`.

    `begun_ao` is null without an assignment.
    """
    begun = assigned.groupBy("ap", "p", "lo", "hi", "m", "s").agg(F.max("ao").alias("begun_ao"))
    sessions = tallies.where("kind = 'r'").select("ap", *SESSION, "last_ao", "reports")
    return sessions.join(begun, ["ap", "p", "lo", "hi", "m", "s"], "left")


def suspect_sessions(sessions: DataFrame, assigned: DataFrame) -> DataFrame:
    """Sessions with an assignment of their range to another member inside, and where it is."""
    inside = (
        _same_place()
        & (F.col("f_m") != F.col("m"))
        & (F.col("f_ao") < F.col("last_ao"))
        & (F.col("f_ao") > F.coalesce("begun_ao", F.lit(-1)))
        & (F.col("f_lo") <= F.col("hi"))
        & (F.col("f_hi") >= F.col("lo"))
    )
    return (
        sessions.join(_renamed(assigned), inside)
        .groupBy("ap", *SESSION)
        .agg(F.min("f_ao").alias("from_ao"))
    )


def ownership_findings(reports: Reports, suspect: DataFrame) -> DataFrame:
    """Reports of a member after its range was assigned to another: `fenced` and `overlap`.

    Only the records of suspect sessions are looked at one by one.
    """
    rows = reports.records.join(suspect, ["ap", *SESSION]).where(F.col("ao") > F.col("from_ao"))
    judged = (
        rows.join(_renamed(reports.assigned), _covers())
        .groupBy("ap", "ao", "p", "o", "h", "m", "g")
        .agg(F.max_by(F.struct("f_m", "f_g"), "f_ao").alias("owner"))
        .where(F.col("owner.f_m") != F.col("m"))
    )
    is_old = (F.col("g") >= 0) & (F.col("owner.f_g") > F.col("g"))
    other = {"other_member": "owner.f_m", "other_generation": "owner.f_g"}
    return judged.select(*_finding(F.when(is_old, FENCED).otherwise(OVERLAP), OF_REPORT | other))


def _renamed(marks: DataFrame) -> DataFrame:
    """Assignments or commits, to be joined with reports."""
    return marks.select(*(F.col(name).alias(f"f_{name}") for name in marks.columns))


def _covers() -> Column:
    """The assignment or commit is of the report's key, and stands before the report."""
    return (
        _same_place()
        & (F.col("f_lo") <= F.col("h"))
        & (F.col("f_hi") >= F.col("h"))
        & (F.col("f_ao") < F.col("ao"))
    )


def _same_place() -> Column:
    return (F.col("ap") == F.col("f_ap")) & (F.col("p") == F.col("f_p"))


def without(records: DataFrame, findings: DataFrame) -> DataFrame:
    """Records that are not the subject of `findings`."""
    places = findings.select(
        F.col("audit_partition").alias("ap"), F.col("audit_offset").alias("ao")
    )
    return records.join(places, ["ap", "ao"], "left_anti")


def restless_keys(records: DataFrame) -> DataFrame:
    """`p`, `h` of the keys whose offsets do not ascend; the one pass that sorts all reports."""
    latest = records.select("p", "h", "o", F.max("o").over(_earlier("p", "h")).alias("latest"))
    return latest.where(F.col("o") <= F.col("latest")).select("p", "h").distinct()


def _earlier(*columns: str) -> WindowSpec:
    """Reports before this one with the same values."""
    return Window.partitionBy(*columns).orderBy("ao").rowsBetween(Window.unboundedPreceding, -1)


def order_findings(records: DataFrame, commits: DataFrame, keys: DataFrame) -> DataFrame:
    """`duplicated`, `out_of_order` and `redelivered` among the records of `keys`."""
    of_offset = _earlier("p", "h", "o")
    rows = records.join(keys, ["p", "h"], "left_semi").select(
        "*",
        F.max("o").over(_earlier("p", "h")).alias("latest"),
        F.max("o").over(_earlier("p", "h", "m", "s")).alias("latest_here"),
        F.count("o").over(of_offset).alias("seen"),
        F.count("o").over(_earlier("p", "h", "o", "m", "s")).alias("seen_here"),
        F.max_by(F.struct("m", "g"), "ao").over(of_offset).alias("before"),
    )
    went_back = (F.col("o") < F.col("latest_here")) | (
        (F.col("seen") == 0) & (F.col("o") < F.col("latest"))
    )
    kind = (
        F.when(F.col("seen_here") > 0, DUPLICATED)
        .when(went_back, OUT_OF_ORDER)
        .when(F.col("seen") > 0, REDELIVERED)
    )
    rows = rows.withColumn("kind", kind).where(F.col("kind").isNotNull())
    again = rows.where(F.col("kind") == REDELIVERED)
    covered = _covers() & (F.col("f_position") > F.col("o"))
    committed = again.join(_renamed(commits), covered, "left_semi").select(
        "ap", "ao", F.lit(True).alias("committed")
    )
    kind = F.when(F.col("committed"), DUPLICATED).otherwise(F.col("kind"))
    previous = F.coalesce("latest_here", "latest").alias("previous")
    other = {
        "previous_offset": "previous",
        "other_member": "before.m",
        "other_generation": "before.g",
    }
    judged = rows.join(committed, ["ap", "ao"], "left").select("*", previous)
    return judged.select(*_finding(kind, OF_REPORT | other))


def lost_findings(missing: DataFrame) -> DataFrame:
    """`missing_offsets` as findings."""
    place = {"partition": "partition", "offset": "offset"}
    return missing.select(*_finding(F.lit(LOST), place))


def first_findings(findings: DataFrame, count: int) -> DataFrame:
    """The first `count` findings of each kind, by place."""
    of_kind = Window.partitionBy("kind").orderBy("partition", "offset", "audit_offset")
    ranked = findings.withColumn("rank", F.row_number().over(of_kind))
    return ranked.where(F.col("rank") <= count).drop("rank")


def _finding(kind: Column, sources: Mapping[str, str]) -> list[Column]:
    """Columns of a finding, null where `sources` names none for one."""
    values = {"kind": kind} | {name: F.col(source) for name, source in sources.items()}
    return [
        values.get(name, F.lit(None).cast(type_name)).alias(name)
        for name, type_name in FINDING_COLUMNS.items()
    ]
