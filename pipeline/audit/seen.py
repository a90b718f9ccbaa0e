"""Were all records of a range read? What was read, against Kafka's offsets.

An offset of a range without a row is a hole. Compaction, aborted transactions and the markers of
transactions leave holes; so would a read that lost records. Spark's Kafka source itself passes
over an offset only when a consumer's position moves over it (`KafkaDataConsumer`, with
`failOnDataLoss`). Here the widest holes of each partition are looked up once more at the brokers,
by a consumer of the driver: a record in one of them means that the read is not to be believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from keylane.pipeline.audit.rules import BITMAP_BITS
from keylane.pipeline.brokers import OffsetsGone, SparkAdmin, Stretch, open_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from keylane.pipeline.topic_range import TopicRange

NEVER_MS: Final = 1 << 62
"""A time behind all others."""
LOOKED_UP_MAX: Final = 4
"""Holes of a partition that are looked up, the widest ones; each costs a fetch."""


@dataclass(frozen=True, slots=True)
class SeenRecords:
    """Records of a range that were read."""

    records: int
    holes: dict[int, int]
    """Offsets without a row by partition; partitions without holes are not in it."""
    doubts: list[str]
    """Reasons for which not all records can have been read; empty when all is well."""


def compare(spark: SparkSession, chosen: TopicRange, bitmaps: DataFrame) -> SeenRecords:
    """Compare what was read (`rules.offset_bitmaps`) with the offsets of the range.

    Raises:
        JobFailed: no broker answers what a hole holds.
    """
    counts = {
        row["p"]: (row["records"], row["offsets"])
        for row in bitmaps.groupBy("p")
        .agg(F.sum("reports").alias("records"), F.sum(F.bitmap_count("bits")).alias("offsets"))
        .collect()
    }
    holes, doubts = {}, []
    for span in _spans_of(chosen):
        records, offsets = counts.get(span.partition, (0, 0))
        if records != offsets:
            doubts.append(f"{chosen.topic} partition {span.partition}: an offset was read twice")
        if offsets != span.end - span.start:
            holes[span.partition] = span.end - span.start - offsets
    if holes:
        unsure = [span for span in _spans_of(chosen) if span.partition in holes]
        wholly = [span for span in unsure if span.partition not in counts]
        partly = _widest(bitmaps, [span for span in unsure if span.partition in counts])
        doubts += look_up(spark, chosen, [*wholly, *partly])
    return SeenRecords(sum(records for records, _ in counts.values()), holes, doubts)


def report_doubts(spark: SparkSession, reported: TopicRange, bitmaps: DataFrame) -> list[str]:
    """Reasons for which not all reports of an audit topic can have been read.

    Raises:
        JobFailed: no broker answers what a hole holds.
    """
    found = compare(spark, reported, bitmaps)
    if not found.holes:
        return found.doubts
    with SparkAdmin(spark, reported.bootstrap, reported.options) as admin:
        is_compacted = admin.is_compacted(reported.topic)
    if is_compacted is False:
        return found.doubts
    known = "is compacted" if is_compacted else "may be compacted"
    reason = (
        f"{sum(found.holes.values())} offsets of {reported.topic} hold no record, and it {known}:"
        " reports of a key that came twice may be gone"
    )
    return [*found.doubts, reason]


def oldest_report_ms(parsed: DataFrame, starts: Sequence[int]) -> int | None:
    """Time in ms from which on an audit topic has all reports; None: it has lost none.

    `parsed` is `rules.parse_values`, `starts` are the first offsets that the topic holds. Nothing
    may be left of a partition: the time is `NEVER_MS` then.
    """
    cut = [partition for partition, start in enumerate(starts) if start]
    if not cut:
        return None
    own = parsed.where(~F.col("bad") & F.col("ap").isin(cut)).groupBy("ap")
    rows = own.agg(F.unix_millis(F.timestamp_micros(F.min("t"))).alias("t_ms")).collect()
    times: dict[int, int] = {row["ap"]: row["t_ms"] for row in rows if row["t_ms"] is not None}
    return max(times.get(partition, NEVER_MS) for partition in cut)


def recount(topic: str, records: int, again: int) -> list[str]:
    """Reasons for which a topic, of which a lost worker's part was read again, is not the same."""
    if records == again:
        return []
    had = f"{again} records where it had {records}"
    return [f"{topic} was read again after a worker was lost, and had {had}"]


def look_up(spark: SparkSession, chosen: TopicRange, spans: Iterable[Stretch]) -> Iterator[str]:
    """Reasons for which the spans may not be holes: a record that is there, or nothing to see.

    Raises:
        JobFailed: no broker answers, or it refuses.
    """
    with open_reader(spark, chosen) as reader:
        for span in spans:
            where = f"{chosen.topic} partition {span.partition}"
            try:
                offset = reader.first_offset(span)
            except OffsetsGone:
                yield f"{where}: offsets {span.start} to {span.end} were removed while it was read"
                continue
            if offset is not None:
                yield f"{where}: the record at offset {offset} was not seen, though it is there"


def _spans_of(chosen: TopicRange) -> list[Stretch]:
    spans = map(Stretch, range(chosen.partition_count), chosen.starts, chosen.ends)
    return [span for span in spans if span.start < span.end]


def _widest(bitmaps: DataFrame, spans: Sequence[Stretch]) -> list[Stretch]:
    """The widest holes of each of `spans`, from the buckets with the most holes."""
    rows = [(span.partition, span.start, span.end - 1) for span in spans]
    schema = "p int, low bigint, high bigint"
    first = F.floor(F.col("low") / BITMAP_BITS) + 1
    last = F.floor(F.col("high") / BITMAP_BITS) + 1
    buckets = bitmaps.sparkSession.createDataFrame(rows, schema).select(
        "*", F.explode(F.sequence(first, last)).alias("bucket")
    )
    start = F.greatest("low", (F.col("bucket") - 1) * BITMAP_BITS).alias("start")
    end = (F.least("high", F.col("bucket") * BITMAP_BITS - 1) + 1).alias("end")
    counted = (
        buckets.select("p", "bucket", start, end)
        .join(bitmaps, ["p", "bucket"], "left")
        .withColumn(
            "holes",
            F.col("end") - F.col("start") - F.coalesce(F.bitmap_count("bits"), F.lit(0)),
        )
        .where("holes > 0")
    )
    ranked = Window.partitionBy("p").orderBy(F.desc("holes"), "bucket")
    found: dict[int, list[Stretch]] = {}
    for row in (
        counted.withColumn("rank", F.row_number().over(ranked))
        .where(F.col("rank") <= LOOKED_UP_MAX)
        .select("p", "start", "end", "bits")
        .collect()
    ):
        span = Stretch(row["p"], row["start"], row["end"])
        found.setdefault(span.partition, []).extend(holes_of(span, row["bits"] or b""))
    return [
        span
        for holes in found.values()
        for span in sorted(holes, key=lambda hole: hole.start - hole.end)[:LOOKED_UP_MAX]
    ]


def holes_of(span: Stretch, bits: bytes) -> list[Stretch]:
    """Runs of offsets of `span`, which lies in one bucket, that a bucket's bitmap lacks."""
    # Bit k of a bitmap is bit k % 8 of byte k // 8: a little-endian number.
    first = span.start - span.start % BITMAP_BITS
    held = int.from_bytes(bits, "little") >> (span.start - first)
    width = span.end - span.start
    lacking = ~held & ((1 << width) - 1)
    holes, at = [], span.start
    while lacking:
        skipped = (lacking & -lacking).bit_length() - 1
        lacking >>= skipped
        length = (~lacking & (lacking + 1)).bit_length() - 1
        lacking >>= length
        at += skipped
        holes.append(Stretch(span.partition, at, at + length))
        at += length
    return holes
