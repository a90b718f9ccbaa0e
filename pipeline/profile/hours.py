"""Load by hour, and how good one plan is for hours and days that differ.

Sums by partition, hour and bucket stay with the executors. The driver takes one partition after
the other (or several that are small), writes it and looks at it: no executor writes a file, and the
driver's memory does not grow with partitions or records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from keylane.assignor.hourly import HourLoads, HourReport, plan_all_hours
from keylane.assignor.profile import LoadProfile
from keylane.errors import JobFailed
from keylane.pipeline import expressions
from keylane.pipeline.profile.files import parquet_bytes, save_pictures
from keylane.pipeline.profile.hour_files import HOURS_FOLDER, save_hours
from keylane.pipeline.profile.hour_index import HourIndex
from keylane.pipeline.profile.hour_pictures import HourFold, draw_hours, draw_worth
from keylane.pipeline.storage import Folder

if TYPE_CHECKING:
    from keylane.assignor.range_plan import RangePlan

HOURS_MAX: Final = 31 * 24
"""A month; of more hours the newest are kept."""
ROWS_MAX: Final = 1 << 20
"""Of several partitions together: 33 MB, as Arrow has them. One alone has three times as many at
most: all buckets in all hours."""
HOUR_S: Final = 3_600
WORTH: Final = "worth.parquet"
WORTH_SCHEMA: Final = pa.schema(
    {
        "cuts": pa.string(),
        "start": pa.timestamp("s", tz="UTC"),
        "busiest": pa.int64(),
        "best": pa.int64(),
        "mean": pa.float64(),
    }
)


def hour_loads(records: DataFrame, *, zone: str, headers: bool = False) -> DataFrame:
    """Sums by partition, hour and bucket: (partition, start, bucket, records, bytes).

    `start` is in seconds since 1970. The hours are those of the zone's clock, which may be half an
    hour off those of UTC. An hour that the clock repeats in autumn is two.
    """
    seconds = F.unix_seconds("timestamp")
    ahead = F.unix_seconds(F.from_utc_timestamp("timestamp", zone)) - seconds
    each = records.select(
        "partition",
        (seconds - F.pmod(seconds + ahead, F.lit(HOUR_S))).alias("start"),
        expressions.bucket(expressions.key_hash()),
        expressions.record_bytes(headers="headers" if headers else None),
    )
    return each.groupBy("partition", "start", "bucket").agg(
        F.count(F.lit(1)).alias("records"), F.sum("bytes").alias("bytes")
    )


@contextmanager
def kept_hours(sums: DataFrame, zone: str) -> Iterator[tuple[HourIndex, DataFrame]]:
    """The newest hours of `hour_loads`, and all sums, which Spark keeps while the block runs."""
    # By partition, so that a question about one reads the blocks of one alone.
    sums = sums.repartition("partition").persist()
    try:
        newest = sums.select("start").distinct().orderBy(F.desc("start")).limit(HOURS_MAX + 1)
        found = [row["start"] for row in newest.collect()]
        yield HourIndex(tuple(sorted(found[:HOURS_MAX])), zone, len(found) > HOURS_MAX), sums
    finally:
        sums.unpersist()


def judge_hours(
    sums: DataFrame,
    index: HourIndex,
    profile: LoadProfile,
    folder: Folder,
    *,
    lane_count: int,
    others: Mapping[str, RangePlan],
) -> HourReport:
    """Write the hours of every partition, the worth of plans in each hour, and their pictures.

    Raises:
        JobFailed: the hours do not have the records of `profile`.
    """
    fold = HourFold(profile, index)
    hours = each_partition(sums, index, profile, folder.child(HOURS_FOLDER))
    plan, report = plan_all_hours(
        profile, map(fold.add, hours), lane_count, day_of=index.day, others=others
    )
    folder.write(WORTH, parquet_bytes([_worth(report)], WORTH_SCHEMA))
    pictures = {"hours": draw_hours(profile, fold, plan), "worth": draw_worth(report, index)}
    save_pictures(pictures, folder)
    return report


def each_partition(
    sums: DataFrame, index: HourIndex, profile: LoadProfile, folder: Folder
) -> Iterator[HourLoads]:
    """Write the hours of each partition into `folder`, and return them, one after the other.

    Raises:
        JobFailed: the hours do not have the records of `profile`.
    """
    kept = sums.where(F.col("start") >= index.starts[0]) if index.is_cut else sums
    for numbers in pieces(profile, len(index.starts)):
        piece = kept.where(F.col("partition").between(numbers[0], numbers[-1])).toArrow()
        for number in numbers:
            rows = piece.filter(pc.equal(piece["partition"], number))
            expected = sum(profile.partitions[number].records)
            counted = pc.sum(rows["records"]).as_py() or 0
            if not index.is_cut and counted != expected:
                raise JobFailed(
                    f"partition {number}: {expected:,} records at first, {counted:,} by hour:"
                    " retention removed some meanwhile, begin later (--from)"
                )
            yield save_hours(folder, profile, number, index, rows)


def pieces(profile: LoadProfile, hour_count: int) -> Iterator[range]:
    """Partitions that come to the driver at once: one, or as many as surely have no more rows."""
    first, taken = 0, 0
    for number, load in enumerate(profile.partitions):
        filled = sum(1 for records in load.records if records)
        rows = min(sum(load.records), filled * hour_count)
        if first < number and taken + rows > ROWS_MAX:
            yield range(first, number)
            first, taken = number, 0
        taken += rows
    yield range(first, len(profile.partitions))


def _worth(report: HourReport) -> pa.RecordBatch:
    rows = [
        {
            "cuts": name,
            "start": start,
            "busiest": size,
            "best": report.best[start],
            "mean": report.mean(start),
        }
        for name, loads in report.busiest.items()
        for start, size in sorted(loads.items())
    ]
    return pa.RecordBatch.from_pylist(rows, schema=WORTH_SCHEMA)
