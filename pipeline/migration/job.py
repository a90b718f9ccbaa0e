"""Run `keylane spark verify-migration`: read both sides once, compare, write what differs.

Counts and a bounded list of differences reach this process. What is read stays on the disks of the
executors (`persist`), where Spark makes it anew if one is lost: no folder has to be shared.

`same` is said of records that were seen: a side without records, and records at the brokers that
were not seen, give `inconclusive`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from keylane.embedded.resolve import Progress, print_progress
from keylane.pipeline.audit import rules, seen
from keylane.pipeline.brokers import SparkAdmin
from keylane.pipeline.job import hold, spark_errors
from keylane.pipeline.migration import sides
from keylane.pipeline.migration.comparison import SideComparison, compare_sides
from keylane.pipeline.migration.sides import NAMES
from keylane.pipeline.tables import json_rows, parquet_bytes
from keylane.pipeline.topic_range import (
    TopicRange,
    Unusual,
    changes_since,
    count_tasks,
    find_range,
    read_range,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from keylane.pipeline.storage import Folder

VERDICT, DIFFERENCES, KEYS = "verdict.json", "differences.parquet", "keys.parquet"
SAME, DIFFERENT, UNKNOWN = "same", "different", "inconclusive"
EXIT_CODES: Final = {SAME: 0, DIFFERENT: 1, UNKNOWN: 2}
SHOWN_MAX: Final = 5
"""Differences of a kind, and keys, that a verdict lists."""
TASKS_PER_CORE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRequest:
    """One side: a topic, and the range of it. Places are those of `topic_range.find_range`."""

    bootstrap: str
    topic: str
    start: str = "earliest"
    end: str = "latest"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRequest:
    """Two sides to compare."""

    before: SideRequest
    after: SideRequest
    work_of: SideRequest | None = None
    """Topic that two groups have processed, and the range to compare: the sides are their audit
    topics then. None: the sides are topics, record by record."""
    headers: bool = False
    any_order: bool = False
    """True: the records only, not their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationVerdict:
    """Result of a comparison."""

    status: str
    counts: Mapping[str, int]
    """Differences by kind, all kinds."""
    records: Mapping[str, int]
    """Records of each side; of groups, records with a report."""
    keys: int
    keys_different: int
    keys_unordered: int
    """Keys whose order could not be judged."""
    redelivered: Mapping[str, int]
    """Reports beyond the first of their record, by side; no difference."""
    unreported: int | None
    """Offsets of the input without a report on either side; None: topics were compared."""
    compared: Mapping[str, Mapping[int, tuple[int, int]]]
    """Offsets [from, to) by side, or of the input, and partition."""
    reasons: Sequence[str]
    """Reasons for which not all could be compared."""
    shown: Sequence[Mapping[str, Any]]
    """The first differences of each kind."""
    shown_keys: Sequence[Mapping[str, Any]]
    """The first keys that differ, with the place where they part."""

    @property
    def exit_code(self) -> int:
        """0 same, 1 different, 2 inconclusive."""
        return EXIT_CODES[self.status]


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """Verdict, and the tables behind it, bounded by `comparison.LISTED_MAX`."""

    verdict: MigrationVerdict
    differences: pa.Table
    keys: pa.Table


def run_migration(
    spark: SparkSession, request: MigrationRequest, *, progress: Progress = print_progress
) -> MigrationResult:
    """Compare the sides.

    Raises:
        ConfigInvalid: a topic does not exist, no broker answers, or a range is empty.
        JobFailed: Spark failed on the way.
    """
    with ExitStack() as stack:
        run = _Run(spark, request, progress, stack)
        # Lanes have the records of their topic, each once. But reports name Kafka's partitions.
        may_be: Unusual | None = "lanes" if request.work_of is None else None
        both = [_range_of(spark, side, may_be) for side in (request.before, request.after)]
        if request.work_of is None:
            stack.enter_context(spark_errors("verify-migration"))
            return run.compare(run.topics(both), both, {NAMES[i]: _judged(both[i]) for i in NAMES})
        work = _range_of(spark, request.work_of, None)
        stack.enter_context(spark_errors("verify-migration"))
        return run.compare(run.groups(both, work), both, {"input": _judged(work)}, work)


@dataclass(slots=True)
class _Run:
    spark: SparkSession
    request: MigrationRequest
    progress: Progress
    stack: ExitStack
    reasons: list[str] = field(default_factory=list)
    """Reasons beside which differences say nothing."""
    records: dict[str, int] = field(default_factory=dict)
    """Records of each side when it was read."""
    redelivered: dict[str, int] = field(default_factory=dict)

    def topics(self, both: Sequence[TopicRange]) -> DataFrame:
        """Rows of two topics."""
        headers = self.request.headers
        frames = []
        for side, chosen in enumerate(both):
            self.progress(f"reading {chosen.offset_count:,} offsets of {chosen.topic}")
            options = {"includeHeaders": "true"} if headers else {}
            raw = self._read(chosen, options)
            frames.append(sides.topic_side(raw, side, headers=headers))
        rows = hold(frames[0].unionAll(frames[1]), self.stack)
        for side, chosen in enumerate(both):
            own = rows.where(F.col("side") == side)
            bitmaps = hold(rules.offset_bitmaps(own, "p", "o"), self.stack)
            found = seen.compare(self.spark, chosen, bitmaps)
            self.reasons += found.doubts
            self.records[NAMES[side]] = found.records
            if not found.records:
                self.reasons.append(f"{chosen.topic} has no record in its range")
        return rows

    def groups(self, both: Sequence[TopicRange], work: TopicRange) -> DataFrame:
        """Rows of what two groups reported of `work`."""
        frames = []
        for side, chosen in enumerate(both):
            self.progress(f"reading {chosen.offset_count:,} reports of {chosen.topic}")
            parsed = hold(rules.parse_values(self._read(chosen, {})), self.stack)
            records = rules.split_reports(parsed).records
            self._check_reports(parsed, records, chosen, work)
            first = hold(
                sides.first_reports(rules.within(records, work.starts, work.ends)), self.stack
            )
            counted = first.agg(F.count(F.lit(1)), F.sum(F.col("reports") - 1)).collect()[0]
            self.records[NAMES[side]] = counted[0]
            self.redelivered[NAMES[side]] = counted[1] or 0
            if not counted[0]:
                self.reasons.append(f"{chosen.topic} has no report of {work.topic} in its range")
            frames.append(sides.group_side(first, side))
        return frames[0].unionAll(frames[1])

    def _check_reports(
        self, parsed: DataFrame, records: DataFrame, chosen: TopicRange, work: TopicRange
    ) -> None:
        bitmaps = hold(rules.offset_bitmaps(parsed, "ap", "ao"), self.stack)
        self.reasons += seen.report_doubts(self.spark, chosen, bitmaps)
        bad = parsed.where("bad").count()
        if bad:
            self.reasons.append(f"{bad} records of {chosen.topic} are no reports")
        counts = records.agg(
            F.count_if(F.col("ap") != rules.audit_partition_of(chosen.partition_count)),
            F.count_if(~F.col("p").between(0, work.partition_count - 1)),
        ).collect()[0]
        for count, text in zip(
            counts,
            ("in a partition that is not their key's", f"of partitions that {work.topic} lacks"),
            strict=True,
        ):
            if count:
                self.reasons.append(f"{count} reports of {chosen.topic} are {text}")
        self._check_oldest(parsed, chosen, work)

    def _check_oldest(self, parsed: DataFrame, chosen: TopicRange, work: TopicRange) -> None:
        """Records that are younger than all lost reports have theirs."""
        oldest_ms = seen.oldest_report_ms(parsed, chosen.starts)
        if oldest_ms is None:
            return
        with SparkAdmin(self.spark, work.bootstrap, work.options) as admin:
            found = admin.list_offsets(work.topic, work.partition_count, oldest_ms)
        needed = [end if at < 0 else at for at, end in zip(found, work.ends, strict=True)]
        if any(start < at for start, at in zip(work.starts, needed, strict=True)):
            place = ",".join(f"{number}:{at}" for number, at in enumerate(needed))
            self.reasons.append(
                f"{chosen.topic} has lost its oldest reports: begin with --from {place}"
            )

    def compare(
        self,
        rows: DataFrame,
        both: Sequence[TopicRange],
        compared: Mapping[str, Mapping[int, tuple[int, int]]],
        work: TopicRange | None = None,
    ) -> MigrationResult:
        """Compare the rows of both sides."""
        found = compare_sides(
            rows,
            any_order=self.request.any_order,
            is_work=work is not None,
            stack=self.stack,
            progress=self.progress,
        )
        self._check_end(found, [*both, *([] if work is None else [work])])
        # Of the records of one side, those that the other side has too are no more.
        reported = found.records[NAMES[sides.AFTER]] + found.counts[sides.MISSING]
        verdict = MigrationVerdict(
            status=self._status(found.counts, found.keys_unordered),
            counts=found.counts,
            records=found.records,
            keys=found.keys,
            keys_different=found.keys_different,
            keys_unordered=found.keys_unordered,
            redelivered=self.redelivered,
            unreported=None if work is None else max(0, work.offset_count - reported),
            compared=compared,
            reasons=self._all_reasons(found.keys_unordered),
            shown=_first(found.difference_table, sides.KINDS),
            shown_keys=found.key_table.slice(0, SHOWN_MAX).to_pylist(),
        )
        return MigrationResult(verdict, found.difference_table, found.key_table)

    def _check_end(self, found: SideComparison, ranges: Sequence[TopicRange]) -> None:
        """Note what changed while this ran, so that steps may have seen different records."""
        self.reasons += found.doubts
        for side, name in NAMES.items():
            self.reasons += seen.recount(
                ranges[side].topic, self.records[name], found.records[name]
            )
        for chosen in ranges:
            self.reasons += changes_since(self.spark, chosen)

    def _status(self, counts: Mapping[str, int], unordered: int) -> str:
        if self.reasons:
            return UNKNOWN
        if any(counts.values()):
            return DIFFERENT
        return UNKNOWN if unordered else SAME

    def _all_reasons(self, unordered: int) -> list[str]:
        if not unordered:
            return self.reasons
        text = (
            f"the order of {unordered:,} keys cannot be judged, as their records are in several"
            " partitions of a side; --any-order compares without it"
        )
        return [*self.reasons, text]

    def _read(self, chosen: TopicRange, options: Mapping[str, str]) -> DataFrame:
        # Order does not matter here: records carry their place.
        tasks = self.spark.sparkContext.defaultParallelism * TASKS_PER_CORE
        chosen = replace(chosen, options={**chosen.options, **options})
        return read_range(self.spark, chosen, min_partitions=max(tasks, count_tasks(chosen)))


def save_result(result: MigrationResult, folder: Folder) -> None:
    """Write verdict and tables into `folder`.

    Raises:
        StorageFailed: the folder cannot be written.
    """
    folder.write(DIFFERENCES, parquet_bytes(result.differences))
    folder.write(KEYS, parquet_bytes(result.keys))
    rows = {
        name: json_rows(getattr(result.verdict, name), "key_hash", "value_hash")
        for name in ("shown", "shown_keys")
    }
    text = json.dumps(asdict(result.verdict) | rows | {"version": 1}, indent=2)
    folder.write(VERDICT, (text + "\n").encode())


def _range_of(spark: SparkSession, side: SideRequest, may_be: Unusual | None) -> TopicRange:
    return find_range(
        spark,
        side.bootstrap,
        side.topic,
        start=side.start,
        end=side.end,
        options=side.options,
        may_be=may_be,
    )


def _judged(chosen: TopicRange) -> dict[int, tuple[int, int]]:
    return dict(enumerate(zip(chosen.starts, chosen.ends, strict=True)))


def _first(table: pa.Table, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """The first rows of each kind; the table is ordered by kind."""
    found: list[dict[str, Any]] = []
    column = table["kind"].to_pylist()
    for kind in kinds:
        if kind in column:
            own = table.slice(column.index(kind), min(SHOWN_MAX, column.count(kind)))
            found += own.to_pylist()
    return found
