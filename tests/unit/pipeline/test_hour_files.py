"""Files by hour and the plan for all hours that `keylane plan` makes of them, without Spark."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keylane.assignor.profile import LoadProfile, PartitionLoad, write_profile
from keylane.assignor.range_plan import read_plan
from keylane.cli.main import main
from keylane.errors import ConfigInvalid
from keylane.pipeline.profile.hour_files import load_hours, save_hours
from keylane.pipeline.profile.hour_index import HourIndex, read_zone
from keylane.pipeline.storage import LocalFolder

HOUR_S = 3_600
PROFILE = LoadProfile(
    topic="orders",
    bits=2,
    partitions=(
        PartitionLoad(start=0, end=90, records=(1,) * 4, size_bytes=(70, 40, 40, 70)),
        PartitionLoad(start=5, end=5, records=(0,) * 4, size_bytes=(0,) * 4),
    ),
)
INDEX = HourIndex((0, 24 * HOUR_S), "UTC")
BY_HOUR = ((60, 30, 10, 10), (10, 10, 30, 60))
"""Each hour is heavy on another side: a cut in the middle of the sum is the best for the sum."""


def rows_of(*hours: tuple[int, ...]) -> pa.Table:
    """Sums as Spark has them: no row where there is no load."""
    rows = [
        {"start": start, "bucket": bucket, "records": 1, "bytes": size}
        for start, row in zip(INDEX.starts, hours, strict=False)
        for bucket, size in enumerate(row)
    ]
    names = ("start", "bucket", "records", "bytes")
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.int64()) for name in names]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile with its hours."""
    (tmp_path / "profile.json").write_bytes(write_profile(PROFILE))
    save_hours(LocalFolder(tmp_path / "hours"), PROFILE, 0, INDEX, rows_of(*BY_HOUR))
    save_hours(LocalFolder(tmp_path / "hours"), PROFILE, 1, INDEX, rows_of())
    return tmp_path


def test_a_plan_for_all_hours_weighs_the_worst_hour(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report compares it with other cuts; a partition without records is cut evenly."""
    target = folder / "plan.json"
    command = ["plan", str(folder), "--lanes", "3", "--for", "all-hours", "-o", str(target)]

    assert main(command) == 0

    plan = read_plan(target.read_bytes())
    reported = capsys.readouterr().out
    assert plan.cuts[0] == (1 << 61, 3 << 61)
    assert [list(row) for row in plan.predicted] == [[70, 80, 70], [0, 0, 0]]
    assert (
        "by hour: 2 hours of 2 days in UTC; the busiest lane of any hour, if cut by\n" in reported
    )
    assert "  all hours: 60 bytes at 1970-01-01T00:00, the least" in reported
    assert "a day's plan on the next day: at worst 1.50 times" in reported
    assert "(cut by 1970-01-01, in 1970-01-02)" in reported


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--scope", "topic"], "--for all-hours: cuts each partition by itself"),
        (["--lanes", "9"], "lanes: expected 1 to 4, got 9"),
    ],
)
def test_what_does_not_fit_is_refused(
    folder: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and one line."""
    assert main(["plan", str(folder), "--lanes", "3", "--for", "all-hours", *arguments]) == 2

    assert text in capsys.readouterr().err.splitlines()[-1]


def test_hours_of_something_else_are_refused(folder: Path) -> None:
    """No file, no Parquet, Parquet of another job, hours of other offsets: the file is named."""
    hours = LocalFolder(folder / "hours")
    path = folder / "hours" / "partition-1.parquet"
    later = dataclasses.replace(PROFILE.partitions[1], end=9)
    moved = dataclasses.replace(PROFILE, partitions=(PROFILE.partitions[0], later))

    with pytest.raises(ConfigInvalid, match=r"partition-1.parquet: is not of the offsets 5 to 9 "):
        list(load_hours(hours, moved))
    path.write_bytes(b"PAR1")
    with pytest.raises(ConfigInvalid, match=r"partition-1.parquet: is no file of hours"):
        list(load_hours(hours, PROFILE))
    pq.write_table(pa.table({"start": [1], "bucket": [1], "bytes": [1]}), path)
    with pytest.raises(ConfigInvalid, match=r"partition-1.parquet: is no file of hours"):
        list(load_hours(hours, PROFILE))
    path.unlink()
    with pytest.raises(ConfigInvalid, match=r"partition-1.parquet: no such file; "):
        list(load_hours(hours, PROFILE))


def test_a_bucket_beyond_the_profile_is_refused(tmp_path: Path) -> None:
    """A file whose rows do not fit what its own facts say."""
    rows = rows_of((1,) * 4, (1,) * 4)
    rows = rows.set_column(1, "bucket", pa.array([9] * rows.num_rows))
    hours = LocalFolder(tmp_path)
    with pytest.raises(IndexError):
        save_hours(hours, PROFILE, 0, INDEX, rows)

    with pytest.raises(ConfigInvalid, match=r"partition-0.parquet: is no file of hours"):
        list(load_hours(hours, PROFILE))


def test_zones_are_known_by_name() -> None:
    """A name that no database has is refused, whatever it looks like."""
    assert read_zone("Asia/Kolkata") != read_zone("UTC")
    for name in ("Middle/Earth", "../etc/passwd", ""):
        with pytest.raises(ConfigInvalid, match=r"^--zone "):
            read_zone(name)
