"""Run `keylane spark lag`: read topic, journal and reports once each, and write the answers.

Tables of a row per lane, member, slice of time and slow key reach this process, records never.

What is read stays on the disks of the executors (`persist`), where Spark makes it anew if one is
lost: no folder has to be shared.
"""

from __future__ import annotations

import json
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from keylane.embedded.resolve import Progress, print_progress
from keylane.offsets.records.journal import TOPIC_NAME, ic_partition
from keylane.pipeline.audit import rules, seen
from keylane.pipeline.job import hold, spark_errors
from keylane.pipeline.profile.loads import name_keys
from keylane.pipeline.tables import json_rows, parquet_bytes
from keylane.pipeline.topic_range import (
    TopicRange,
    changes_since,
    count_tasks,
    find_range,
    read_range,
)
from keylane.pipeline.waits import lag
from keylane.pipeline.waits.history import journal_commits
from keylane.pipeline.waits.measure import find_waits, rows_of, sum_waits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from keylane.pipeline.storage import Folder

SUMMARY, GROUPS, KEYS = "lag.json", "groups.parquet", "keys.parquet"
TASKS_PER_CORE: Final = 2
NAMES: Final = {"p": "partition", "h": "key_hash", "o": "offset"}
"""Names of columns outside of this package."""
WAITS: Final = ("mean_ms", "min_ms", "max_ms", "p50_ms", "p90_ms", "p99_ms")
GROUP_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "by": pa.string(),
    "figure": pa.string(),
    "slice": pa.int64(),
    "member": pa.string(),
    "partition": pa.int32(),
    "lo": pa.int64(),
    "hi": pa.int64(),
    **dict.fromkeys(("records", *lag.STATES, "negative"), pa.int64()),
    **dict.fromkeys(WAITS, pa.float64()),
}
KEY_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "partition": pa.int32(),
    "key_hash": pa.int64(),
    **dict.fromkeys(("records", "known"), pa.int64()),
    **dict.fromkeys(("mean_ms", "max_ms", "total_ms"), pa.float64()),
    "offset": pa.int64(),
    "key": pa.binary(),
}
STAMPS: Final = {0: "CreateTime", 1: "LogAppendTime", -1: "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRequest:
    """Records to judge. Places are those of `topic_range.find_range`."""

    bootstrap: str
    topic: str
    group: str | None = None
    """Group whose commits the journal holds; None: not asked."""
    audit_topic: str | None = None
    """Reports of members; None: there are none."""
    start: str = "earliest"
    end: str = "latest"
    slice_s: int = 3600
    key_count: int = 20
    rank: str = "mean"
    """One of `lag.RANKS`."""
    show_keys: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagReport:
    """Waits in ms. Rows have the columns of `lag.summed`."""

    topic: str
    read: Mapping[int, tuple[int, int]]
    """Offsets [from, to) by partition."""
    stamps: Mapping[str, int]
    """Records by Kafka's timestamp type."""
    totals: Mapping[str, Mapping[str, Any]]
    """By figure: until the commit, and until it was processed."""
    groups: Sequence[Mapping[str, Any]]
    """A row per figure and slice, member, or lane; `by` says which."""
    cells: Sequence[Mapping[str, Any]]
    """A row per slice and lane, of the lanes that wait longest until the commit."""
    keys: Sequence[Mapping[str, Any]]
    reasons: Sequence[str]
    """Reasons for which the numbers are not those of all records."""

    @property
    def exit_code(self) -> int:
        """0: the numbers stand; 2: nothing, or not all of it, is known."""
        return 2 if self.reasons else 0


def run_lag(
    spark: SparkSession, request: LagRequest, *, progress: Progress = print_progress
) -> LagReport:
    """Measure the waits.

    Raises:
        ConfigInvalid: a topic does not exist, no broker answers, or a range is empty.
        JobFailed: Spark failed on the way.
    """
    wanted = find_range(
        spark,
        request.bootstrap,
        request.topic,
        start=request.start,
        end=request.end,
        options=request.options,
    )
    with ExitStack() as stack:
        run = _Run(spark, request, wanted, progress, stack)
        reports = run.find_reports()
        journal = run.find_journal()
        stack.enter_context(spark_errors("lag"))
        return run.measure(reports, journal)


@dataclass(slots=True)
class _Run:
    spark: SparkSession
    request: LagRequest
    wanted: TopicRange
    progress: Progress
    stack: ExitStack
    reasons: list[str] = field(default_factory=list)

    @property
    def judged(self) -> dict[int, tuple[int, int]]:
        """Offsets [from, to) by partition."""
        return dict(enumerate(zip(self.wanted.starts, self.wanted.ends, strict=True)))

    def find_reports(self) -> TopicRange | None:
        """Return the whole audit topic."""
        request = self.request
        if request.audit_topic is None:
            return None
        return find_range(
            self.spark, request.bootstrap, request.audit_topic, options=request.options
        )

    def find_journal(self) -> TopicRange | None:
        """Return the one partition of the journal that holds the group's commits."""
        request = self.request
        if request.group is None:
            return None
        # Of a journal with transactions, only what was committed is a record.
        options = {"kafka.isolation.level": "read_committed", **request.options}
        found = find_range(self.spark, request.bootstrap, TOPIC_NAME, options=options)
        own = ic_partition(request.group, found.partition_count)
        starts = tuple(
            at if number == own else end
            for number, (at, end) in enumerate(zip(found.starts, found.ends, strict=True))
        )
        return replace(found, starts=starts)

    def measure(self, reported: TopicRange | None, journal: TopicRange | None) -> LagReport:
        """Read, join and sum up."""
        parsed = None if reported is None else self._parse(reported)
        commits = None if journal is None else self._read_journal(journal)
        self.progress(f"reading {self.wanted.offset_count:,} offsets of {self.request.topic}")
        waits = find_waits(
            self._read(self.wanted),
            self.wanted,
            parsed=parsed,
            journal=commits,
            report_starts=() if reported is None else reported.starts,
            stack=self.stack,
        )
        records = self._check_seen(waits)
        self.progress("summing up")
        counts = lag.wait_counts(
            waits, slice_s=self.request.slice_s, has_reports=parsed is not None
        )
        sums = sum_waits(hold(counts, self.stack))
        if not any(row["known"] for row in sums.totals.values()):
            self.reasons.append("no record has a known time of its commit or its processing")
        stamps = waits.groupBy("stamp").count().collect()
        keys = self._slow_keys(waits)
        again = sums.totals.get(lag.COMMIT, {}).get("records", 0)  # without records, no rows
        self.reasons += seen.recount(self.request.topic, records, again)
        for chosen in filter(None, (self.wanted, reported, journal)):
            self.reasons += changes_since(self.spark, chosen)
        self.progress("")
        return LagReport(
            topic=self.request.topic,
            read=self.judged,
            stamps={STAMPS.get(stamp, str(stamp)): count for stamp, count in stamps},
            totals=sums.totals,
            groups=sums.groups,
            cells=sums.cells,
            keys=keys,
            reasons=self.reasons,
        )

    def _parse(self, reported: TopicRange) -> DataFrame:
        self.progress(f"reading {reported.offset_count:,} reports")
        parsed = hold(rules.parse_values(self._read(reported)), self.stack)
        bad = parsed.where("bad").count()
        if bad:
            self.reasons.append(f"{bad} records of {reported.topic} are no reports")
        bitmaps = hold(rules.offset_bitmaps(parsed, "ap", "ao"), self.stack)
        self.reasons += seen.report_doubts(self.spark, reported, bitmaps)
        return parsed

    def _read_journal(self, journal: TopicRange) -> DataFrame:
        assert self.request.group is not None, "asked for"
        topic_id = uuid.UUID(bytes=urlsafe_b64decode(f"{self.wanted.topic_id}=="))  # 22 characters
        raw = read_range(self.spark, journal).select(
            "offset", F.unix_millis("timestamp").alias("t_ms"), "key", "value"
        )
        found = hold(journal_commits(raw, self.request.group, topic_id), self.stack)
        if found.isEmpty():
            self.reasons.append(
                f"the journal has no commit of group {self.request.group} for {self.request.topic}"
            )
        return found

    def _check_seen(self, waits: DataFrame) -> int:
        """Note what was not seen; return the number of records that were."""
        bitmaps = hold(rules.offset_bitmaps(waits, "p", "o"), self.stack)
        found = seen.compare(self.spark, self.wanted, bitmaps)
        self.reasons += found.doubts
        return found.records

    def _slow_keys(self, waits: DataFrame) -> list[dict[str, Any]]:
        """The keys that wait longest, with their names where these are wanted."""
        keys = rows_of(lag.slow_keys(waits, self.request.key_count, rank=self.request.rank))
        if not self.request.show_keys or not keys:
            return keys
        self.progress("reading the names of keys")
        found = name_keys(self._read(self.wanted), [row["h"] for row in keys])
        names = {row["key_hash"]: bytes(row["key"]) for row in found.collect()}
        return [row | {"key": names.get(row["h"])} for row in keys]

    def _read(self, chosen: TopicRange) -> DataFrame:
        # Order does not matter here: all that is joined carries its place.
        tasks = self.spark.sparkContext.defaultParallelism * TASKS_PER_CORE
        return read_range(self.spark, chosen, min_partitions=max(tasks, count_tasks(chosen)))


def save_report(report: LagReport, folder: Folder) -> None:
    """Write the summary and the tables into `folder`.

    Raises:
        StorageFailed: the folder cannot be written.
    """
    cells = [{"by": "cell", **row} for row in report.cells]
    folder.write(GROUPS, _table([*report.groups, *cells], GROUP_COLUMNS))
    folder.write(KEYS, _table(report.keys, KEY_COLUMNS))
    summary = {
        "version": 1,
        "topic": report.topic,
        "read": report.read,
        "timestamps": report.stamps,
        "totals": report.totals,
        "groups": json_rows(map(_named, report.groups), "lo", "hi"),
        "keys": json_rows(map(_named, report.keys), "key_hash"),
        "reasons": report.reasons,
    }
    folder.write(SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    return {NAMES.get(name, name): value for name, value in row.items()}


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, pa.DataType]) -> bytes:
    found = [_named(row) for row in rows]
    arrays = {
        name: pa.array([row.get(name) for row in found], kind) for name, kind in columns.items()
    }
    return parquet_bytes(pa.table(arrays))
