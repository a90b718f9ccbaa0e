"""Run an audit: read both topics once, have them judged, write findings and a verdict.

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

from keylane.embedded.resolve import Progress, print_progress
from keylane.errors import ConfigInvalid
from keylane.pipeline.audit import rules
from keylane.pipeline.audit.findings import write_findings
from keylane.pipeline.audit.judge import SHOWN_MAX, AuditFindings, Judge
from keylane.pipeline.audit.seen import SeenRecords, compare, report_doubts
from keylane.pipeline.brokers import check_readable
from keylane.pipeline.job import hold, spark_errors
from keylane.pipeline.storage import Folder, open_folder, require_shared
from keylane.pipeline.topic_range import (
    TopicRange,
    changes_since,
    count_tasks,
    find_range,
    read_range,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        verdict = _Run(spark, request, wanted, reported, out, land, progress, stack).run()
    text = json.dumps(asdict(verdict) | {"version": 1}, indent=2)
    out.write("verdict.json", f"{text}\n".encode())
    return verdict


@dataclass(slots=True)
class _Run:
    """One audit: read both topics, compare with Kafka's offsets, have them judged."""

    spark: SparkSession
    request: AuditRequest
    wanted: TopicRange
    reported: TopicRange
    out: Folder
    land: Folder | None
    progress: Progress
    stack: ExitStack
    """Releases at its end what is held."""

    def run(self) -> Verdict:
        """Return the verdict; its findings are written."""
        self.progress(f"reading {self.wanted.offset_count:,} offsets of the input")
        offsets = self._read(self.wanted).select("partition", "offset")
        bitmaps = self._hold_read(rules.offset_bitmaps(offsets, "partition", "offset"), "input")
        seen = compare(self.spark, self.wanted, bitmaps)
        self.progress(f"reading {self.reported.offset_count:,} reports")
        values = self._read(self.reported).select("partition", "offset", "value")
        parsed = self._hold_read(rules.parse_values(values).drop("v", "t"), "reports")
        judge = Judge(
            wanted=self.wanted,
            reported=self.reported,
            starts_early=self.request.start == "earliest",
            stack=self.stack,
            progress=self.progress,
        )
        judged = judge.judge(parsed, bitmaps)
        reasons = [*judge.reasons, *seen.doubts]
        if judged.reports["rows"] != self.reported.offset_count:
            bitmaps = rules.offset_bitmaps(parsed, "ap", "ao")
            reasons += report_doubts(self.spark, self.reported, bitmaps)
        for chosen in (self.wanted, self.reported):
            reasons += changes_since(self.spark, chosen)
        self.progress("findings")
        verdict = self._verdict(judged, seen, reasons)
        write_findings(judged.findings, self.out, sum(verdict.counts.values()))
        self.progress("")
        return verdict

    def _read(self, chosen: TopicRange) -> DataFrame:
        tasks = self.spark.sparkContext.defaultParallelism * TASKS_PER_CORE
        return read_range(self.spark, chosen, min_partitions=max(tasks, count_tasks(chosen)))

    def _hold_read(self, frame: DataFrame, name: str) -> DataFrame:
        """Rows that were read of Kafka: held, or in the folder that is to keep it."""
        if self.land is None:
            return hold(frame, self.stack)
        uri = self.land.child(name).uri
        frame.write.mode("overwrite").parquet(uri)
        return self.spark.read.schema(frame.schema).parquet(uri)

    def _verdict(self, judged: AuditFindings, seen: SeenRecords, reasons: Sequence[str]) -> Verdict:
        counts = {kind: judged.counts.get(kind, 0) for kind in rules.KINDS}
        is_faulty = any(counts.values())
        status = FINDINGS if is_faulty else UNKNOWN if reasons else CLEAN
        shown = rules.first_findings(judged.findings, SHOWN_MAX).collect() if is_faulty else []
        return Verdict(
            status=status,
            counts=counts,
            redelivered=judged.counts.get(rules.REDELIVERED, 0),
            records=seen.records,
            holes=seen.holes,
            reports=judged.reports["records"],
            judged=dict(enumerate(zip(self.wanted.starts, self.wanted.ends, strict=True))),
            reasons=reasons,
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
