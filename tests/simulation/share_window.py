"""A partition's records for a share group, as the broker that leads it has them: locks and ends.

Source: Apache Kafka 4.3, `SharePartition`, `InFlightBatch`, `InFlightState`. Kept from there: an
outcome is written before it holds, and what is being written can be neither acquired nor
acknowledged; of a request all outcomes hold, or none; counts grow at acquisition alone; a lock that
ends is not written before the record is given again.

Left out: a partition whose group was empty at the broker for a moment is loaded anew, and the locks
of before still end, and are written over what has come since (by the source of 4.3, after a write
that failed). No client can do anything about it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from keylane.wire.share import ACCEPT, GAP, REJECT, RELEASE, RENEW, AckBatch
from tests.simulation.share_store import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    TERMINAL,
    UNKNOWN_START,
    Place,
    ShareStore,
    Stored,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Partition

NO_MEMBER = ""
INVALID_REQUEST, INVALID_RECORD_STATE = 42, 121
NOT_ENABLED = "Renewing acquisition locks is not enabled for the group."
OUTCOMES = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED}
first_of = attrgetter("first")
Later = Callable[[float, Callable[[], None]], None]
EMPTY, LOADING, ACTIVE, FENCED = "empty", "loading", "active", "fenced"


class Cell:
    """One offset."""

    __slots__ = ("before", "count", "has_expired", "lock", "member", "state")

    def __init__(self, state: int, count: int, member: str) -> None:
        self.state, self.count, self.member = state, count, member
        self.before: tuple[int, str] | None = None
        """State and member before a change that is being written."""
        self.lock, self.has_expired = 0, False
        """Number of its lock's time-out; and whether that came while a change was written."""

    @property
    def is_free(self) -> bool:
        return self.state == AVAILABLE and self.before is None


class Run:
    """Offsets that were acquired together (`InFlightBatch`)."""

    __slots__ = ("cells", "first", "is_split", "last")

    def __init__(self, first: int, cells: list[Cell]) -> None:
        self.first, self.last, self.cells = first, first + len(cells) - 1, cells
        self.is_split = False
        """The state is one for each offset."""

    def items(self) -> Iterator[tuple[int, Cell]]:
        return enumerate(self.cells, self.first)


class ShareWindow:
    """One partition at its leader, until another broker leads it."""

    def __init__(
        self,
        place: Place,
        partition: Partition,
        store: ShareStore,
        later: Later,
        now: Callable[[], float],
    ) -> None:
        self.place, self.partition, self._store, self._later, self._now = (
            place, partition, store, later, now,
        )  # fmt: skip
        self.leader_epoch = partition.epoch
        self.times = store.times_of(place[0])
        self.state, self.error_code = EMPTY, 0
        self.start = self.end = 0
        self.runs: list[Run] = []
        self._gap: tuple[int, int] | None = None
        """End of what was read from the coordinator, and the first offset that may be unknown."""
        self._locks = 0
        self.watchers: list[Callable[[], None]] = []
        """Fetches that wait, called at every change."""

    # Loading.
    def load(self, done: Callable[[int], None]) -> None:
        """Read the state, once. `done` gets an error, 0: it is there."""
        self.state = LOADING

        def read(code: int, stored: Stored | None) -> None:
            if self.state == FENCED:
                return
            if stored is None:
                self.state = FENCED
            else:
                self._begin(stored)
            done(code)
            self.wake()

        self._store.read(
            self.place, self.leader_epoch, lambda *said: self._later(0, lambda: read(*said))
        )

    def _begin(self, stored: Stored) -> None:
        known = stored.start != UNKNOWN_START
        self.start = stored.start if known else self.partition.log.log_start
        self.end = self.start
        gap_from, previous = -1, self.start - 1
        for offset, (state, count) in sorted(stored.cells.items()):
            if gap_from < 0 and offset > previous + 1:
                gap_from = previous + 1
            run = self.runs[-1] if self.runs else None
            cell = Cell(state, count, NO_MEMBER)
            if run and run.last + 1 == offset and _alike(run.cells[-1], cell):
                run.cells.append(cell)
                run.last = offset
            else:
                self.runs.append(Run(offset, [cell]))
            previous = offset
        if self.runs:
            self.end = self.runs[-1].last
            if gap_from >= 0:
                self._gap = self.end, gap_from
            self._move_start()
        self.state = ACTIVE

    def fence(self) -> None:
        """Another broker leads, or the group is empty here: nothing is acquired any more."""
        self.state = FENCED
        self.wake()

    def wake(self) -> None:
        watchers, self.watchers = self.watchers, []
        for wake in watchers:
            wake()

    @property
    def _has_gap(self) -> bool:
        return self._gap is not None and self._gap[0] == self.end

    def _lock(self, cell: Cell, member: str) -> None:
        cell.state, cell.member, cell.count = ACQUIRED, member, cell.count + 1

    def _time_out(self, first: int, cells: Sequence[Cell], *, is_renewal: bool = False) -> None:
        """Begin the time of locks, of neighbours."""
        self._locks += 1
        number = self._locks
        for offset, cell in enumerate(cells, first):
            cell.lock, cell.has_expired = number, False
            if not is_renewal:
                self._store.ledger.acquired[self.place, offset].append(self._now())
        self._later(self.times.lock_s, lambda: self._expire(number, first, len(cells)))

    def _expire(self, number: int, first: int, size: int) -> None:
        if self.state == FENCED:
            return
        written: dict[int, tuple[int, int]] = {}
        for offset, cell in self._cells(first, first + size - 1):
            if cell.lock != number:
                continue
            if cell.before is not None:
                cell.has_expired = True
            elif cell.state == ACQUIRED:
                self._store.ledger.timeouts.append((self._now(), self.place, offset))
                cell.state = self._released(offset, cell)
                cell.member = NO_MEMBER
                written[offset] = cell.state, cell.count
                if cell.state == ARCHIVED:  # whether it can be written or not
                    end = self._now(), ARCHIVED, cell.count
                    self._store.ledger.finished.setdefault((self.place, offset), end)
        if written:
            self._write(written, lambda _: self._move_start())
            self.wake()

    def _released(self, offset: int, cell: Cell) -> int:
        is_over = cell.count >= self.times.deliveries or offset < self.start
        return ARCHIVED if is_over else AVAILABLE

    def _cells(self, first: int, last: int) -> Iterator[tuple[int, Cell]]:
        at = max(0, bisect_right(self.runs, first, key=first_of) - 1)
        for run in self.runs[at:]:
            if run.first > last:
                return
            yield from ((o, cell) for o, cell in run.items() if first <= o <= last)

    # Acknowledging.
    def acknowledge(
        self, member: str, acks: Iterable[AckBatch], done: Callable[[int, str | None], None],
        *, has_renewals: bool = True,
    ) -> None:  # fmt: skip
        """Take all outcomes, or none."""
        changed: list[tuple[int, Cell]] = []
        renewed: list[tuple[int, Cell]] = []
        code, message = 0, None
        for batch in acks:
            if batch.last < self.start:
                continue
            code, message = self._take(member, batch, changed, renewed, has_renewals=has_renewals)
            if code:
                break
        self._renew(renewed)
        if code:
            self._store.ledger.refused.append((self._now(), self.place, code))
            self._roll_back(changed)
            done(code, message)
            return
        self._change(changed, lambda failed: done(failed, None))

    def _take(
        self,
        member: str,
        batch: AckBatch,
        changed: list[tuple[int, Cell]],
        renewed: list[tuple[int, Cell]],
        *,
        has_renewals: bool,
    ) -> tuple[int, str | None]:
        first, last, types = batch
        at = bisect_right(self.runs, first, key=first_of)
        if at == 0 and not (first < self.start <= last and self.runs):
            return INVALID_RECORD_STATE, "Batch record not found."
        known = self.runs[bisect_right(self.runs, last, key=first_of) - 1].last
        if known < last:
            return INVALID_REQUEST, "Batch record not found. The last offset is past acquired ones."
        for offset, cell in self._cells(first, last):
            if offset < self.start:
                continue
            if cell.state != ACQUIRED or cell.before is not None or cell.member != member:
                return INVALID_RECORD_STATE, "The offset is not acquired."
            self._split_at(offset, batch)
            kind = types[offset - first] if len(types) > 1 else types[0]
            if kind == RENEW:
                if not has_renewals:
                    return INVALID_RECORD_STATE, NOT_ENABLED
                renewed.append((offset, cell))
                continue
            cell.before = cell.state, cell.member
            if kind == GAP:
                self._store.ledger.gaps.add((self.place, offset))
            outcome = OUTCOMES[kind]
            cell.state = self._released(offset, cell) if outcome == AVAILABLE else outcome
            cell.member = NO_MEMBER
            changed.append((offset, cell))
        return 0, None

    def _split_at(self, offset: int, batch: AckBatch) -> None:
        run = self.runs[bisect_right(self.runs, offset, key=first_of) - 1]
        is_whole = batch.first <= run.first and run.last <= batch.last
        run.is_split = run.is_split or not is_whole or len(batch.types) > 1

    def _renew(self, renewed: Sequence[tuple[int, Cell]]) -> None:
        for _, group in groupby(enumerate(renewed), lambda each: each[1][0] - each[0]):
            found = [pair for _, pair in group]
            self._time_out(found[0][0], [cell for _, cell in found], is_renewal=True)

    def release(self, member: str) -> None:
        """Release all that a member holds, as its session has ended."""
        changed = []
        for run in self.runs:
            for offset, cell in run.items():
                if cell.state == ACQUIRED and cell.member == member and cell.before is None:
                    cell.before = cell.state, cell.member
                    cell.state, cell.member = self._released(offset, cell), NO_MEMBER
                    changed.append((offset, cell))
        self._change(changed, lambda _: None)

    def _change(self, changed: list[tuple[int, Cell]], done: Callable[[int], None]) -> None:
        if not changed:
            done(0)
            return

        def written(code: int) -> None:
            if code:
                self._roll_back(changed)
            else:
                for _, cell in changed:
                    cell.before = None
                self._move_start()
            done(code)
            self.wake()

        self._write({offset: (cell.state, cell.count) for offset, cell in changed}, written)

    def _roll_back(self, changed: Iterable[tuple[int, Cell]]) -> None:
        for _, cell in changed:
            assert cell.before is not None
            if cell.has_expired:
                is_over = cell.count >= self.times.deliveries
                cell.state, cell.member = (ARCHIVED if is_over else AVAILABLE), NO_MEMBER
            else:
                cell.state, cell.member = cell.before
            cell.before = None

    def _write(self, cells: dict[int, tuple[int, int]], done: Callable[[int], None]) -> None:
        complete = sum(
            cell.state in TERMINAL and offset >= self.start
            for run in self.runs
            for offset, cell in run.items()
        )
        self._store.write(
            self.place, self.leader_epoch, self.start, complete, cells,
            lambda code: self._later(0, lambda: done(code)),
        )  # fmt: skip

    def _move_start(self) -> None:
        """Move the start behind what is finished, and forget whole runs of it."""
        over = -1
        expected = self.start
        for run in self.runs:
            if self._gap is not None and self._has_gap and run.last >= self._gap[1]:
                break
            if over < 0 and run.first > expected:
                break
            stops = False
            for offset, cell in run.items():
                if offset >= self.start and (cell.before is not None or cell.state not in TERMINAL):
                    stops = True
                    break
                over = offset
            if stops:
                break
        if over < self.start:
            return
        if over == self.runs[-1].last:
            self.start = self.end = over + 1
            self.runs.clear()
        else:
            behind = next(run for run in self.runs if run.last > over)
            self.start = max(over + 1, behind.first)
            if self._gap is not None and self._has_gap:
                self.start = min(self._gap[1], self.start)
            self.runs = [run for run in self.runs if run.last > over]
        self.wake()


def _alike(first: Cell, second: Cell) -> bool:
    return (first.state, first.count) == (second.state, second.count)
