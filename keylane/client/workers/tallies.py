"""Counts of the workers: plain numbers, since they change with each record.

`metrics` shows them to Prometheus when it asks.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

WORK_BUCKETS_S: Final = (
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0,
)  # fmt: skip
"""Upper bounds of the histogram: from 100 us, what an attempt in memory takes, to a minute."""


@dataclass(slots=True)
class Tallies:
    """All of them go up only."""

    done: int = 0
    failed_attempts: int = 0
    timeouts: int = 0
    """Of the failed attempts: those over their time."""
    retries: int = 0
    dead_letters: int = 0
    letter_failures: int = 0
    rejected: int = 0
    """At a share group."""
    discarded: int = 0
    """Their partition was lost, or their work cancelled; not done here."""
    commits: int = 0
    commit_failures: int = 0
    work_s: float = 0.0
    work_counts: list[int] = field(default_factory=lambda: [0] * (len(WORK_BUCKETS_S) + 1))
    """Attempts by time; the last is above all bounds."""

    def worked(self, work_s: float) -> None:
        """Count the time of an attempt."""
        self.work_s += work_s
        self.work_counts[bisect_left(WORK_BUCKETS_S, work_s)] += 1
