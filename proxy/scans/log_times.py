"""Times at which records came into a log: the lag of a lane in seconds.

In: the log's ends at some times.

Source: kafka-lag-exporter, which interpolates between a group's offsets as well; exponential
histograms (Datar, Gionis, Indyk, Motwani 2002) for the spacing of points.

    time     t0 ......... t1 .. t2                     points of one partition
    log end  e0 ......... e1 .. e2
    offset         ^ came between t0 and t1, as evenly as offsets lie between e0 and e1

Timestamps of records are not used: producers choose them, and a load of old records has old ones.
Points lie the wider apart the older they are, so the error of an age stays a part of that age.
"""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from keylane.bounded import BoundedDict

POINTS_MAX: Final = 64
"""Points of one partition, 16 bytes each: 1 KiB."""
POINTS_KEPT: Final = 48
"""Points after thinning out."""
FRACTION_MIN: Final = 1 / 16
"""A point is dropped where its neighbours are no wider apart than this part of their age."""
PARTITIONS_MAX: Final = 20_000
"""Partitions that are known, 25 MB; the longest unseen are forgotten first."""
EXACT_S: Final = 15.0
"""Width between two points, up to which an age counts as exact; samples are 10 s apart at most."""

Place = tuple[uuid.UUID, int]
"""Topic id and partition."""


@dataclass(frozen=True, slots=True)
class Age:
    """Time since a record came into the log."""

    seconds: float
    is_exact: bool
    """False: an estimate, or a lower bound."""


class PartitionTimes:
    """Times and log ends of one partition.

    Invariants: times ascend; ends never descend; at most POINTS_MAX points.
    """

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times, self._ends = array("d"), array("q")

    def note(self, now_s: float, end: int) -> None:
        """Note the log's end at a time. One that comes late, or is lower, cuts what it denies."""
        times, ends = self._times, self._ends
        if times and now_s <= times[-1]:
            return
        while ends and ends[-1] > end:  # a new leader has cut the log
            times.pop()
            ends.pop()
        if len(ends) > 1 and ends[-1] == ends[-2] == end:
            times[-1] = now_s  # nothing came: two points say so for any time
            return
        times.append(now_s)
        ends.append(end)
        if len(times) > POINTS_MAX:
            self._thin_out()

    @property
    def end(self) -> int:
        """Return the log's end at the last point; -1: there is none."""
        return self._ends[-1] if self._ends else -1

    @property
    def noted_s(self) -> float:
        """Return the time of the last point."""
        return self._times[-1] if self._times else float("-inf")

    def age(self, offset: int, now_s: float) -> Age | None:
        """Return how long ago the record at an offset came; None: nothing is known of the log.

        An offset at or behind the last end has not come, as far as is known: its age is 0.
        """
        times, ends = self._times, self._ends
        if not times:
            return None
        place = bisect_right(ends, offset)
        if place == len(ends):
            return Age(0.0, is_exact=True)
        if place == 0:
            return Age(max(0.0, now_s - times[0]), is_exact=False)
        since_s, until_s = times[place - 1], times[place]
        first, end = ends[place - 1], ends[place]
        came_s = since_s + (until_s - since_s) * (offset - first + 0.5) / (end - first)
        is_exact = until_s - since_s <= EXACT_S
        return Age(max(0.0, now_s - came_s), is_exact)

    def _thin_out(self) -> None:
        fraction = FRACTION_MIN
        while len(self._times) > POINTS_KEPT:
            self._drop_points(fraction)
            fraction *= 2

    def _drop_points(self, fraction: float) -> None:
        """Drop each second point whose neighbours are close, going back; ends stay."""
        times, newest_s = self._times, self._times[-1]
        kept, place = [len(times) - 1], len(times) - 2
        while place > 0:
            next_s = times[kept[-1]]
            if next_s - times[place - 1] > fraction * (newest_s - next_s):
                kept.append(place)
                place -= 1
            else:
                kept.append(place - 1)
                place -= 2
        if kept[-1] != 0:
            kept.append(0)
        kept.reverse()
        self._times = array("d", [times[each] for each in kept])
        self._ends = array("q", [self._ends[each] for each in kept])

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert len(self._times) == len(self._ends) <= POINTS_MAX
        assert all(low < high for low, high in pairwise(self._times))
        assert all(low <= high for low, high in pairwise(self._ends))


class LogTimes:
    """The log ends of partitions over time. Event loop only."""

    def __init__(self, *, partitions_max: int = PARTITIONS_MAX) -> None:
        self._by_place: BoundedDict[Place, PartitionTimes] = BoundedDict(partitions_max)

    def note(self, ends: Mapping[Place, int], now_s: float) -> None:
        """Note log ends that brokers have just said."""
        for place, end in ends.items():
            times = self._by_place.use(place)
            if times is None:
                times = self._by_place[place] = PartitionTimes()
            times.note(now_s, end)

    def age(self, place: Place, offset: int, now_s: float) -> Age | None:
        """Return how long ago the record at an offset came; None: not known."""
        times = self._by_place.get(place)
        return None if times is None else times.age(offset, now_s)

    def end(self, place: Place) -> int:
        """Return the last known end of a log; -1: not known."""
        times = self._by_place.get(place)
        return -1 if times is None else times.end

    def noted_s(self, place: Place) -> float:
        """Return when the end was last noted."""
        times = self._by_place.get(place)
        return float("-inf") if times is None else times.noted_s
