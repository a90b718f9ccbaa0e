"""Gauges for /metrics of what the sampler knows of groups: lag as time, and members that are stuck.

Source: Prometheus, "Do not overuse labels".

Two series per group, of the SERIES_MAX that need a look most. A group that could not be looked at
for FRESH_MS has no series: an old figure that stays as it was would look like a quiet group.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from keylane.proxy.control.gauges import LABEL_CHARS_MAX, SERIES_MAX
from keylane.proxy.control.watch.summary import GroupSummary
from keylane.proxy.runtime.stats import GAUGE, Sample

FRESH_MS: Final = 300_000
"""A node looks at each of 2,000 groups of few lanes that have members within this time."""

LAG_S: Final = (
    "Age of the oldest record that a group has not committed, in seconds: by the times at which "
    "its partitions' logs ended there."
)
STUCK: Final = "Members with lag that have committed nothing for a minute."


class SampledGauges:
    """Groups as the sampler has last seen them."""

    def __init__(
        self, summaries: Callable[[], Mapping[str, GroupSummary]], now_ms: Callable[[], int]
    ) -> None:
        """now_ms: gives the time in ms since 1970."""
        self._summaries, self._now_ms = summaries, now_ms

    def samples(self) -> Iterator[Sample]:
        """Yield the numbers. Cost: a microsecond for each group that is known."""
        oldest_ms = self._now_ms() - FRESH_MS
        fresh = [
            each
            for each in self._summaries().values()
            if each.as_of_ms is not None and each.as_of_ms >= oldest_ms
        ]
        reported = heapq.nlargest(SERIES_MAX, fresh, key=_need)
        # Of group ids that differ behind the cut, the one that needs a look most is shown.
        named = {each.group[:LABEL_CHARS_MAX]: each for each in reversed(reported)}
        for name, each in sorted(named.items()):
            if each.lag_s is not None:
                yield Sample("keylane_group_lag_seconds", GAUGE, LAG_S, _of(name), each.lag_s)
        for name, each in sorted(named.items()):
            if each.stuck_members is not None:
                stuck = each.stuck_members
                yield Sample("keylane_group_members_stuck", GAUGE, STUCK, _of(name), stuck)


def _need(summary: GroupSummary) -> tuple[int, float]:
    return summary.stuck_members or 0, summary.lag_s or 0.0


def _of(group: str) -> tuple[tuple[str, str], ...]:
    return (("group", group),)
