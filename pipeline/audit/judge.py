"""Judge reports and the offsets of their input: an audit without Kafka, on DataFrames alone.

Where both were read, and whether all of them were, is the caller's affair: `audit.job` reads
Kafka, and compares what came with Kafka's offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from keylane.embedded.resolve import Progress
from keylane.pipeline.audit import rules
from keylane.pipeline.audit.seen import recount
from keylane.pipeline.job import hold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from keylane.pipeline.topic_range import TopicRange

SHOWN_MAX: Final = 5
"""Findings of a kind that a verdict lists; all of them are in the Parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFindings:
    """Result of a `Judge`."""

    findings: DataFrame
    """Rows of `rules.FINDING_COLUMNS`; held until the judge's stack ends."""
    counts: Mapping[str, int]
    """Findings by kind, and `redelivered`; kinds without one are missing."""
    reports: Mapping[str, int]
    """Sums of `rules.sum_tallies`."""


@dataclass(slots=True, kw_only=True)
class Judge:
    """One audit, step by step. Both ranges are names and offsets here: no broker is asked."""

    wanted: TopicRange
    """Of the input."""
    reported: TopicRange
    """Of the audit topic."""
    starts_early: bool = True
    """True: reports before `wanted` are of records that the input has lost."""
    stack: ExitStack
    """Releases at its end what is held."""
    progress: Progress
    reasons: list[str] = field(default_factory=list)
    """Reasons for which not all can be judged."""

    def judge(self, parsed: DataFrame, bitmaps: DataFrame) -> AuditFindings:
        """Run all steps, in the order in which they need each other.

        `parsed` are `rules.parse_values` without `v` and `t`, `bitmaps` the
        `rules.offset_bitmaps` of the input. Each is read several times, so both are to be held.
        """
        reports = rules.split_reports(parsed)
        tallies = hold(
            rules.tallies_of(parsed, self.reported.partition_count, self.wanted.starts), self.stack
        )
        counts = rules.sum_tallies(tallies, self.wanted.partition_count)
        self._check_reports(counts)
        self.progress("coverage")
        lost = rules.lost_findings(self._missing(bitmaps, reports))
        self.progress("ownership")
        sessions = hold(rules.sessions_of(tallies, reports.assigned), self.stack)
        self._check_sessions(sessions)
        found = hold(self._judge_records(reports, sessions, lost), self.stack)
        kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        self.reasons += recount(self.reported.topic, counts["rows"], parsed.count())
        findings = found.where(F.col("kind") != rules.REDELIVERED)
        return AuditFindings(findings=findings, counts=kinds, reports=counts)

    def _judge_records(
        self, reports: rules.Reports, sessions: DataFrame, found: DataFrame
    ) -> DataFrame:
        """`found` with the findings of ownership and order, and what was delivered again."""
        records = reports.records
        # What is held has a known size: Spark sends what is small to where the records are.
        suspect = hold(rules.suspect_sessions(sessions, reports.assigned), self.stack)
        if not suspect.isEmpty():
            owned = hold(rules.ownership_findings(reports, suspect), self.stack)
            found = found.unionAll(owned)
            records = rules.without(records, owned)
        self.progress("order")
        keys = hold(rules.restless_keys(records), self.stack)
        if not keys.isEmpty():
            found = found.unionAll(rules.order_findings(records, reports.commits, keys))
        return found

    def _missing(self, bitmaps: DataFrame, reports: rules.Reports) -> DataFrame:
        """Offsets without a report; and the other way round, which cannot be judged."""
        judged = rules.within(reports.records, self.wanted.starts, self.wanted.ends)
        had = hold(rules.offset_bitmaps(judged, "p", "o"), self.stack)
        unknown = rules.missing_offsets(had, bitmaps).limit(SHOWN_MAX).collect()
        if unknown:
            first = unknown[0]
            self.reasons.append(
                "reports of offsets that the input does not hold (compacted, or another topic),"
                f" such as partition {first['partition']} offset {first['offset']}"
            )
        return rules.missing_offsets(bitmaps, had)

    def _check_reports(self, counts: Mapping[str, int]) -> None:
        """Note what keeps the reports from a verdict."""
        if any(self.reported.starts):
            self.reasons.append(
                f"{self.reported.topic} has lost its oldest reports: it starts at "
                f"{self.reported.starts}"
            )
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
            if counts[name] and (name != "below" or self.starts_early):
                self.reasons.append(f"{counts[name]} {text}")

    def _check_sessions(self, sessions: DataFrame) -> None:
        lone = sessions.where("begun_ao is null").agg(F.sum("reports")).first()
        if lone is not None and lone[0]:
            self.reasons.append(f"{lone[0]} reports of sessions without an assignment")
