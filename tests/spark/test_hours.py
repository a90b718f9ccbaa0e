"""keylane/pipeline/profile/hours.py and `profile --by-hour`, against sums made record by record."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from keylane.assignor.hourly import ALL_HOURS, EVEN, WHOLE_RANGE
from keylane.assignor.profile import LoadProfile, PartitionLoad
from keylane.assignor.range_plan import read_plan
from keylane.cli.main import main
from keylane.errors import JobFailed
from keylane.pipeline.profile import hours
from keylane.pipeline.profile.hour_files import load_hours, load_index
from keylane.pipeline.profile.hour_index import HourIndex
from keylane.pipeline.profile.hours import each_partition, hour_loads, kept_hours, pieces
from keylane.pipeline.storage import LocalFolder
from tests.integration.conftest import TopicFactory
from tests.spark.test_profile import KEEP, PARTITIONS, command, fill, place_of, size_of

__all__ = ("command",)

HOUR_MS = 3_600_000
START = 1_700_002_800
"""2023-11-14T23:00:00Z, in Berlin the first hour of the 15th."""


def test_load_by_hour_becomes_a_plan_for_all_hours(
    command, kafka: str, topic: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two days whose heavy keys differ: files, worth and the plan's worst hour are the records'."""
    name = topic(partitions=PARTITIONS, config=KEEP)
    by_hour = {
        START + 3_600 * hour: fill(
            kafka, name, 300, seed=hour, time_ms=START * 1_000 + HOUR_MS * hour
        )
        for hour in (0, 1, 24)
    }
    out = tmp_path / "out"
    where = ["--bootstrap", kafka, "--topic", name, "--out", out, "--lanes", "4"]

    assert command(*where, "--by-hour", "--zone", "Europe/Berlin") == 0
    profiled = capsys.readouterr().out
    plan_file = tmp_path / "plan.json"
    planned = ["plan", str(out), "--lanes", "4", "--for", "all-hours", "-o", str(plan_file)]
    assert main(planned) == 0
    reported = capsys.readouterr().out

    files = [pq.read_table(out / "hours" / f"partition-{n}.parquet") for n in range(PARTITIONS)]
    found = Counter[tuple[int, int, int]]()
    for number, rows in enumerate(files):
        for row in rows.to_pylist():
            found[number, int(row["start"].timestamp()), row["bucket"]] += row["bytes"]
    sizes = Counter[tuple[int, int, int]]()
    lanes = Counter[tuple[int, int, int]]()
    plan = read_plan(plan_file.read_bytes())
    for start, records in by_hour.items():
        for record in records:
            sizes[record[0], start, place_of(record) >> 51] += size_of(record)
            lane = bisect_right(plan.cuts[record[0]], place_of(record))
            lanes[start, record[0], lane] += size_of(record)
    assert found == sizes
    worst = max(lanes.values())
    assert f"  all hours: {worst:,} bytes at " in reported
    assert reported.startswith(profiled[profiled.index("by hour: ") :])
    assert "3 hours of 2 days in Europe/Berlin" in reported
    assert "(cut by 2023-11-15, in 2023-11-16)" in reported
    worth = pq.read_table(out / "worth.parquet").to_pylist()
    assert {row["cuts"] for row in worth} == {
        ALL_HOURS,
        WHOLE_RANGE,
        EVEN,
        "2023-11-15",
        "2023-11-16",
    }
    assert max(row["busiest"] for row in worth if row["cuts"] == ALL_HOURS) == worst
    assert all(row["best"] <= row["busiest"] for row in worth if row["cuts"] != EVEN)
    for picture in ("hours", "worth"):
        assert (out / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def rows_of(spark: SparkSession, times: list[int], partition: int = 0):
    """A record for each time, in seconds since 1970."""
    rows = [(partition, number, b"k", b"v", time_s) for number, time_s in enumerate(times)]
    columns = "partition int, offset long, key binary, value binary, seconds long"
    return spark.createDataFrame(rows, columns).withColumn(
        "timestamp", F.timestamp_seconds("seconds")
    )


def profile_of(records: int) -> LoadProfile:
    """One partition, with all records in the first bucket."""
    load = (records, *[0] * 4095)
    only = PartitionLoad(start=0, end=records, records=load, size_bytes=load)
    return LoadProfile(topic="orders", bits=12, partitions=(only,))


@pytest.mark.parametrize(
    ("zone", "first", "labels"),
    [
        ("UTC", "2026-10-25T00:10+00:00", ["00:00", "01:00", "02:00"]),
        # The clock goes back from 3 to 2: the hour from 2 to 3 is there twice.
        ("Europe/Berlin", "2026-10-25T00:10+00:00", ["02:00", "02:00", "03:00"]),
        ("Asia/Kolkata", "2026-10-25T00:10+00:00", ["05:00", "06:00", "07:00"]),
    ],
)
def test_hours_are_those_of_the_clock(
    spark: SparkSession, zone: str, first: str, labels: list[str]
) -> None:
    """An hour of a zone begins at its full hour, whatever Spark's own zone is."""
    time_s = int(datetime.fromisoformat(first).timestamp())
    records = rows_of(spark, [time_s, time_s + 3_600, time_s + 7_200])

    found = sorted(row["start"] for row in hour_loads(records, zone=zone).collect())

    index = HourIndex(tuple(found), zone)
    assert [index.label(start)[-5:] for start in found] == labels
    assert all(
        datetime.fromtimestamp(start, ZoneInfo(zone)).minute == 0
        and 0 <= time_s + late - start < 3_600
        for start, late in zip(found, (0, 3_600, 7_200), strict=True)
    )


def test_more_than_a_month_keeps_the_newest_hours(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound on hours, and so on what a partition sends to the driver."""
    monkeypatch.setattr(hours, "HOURS_MAX", 2)
    records = rows_of(spark, [START, START + 3_600, START + 7_200, START + 7_201])
    folder = LocalFolder(tmp_path)

    with kept_hours(hour_loads(records, zone="UTC"), "UTC") as (index, sums):
        (own,) = each_partition(sums, index, profile_of(4), folder)

    assert (index.starts, index.is_cut) == ((START + 3_600, START + 7_200), True)
    assert [sum(row) for row in own.rows] == [2, 4]
    assert list(load_hours(folder, profile_of(4))) == [own]
    assert load_index(folder).starts == index.starts


def test_small_partitions_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as have no more rows than one partition may; a larger one comes alone."""
    monkeypatch.setattr(hours, "ROWS_MAX", 10)
    sizes = (3, 4, 4, 50, 0, 0, 1)
    found = [profile_of(size).partitions[0] for size in sizes]
    profile = LoadProfile(topic="orders", bits=12, partitions=tuple(found))

    together = [list(numbers) for numbers in pieces(profile, 4)]

    assert together == [[0, 1], [2, 3, 4, 5, 6]]
    assert [list(numbers) for numbers in pieces(profile, 100)] == [[0, 1], [2], [3], [4, 5, 6]]


def test_records_that_are_gone_when_they_are_read_again_are_no_profile(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Retention between the two passes: the job fails, and names the partition."""
    with (
        kept_hours(hour_loads(rows_of(spark, [START]), zone="UTC"), "UTC") as (index, sums),
        pytest.raises(JobFailed, match="partition 0: 2 records at first, 1 by hour"),
    ):
        list(each_partition(sums, index, profile_of(2), LocalFolder(tmp_path)))

    assert not (tmp_path / "partition-0.parquet").exists()
