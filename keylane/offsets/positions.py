"""Positions of one group on one partition: a value for every key hash, kept in columns.

Source: docs/decisions/038.

A commit of one lane must not cost what all lanes cost. So positions are rows of one array, on
which whole passes (the lowest, what a scan leads on) take nanoseconds per lane, and no object
stands for a lane that is not looked at. A copy shares the array until one of both is changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keylane.keyrange.space import HASH_MAX
from keylane.offsets.intervals import Range
from keylane.offsets.scan import Grid, ScanIndex
from keylane.offsets.values import Position

OFFSET, COUNTED, COMMITTED, EPOCH = range(4)
ROWS: Final = 4
MOVED_MAX: Final = 64
"""Hash ranges that are kept apart until the next `lead_on`; beyond, all of the space is one."""
EVERYTHING: Final[tuple[Range, ...]] = ((0, HASH_MAX),)
LIFT_GAIN_MIN: Final = 4
"""A lift is worth its bytes when it spares so many intervals."""

Change = tuple[int, int, Position]
"""First hash, last hash, and the position there now."""
Move = Callable[[int, int, Position], Position]
"""Gives the position that comes to an interval, of its first and last hash, and the one there."""


class Step(NamedTuple):
    """Changes that lead from one map to another."""

    lift: tuple[int, int] | None
    """(from, to): every interval that counted as standing at `from` stands at `to`; goes first."""
    changes: tuple[Change, ...]
    """Ascending, apart from each other."""


class PositionMap:
    """A `Position` for every hash of `[0, HASH_MAX]`, constant on a few intervals.

    Neighbouring intervals of equal value are merged, so equal maps have equal intervals.
    Cost: an update moves O(n) bytes and makes objects of the intervals that it meets only.
    """

    __slots__ = (
        "_grid", "_is_shared", "_led", "_moved", "_numbers", "_starts", "_texts", "text_chars",
    )  # fmt: skip

    def __init__(self, position: Position) -> None:
        """The same for all hashes."""
        self._starts: list[int] = [0]
        """Never changed in place: copies have the same list."""
        self._numbers = _columns([position])
        self._texts: list[str | None] = [position.metadata]
        self._is_shared = False
        self._grid: Grid | None = None
        self._led: tuple[object, int] | None = None
        """By which scan (its token) `lead_on` was last, and its `news_count` then."""
        self._moved: tuple[Range, ...] = ()
        """Hash ranges whose positions have changed since."""
        self.text_chars = len(position.metadata or "")
        """Characters of all metadata."""

    @classmethod
    def from_ends(cls, ends: Sequence[tuple[int, Position]]) -> PositionMap:
        """Build from `(last hash, position)` of each interval, ascending up to HASH_MAX."""
        assert ends and ends[-1][0] == HASH_MAX, "intervals cover the hash space"
        made = cls(ends[0][1])
        starts = [0, *(end + 1 for end, _ in ends[:-1])]
        merged = _merge([(start, each) for start, (_, each) in zip(starts, ends, strict=True)])
        made._put(0, 1, merged)
        return made

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PositionMap)
            and self._starts == other._starts
            and self._texts == other._texts
            and np.array_equal(self._numbers, other._numbers)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"PositionMap({list(self.items())})"

    def copy(self) -> PositionMap:
        """Return an independent copy; what is equal is shared until either is changed."""
        other: PositionMap = PositionMap.__new__(PositionMap)
        other._starts, other._numbers, other._texts = self._starts, self._numbers, self._texts
        other._grid, other._led, other._moved = self._grid, self._led, self._moved
        other.text_chars = self.text_chars
        self._is_shared = other._is_shared = True
        return other

    # -- reading -------------------------------------------------------------------------

    def items(self, first: int = 0, last: int = HASH_MAX) -> Iterator[Change]:
        """Yield `(first, last, position)` of each interval that meets the bounds, cut to them."""
        start, stop = self._span(first, last)
        for index, row in enumerate(self._numbers[:, start:stop].T.tolist(), start):
            yield (
                max(first, self._starts[index]),
                min(last, self._end(index)),
                _position(row, self._texts[index]),
            )

    def values(self, first: int, last: int) -> list[Position]:
        """Return the position of each interval that meets the bounds, ascending."""
        start, stop = self._span(first, last)
        rows, texts = self._numbers[:, start:stop].T.tolist(), self._texts[start:stop]
        return [_position(*each) for each in zip(rows, texts, strict=True)]

    def ends(self) -> tuple[tuple[int, Position], ...]:
        """Return `(last hash, position)` of every interval, as `from_ends` takes them."""
        return tuple((hi, position) for _, hi, position in self.items())

    @property
    def lowest(self) -> int:
        """The lowest that any hash counts as standing at."""
        return int(np.minimum.reduce(self._numbers[COUNTED]))

    @property
    def highest(self) -> int:
        """The highest of them."""
        return int(np.maximum.reduce(self._numbers[COUNTED]))

    @property
    def concluded_end(self) -> int:
        """The highest that counts without a member's word; 0: there is none."""
        counted = self._numbers[COUNTED]
        concluded = counted[(counted > self._numbers[OFFSET]) | (self._numbers[COMMITTED] == 0)]
        return int(np.maximum.reduce(concluded)) if len(concluded) else 0

    @property
    def is_sound(self) -> bool:
        """Return whether no position is negative, or counts as standing below what was said."""
        offsets, counted, _, _ = self._numbers
        return int(offsets.min()) >= 0 and bool((offsets <= counted).all())

    @property
    def is_committed(self) -> bool:
        """Return whether anything was committed anywhere."""
        return bool(self._numbers[COMMITTED].any())

    def is_said(self, offset: int) -> bool:
        """Return whether all hashes were committed up to `offset` or beyond, scans left aside."""
        lowest_said = int(np.minimum.reduce(self._numbers[OFFSET]))
        return lowest_said >= offset and int(np.minimum.reduce(self._numbers[COMMITTED])) > 0

    def cuts_added(self, first: int, last: int) -> int:
        """Return by how many intervals an update of these bounds can lengthen the map."""
        starts = self._starts
        added = int(starts[bisect_right(starts, first) - 1] != first)
        return added + (last < HASH_MAX and starts[bisect_right(starts, last + 1) - 1] != last + 1)

    # -- changes -------------------------------------------------------------------------

    def update(self, first: int, last: int, move: Move) -> bool:
        """Put what `move` gives on the intervals in the bounds; True if any differs."""
        assert 0 <= first <= last <= HASH_MAX, "bounds outside of the map"
        start, stop = self._span(first, last)
        olds = list(self.items(first, last))
        pieces = [(lo, move(lo, hi, old)) for lo, hi, old in olds]
        if pieces == [(lo, old) for lo, _, old in olds]:
            return False
        self._moved = EVERYTHING if len(self._moved) >= MOVED_MAX else (*self._moved, (first, last))
        if self._is_apart(start, stop, first, last, pieces):
            self._put_one(start, pieces[0][1])
            return True
        if self._starts[start] < first:
            pieces.insert(0, (self._starts[start], olds[0][2]))
        if self._end(stop - 1) > last:
            pieces.append((last + 1, olds[-1][2]))
        if start:
            start -= 1
            pieces.insert(0, (self._starts[start], self._at(start)))
        if stop < len(self._starts):
            pieces.append((self._starts[stop], self._at(stop)))
            stop += 1
        self._put(start, stop, _merge(pieces))
        return True

    def is_led(self, scan: ScanIndex) -> bool:
        """Return whether nothing has moved or was scanned since `lead_on` by this scan."""
        return not self._moved and self._led == (scan.token, scan.news_count)

    def lead_on(self, scan: ScanIndex) -> bool:
        """Let positions stand where `scan.effective` says; True when one moved.

        A position that stood there when this was done last is looked at only if it has moved
        since, or if what it stands at was scanned since. The others stay, see `news_since`.
        """
        if self.is_led(scan):
            return False
        is_known = self._led is not None and self._led[0] is scan.token
        news = scan.news_since(self._led[1]) if self._led is not None and is_known else None
        moved, self._moved = self._moved, ()
        self._led = scan.token, scan.news_count
        grid = self._grid
        if grid is None or grid.starts is not self._starts or grid.key_split is not scan.key_split:
            grid = self._grid = Grid.of(self._starts, scan.key_split)
        counted = self._numbers[COUNTED]
        if grid.places is not None:
            counted = counted[grid.places]
        if news is None:
            chosen = np.arange(len(counted))
        else:
            is_chosen = _is_within(counted, news)
            for first, last in moved:
                low, high = bisect_right(grid.bounds, first), bisect_right(grid.bounds, last)
                is_chosen[low - 1 : high] = True
            chosen = is_chosen.nonzero()[0]
        led = scan.led(grid.outputs[chosen], counted[chosen])
        if led is None:
            return False
        counted = counted.copy()
        counted[chosen] = led
        self._put_counted(grid, counted)
        return True

    # -- differences ---------------------------------------------------------------------

    def step_from(self, before: PositionMap) -> Step:
        """Return what makes this map of `before`: O(n) nanoseconds, objects of what changed."""
        if self._starts is before._starts or self._starts == before._starts:
            bounds = None
            own, old = self._numbers, before._numbers
            has_other_text = _differing(self._texts, before._texts)
        else:
            starts = np.array(self._starts, np.int64), np.array(before._starts, np.int64)
            bounds = np.union1d(*starts)
            here, there = (np.searchsorted(each, bounds, "right") - 1 for each in starts)
            own, old = self._numbers[:, here], before._numbers[:, there]
            has_other_text = _differing(
                [self._texts[index] for index in here.tolist()],
                [before._texts[index] for index in there.tolist()],
            )
        differs = own != old
        changed = {*np.logical_or.reduce(differs).nonzero()[0].tolist(), *has_other_text}
        if len(changed) < LIFT_GAIN_MIN:  # the rule: too few for a lift
            return Step(None, self._changes(sorted(changed), bounds))
        is_other = differs[OFFSET] | differs[COMMITTED] | differs[EPOCH]
        is_other[has_other_text] = True
        lift = _lift(own[COUNTED], old[COUNTED], differs[COUNTED] & ~is_other)
        expected = old[COUNTED]
        if lift is not None:
            expected = np.where(expected == lift[0], lift[1], expected)
        is_changed = is_other | (own[COUNTED] != expected)
        return Step(lift, self._changes(is_changed.nonzero()[0].tolist(), bounds))

    def apply_step(self, step: Step) -> None:
        """Make of this map the one that `step_from` was asked of."""
        if step.lift is not None:
            start, end = step.lift
            counted = self._numbers[COUNTED]
            self._own()
            self._numbers[COUNTED] = np.where(counted == start, end, counted)
            self._join()
            self._moved = EVERYTHING
        for first, last, position in step.changes:
            self.update(first, last, move_to(position))

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        assert self._numbers.shape == (ROWS, len(self._starts)) and self._starts[0] == 0
        assert len(self._texts) == len(self._starts) and self._starts[-1] <= HASH_MAX
        assert self.text_chars == sum(len(text or "") for text in self._texts)
        items = list(self.items())
        for (_, hi, one), (lo, _, other) in pairwise(items):
            assert hi + 1 == lo and one != other

    # Inside.
    def _span(self, first: int, last: int) -> tuple[int, int]:
        """Return the intervals that meet the bounds: the first, and behind the last."""
        return bisect_right(self._starts, first) - 1, bisect_right(self._starts, last)

    def _end(self, index: int) -> int:
        return self._starts[index + 1] - 1 if index + 1 < len(self._starts) else HASH_MAX

    def _at(self, index: int) -> Position:
        return _position(self._numbers[:, index].tolist(), self._texts[index])

    def _own(self) -> None:
        """Before anything is changed in place."""
        if self._is_shared:
            self._numbers, self._texts = self._numbers.copy(), self._texts.copy()
            self._is_shared = False

    def _put(self, start: int, stop: int, pieces: Sequence[tuple[int, Position]]) -> None:
        """Put pieces, `(first hash, position)`, in the place of intervals `[start, stop)`."""
        self._own()
        columns, texts = _columns([each for _, each in pieces]), [p.metadata for _, p in pieces]
        self.text_chars += sum(len(text) for text in texts if text)
        self.text_chars -= sum(len(text) for text in self._texts[start:stop] if text)
        self._texts[start:stop] = texts
        lows = [low for low, _ in pieces]
        if len(pieces) == stop - start:
            self._numbers[:, start:stop] = columns
        else:
            parts = (self._numbers[:, :start], columns, self._numbers[:, stop:])
            self._numbers = np.concatenate(parts, axis=1)
        if lows != self._starts[start:stop]:
            self._starts = [*self._starts[:start], *lows, *self._starts[stop:]]

    def _is_apart(
        self, start: int, stop: int, first: int, last: int, pieces: Sequence[tuple[int, Position]]
    ) -> bool:
        """Return whether bounds are those of one interval, mostly a lane's, that joins no other."""
        if stop - start != 1 or self._starts[start] != first or self._end(start) != last:
            return False
        position = pieces[0][1]
        neighbours = [index for index in (start - 1, stop) if 0 <= index < len(self._starts)]
        return all(self._at(index) != position for index in neighbours)

    def _put_one(self, index: int, position: Position) -> None:
        """Put a position on an interval that stays as it is."""
        self._own()
        before, self._texts[index] = self._texts[index], position.metadata
        self.text_chars += len(position.metadata or "") - len(before or "")
        self._numbers[:, index] = _row(position)

    def _put_counted(self, grid: Grid, counted: NDArray[np.int64]) -> None:
        """Let each piece of the grid count as standing there. counted: (pieces,)."""
        self._own()
        of_intervals = counted
        if grid.places is not None:
            firsts = np.searchsorted(grid.places, np.arange(len(self._starts)))
            of_intervals = counted[firsts]
            if not np.array_equal(of_intervals[grid.places], counted):
                # Lanes that shared an interval part: all pieces become intervals, equal ones join.
                self._starts = grid.bounds
                self._numbers = self._numbers[:, grid.places]
                self._texts = [self._texts[place] for place in grid.places.tolist()]
                self.text_chars = sum(len(text) for text in self._texts if text)
                of_intervals = counted
        self._numbers[COUNTED] = of_intervals
        self._join()

    def _join(self) -> None:
        """Make one of neighbours that have become equal."""
        is_equal = (self._numbers[:, 1:] == self._numbers[:, :-1]).all(axis=0)
        if not is_equal.any():
            return
        equal = [i + 1 for i in np.flatnonzero(is_equal).tolist()]
        dropped = {i for i in equal if self._texts[i] == self._texts[i - 1]}
        if not dropped:
            return
        kept = [i for i in range(len(self._starts)) if i not in dropped]
        self._starts = [self._starts[i] for i in kept]
        self._texts = [self._texts[i] for i in kept]
        self._numbers = self._numbers[:, kept]
        self.text_chars = sum(len(text) for text in self._texts if text)

    def _changes(
        self, changed: Sequence[int], bounds: NDArray[np.int64] | None
    ) -> tuple[Change, ...]:
        """Positions of this map where they have changed. bounds: of pieces; None: intervals."""
        found: list[Change] = []
        for index in changed:
            if bounds is None:
                low, high, place = self._starts[index], self._end(index), index
            else:
                low = int(bounds[index])
                high = int(bounds[index + 1]) - 1 if index + 1 < len(bounds) else HASH_MAX
                place = bisect_right(self._starts, low) - 1
            position = self._at(place)
            if found and found[-1][1] + 1 == low and found[-1][2] == position:
                low = found.pop()[0]
            found.append((low, high, position))
        return tuple(found)


def _is_within(counted: NDArray[np.int64], news: Sequence[Range]) -> NDArray[np.bool_]:
    """Return which of them stand inside of one of `news`, whose ends are exclusive."""
    parts = [(counted >= start) & (counted < end) for start, end in news]
    if len(parts) == 1:  # the rule
        return parts[0]
    return np.any(parts, axis=0) if parts else np.zeros(len(counted), np.bool_)


def move_to(position: Position) -> Move:
    """Return the move of every interval to one position."""
    return lambda _lo, _hi, _old: position


def _columns(positions: Sequence[Position]) -> NDArray[np.int64]:
    return np.array([_row(each) for each in positions], np.int64).T.copy()


def _row(position: Position) -> tuple[int, int, int, int]:
    return position.offset, position.counted, position.committed, position.leader_epoch


def _position(row: Sequence[int], text: str | None) -> Position:
    offset, counted, committed, leader_epoch = row
    return Position(offset, counted, bool(committed), text, leader_epoch)


def _merge(pieces: list[tuple[int, Position]]) -> list[tuple[int, Position]]:
    """Drop every piece whose value equals that of the piece before it."""
    merged = pieces[:1]
    for start, value in pieces[1:]:
        if value != merged[-1][1]:
            merged.append((start, value))
    return merged


def _differing(own: list[str | None], old: list[str | None]) -> list[int]:
    """Indexes at which two lists differ."""
    if own == old:
        return []
    return [i for i, (one, other) in enumerate(zip(own, old, strict=True)) if one != other]


def _lift(
    own: NDArray[np.int64], old: NDArray[np.int64], has_moved_only: NDArray[np.bool_]
) -> tuple[int, int] | None:
    """The most common move among positions that only a scan has led on, if it spares bytes.

    own, old: (pieces,) where each counts as standing, and did.
    """
    if np.count_nonzero(has_moved_only) < LIFT_GAIN_MIN:
        return None
    starts, counts = np.unique(old[has_moved_only], return_counts=True)
    start = int(starts[np.argmax(counts)])
    stood = old == start
    ends, counts = np.unique(own[has_moved_only & stood], return_counts=True)
    best = np.argmax(counts)
    end = int(ends[best])
    stayed = int(np.count_nonzero(stood & (own == start)))
    return (start, end) if int(counts[best]) - stayed >= LIFT_GAIN_MIN else None
