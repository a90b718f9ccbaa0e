"""Acquisition of records of a share group, at the broker that leads their partition.

Source: Apache Kafka 4.3, `SharePartition.nextFetchOffset`, `acquire`. Kept from there: what was
acquired together stays together in batch-optimized mode; the lowest available record is fetched
first, and those whose state is being written are passed over; records near the limit of deliveries
are given one by one; after a new leader offsets that are not known between others are gaps, which
are acquired anew.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from keylane.wire.share import Acquired
from tests.simulation.share_store import AVAILABLE
from tests.simulation.share_window import ACTIVE, NO_MEMBER, Cell, Run, ShareWindow, first_of

if TYPE_CHECKING:
    from tests.reference.batches import Batch


RECORD_LIMIT = 1
"""Acquire mode in which no more is acquired than is asked for (KIP-1206)."""


class AcquiringWindow(ShareWindow):
    """A window from which members acquire records."""

    @property
    def _in_flight(self) -> int:
        return self.end - self.start + 1 if self.runs else 0

    @property
    def can_acquire(self) -> bool:
        if self.state != ACTIVE:
            return False
        return self.next_offset() != self.end + 1 or self._in_flight < self.times.locks

    def next_offset(self) -> int:
        """Return the offset to be fetched."""
        if not self.runs or self.start > self.runs[-1].last:
            return self.end
        gap_from = self._gap[1] if self._gap is not None and self._has_gap else -1
        for run in self.runs:
            if self._has_gap:
                if run.first > gap_from:
                    return gap_from
                gap_from = max(run.last + 1, gap_from)
            for offset, cell in run.items():
                if cell.is_free and offset >= self.start:
                    return offset
        return self.end + 1

    def acquire(
        self, member: str, mode: int, batch_size: int, records_max: int, batches: Sequence[Batch],
        fetch_offset: int,
    ) -> list[Acquired]:  # fmt: skip
        """Acquire records of batches of the log that were read from `fetch_offset` on."""
        bounds = self._bounds(records_max, batches, fetch_offset)
        if bounds is None:
            return []
        room, base, last = bounds
        low = batches[0].base_offset
        found = [run for run in self.runs if min(low, base) <= run.first <= last]
        if not found:
            return self._acquire_new(member, mode, batch_size, room, batches, base, last)
        taken: list[Acquired] = []
        gap_from = base
        for run in found:
            if self._has_gap and gap_from < run.first and _size(taken) < room:
                left = room - _size(taken)
                taken += self._acquire_new(
                    member, mode, batch_size, left, batches, gap_from, run.first - 1
                )
            gap_from = run.last + 1
            if _size(taken) >= room:
                break
            if self._acquire_run(taken, run, member, mode, room, (low, last)):
                room = 0
                break
        if _size(taken) < room and found[-1].last < last:
            left, behind = room - _size(taken), found[-1].last + 1
            taken += self._acquire_new(member, mode, batch_size, left, batches, behind, last)
        if taken:
            self._move_gap(taken[-1].last + 1)
        return taken

    def _bounds(
        self, records_max: int, batches: Sequence[Batch], fetch_offset: int
    ) -> tuple[int, int, int] | None:
        """Return how many records may be acquired, from which offset, and to which."""
        if self.state != ACTIVE or records_max <= 0 or not batches:
            return None
        last = batches[-1].next_offset - 1
        if last < self.start:
            return None
        room = min(records_max, self.times.locks - self._in_flight)
        if room <= 0:
            if fetch_offset > self.end:
                return None
            room, last = min(records_max, self.end - fetch_offset + 1), min(last, self.end)
        base = batches[0].base_offset
        at = bisect_right(self.runs, base, key=first_of)
        floor = self.runs[at - 1] if at else None
        if floor is None:
            base = max(base, self.start)
        elif floor.last >= base:
            base = floor.first
        return room, base, last

    def _acquire_run(
        self, taken: list[Acquired], run: Run, member: str, mode: int, room: int,
        asked: tuple[int, int],
    ) -> bool:  # fmt: skip
        """Acquire what is available of a run; return whether nothing else goes with it."""
        (low, last), count = asked, _size(taken)
        free = [cell for o, cell in run.items() if low <= o <= last and cell.is_free]
        is_throttled = max((c.count for c in free), default=0) >= self._throttle_from
        if is_throttled and count:
            return True
        is_whole = run.first >= low and run.last <= last
        is_part = mode == RECORD_LIMIT and len(run.cells) > room - count
        if not is_whole or run.is_split or is_part or is_throttled:
            if not run.is_split and not run.cells[0].is_free:
                return False
            run.is_split = True
            part = self._acquire_part(member, mode, room - count, low, last, run)
            taken += part
            return is_throttled and bool(part)
        if run.cells[0].is_free:
            for cell in run.cells:
                self._lock(cell, member)
            self._time_out(run.first, run.cells)
            taken.append(Acquired(run.first, run.last, run.cells[0].count))
        return False

    @property
    def _throttle_from(self) -> int:
        return max(2, -(-self.times.deliveries // 2))

    def _move_gap(self, offset: int) -> None:
        if self._gap is None:
            return
        # By the source of 4.3 it goes back, too, with a record that is acquired again; a window
        # that is full then never moves on. Left out, as no client can do anything about it.
        is_inside = self._has_gap and offset <= self._gap[0]
        self._gap = (self._gap[0], max(self._gap[1], offset)) if is_inside else None

    def _acquire_new(
        self, member: str, mode: int, batch_size: int, room: int, batches: Sequence[Batch],
        first: int, last: int,
    ) -> list[Acquired]:  # fmt: skip
        if not self.runs and self.end > first:
            first = self.end
        upto = last
        if room < last - first + 1:
            upto = _batch_end(batches, first + room - 1)
            if self._has_gap and upto > last:
                upto = last
        ranges = [(first, upto)]
        if mode != RECORD_LIMIT and upto - first + 1 > batch_size:
            ranges, begin = [], first
            for batch in batches:
                if batch.base_offset > upto:
                    break
                if batch.base_offset - begin >= batch_size:
                    ranges.append((begin, batch.base_offset - 1))
                    begin = batch.base_offset
            ranges.append((begin, upto))
        taken = []
        for begin, end in ranges:
            run = Run(begin, [Cell(AVAILABLE, 0, NO_MEMBER) for _ in range(begin, end + 1)])
            insort(self.runs, run, key=first_of)
            locked = run.cells
            if mode == RECORD_LIMIT and len(locked) > room:
                locked, run.is_split = locked[:room], True
            for cell in locked:
                self._lock(cell, member)
            self._time_out(begin, locked)
            taken.append(Acquired(begin, begin + len(locked) - 1, 1))
        if self.runs[0].first == first:
            self.start = first
        self.end = max(self.end, upto)
        self._move_gap(taken[-1].last + 1)
        return taken

    def _acquire_part(
        self, member: str, mode: int, room: int, low: int, last: int, run: Run
    ) -> list[Acquired]:
        taken: list[Acquired] = []
        limit, throttled = self.times.deliveries, -1
        for offset, cell in run.items():
            if not low <= offset <= last or not cell.is_free:
                continue
            if limit > 2 and cell.count == limit - 1 and taken:
                break
            if cell.count >= self._throttle_from and throttled < 0:
                throttled = max(1, len(run.cells) >> (cell.count - self._throttle_from + 1))
            self._lock(cell, member)
            self._time_out(offset, [cell])
            before = taken[-1] if taken else None
            if before and before.last + 1 == offset and before.delivery_count == cell.count:
                taken[-1] = Acquired(before.first, offset, cell.count)
            else:
                taken.append(Acquired(offset, offset, cell.count))
            count = _size(taken)
            if limit > 2 and cell.count == limit:
                break
            if (mode == RECORD_LIMIT and count == room) or count == throttled:
                break
        return taken


def _size(ranges: Iterable[Acquired]) -> int:
    return sum(last - first + 1 for first, last, _ in ranges)


def _batch_end(batches: Sequence[Batch], offset: int) -> int:
    """Return the last offset of the batch that has an offset."""
    for batch in batches:
        if batch.base_offset <= offset < batch.next_offset:
            return batch.next_offset - 1
    return offset
