"""Records of each lane behind an offset: the lag of a group.

Source: exponential histograms (Datar, Gionis, Indyk, Motwani 2002): cells may be the larger the
more records follow them, so that an error stays small beside the lag that it is in.

Kafka's own lag of a lane counts offsets, those of other lanes and of control batches too. Here
records are counted, from the headers of lane batches. A cell holds how many records of one lane
are between its first offset and its last record. Small batches of a block are joined to one, and
another block that holds them may join them otherwise; `add` sees to it that none counts twice.

The count behind a position is exact where every offset up to the log's end was scanned and no cell
is cut by the position; where a cell is cut, its records are taken as evenly spread, and where
nothing was scanned, as dense as elsewhere. Records that were aborted count, as they are sent; so do
records that were compacted away since.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from keylane.keyrange.key_split import PartitionSplit
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.split_table import SplitTable
from keylane.proxy.topics.view import View

CELLS_MAX: Final = 64
"""Cells of one lane of one partition, 24 bytes each: 1.5 KiB."""
CELLS_KEPT: Final = 48
"""Cells after thinning out; what is left makes room for some blocks before the next time."""
FRACTION_MIN: Final = 1 / 64
"""A cell is joined with its neighbour while it has less than this of the records behind it."""
BLOCK_CELLS: Final = 4
"""Cells that one block (some MiB) adds to a lane at most."""
REGIONS_MAX: Final = 16
"""Scanned regions of a partition; less than CELLS_KEPT, since cells never span two."""
LANES_MAX: Final = 50_000
"""Lanes that are counted, 77 MiB; the longest unread partitions are forgotten first."""

Cell = tuple[int, int, int]
"""(first offset that may be a record's, offset of the last record, records)."""
Gap = tuple[int, int]
"""Offsets `[start, end)` that were not scanned."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """Records of one lane from a position to the log's end."""

    count: int
    is_exact: bool
    """False: an estimate."""


class _Cells:
    """The cells of one lane, ascending and apart."""

    __slots__ = ("counts", "firsts", "lasts")

    def __init__(self, cells: Sequence[Cell] = ()) -> None:
        self.firsts = array("q", [cell[0] for cell in cells])
        self.lasts = array("q", [cell[1] for cell in cells])
        self.counts = array("q", [cell[2] for cell in cells])

    def __len__(self) -> int:
        return len(self.firsts)

    def items(self) -> list[Cell]:
        """Return all cells, ascending."""
        return list(zip(self.firsts, self.lasts, self.counts, strict=True))

    def begin_of(self, offset: int) -> int:
        """Return the first offset of the cell that `offset` cuts in two; `offset` for none."""
        place = bisect_left(self.lasts, offset)
        return min(offset, self.firsts[place]) if place < len(self.firsts) else offset

    def insert_rest(self, cell: Cell, gap: Gap) -> None:
        """Put in the new part of a cell that reaches beyond the gap: the rest is here already."""
        first, last, count = cell
        low, high = bisect_left(self.firsts, first), bisect_left(self.firsts, last + 1)
        count -= sum(self.counts[low:high])
        if count <= 0:
            return
        first = max(first, gap[0])
        place = bisect_left(self.firsts, gap[1])
        if last < gap[1] or place >= high:
            self.insert((first, min(last, gap[1] - 1), count))
            return
        # Its last record in the gap is not known; that of the next cell is.
        self.firsts[place] = first
        self.counts[place] += count

    def insert(self, cell: Cell) -> None:
        """Put a cell in its place; the common one is the last."""
        columns = (self.firsts, self.lasts, self.counts)
        place = bisect_left(self.firsts, cell[0])
        for column, value in zip(columns, cell, strict=True):
            column.insert(place, value)


NO_CELLS: Final = _Cells()
"""The cells of all lanes without a record: most lanes of a name that a client has chosen."""


class PartitionTally:
    """Counts of the records of each lane in the scanned regions of one partition.

    Memory: at most CELLS_MAX * 24 bytes per lane, REGIONS_MAX regions.
    Invariants: regions are not empty, ascending and apart; a cell lies in one region, holds a
    record at least, and not more than it has offsets; the cells of a lane are apart.
    """

    def __init__(self, lane_count: int) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._lanes = [NO_CELLS] * lane_count

    @property
    def scanned_end(self) -> int:
        """Return the offset behind the last one that was scanned, 0 for none."""
        return self._ends[-1] if self._ends else 0

    def gaps(self, start: int, end: int) -> list[Gap]:
        """Return the gaps in `[start, end)`, ascending: offsets that were not scanned."""
        found = []
        for place in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[place] >= end:
                break
            if self._starts[place] > start:
                found.append((start, self._starts[place]))
            start = self._ends[place]
        return [*found, (start, end)] if start < end else found

    def add(self, gap: Gap, lanes: Sequence[Sequence[Cell]]) -> None:
        """Fill a gap with the cells that were scanned there.

        lanes: cells of every lane, ascending. A cell may reach beyond the gap, since small batches
        are joined in each block anew: then its known part is taken off. Where that part is unknown,
        its part of the gap stays a gap. Cost: a microsecond per cell.
        """
        start, end = self._known_part(gap, lanes)
        if end <= start:
            return
        for lane, (cells, added) in enumerate(zip(self._lanes, lanes, strict=True)):
            if added and cells is NO_CELLS:
                cells = self._lanes[lane] = _Cells()
            for first, last, count in added:
                if start <= first and last < end:
                    cells.insert((first, last, count))
                elif first < end and start <= last:
                    cells.insert_rest((first, last, count), gap)
        kept = self._join_regions(start, end)
        if len(self._starts) > REGIONS_MAX:
            sizes = [stop - begin for begin, stop in zip(self._starts, self._ends, strict=True)]
            others = (place for place in range(len(sizes)) if place != kept)
            self._forget(min(others, key=sizes.__getitem__))
        for lane, cells in enumerate(self._lanes):
            if len(cells) > CELLS_MAX:
                self._lanes[lane] = self._thin_out(cells)

    def _known_part(self, gap: Gap, lanes: Sequence[Sequence[Cell]]) -> Gap:
        """Return the part of a gap without cut cells, or with one whose other records are known."""
        start, end = gap
        is_settled = False
        while not is_settled and start < end:
            is_settled = True
            for known, added in zip(self._lanes, lanes, strict=True):
                for first, last, _ in added:
                    if last < start or end <= first or (start <= first and last < end):
                        continue
                    inside = (max(first, start), min(last + 1, end))
                    is_known = self.gaps(first, last + 1) == [inside]
                    cuts_none = all(known.begin_of(at) == at for at in (first, last + 1))
                    if is_known and cuts_none:
                        continue
                    start, end = (last + 1, end) if first < start else (start, first)
                    is_settled = False
        return start, end

    def remaining(self, lane: int, start: int, end: int) -> Remaining:
        """Count the records of a lane in `[start, end)`, where `end` is the log's end."""
        cells = self._lanes[lane]
        missing = sum(stop - begin for begin, stop in self.gaps(start, end))
        count, is_exact = 0, not missing
        for first, last, records in reversed(cells.items()):
            if last < start:
                break
            if first >= start or records == 1:
                count += records
                continue
            # The last record is behind the position for sure; the others lie evenly before it.
            span, left = last - first, last - start
            count += 1 + (records - 1) * left // span
            is_exact = is_exact and records == span + 1
        count += round(missing * self._density(cells))
        return Remaining(min(count, max(0, end - start)), is_exact)

    def last_record(self, lane: int) -> int:
        """Return the offset of the last record of a lane that was met; -1: there was none."""
        cells = self._lanes[lane]
        return cells.lasts[-1] if cells else -1

    def first_open(self, lane: int, start: int) -> int:
        """Return the first offset at or behind `start` that may hold a record of a lane.

        Gaps of the lane are passed as far as they were scanned.
        """
        cells = self._lanes[lane]
        place = bisect_left(cells.lasts, start)
        if place == len(cells):
            place_end = bisect_right(self._starts, start) - 1
            is_scanned = place_end >= 0 and start < self._ends[place_end]
            return self._ends[place_end] if is_scanned else start
        first = cells.firsts[place]
        return first if first > start and not self.gaps(start, first) else start

    def truncate(self, end: int) -> None:
        """Forget what is at or behind `end`, where a new leader has cut the log."""
        # The number of records that are left of a cut cell is unknown: the cell goes as a whole,
        # and may cut cells of other lanes with it.
        while (lower := min((cells.begin_of(end) for cells in self._lanes), default=end)) < end:
            end = lower
        for lane, cells in enumerate(self._lanes):
            left = [cell for cell in cells.items() if cell[1] < end]
            self._lanes[lane] = _Cells(left) if left else NO_CELLS
        for place in reversed(range(len(self._starts))):
            self._ends[place] = min(self._ends[place], end)
            if self._starts[place] >= end:
                del self._starts[place], self._ends[place]

    def advance_log_start(self, log_start_offset: int) -> None:
        """Forget regions that retention has deleted."""
        while self._ends and self._ends[0] <= log_start_offset:
            self._forget(0)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert len(self._starts) == len(self._ends) <= REGIONS_MAX
        bounds = [at for region in zip(self._starts, self._ends, strict=True) for at in region]
        assert all(low < high for low, high in pairwise(bounds))
        assert not len(NO_CELLS)
        for cells in self._lanes:
            assert len(cells) <= CELLS_MAX
            before = -1
            for first, last, count in cells.items():
                assert before < first <= last and 1 <= count <= last - first + 1
                place = bisect_right(self._starts, first) - 1
                assert place >= 0 and last < self._ends[place]
                before = last

    def _density(self, cells: _Cells) -> float:
        """Return records of a lane per offset; lanes share equally where nothing was scanned."""
        scanned = sum(self._ends) - sum(self._starts)
        return sum(cells.counts) / scanned if scanned else 1 / len(self._lanes)

    def _join_regions(self, start: int, end: int) -> int:
        """Add `[start, end)` to the regions; return the place of the region that holds it."""
        first = bisect_left(self._ends, start)
        stop = bisect_right(self._starts, end)
        if first < stop:
            start, end = min(start, self._starts[first]), max(end, self._ends[stop - 1])
        self._starts[first:stop] = [start]
        self._ends[first:stop] = [end]
        return first

    def _forget(self, place: int) -> None:
        """Drop a region with its cells."""
        start, end = self._starts.pop(place), self._ends.pop(place)
        for cells in self._lanes:
            low, high = bisect_left(cells.firsts, start), bisect_left(cells.firsts, end)
            for column in (cells.firsts, cells.lasts, cells.counts):
                del column[low:high]

    def _thin_out(self, cells: _Cells) -> _Cells:
        """Join neighbours, the older the more, until CELLS_KEPT are left at most.

        With a fraction that is large enough only the newest cell of all and one per region are
        left, so this ends.
        """
        items, fraction = cells.items(), FRACTION_MIN
        while len(items) > CELLS_KEPT:
            items = self._join_cells(items, fraction)
            fraction *= 2
        return _Cells(items)

    def _join_cells(self, items: Sequence[Cell], fraction: float) -> list[Cell]:
        joined: list[Cell] = []
        behind, region_start = 0, -1
        for first, last, count in reversed(items):
            if joined and first >= region_start:
                next_first, next_last, next_count = joined[-1]
                if count + next_count <= fraction * (behind - next_count):
                    joined[-1] = (first, next_last, count + next_count)
                    behind += count
                    continue
                assert last < next_first, "cells are apart"
            else:
                region_start = self._starts[bisect_right(self._starts, first) - 1]
            joined.append((first, last, count))
            behind += count
        return joined[::-1]


class LaneTallies(SplitTable[PartitionTally]):
    """The tallies of all partitions that this process reads."""

    def __init__(self) -> None:
        super().__init__(LANES_MAX)

    def on_scanned(self, block: ScannedBlock) -> None:
        """Count a block that a reader has split. Cost: 10 microseconds per lane with records."""
        tally = self.of(block.at)
        tally.advance_log_start(block.log_start_offset)
        gaps = tally.gaps(block.start, block.end)
        if not gaps:
            return  # read again: for another group, or for a lane that was late
        is_new = gaps == [(block.start, block.end)]
        lanes = [_cells_of(part, is_joined=is_new) for part in block.outputs]
        for gap in gaps:
            tally.add(gap, lanes)

    def scanned_end(self, view: View, partition: int) -> int:
        """Return the offset behind the last one that was scanned, 0 for none."""
        tally = self._by_split.get(view.partition_split(partition))
        return tally.scanned_end if tally is not None else 0

    def remaining(self, view: View, index: int, start: int, end: int) -> Remaining:
        """Return the records of a lane (by lane index) in `[start, end)`; `end`: the log's end."""
        partition = view.partition_of(index)
        tally = self._by_split.get(view.partition_split(partition))
        tally = tally or PartitionTally(view.layout.lane_count)
        return tally.remaining(view.output_of(index), start, end)

    def first_open(self, view: View, index: int, start: int) -> int:
        """Return the first offset at or behind `start` that may hold a record of a lane."""
        tally = self._by_split.get(view.partition_split(view.partition_of(index)))
        return start if tally is None else tally.first_open(view.output_of(index), start)

    def has_records(self, view: View, index: int, start: int) -> bool:
        """Return whether a record of a lane was surely met at or behind an offset."""
        tally = self._by_split.get(view.partition_split(view.partition_of(index)))
        return tally is not None and tally.last_record(view.output_of(index)) >= start

    def _make(self, key: PartitionSplit) -> PartitionTally:
        return PartitionTally(key.key_split.output_count)


def _cells_of(part: Any, *, is_joined: bool) -> Sequence[Cell]:
    """Return cells of a lane's slice: one per batch, or BLOCK_CELLS of joined batches."""
    if part is None or not part.record_count:
        return ()
    counts, firsts, lasts = part.record_counts, part.base_offsets, part.last_record_offsets
    kept = counts > 0
    if not kept.all():
        counts, firsts, lasts = counts[kept], firsts[kept], lasts[kept]
    if len(counts) > BLOCK_CELLS and is_joined:
        cuts = np.arange(BLOCK_CELLS) * len(counts) // BLOCK_CELLS
        lasts = lasts[np.append(cuts[1:], len(counts)) - 1]
        firsts, counts = firsts[cuts], np.add.reduceat(counts, cuts)
    return list(zip(firsts.tolist(), lasts.tolist(), counts.tolist(), strict=True))
