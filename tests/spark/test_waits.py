"""keylane/pipeline/waits on made-up logs: by hand, and against a twin that compares all pairs."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.keyrange.space import HASH_MAX, split_even
from keylane.pipeline.audit import rules, seen
from keylane.pipeline.waits import lag, measure
from keylane.pipeline.waits.history import EXACT, INDIVIDUAL, LOST
from keylane.pipeline.waits.job import LagReport
from keylane.pipeline.waits.picture import draw_waits, picture_files

RECORDS = "p int, o bigint, h bigint, keyless boolean, produced_ms bigint, stamp int"
COMMITS = "p int, lo bigint, hi bigint, position bigint, t_ms bigint, doubt int, is_report boolean"
REPORTS = "p int, o bigint, m string, t bigint"
HALF = 1 << 62


def waits_of(
    spark: SparkSession,
    records: list[tuple[Any, ...]],
    commits: list[tuple[Any, ...]],
    reports: list[tuple[Any, ...]] | None = None,
    oldest_ms: int | None = None,
) -> DataFrame:
    """The waits of rows."""
    covering = spark.createDataFrame(commits, COMMITS)
    own = None if reports is None else spark.createDataFrame(reports, REPORTS)
    frame = lag.with_reports(spark.createDataFrame(records, RECORDS), own, oldest_ms=oldest_ms)
    return lag.with_commits(frame, covering, lag.lane_bounds(covering))


def test_waits_by_hand(spark: SparkSession) -> None:
    """Two lanes; a key that waits, a record that is not committed, one whose clock is ahead."""
    records = [(0, o, 5 if o % 2 == 0 else HALF + 5, False, 1000 * o, 0) for o in range(6)]
    commits = [
        (0, 0, HALF - 1, 2, 1500, EXACT, False),
        (0, 0, HALF - 1, 4, 9000, EXACT, False),
        (0, HALF, HASH_MAX, 4, 3500, EXACT, False),
        (0, HALF, HASH_MAX, 4, 2800, EXACT, False),  # the same again: the first one counts
    ]
    reports = [(0, 0, "a", 400_999), (0, 2, "a", 5_000_000), (0, 2, "b", 8_000_000)]

    waits = waits_of(spark, records, commits, reports).persist()
    counts = lag.wait_counts(waits, slice_s=2, has_reports=True).persist()

    found = {row["o"]: row["committed_ms"] for row in waits.collect()}
    assert found == {0: 1500, 1: 2800, 2: 9000, 3: 2800, 4: None, 5: None}
    totals = {row["figure"]: row.asDict() for row in lag.summed(counts, ()).collect()}
    commit, process = totals["commit"], totals["process"]
    assert (commit["records"], commit["known"], commit["open"], commit["negative"]) == (6, 4, 2, 1)
    # Waits 1500, 1800, 7000 and -200, whose median lies between the two in the middle.
    assert (commit["min_ms"], commit["p50_ms"], commit["max_ms"]) == (-200, 1650, 7000)
    assert commit["mean_ms"] == 2525
    assert (process["known"], process["min_ms"], process["max_ms"]) == (2, 400, 3000)
    by_slice = {row["slice"]: row for row in lag.summed(counts, ("slice",)).collect()
                if row["figure"] == "commit"}  # fmt: skip
    assert {start: row["max_ms"] for start, row in by_slice.items()} == {0: 1800, 2: 7000, 4: None}
    by_member = {row["member"]: row["known"] for row in lag.summed(counts, ("member",)).collect()
                 if row["figure"] == "process"}  # fmt: skip
    assert by_member == {"a": 2, None: 0}
    keys = [row.asDict() for row in lag.slow_keys(waits, 5).collect()]
    names = ("h", "records", "known", "mean_ms", "max_ms", "o")
    assert [tuple(key[name] for name in names) for key in keys] == [
        (5, 3, 2, 4250, 7000, 2),
        (HALF + 5, 3, 2, 800, 1800, 1),
    ]


def test_waits_are_those_of_a_twin(spark: SparkSession) -> None:
    """Random lanes, commits of both sources and reports, a partition for each case."""
    chance = random.Random(7)
    records, commits, reports = [], [], []
    oldest_ms = 1500
    for p in range(60):
        hashes = [chance.randrange(HASH_MAX) for _ in range(5)]
        count = chance.randint(1, 12)
        offsets = sorted(chance.sample(range(20), count))
        records += [
            (p, o, chance.choice(hashes), chance.random() < 0.1,
             None if chance.random() < 0.1 else chance.randint(0, 3000), 0)
            for o in offsets
        ]  # fmt: skip
        for _ in range(chance.randint(0, 12)):
            part = chance.choice(split_even(chance.choice([1, 2, 3, 5])))
            doubt = chance.choice([EXACT, EXACT, LOST, INDIVIDUAL])
            is_report = chance.random() < 0.3
            commits.append((p, part.lo, part.hi, chance.randint(0, 21), chance.randint(0, 40) * 100,
                            EXACT if is_report else doubt, is_report))  # fmt: skip
        reports += [
            (p, chance.randrange(20), chance.choice("abc"), 1000 * chance.randint(0, 4000) + at)
            for at in range(chance.randint(0, 12))
        ]

    found = waits_of(spark, records, commits, reports, oldest_ms)

    columns = ("p", "o", "committed_ms", "doubt", "processed_ms", "member", "predates")
    rows = {tuple(row) for row in found.select(*columns).collect()}
    assert rows == {twin(record, commits, reports, oldest_ms) for record in records}


def twin(
    record: tuple[Any, ...],
    commits: list[tuple[Any, ...]],
    reports: list[tuple[Any, ...]],
    oldest_ms: int,
) -> tuple[Any, ...]:
    """One record against all commits and reports."""
    p, o, h, _, produced_ms, _ = record
    covering = [
        (t_ms, -doubt, is_report)
        for at, lo, hi, position, t_ms, doubt, is_report in commits
        if at == p and lo <= h <= hi and position > o
    ]
    journal = min(((t, doubt) for t, doubt, is_report in covering if not is_report), default=None)
    report = min((t for t, _, is_report in covering if is_report), default=None)
    predates = produced_ms is None or produced_ms < oldest_ms
    committed: tuple[int | None, int | None] = (None, None)
    if journal is not None and journal[1] == -EXACT:
        committed = (journal[0] if report is None else min(journal[0], report), EXACT)
    elif report is not None:
        committed = (report, LOST if predates else EXACT)
    elif journal is not None:
        committed = (journal[0], -journal[1])
    own = min(((t, m) for at, offset, m, t in reports if (at, offset) == (p, o)), default=None)
    processed = (None, None) if own is None else (own[0] // 1000, own[1])
    return (p, o, *committed, *processed, predates)


def test_what_is_no_time_and_no_partition_is_not_taken_for_one(spark: SparkSession) -> None:
    """A record's time of -1 is none; a report of a partition beyond 32 bits covers nothing."""
    rows = [(0, 0, b"k", 5, 0), (0, 1, b"k", -1, 0), (0, 2, b"k", 7, 1), (0, 3, b"k", -1, -1)]
    columns = "partition int, offset bigint, key binary, ms bigint, timestampType int"
    raw = spark.createDataFrame(rows, columns).withColumn("timestamp", F.timestamp_millis("ms"))
    row = ["0", "0", "9", "7"]
    mark = {"v": 1, "k": "c", "m": "a", "g": 1, "t": 8000, "l": [row, ["4294967296", *row[1:]]]}
    values = [(0, 0, json.dumps(mark).encode())]
    reports = spark.createDataFrame(values, "partition int, offset bigint, value binary")

    records = lag.produced_records(raw).orderBy("o").select("produced_ms", "stamp").collect()
    commits = lag.report_commits(rules.parse_values(reports)).where("p is not null").collect()

    assert [tuple(one) for one in records] == [(5, 0), (None, -1), (7, 1), (None, -1)]
    assert [tuple(one) for one in commits] == [(0, 0, 9, 7, 8, EXACT, True)]


def test_reports_are_complete_from_the_oldest_of_each_partition_that_was_cut(
    spark: SparkSession,
) -> None:
    """None where nothing was cut; a partition of which nothing is left has lost all of them."""
    rows = [(0, 1000, False), (1, 9000, False), (1, 5000, False), (2, 7000, False), (1, 1, True)]
    parsed = spark.createDataFrame(rows, "ap int, t bigint, bad boolean")

    found = [
        seen.oldest_report_ms(parsed, starts)
        for starts in ((0, 0, 0, 0), (0, 4, 4, 0), (0, 4, 0, 4))
    ]

    assert found == [None, 7, seen.NEVER_MS]


def test_a_wait_keeps_eleven_bits(spark: SparkSession) -> None:
    """Up to 2,048 ms each is exact; above it is rounded down by less than a thousandth."""
    waits = [0, -5, 2047, 2049, 4097, -4097, 10**9]
    frame = spark.createDataFrame([(wait,) for wait in waits], "wait bigint")

    found = [row[0] for row in frame.select(lag.rounded("wait")).collect()]

    assert found == [0, -5, 2047, 2048, 4096, -4096, 999_817_216]


def test_many_slices_leave_room_for_few_lanes(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells that reach the driver are bounded: the lane that waits longest keeps its own."""
    records = [(0, o, 5 if o % 2 == 0 else HALF + 5, False, 1000 * o, 0) for o in range(6)]
    commits = [
        (0, 0, HALF - 1, 6, 9000, EXACT, False),
        (0, HALF, HASH_MAX, 6, 7000, EXACT, False),
    ]
    counts = lag.wait_counts(waits_of(spark, records, commits), slice_s=1, has_reports=False)
    monkeypatch.setattr(measure, "CELLS_MAX", 11)  # of six slices and two lanes

    sums = measure.sum_waits(counts.persist())

    assert [row["lo"] for row in sums.cells] == [0, 0, 0]
    assert sorted(row["slice"] for row in sums.cells) == [0, 2, 4]
    assert sums.totals["commit"]["known"] == 6


def test_the_picture_is_drawn_with_and_without_waits() -> None:
    """PNG and SVG of two lanes over two hours, and of nothing."""
    row = {"p50_ms": 5.0, "p90_ms": 10.0, "p99_ms": 900.0, "known": 3, "records": 3}
    cells = [{**row, "slice": 3600 * hour, "p": 0, "lo": lo, "hi": HASH_MAX}
             for hour in (0, 1) for lo in (0, HALF)]  # fmt: skip
    groups = [{**row, "by": "slice", "figure": "commit", "slice": 3600 * hour} for hour in (0, 1)]
    empty = LagReport(
        topic="orders", read={}, stamps={}, totals={}, groups=[], cells=[], keys=[], reasons=[]
    )
    full = LagReport(
        topic="orders", read={}, stamps={}, totals={"commit": row}, groups=groups, cells=cells,
        keys=[], reasons=[],
    )  # fmt: skip

    for report in (empty, full):
        files = picture_files(draw_waits(report))
        assert files["lag.png"].startswith(b"\x89PNG")
        assert b"<svg" in files["lag.svg"]
