"""Committed progress of a group by partition: the stable offset, and ranges that are done above it.

Source: KIP draft "Cooperative consumer processing semantic", "Public Interfaces" (the range offsets
of ListConsumerGroupOffsets).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState

RANGES_SHOWN_MAX: Final = 1_000
"""Of one partition; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRangeReport:
    """Offsets that are done, for the keys of one range; all bounds are inclusive."""

    first: int
    last: int
    key_range: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """Progress of the group in one partition of the broker."""

    topic: str
    partition: int
    stable_offset: int
    """Up to and including it everything is done; -1: nothing is."""
    range_count: int
    ranges: tuple[OffsetRangeReport, ...]
    """The first of them, at most a thousand."""


def progress_of(states: Iterable[tuple[StateKey, OffsetState]]) -> tuple[ProgressReport, ...]:
    """Return the progress of a group by topic and partition."""
    reports = [_report(key, state) for key, state in states]
    return tuple(sorted(reports, key=lambda each: (each.topic, each.partition)))


def _report(key: StateKey, state: OffsetState) -> ProgressReport:
    shown = state.keyed_ranges()[:RANGES_SHOWN_MAX]
    return ProgressReport(
        topic=state.topic_name,
        partition=key.partition,
        stable_offset=state.stable_offset,
        range_count=state.range_count,
        ranges=tuple(
            OffsetRangeReport(first=each.first, last=each.last, key_range=(each.lo, each.hi))
            for each in shown
        ),
    )
