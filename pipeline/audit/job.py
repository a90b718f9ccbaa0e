"""Run an audit: read both topics once, land them, judge, write findings and a verdict.

Only counts, and findings to show, reach this process.

Kafka is read once into Parquet: each further question to Kafka itself costs a whole read again.
A verdict is about records that were really seen: rows are counted where they are written and where
they are read back, and a partition of which no record was seen is looked up at the brokers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from keylane.embedded.resolve import Progress, print_progress
from keylane.errors import ConfigInvalid, JobFailed
from keylane.pipeline.audit import rules
from keylane.pipeline.brokers import partitions_with_records
from keylane.pipeline.job import spark_errors
from keylane.pipeline.topic_range import TopicRange, find_range, read_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

SHOWN_MAX: Final = 5
"""Findings of a kind that a verdict lists; all of them are in the Parquet."""
CLEAN, FINDINGS, UNKNOWN = "clean", "findings", "inconclusive"
EXIT_CODES: Final = {CLEAN: 0, FINDINGS: 1, UNKNOWN: 2}
TASKS_PER_CORE: Final = 2
"""Landing needs no order, since reports carry their place: partitions are read in pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """Records to judge. Places are those of `topic_range.find_range`."""

    bootstrap: str
    input_topic: str
    audit_topic: str
    out: Path
    """Folder for `findings` (Parquet) and `verdict.json`; made when it is not there."""
    start: str = "earliest"
    end: str = "latest"
    """Of the input; what is not processed yet lies behind it, or counts as lost."""
    land: Path | None = None
    """Folder for what was read; None for a temporary one."""
    options: Mapping[str, str] = field(default_factory=dict)
    """`kafka.*` options of Spark's source, for TLS, SASL or `kafka.isolation.level`."""


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


@dataclass(slots=True)
class CountedFolder:
    """Parquet in one folder, written once or piece by piece: as many rows come back, or it fails.

    A path without a scheme is another folder on each machine: workers of a cluster write to their
    disks, the driver lists its own disk, and what it finds is empty and without an error. So the
    rows are counted by the tasks that write (`DataFrame.observe`), and again when they are read.
    Invariant: `row_count` is what the tasks have counted since the last overwrite.
    """

    spark: SparkSession
    path: Path
    what: str
    """Name of the rows in an error."""
    option: str
    """Flag that sets the folder."""
    row_count: int = 0
    schema: StructType | None = None

    def write(self, frame: DataFrame) -> None:
        """Replace what the folder holds."""
        self.row_count = 0
        self._put(frame, "overwrite")

    def append(self, frame: DataFrame) -> None:
        """Add to what was written."""
        self._put(frame, "append")

    def read(self) -> DataFrame:
        """The rows that were written.

        Raises:
            JobFailed: more or fewer rows stand there; the text names the folder and the option.
        """
        assert self.schema is not None, "write before reading"
        rows = self.spark.read.schema(self.schema).parquet(str(self.path))
        found = rows.count()  # from the footers of the files
        if found != self.row_count:
            raise JobFailed(
                f"{self.what}: {self.row_count:,} rows were written to {self.path} and"
                f" {found:,} are there: the folder is not shared by all machines of Spark, or"
                f" was changed meanwhile; choose one that is shared, with {self.option}"
            )
        return rows

    def _put(self, frame: DataFrame, mode: str) -> None:
        observed = Observation()
        counted = frame.observe(observed, F.count(F.lit(1)).alias("rows"))
        counted.write.mode(mode).parquet(str(self.path))
        self.row_count += observed.get["rows"]
        self.schema = frame.schema


def run_audit(
    spark: SparkSession, request: AuditRequest, *, progress: Progress = print_progress
) -> Verdict:
    """Judge, and write `request.out`.

    Raises:
        ConfigInvalid: a topic does not exist, no broker answers, or a range is empty.
        JobFailed: Spark failed on the way, or what it wrote is not there to be read.
    """
    written = request.out / "verdict.json"
    written.unlink(missing_ok=True)  # that of an earlier run says nothing about this one
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
        land = request.land
        if land is None:
            land = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keylane-audit-")))
        stack.enter_context(spark_errors("audit"))
        findings = CountedFolder(spark, request.out / "findings", "findings", "--out")
        verdict = _Run(spark, request, wanted, reported, land, progress, findings).judge()
    text = json.dumps(asdict(verdict) | {"version": 1}, indent=2)
    written.write_text(text + "\n", encoding="utf-8")
    return verdict


@dataclass(slots=True)
class _Run:
    """One audit, step by step."""

    spark: SparkSession
    request: AuditRequest
    wanted: TopicRange
    reported: TopicRange
    land: Path
    progress: Progress
    findings: CountedFolder
    reasons: list[str] = field(default_factory=list)

    @property
    def judged(self) -> dict[int, tuple[int, int]]:
        """Offsets [from, to) by partition."""
        return dict(enumerate(zip(self.wanted.starts, self.wanted.ends, strict=True)))

    def judge(self) -> Verdict:
        """Run all steps, in the order in which they need each other."""
        self.request.out.mkdir(parents=True, exist_ok=True)
        self.progress(f"reading {self.reported.offset_count:,} reports")
        parsed = self._land(rules.parse_values(self._read(self.reported)), "reports")
        reports = rules.split_reports(parsed)
        self.progress(f"reading {self.wanted.offset_count:,} offsets of the input")
        bitmaps = rules.offset_bitmaps(
            self._read(self.wanted).select("partition", "offset"), "partition", "offset"
        )
        bitmaps = self._land(bitmaps, "input")
        sessions = self._land(rules.sessions_of(reports), "sessions")
        self._check(parsed, reports, sessions)
        self._check_seen(self.reported, parsed.select("ap").distinct())
        self._check_seen(self.wanted, bitmaps.select("p").distinct())
        self.progress("coverage")
        self.findings.write(rules.lost_findings(self._missing(bitmaps, reports)))
        self.progress("ownership")
        records = reports.records
        # What was landed has a known size: Spark sends what is small to where the records are.
        suspect = self._land(rules.suspect_sessions(sessions, reports.assigned), "suspect")
        if not suspect.isEmpty():
            owned = self._land(rules.ownership_findings(reports, suspect), "owned")
            self.findings.append(owned)
            records = rules.without(records, owned)
        self.progress("order")
        keys = self._land(rules.restless_keys(records), "keys")
        redelivered = 0
        if not keys.isEmpty():
            order = rules.order_findings(records, reports.commits, keys)
            order = self._land(order, "order")
            redelivered = order.where(F.col("kind") == rules.REDELIVERED).count()
            self.findings.append(order.where(F.col("kind") != rules.REDELIVERED))
        self.progress("")
        return self._verdict(bitmaps, parsed, redelivered)

    def _read(self, chosen: TopicRange) -> DataFrame:
        tasks = self.spark.sparkContext.defaultParallelism * TASKS_PER_CORE
        return read_range(self.spark, chosen, min_partitions=max(tasks, chosen.partition_count))

    def _land(self, frame: DataFrame, name: str) -> DataFrame:
        folder = CountedFolder(self.spark, self.land / name, name, "--land")
        folder.write(frame)
        return folder.read()

    def _missing(self, bitmaps: DataFrame, reports: rules.Reports) -> DataFrame:
        """Offsets without a report; and the other way round, which cannot be judged."""
        judged = rules.within(reports.records, self.judged)
        had = self._land(rules.offset_bitmaps(judged, "p", "o"), "had")
        unknown = rules.missing_offsets(had, bitmaps).limit(SHOWN_MAX).collect()
        if unknown:
            first = unknown[0]
            self.reasons.append(
                "reports of offsets that the input does not hold (compacted, or another topic),"
                f" such as partition {first['partition']} offset {first['offset']}"
            )
        return rules.missing_offsets(bitmaps, had)

    def _check(self, parsed: DataFrame, reports: rules.Reports, sessions: DataFrame) -> None:
        """Note what keeps the audit from a verdict."""
        if any(self.reported.starts):
            self.reasons.append(
                f"{self.reported.topic} has lost its oldest reports: it starts at "
                f"{self.reported.starts}"
            )
        bad = parsed.where("bad").count()
        if bad:
            self.reasons.append(f"{bad} records of {self.reported.topic} are no reports")
        misplaced = F.col("ap") != rules.audit_partition_of(self.reported.partition_count)
        starts = F.array(*(F.lit(start) for start in self.wanted.starts))
        stray = F.col("p").between(0, self.wanted.partition_count - 1)
        below = F.col("o") < F.try_element_at(starts, F.col("p") + 1)
        counts = reports.records.agg(
            F.count_if(misplaced).alias("misplaced"),
            F.count_if(~stray).alias("stray"),
            F.count_if(below).alias("below"),
            F.count_if(~F.col("h").between(F.col("lo"), F.col("hi"))).alias("outside"),
        ).first()
        assert counts is not None  # an aggregate without groups has one row
        for name, text in (
            ("misplaced", f"in a partition of {self.reported.topic} that is not their key's"),
            ("stray", f"of partitions that {self.wanted.topic} does not have"),
            ("below", f"of offsets before {self.wanted.starts}, which were not judged"),
            ("outside", "of keys outside of the range that they name: a wrong lane count?"),
        ):
            # Before an explicit start is what was not asked for; before the log start is lost.
            if counts[name] and not (name == "below" and self.request.start != "earliest"):
                self.reasons.append(f"{counts[name]} reports {text}")
        lone = sessions.where("begun_ao is null").agg(F.sum("reports")).first()
        if lone is not None and lone[0]:
            self.reasons.append(f"{lone[0]} reports of sessions without an assignment")

    def _check_seen(self, chosen: TopicRange, partitions: DataFrame) -> None:
        """Note partitions of which no record was seen, although the brokers have some."""
        seen = {row[0] for row in partitions.collect()}
        silent = [
            partition
            for partition, (start, end) in enumerate(zip(chosen.starts, chosen.ends, strict=True))
            if partition not in seen and start < end
        ]
        for partition in partitions_with_records(self.spark, chosen, silent):
            self.reasons.append(
                f"no record of {chosen.topic} partition {partition} was seen, although the brokers"
                f" have some from offset {chosen.starts[partition]} to {chosen.ends[partition]}"
            )

    def _verdict(self, bitmaps: DataFrame, parsed: DataFrame, redelivered: int) -> Verdict:
        findings = self.findings.read()
        found = {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
        counts = {kind: found.get(kind, 0) for kind in rules.KINDS}
        records = bitmaps.agg(F.sum("reports")).first()
        status = FINDINGS if any(counts.values()) else UNKNOWN if self.reasons else CLEAN
        shown: list[Row] = []
        for kind in (kind for kind, count in counts.items() if count):
            some = findings.where(F.col("kind") == kind).orderBy("partition", "offset")
            shown += some.limit(SHOWN_MAX).collect()
        return Verdict(
            status=status,
            counts=counts,
            redelivered=redelivered,
            records=0 if records is None or records[0] is None else records[0],
            reports=parsed.where("k = 'r'").count(),
            judged=self.judged,
            reasons=self.reasons,
            shown=[row.asDict() for row in shown],
        )


def committed_place(committed: Mapping[int, int], topic: str, group: str) -> str:
    """The place that a group has committed to, in the form of `find_range`.

    Raises:
        ConfigInvalid: it has committed nothing of this topic.
    """
    if not committed:
        raise ConfigInvalid(f"group {group} has committed nothing of {topic}")
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(committed.items()))
