"""Scan of a partition by its reader: for each lane, where its last record is.

Theory. No member commits an offset without a record of its lane: the records of other lanes,
control batches, aborted and compacted records. So a lane that is done stands behind the log end
for good, and with it the stable offset. The reader has looked at every offset of the regions kept
here. A position inside a region, above the lane's last record there, has nothing left to read
before the region ends, and counts as standing at that end. Everything that is forgotten or unknown
only makes the answer smaller, so the stable offset comes late, never too early.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from keylane.keyrange.key_split import NO_OUTPUT, KeySplit
from keylane.keyrange.space import KeyRange
from keylane.offsets.intervals import Range, RangeSet

REGION_COUNT_MAX: Final = 64
"""Bound on regions; the tail path of a few lagging lanes makes a handful, 64 is room to spare."""
HOLE_COUNT_MAX: Final = 4096
"""Bound on holes: 64 KiB of bounds; a transactional topic has one control batch per commit."""
NEWS_MAX: Final = 256
"""Scanned blocks that are remembered for states that were settled before; beyond, all is news."""
FEW: Final = 8
"""So many positions are looked at one by one: passes over arrays would cost more."""
NO_RECORD: Final = -1
UNSEEN: Final = 2**63 - 1
"""No output has these keys, so their last record is not known."""


class ScanIndex:
    """Scanned regions of one partition and the last record of each lane inside them.

    One index serves one split. An interval without an output was not looked at: what is there
    holds every position back.
    Single-threaded. Memory: at most REGION_COUNT_MAX * lanes * 8 bytes, and HOLE_COUNT_MAX holes.
    Invariants: regions are not empty, ascending, apart from each other; a lane's last record is
    NO_RECORD or inside its region.
    """

    __slots__ = (
        "_ends", "_holes", "_lasts", "_lows", "_news", "_outputs", "_starts",
        "key_split", "news_count", "output_count", "token",
    )  # fmt: skip

    def __init__(self, key_split: KeySplit) -> None:
        self.key_split = key_split
        self.output_count = key_split.output_count
        self.token = object()
        """Stands for this index where the index itself should not be kept."""
        self.news_count = 0
        """Blocks that were taken in, ever; see `news_since`."""
        self._news: deque[Range] = deque(maxlen=NEWS_MAX)
        self._lows = key_split.lows
        self._outputs = key_split.outputs
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._lasts: list[NDArray[np.int64]] = []
        self._holes = RangeSet()

    def add(
        self,
        start: int,
        end: int,
        last_record_offsets: NDArray[np.int64],
        *,
        holes: Iterable[Range] = (),
    ) -> None:
        """Take in that all offsets of `[start, end)` were looked at.

        last_record_offsets  (output_count,)  int64: the lane's last record there, -1 for none.
        holes: inclusive offset ranges without a record of any lane (control batches, aborted or
        compacted records). Only commits by offset range need them, lanes do without.
        """
        assert last_record_offsets.shape == (self.output_count,), "one last record per lane"
        if end <= start:
            return
        holes = tuple(holes)
        self._note_news(start, end, holes)
        first = bisect_left(self._ends, start)
        stop = bisect_right(self._starts, end)
        lasts = last_record_offsets.astype(np.int64, copy=True)
        for index in range(first, stop):
            np.maximum(lasts, self._lasts[index], out=lasts)
            start, end = min(start, self._starts[index]), max(end, self._ends[index])
        self._starts[first:stop] = [start]
        self._ends[first:stop] = [end]
        self._lasts[first:stop] = [lasts]
        for hole in holes:
            self._holes.add(*hole)
        self._forget(kept=first)

    def effective(self, key_range: KeyRange, offset: int) -> int:
        """Return where a position of `key_range` that stands at `offset` counts as standing.

        Never below `offset`, and never above a record of the range at or after `offset`.
        """
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self._ends[index]:
            return offset
        return self._led_inside(index, self._last_record(index, key_range), offset)

    def effective_at(self, output: int, offset: int) -> int:
        """Same as `effective`, of a position of an output of the split, or of NO_OUTPUT."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self._ends[index]:
            return offset
        last = UNSEEN if output == NO_OUTPUT else int(self._lasts[index][output])
        return self._led_inside(index, last, offset)

    def led(
        self, outputs: NDArray[np.intp], offsets: NDArray[np.int64]
    ) -> NDArray[np.int64] | list[int] | None:
        """Return what `effective_at` gives of each position; None: all of them stay.

        outputs, offsets: (n,) the output that each is of, and where it stands.
        """
        if len(offsets) > FEW:
            led = self.effective_many(outputs, offsets)
            return None if np.array_equal(led, offsets) else led
        here = offsets.tolist()
        there = list(map(self.effective_at, outputs.tolist(), here))
        return None if there == here else there

    def effective_many(
        self, outputs: NDArray[np.intp], offsets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Same as `effective_at`, of many positions.

        outputs  (n,)  output of the split that each position is of, or NO_OUTPUT.
        offsets  (n,)  where each stands.
        Cost: some 10 us, nanoseconds per position, and a search per position in front of a record.
        """
        found = offsets.copy()
        if not self._starts:
            return found
        regions = np.searchsorted(self._starts, found, "right") - 1
        for index in set(regions.tolist()) - {-1}:
            rows = np.flatnonzero((regions == index) & (found < self._ends[index]))
            of_rows = outputs[rows]
            lasts = np.where(of_rows == NO_OUTPUT, UNSEEN, self._lasts[index][of_rows])
            is_done = lasts < found[rows]
            found[rows[is_done]] = self._ends[index]
            if self._holes:
                rest = rows[~is_done]
                found[rest] = [
                    self._led_inside(index, *place)
                    for place in zip(lasts[~is_done].tolist(), found[rest].tolist(), strict=True)
                ]
        return found

    def news_since(self, count: int) -> list[Range] | None:
        """Offsets of blocks taken in since `news_count` was that, `[start, end)`; None: forgotten.

        A position for which `effective` gave itself then is moved now by these only: in front of
        a record of its lane it stays, and where nothing was scanned something has to be.
        """
        if not 0 <= self.news_count - count <= len(self._news):
            return None
        joined: list[Range] = []
        for index in range(len(self._news) - (self.news_count - count), len(self._news)):
            start, end = self._news[index]
            if joined and start <= joined[-1][1] and joined[-1][0] <= end:
                start, end = min(start, joined[-1][0]), max(end, joined[-1][1])
                joined.pop()
            joined.append((start, end))
        return joined

    def knows(self, offset: int) -> bool:
        """Return whether `offset` is in a scanned region, or at the end of one."""
        index = bisect_left(self._ends, offset)
        return index < len(self._ends) and self._starts[index] <= offset

    def has_passed(self, offset: int) -> bool:
        """Return whether what follows `offset` was looked at: it is inside a scanned region.

        A position that stands there has a record of its lane before it, or `effective` moves it.
        """
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]

    def lanes_of(self, key_range: KeyRange) -> list[KeyRange]:
        """Return the parts of `key_range` that lie in one lane each, ascending."""
        first = bisect_right(self._lows, key_range.lo) - 1
        stop = bisect_right(self._lows, key_range.hi)
        lows = [key_range.lo, *self._lows[first + 1 : stop]]
        highs = [*(low - 1 for low in lows[1:]), key_range.hi]
        return [KeyRange(lo=lo, hi=hi) for lo, hi in zip(lows, highs, strict=True)]

    def regions(self) -> list[tuple[int, int]]:
        """Return `(start, end)` of every region, ascending; `end` is exclusive."""
        return list(zip(self._starts, self._ends, strict=True))

    def truncate(self, end: int) -> None:
        """Forget everything at or after `end`: another log goes on there.

        Of a lane whose last record was cut nothing is known but that it has another one before, so
        its region is forgotten as a whole, to be scanned anew. An upper bound in its place would
        stay, and hold the lane's position back for as long as the lane is quiet.
        """
        self._holes.remove_from(end)
        for index in reversed(range(len(self._starts))):
            if self._starts[index] >= end or bool(np.any(self._lasts[index] >= end)):
                self._drop(index)
            elif self._ends[index] > end:
                self._ends[index] = end

    def advance_log_start(self, log_start_offset: int) -> None:
        """Forget everything before `log_start_offset`: retention has deleted it."""
        self._holes.remove_below(log_start_offset)
        for index in reversed(range(len(self._starts))):
            if self._ends[index] <= log_start_offset:
                self._drop(index)
            elif self._starts[index] < log_start_offset:
                self._starts[index] = log_start_offset
                lasts = self._lasts[index]
                lasts[lasts < log_start_offset] = NO_RECORD

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        assert len(self._starts) == len(self._ends) == len(self._lasts) <= REGION_COUNT_MAX
        assert len(self._holes) <= HOLE_COUNT_MAX
        self._holes.check()
        end_before = -1
        for start, end, lasts in zip(self._starts, self._ends, self._lasts, strict=True):
            assert end_before < start < end
            assert bool(np.all((lasts == NO_RECORD) | ((lasts >= start) & (lasts < end))))
            end_before = end

    def _last_record(self, index: int, key_range: KeyRange) -> int:
        first = bisect_right(self._lows, key_range.lo) - 1
        stop = bisect_right(self._lows, key_range.hi)
        lasts = self._lasts[index]
        if self._outputs is None:
            return int(lasts[first] if stop == first + 1 else lasts[first:stop].max())
        outputs = set(self._outputs[first:stop])
        # Of an output with several intervals this may be the last record of another one, which
        # can only hold a position back.
        return UNSEEN if NO_OUTPUT in outputs else max(int(lasts[output]) for output in outputs)

    def _led_inside(self, index: int, last: int, offset: int) -> int:
        """`effective` of a position inside a region, whose lane has its last record at `last`."""
        while last >= offset:
            skipped = min(self._holes.skip(offset), self._ends[index]) if self._holes else offset
            if skipped == offset:
                return offset
            offset = skipped
        return self._ends[index]

    def _note_news(self, start: int, end: int, holes: tuple[Range, ...]) -> None:
        """Take in a block, and holes that it has beyond its ends."""
        start = min([start, *(first for first, _ in holes)])
        end = max([end, *(last + 1 for _, last in holes)])
        self._news.append((start, end))
        self.news_count += 1

    def _forget(self, *, kept: int) -> None:
        """Keep the bounds: drop the shortest region but `kept`, and the lowest holes."""
        if len(self._starts) > REGION_COUNT_MAX:
            sizes = [end - start for start, end in self.regions()]
            self._drop(min((i for i in range(len(sizes)) if i != kept), key=sizes.__getitem__))
        excess = len(self._holes) - HOLE_COUNT_MAX
        if excess > 0:
            firsts = [first for first, _ in self._holes]
            self._holes.remove_below(firsts[excess])

    def _drop(self, index: int) -> None:
        del self._starts[index], self._ends[index], self._lasts[index]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The pieces that intervals of a map and lanes of a split cut the hash space into.

    All arrays are (pieces,).
    """

    starts: list[int]
    """First hash of each interval."""
    key_split: KeySplit
    bounds: list[int]
    """First hash of each piece."""
    places: NDArray[np.intp] | None
    """Interval of the map that it is of; None: pieces are intervals, as a rule."""
    outputs: NDArray[np.intp]
    """Output of the split that reads it, or NO_OUTPUT."""

    @classmethod
    def of(cls, starts: list[int], key_split: KeySplit) -> Grid:
        """Cost: 0.1 ms at 1,024 lanes; it stays for as long as no interval comes or goes."""
        own = np.array(starts, np.int64)
        lows = np.concatenate(([0], key_split.limits[:-1].astype(np.int64)))
        bounds = np.union1d(own, lows)
        lanes = np.searchsorted(lows, bounds, "right") - 1
        outputs = lanes if key_split.outputs is None else key_split.output_of[lanes]
        places = None if len(bounds) == len(own) else np.searchsorted(own, bounds, "right") - 1
        return cls(starts, key_split, bounds.tolist(), places, outputs.astype(np.intp))
