"""Lanes of a group, described by what readers, offset states and samples know of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from keylane.assignor.model import Lane
from keylane.offsets.values import NO_OFFSET
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.control.watch.log_ends import LogEndBook
from keylane.proxy.control.watch.progress import ProgressBook
from keylane.proxy.scans.lag import LaneTallies, Remaining
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.view import View

Misplaced = Callable[[uuid.UUID], Mapping[int, int]]
"""Gives the offset of the first record in another partition than its key's, by partition."""
LANES_AT_ONCE: Final = 256
"""Lanes that are looked at, some 5 ms, before others are served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneReport:
    """One lane of the group."""

    topic: str
    lane_index: int
    partition: int
    key_range: tuple[int, int]
    """Inclusive bounds in the hash space."""
    member_id: str | None
    committed: int | None
    """Place where a member that takes the lane over starts; None: nothing was ever committed."""
    committed_ms: int | None
    """Time when a member last committed the lane, in ms since 1970; None: not since this start."""
    log_end: int
    lag: int | None
    """Records of the lane from `committed` to the log end; None without a commit."""
    lag_is_exact: bool
    """False: `lag` is an estimate, or there is none."""
    offset_lag: int | None
    """Offsets from `committed` to the log end, those of other lanes too: what Kafka calls lag."""
    bytes_per_s: float | None
    records_per_s: float | None
    lag_s: float | None = None
    """Seconds since the first record that is not done came into the log; 0 without lag."""
    lag_s_is_exact: bool = False
    """False: `lag_s` is an estimate or a lower bound, or there is none."""
    consumed_per_s: float | None = None
    """Records that are done per second, by commits; None: two samples are needed."""


class LaneMeasures(NamedTuple):
    """Parts that know how fast lanes are, and how far behind."""

    loads: LaneLoads
    tallies: LaneTallies
    misplaced: Misplaced
    log_ends: LogEndBook
    progress: ProgressBook


class LaneDescriber:
    """Describes the lanes of a view. Cost: 20 microseconds per lane."""

    def __init__(self, groups: GroupOffsets, measures: LaneMeasures) -> None:
        self._groups = groups
        self._loads, self._tallies = measures.loads, measures.tallies
        self._ends, self._progress = measures.log_ends, measures.progress

    async def describe(
        self, group: str, view: View, owners: Mapping[Lane, str]
    ) -> list[LaneReport]:
        """Return the lanes of a group, ascending. owners: member ids. Raises: UpstreamLost."""
        ends = await self._log_ends(view)
        bytes_per_s, records_per_s = self._loads.bytes_per_s(view), self._loads.records_per_s(view)
        progress, now_s = self._progress.of(group), time.monotonic()
        times, topic = self._groups.commit_times, (view.topic_id, view.name)
        reports = []
        for index in range(view.layout.index_count):
            if index % LANES_AT_ONCE == 0:
                await asyncio.sleep(0)  # clients are served between so many lanes
            partition = view.partition_of(index)
            end = ends[partition]
            committed = self._committed(group, view, index)
            left, lag_s, is_sure = None, None, False
            if committed is not None:
                left = self._tallies.remaining(view, index, committed, end)
                lag_s, is_sure = self._age(view, index, committed, left, now_s)
            (key_range,) = view.key_ranges(index)
            reports.append(
                LaneReport(
                    topic=view.name,
                    lane_index=index,
                    partition=partition,
                    key_range=(key_range.lo, key_range.hi),
                    member_id=owners.get((view.name, index)),
                    committed=committed,
                    committed_ms=times.last_ms(group, topic, index),
                    log_end=end,
                    lag=left.count if left is not None else None,
                    lag_is_exact=left is not None and left.is_exact,
                    offset_lag=None if committed is None else max(0, end - committed),
                    bytes_per_s=bytes_per_s.get(index),
                    records_per_s=records_per_s.get(index),
                    lag_s=lag_s,
                    lag_s_is_exact=is_sure,
                    consumed_per_s=_rounded(progress.done_per_s(view.name, index)),
                )
            )
        return reports

    async def _log_ends(self, view: View) -> list[int]:
        """Return the log ends by partition; blocks scanned since the broker was asked count."""
        ends = await self._ends.ends_of(view)
        return [
            max(end, self._tallies.scanned_end(view, partition))
            for partition, end in enumerate(ends)
        ]

    def _committed(self, group: str, view: View, index: int) -> int | None:
        (key_range,) = view.key_ranges(index)
        state = self._groups.state_of(group, view, view.partition_of(index))
        offset = state.position_of(key_range).offset if state is not None else NO_OFFSET
        return None if offset == NO_OFFSET else offset

    def _age(
        self, view: View, index: int, committed: int, left: Remaining, now_s: float
    ) -> tuple[float | None, bool]:
        """Return the lag in seconds, and whether it is exact."""
        if left.count == 0:
            return 0.0, left.is_exact
        place = (view.topic_id, view.partition_of(index))
        first = self._tallies.first_open(view, index, committed)
        age = self._ends.times.age(place, first, now_s)
        return (None, False) if age is None else (round(age.seconds, 1), age.is_exact)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


class CountedRecords:
    """Records of lanes by the tallies; see `progress.LaneRecords`."""

    def __init__(self, view_of: Callable[[str], View | None], tallies: LaneTallies) -> None:
        self._view_of, self._tallies = view_of, tallies

    def count(self, topic: str, index: int, start: int, end: int) -> int:
        """Return the records of a lane in `[start, end)`; 0 where the topic is gone."""
        view = self._view_of(topic)
        return 0 if view is None else self._tallies.remaining(view, index, start, end).count

    def has_records(self, topic: str, index: int, start: int) -> bool:
        """Return whether a record of a lane was surely met at or behind an offset."""
        view = self._view_of(topic)
        return view is not None and self._tallies.has_records(view, index, start)
