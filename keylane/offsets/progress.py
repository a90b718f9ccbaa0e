"""Positions of a group in one partition, the ranges that are done above them, and their advance.

Source: KIP draft "Cooperative consumer processing semantic", "Individual Commit", "Offset Fetch".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.intervals import Range, RangeSet, merge_sorted
from keylane.offsets.keyed_ranges import (
    KeyedRange,
    KeyedRanges,
    covers_all,
    gaps_of_all,
    skip_all,
)
from keylane.offsets.positions import Move, PositionMap, move_to
from keylane.offsets.scan import ScanIndex
from keylane.offsets.unsaved import Unsaved
from keylane.offsets.values import WHOLE, LanePosition, Position, lane_position


class CommittedProgress:
    """Positions and ranges as `state.OffsetState` has them, which changes them by commits.

    Invariants: positions cover the hash space exactly, neighbours differ; ranges of the same keys
    are disjoint, apart, and above the lowest position of these keys; no `counted` lies inside a
    range of its keys; `offset <= counted`.
    """

    __slots__ = ("_positions", "_ranges", "_stable_position", "_unsaved")

    def __init__(self, here: Position) -> None:
        """All keys stand at `here`."""
        self._positions = PositionMap(here)
        self._ranges = KeyedRanges()
        self._unsaved = Unsaved()
        self._stable_position: int | None = None

    # -- reading -------------------------------------------------------------------------

    @property
    def stable_position(self) -> int:
        """Kafka's form of the stable offset: everything before it is committed by everyone."""
        if self._stable_position is None:
            self._stable_position = self._positions.lowest
        return self._stable_position

    @property
    def fastest_position(self) -> int:
        """The position of the lane that is furthest ahead."""
        return self._positions.highest

    @property
    def concluded_end(self) -> int:
        """Behind the furthest offset that counts though no member named it; 0: there is none."""
        last = self._ranges.last
        return max(self._positions.concluded_end, 0 if last is None else last + 1)

    @property
    def stable_offset(self) -> int:
        """S of the KIP draft, up to and including which everything is committed by everyone."""
        return self.stable_position - 1

    @property
    def committed(self) -> bool:
        """Return whether the group has committed anything here."""
        return bool(self._ranges) or self._positions.is_committed

    @property
    def is_said(self) -> bool:
        """True: members said all of the stable position, and no scan has led any lane there."""
        return self._positions.is_said(self.stable_position)

    def positions_held(self) -> PositionMap:
        """Return positions as they are now: shared, and copied by whichever side changes first."""
        return self._positions.copy()

    def positions(self) -> list[tuple[int, int, Position]]:
        """Return `(lo, hi, position)` of every interval of the hash space, ascending."""
        return list(self._positions.items())

    @property
    def range_count(self) -> int:
        """Number of `keyed_ranges`."""
        return len(self._ranges)

    @property
    def has_key_ranges(self) -> bool:
        """Return whether any range is of some keys only."""
        return self._ranges.has_keys

    def keyed_ranges(self) -> list[KeyedRange]:
        """Return the committed ranges above positions, with their keys, ascending."""
        return sorted(self._ranges)

    def ranges(self, *key_ranges: KeyRange) -> list[Range]:
        """Return the offset ranges above the position of these keys that all of them have done.

        Inclusive, ascending. key_ranges: those of `position_of`; none is all keys.
        """
        if not self._ranges:
            return []
        asked = key_ranges or (WHOLE,)
        cells = list(self._cells(asked))
        if len(cells) == 1:  # the rule: a lane
            counted, sets = cells[0]
            return [bounds for bounds in _union(sets) if bounds[0] >= counted]
        start = min(piece.counted for piece in self._pieces(asked))
        undone = RangeSet()
        end = max(self._ranges.last or 0, self._positions.highest)
        for counted, sets in cells:
            for gap in gaps_of_all(sets, max(counted, start), end):
                undone.add(*gap)
        return undone.gaps(start, end)

    def position_of(self, *key_ranges: KeyRange) -> LanePosition:
        """Return where a member that takes over all of `key_ranges` has to start.

        NOT_COMMITTED when no part of it was ever committed. The leader epoch goes only with
        the offset that it was committed for: with a later one a client would see a truncated log.
        """
        return lane_position(self._pieces(key_ranges))

    def uncommitted_ranges(self, first: int, last: int, key_range: KeyRange = WHOLE) -> list[Range]:
        """Return what `key_range` still has to process of `[first, last]` ("gap amending")."""
        undone = RangeSet()
        for counted, sets in self._cells((key_range,)):
            for gap in gaps_of_all(sets, max(first, counted), last):
                undone.add(*gap)
        return list(undone)

    def is_committed(self, first: int, last: int, lo: int = 0, hi: int = HASH_MAX) -> bool:
        """Return whether every offset of `[first, last]` is committed, for keys of these hashes."""
        if last < self.stable_position:
            return True
        cells = self._cells((KeyRange(lo, hi),))
        return all(covers_all(sets, max(first, counted), last) for counted, sets in cells)

    # -- advance ---------------------------------------------------------------------------

    def is_settled(self, scan: ScanIndex) -> bool:
        """Return whether `settle` is sure to move nothing: there was no news of the scan since."""
        return not self._ranges and self._positions.is_led(scan)

    def settle(self, scan: ScanIndex) -> bool:
        """Raise every position over what holds no record for it; True when something moved."""
        moved = self._positions.lead_on(scan)
        if moved:
            self._note_moved()
        for key_range in self._ranges.key_ranges:  # ranges and scanned gaps lead on in turn
            moved |= self._settle(key_range, scan)
        self._prune()
        return moved

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        self._positions.check()
        self._ranges.check()
        places = [position for _, _, position in self._positions.items()]
        assert self.stable_position == min(position.counted for position in places)
        for position in places:
            assert 0 <= position.offset <= position.counted
        for counted, sets in self._cells((WHOLE,)):
            assert skip_all(sets, counted) == counted
        for item in self._ranges:
            assert item.first > min(each.counted for each in self._pieces((item.key_range,)))
        self._unsaved.check(self._ranges)

    def _move(self, move: Move, key_range: KeyRange = WHOLE) -> bool:
        """Change positions, and what follows of that; True when something moved."""
        moved = self._update(key_range.lo, key_range.hi, move)
        self._raise_and_prune()
        return moved

    def _update(self, lo: int, hi: int, move: Move) -> bool:
        moved = self._positions.update(lo, hi, move)
        if moved:
            self._note_moved()
        return moved

    def _note_moved(self) -> None:
        self._unsaved.positions, self._stable_position = True, None

    def _pieces(self, key_ranges: Iterable[KeyRange]) -> list[Position]:
        return [
            value
            for key_range in key_ranges
            for value in self._positions.values(key_range.lo, key_range.hi)
        ]

    def _cells(self, key_ranges: Iterable[KeyRange]) -> Iterator[tuple[int, list[RangeSet]]]:
        """Yield where the keys count as standing and the ranges above it, cell by cell."""
        for key_range in key_ranges:
            for cell in self._ranges.cells(key_range):
                sets = self._ranges.covering(cell.lo, cell.hi)
                for piece in self._positions.values(cell.lo, cell.hi):
                    yield piece.counted, sets

    def _settle(self, key_range: KeyRange, scan: ScanIndex | None, *, says: bool = False) -> bool:
        """Lead positions on. says: their member has just committed ranges: it says so itself."""
        sets: list[RangeSet] = []

        def settled(lo: int, hi: int, old: Position) -> Position:
            """Go through ranges and scanned gaps in turn until neither leads on."""
            counted, passed = old.counted, False
            while True:
                skipped = skip_all(sets, counted)
                passed = passed or skipped > counted
                if scan is not None:
                    skipped = scan.effective(KeyRange(lo=lo, hi=hi), skipped)
                if skipped == counted:
                    break
                counted = skipped
            if passed and says:  # a lower commit of this member will be meant
                return Position(counted, counted, committed=True, metadata=old.metadata)
            # Passing a range is a commit of its offsets, also of what was uncommitted.
            committed = old.committed or passed
            if counted == old.counted and committed == old.committed:
                return old
            return old._replace(counted=counted, committed=committed)

        # Lane by lane: an interval that holds several is only as far as the first of them.
        parts = (key_range,) if scan is None else scan.lanes_of(key_range)
        moved = False
        for cell in (cell for part in parts for cell in self._ranges.cells(part)):
            sets = self._ranges.covering(cell.lo, cell.hi)
            moved |= self._update(cell.lo, cell.hi, settled)
        return moved

    def _raise_and_prune(self) -> None:
        """Take every position through the ranges, then drop the ranges that are passed."""
        for key_range in self._ranges.key_ranges:
            self._settle(key_range, None)
        self._prune()

    def _prune(self) -> None:
        if not self._ranges:
            return
        for key_range in self._ranges.key_ranges:
            lowest = min(piece.counted for piece in self._pieces((key_range,)))
            self._unsaved.note(self._ranges.remove_below(lowest, key_range))

    def _restart(self, offset: int, *, committed: bool) -> None:
        self._unsaved.note(self._ranges.remove_from(0, (WHOLE,)))
        self._move(move_to(Position(offset, offset, committed=committed)))


def _union(sets: Sequence[RangeSet]) -> list[Range]:
    """Return the ranges of all sets, joined and ascending."""
    if len(sets) == 1:
        return list(sets[0])
    return merge_sorted(sorted(bounds for ranges in sets for bounds in ranges))
