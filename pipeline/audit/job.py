"""Run an audit: read both topics once, judge, write findings and a verdict.

Only counts, and findings to show, reach this process.

Kafka is read once: each further question to Kafka itself costs a whole read again. The reports
stay on the disks of the executors (`DataFrame.persist`), or in a folder that all of them share.
Spark reads again from Kafka what a lost executor held; the range is one of offsets, so the same
records come, and their number is compared at the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from keylane.embedded.resolve import Progress, print_progress
from keylane.errors import ConfigInvalid
from keylane.pipeline.audit import rules
from keylane.pipeline.audit.findings import write_findings
from keylane.pipeline.audit.seen import SeenRecords, compare, recount, report_doubts
from keylane.pipeline.brokers import check_readable
from keylane.pipeline.job import spark_errors
from keylane.pipeline.storage import Folder, open_folder, require_shared
from keylane.pipeline.topic_range import TopicRange, changes_since, find_range, read_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_MAX: Final = 5
"""Findings of a kind that a verdict lists; all of them are in the Parquet."""
CLEAN, FINDINGS, UNKNOWN = "clean", "findings", "inconclusive"
EXIT_CODES: Final = {CLEAN: 0, FINDINGS: 1, UNKNOWN: 2}
TASKS_PER_CORE: Final = 2
"""Reading needs no order, since reports carry their place: partitions are read in pieces."""
OPTIONS_TAKEN: Final = ("kafka.", "kafkaconsumer.", "fetchoffset.")
"""Starts of the options of Spark's source that do not change which records are read.

Others do: with `failOnDataLoss=false`, say, Spark passes over what retention has removed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """Records to judge. Places are those of `topic_range.find_range`."""

    bootstrap: str
    input_topic: str
    audit_topic: str
    out: str
    """Folder or URI for `findings` (Parquet) and `verdict.json`; made when it is not there."""
    start: str = "earliest"
    end: str = "latest"
    """Of the input; what is not processed yet lies behind it, or counts as lost."""
    land: str | None = None
    """Folder or URI that keeps what was read, shared by all machines of Spark."""
    options: Mapping[str, str] = field(default_factory=dict)
    """`kafka.*` options of Spark's source, for TLS, SASL or `kafka.isolation.level`."""

    def __post_init__(self) -> None:
        for name in self.options:
            if not name.lower().startswith(OPTIONS_TAKEN):
                raise ConfigInvalid(
                    f"--option {name}: an audit reads all records of its range; only kafka.*,"
                    " kafkaConsumer.* and fetchOffset.* can be set"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict of an audit."""

    status: str
    counts: Mapping[str, int]
    """Findings by kind, all kinds."""
    redelivered: int
    """Records that came again because they were not committed; no fault."""
    records: int
    """Of the input in the judged range."""
    holes: Mapping[int, int]
    """Offsets of the judged range without a record by partition, where there are some."""
    reports: int
    judged: Mapping[int, tuple[int, int]]
    """Offsets [from, to) by partition."""
    reasons: Sequence[str]
    """Reasons for which not all could be judged; empty when it could."""
    shown: Sequence[Mapping[str, Any]]
    """The first findings of each kind."""

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings, 2 inconclusive."""
        return EXIT_CODES[self.status]


def run_audit(
    spark: SparkSession, request: AuditRequest, *, progress: Progress = print_progress
) -> Verdict:
    """Judge, and write `request.out`.

    Raises:
        ConfigInvalid: a topic does not exist or may not be read, no broker answers, a range is
            empty, or workers do not share `request.land`.
        JobFailed: Spark or Kafka failed on the way.
        StorageFailed: a folder cannot be written.
    """
    out = open_folder(request.out, spark)
    land = None
    if request.land is not None:
        land = open_folder(request.land, spark)
        require_shared(spark, land, "--land")
    out.delete("verdict.json")  # that of an earlier run says nothing about this one
    wanted = find_range(
        spark,
        request.bootstrap,
        request.input_topic,
        start=request.start,
        end=request.end,
        options=request.options,
    )
    reported = find_range(spark, request.bootstrap, request.audit_topic, options=request.options)
    with ExitStack() as stack:
        stack.enter_context(spark_errors("audit"))
        for chosen in (wanted, reported):
            check_readable(spark, chosen)
        verdict = _Run(spark, request, wanted, reported, out, land, progress, stack).judge()
    text = json.dumps(asdict(verdict) | {"version": 1}, indent=2)
    out.write("verdict.json", f"{text}\n".encode())
    return verdict


@dataclass(slots=True)
class _Run:
    """One audit, step by step."""

    spark: SparkSession
    request: AuditRequest
    wanted: TopicRange
    reported: TopicRange
    out: Folder
    land: Folder | None
    progress: Progress
    stack: ExitStack
    """Releases at its end what `_hold` holds."""
    reasons: list[str] = field(default_factory=list)

    def judge(self) -> Verdict:
        """Run all steps, in the order in which they need each other."""
        self.progress(f"reading {self.reported.offset_count:,} reports")
        values = self._read(self.reported).select("partition", "offset", "value")
        parsed = self._hold_read(rules.parse_values(values).drop("v", "t"), "reports")
        reports = rules.split_reports(parsed)
        tallies = self._hold(
            rules.tallies_of(parsed, self.reported.partition_count, self.wanted.starts)
        )
        audit_counts = self._check_reports(parsed, tallies)
        self.progress(f"reading {self.wanted.offset_count:,} offsets of the input")
        offsets = self._read(self.wanted).select("partition", "offset")
        bitmaps = self._hold_read(rules.offset_bitmaps(offsets, "partition", "offset"), "input")
        seen = compare(self.spark, self.wanted, bitmaps)
        self.reasons += seen.doubts
        self.progress("coverage")
        lost = rules.lost_findings(self._missing(bitmaps, reports))
        self.progress("ownership")
        sessions = self._hold(rules.sessions_of(tallies, reports.assigned))
        self._check_sessions(sessions)
        found = self._hold(self._judge_records(reports, sessions, lost))
        counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        self._check_end(parsed, audit_counts["rows"])
        self.progress("findings")
        findings = found.where(F.col("kind") != rules.REDELIVERED)
        verdict = self._verdict(counts, findings, seen, audit_counts["records"])
        write_findings(findings, self.out, sum(verdict.counts.values()))
        self.progress("")
        return verdict

    def _judge_records(
        self, reports: rules.Reports, sessions: DataFrame, found: DataFrame
    ) -> DataFrame:
        """`found` with the findings of ownership and order, and what was delivered again."""
        records = reports.records
        # What is held has a known size: Spark sends what is small to where the records are.
        suspect = self._hold(rules.suspect_sessions(sessions, reports.assigned))
        if not suspect.isEmpty():
            owned = self._hold(rules.ownership_findings(reports, suspect))
            found = found.unionAll(owned)
            records = rules.without(records, owned)
        self.progress("order")
        keys = self._hold(rules.restless_keys(records))
        if not keys.isEmpty():
            found = found.unionAll(rules.order_findings(records, reports.commits, keys))
        return found

    def _read(self, chosen: TopicRange) -> DataFrame:
        tasks = self.spark.sparkContext.defaultParallelism * TASKS_PER_CORE
        return read_range(self.spark, chosen, min_partitions=max(tasks, chosen.partition_count))

    def _hold(self, frame: DataFrame) -> DataFrame:
        """`frame`, computed once: on the disks of the executors, and again where one is lost."""
        held = frame.persist(StorageLevel.DISK_ONLY)
        self.stack.callback(held.unpersist)
        return held

    def _hold_read(self, frame: DataFrame, name: str) -> DataFrame:
        """Rows that were read of Kafka: held, or in the folder that is to keep it."""
        if self.land is None:
            return self._hold(frame)
        uri = self.land.child(name).uri
        frame.write.mode("overwrite").parquet(uri)
        return self.spark.read.schema(frame.schema).parquet(uri)

    def _missing(self, bitmaps: DataFrame, reports: rules.Reports) -> DataFrame:
        """Offsets without a report; and the other way round, which cannot be judged."""
        judged = rules.within(reports.records, self.wanted.starts, self.wanted.ends)
        had = self._hold(rules.offset_bitmaps(judged, "p", "o"))
        unknown = rules.missing_offsets(had, bitmaps).limit(SHOWN_MAX).collect()
        if unknown:
            first = unknown[0]
            self.reasons.append(
                "reports of offsets that the input does not hold (compacted, or another topic),"
                f" such as partition {first['partition']} offset {first['offset']}"
            )
        return rules.missing_offsets(bitmaps, had)

    def _check_reports(self, parsed: DataFrame, tallies: DataFrame) -> Mapping[str, int]:
        """Note what keeps the reports from a verdict; return the sums of `tallies`."""
        if any(self.reported.starts):
            self.reasons.append(
                f"{self.reported.topic} has lost its oldest reports: it starts at "
                f"{self.reported.starts}"
            )
        counts = rules.sum_tallies(tallies, self.wanted.partition_count)
        for name, text in (
            ("bad", f"records of {self.reported.topic} are no reports"),
            (
                "misplaced",
                f"reports in a partition of {self.reported.topic} that is not their key's",
            ),
            ("stray", f"reports of partitions that {self.wanted.topic} does not have"),
            (
                "below",
                f"reports of offsets before {self.wanted.starts}, which were not judged",
            ),
            ("outside", "reports of keys outside of the range that they name: a wrong lane count?"),
        ):
            # Before an explicit start is what was not asked for; before the log start is lost.
            if counts[name] and not (name == "below" and self.request.start != "earliest"):
                self.reasons.append(f"{counts[name]} {text}")
        if counts["rows"] != self.reported.offset_count:
            bitmaps = rules.offset_bitmaps(parsed, "ap", "ao")
            self.reasons += report_doubts(self.spark, self.reported, bitmaps)
        return counts

    def _check_sessions(self, sessions: DataFrame) -> None:
        lone = sessions.where("begun_ao is null").agg(F.sum("reports")).first()
        if lone is not None and lone[0]:
            self.reasons.append(f"{lone[0]} reports of sessions without an assignment")

    def _check_end(self, parsed: DataFrame, audit_records: int) -> None:
        """Note what changed while the audit ran, so that steps may have seen different records."""
        self.reasons += recount(self.reported.topic, audit_records, parsed.count())
        for chosen in (self.wanted, self.reported):
            self.reasons += changes_since(self.spark, chosen)

    def _verdict(
        self, found: Mapping[str, int], findings: DataFrame, seen: SeenRecords, report_count: int
    ) -> Verdict:
        counts = {kind: found.get(kind, 0) for kind in rules.KINDS}
        status = FINDINGS if any(counts.values()) else UNKNOWN if self.reasons else CLEAN
        shown = rules.first_findings(findings, SHOWN_MAX).collect() if any(counts.values()) else []
        return Verdict(
            status=status,
            counts=counts,
            redelivered=found.get(rules.REDELIVERED, 0),
            records=seen.records,
            holes=seen.holes,
            reports=report_count,
            judged=dict(enumerate(zip(self.wanted.starts, self.wanted.ends, strict=True))),
            reasons=self.reasons,
            shown=sorted((row.asDict() for row in shown), key=_by_kind),
        )


def _by_kind(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return rules.KINDS.index(row["kind"]), row["partition"], row["offset"]


def committed_place(committed: Mapping[int, int], topic: str, group: str) -> str:
    """The place that a group has committed to, in the form of `find_range`.

    Raises:
        ConfigInvalid: it has committed nothing of this topic.
    """
    if not committed:
        raise ConfigInvalid(f"group {group} has committed nothing of {topic}")
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(committed.items()))
