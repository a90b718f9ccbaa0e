"""Offset ranges of one partition that are committed, each for the keys of one key range.

Source: KIP draft "Cooperative consumer processing semantic", "Individual Commit". There a range is
of a whole partition; here each has its keys, so that the members of several lanes commit ranges
over the gaps of their own lane, and a fast lane's ranges go while a slow one stands.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.intervals import Range, RangeEdit, RangeSet

WHOLE: Final = KeyRange(0, HASH_MAX)
KEY_RANGES_MAX: Final = 8_192
OVERLAPPING_MAX: Final = 1_024
DEPTH_MAX: Final = 16
"""Key ranges at most; where some overlap, and over one key. Each commit looks at all of them: lanes
lie apart, and those of another split over them are few."""


class KeyedRange(NamedTuple):
    """Offsets and keys, all bounds inclusive."""

    first: int
    last: int
    lo: int = 0
    hi: int = HASH_MAX

    @property
    def is_whole(self) -> bool:
        """Return whether it is of all keys."""
        return self.lo == 0 and self.hi == HASH_MAX

    @property
    def key_range(self) -> KeyRange:
        """Return its keys."""
        return KeyRange(self.lo, self.hi)


class KeyedEdit(NamedTuple):
    """Changes of one call."""

    removed: tuple[KeyedRange, ...] = ()
    added: tuple[KeyedRange, ...] = ()


NOTHING = KeyedEdit()


class KeyedRanges:
    """Sets of offset ranges by key range; key ranges may overlap, and an offset may be in several.

    Invariant: no set is empty. Copies share their sets until one of them changes.
    Cost: what is asked of some keys looks at those that share keys with them, where key ranges lie
    apart as those of lanes do; else at every one. All keys stand beside these.
    """

    __slots__ = ("_order", "_sets", "_shared")

    def __init__(self) -> None:
        self._sets: dict[KeyRange, RangeSet] = {}
        self._shared: set[KeyRange] = set()
        self._order: _Order | None = None
        """None: it is to be made anew."""

    def __len__(self) -> int:
        return sum(map(len, self._sets.values()))

    def __bool__(self) -> bool:
        return bool(self._sets)

    def __iter__(self) -> Iterator[KeyedRange]:
        for key_range, of_keys in self._sets.items():
            for first, last in of_keys:
                yield KeyedRange(first, last, key_range.lo, key_range.hi)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyedRanges) and self._sets == other._sets

    __hash__ = None  # type: ignore[assignment]  # mutable

    @property
    def key_ranges(self) -> list[KeyRange]:
        """Key ranges that have offsets, ascending."""
        return sorted(self._sets)

    @property
    def has_keys(self) -> bool:
        """Return whether any is of some keys only."""
        return any(key_range != WHOLE for key_range in self._sets)

    @property
    def is_bounded(self) -> bool:
        """Return whether the key ranges are as many as there may be, or fewer."""
        if len(self._sets) <= DEPTH_MAX:
            return True
        order = self._ordered()
        if order.is_apart:
            return len(self._sets) <= KEY_RANGES_MAX
        return len(self._sets) <= OVERLAPPING_MAX and _depth_of(order.key_ranges) <= DEPTH_MAX

    @property
    def last(self) -> int | None:
        """The highest offset of all; None: there is none."""
        return max((of_keys.last or 0 for of_keys in self._sets.values()), default=None)

    def copy(self) -> KeyedRanges:
        """Return an independent copy."""
        other = KeyedRanges()
        other._sets = self._sets.copy()
        self._shared = set(self._sets)
        other._shared = self._shared.copy()
        other._order = self._order
        return other

    def of(self, key_range: KeyRange) -> RangeSet | None:
        """Return the offsets that were committed for exactly these keys. Do not change them."""
        return self._sets.get(key_range)

    def covering(self, lo: int, hi: int) -> list[RangeSet]:
        """Return the sets that are of all these keys. Do not change them."""
        return [self._sets[one] for one in self._sharing(lo, hi) if one.lo <= lo and hi <= one.hi]

    def cells(self, key_range: KeyRange) -> list[KeyRange]:
        """Cut keys where any key range begins or ends, so that each cell lies in it, or outside."""
        lows = {key_range.lo}
        for other in self._sharing(key_range.lo, key_range.hi):
            lows |= {low for low in (other.lo, other.hi + 1) if key_range.lo < low <= key_range.hi}
        if len(lows) == 1:
            return [key_range]
        starts = sorted(lows)
        ends = [*(low - 1 for low in starts[1:]), key_range.hi]
        return [KeyRange(lo, hi) for lo, hi in zip(starts, ends, strict=True)]

    def _sharing(self, lo: int, hi: int) -> Iterable[KeyRange]:
        """Return the key ranges that share keys with these, and perhaps others."""
        order = self._ordered()
        if not order.is_apart:
            return self._sets
        first = bisect_right(order.lows, lo) - 1
        if first < 0 or order.key_ranges[first].hi < lo:
            first += 1
        found = order.key_ranges[first : bisect_right(order.lows, hi)]
        if order.has_whole:
            found.append(WHOLE)
        return found

    def _ordered(self) -> _Order:
        if self._order is None:
            self._order = _order_of(self._sets)
        return self._order

    # -- changes -------------------------------------------------------------------------

    def add(self, first: int, last: int, key_range: KeyRange) -> KeyedEdit:
        """Add offsets of these keys, merged with what they overlap or touch."""
        return self.add_all([(first, last)], key_range)

    def add_all(self, added: Sequence[Range], key_range: KeyRange) -> KeyedEdit:
        """Add offsets of these keys: ranges that ascend and lie apart."""
        return self._change(key_range, lambda ranges: ranges.add_all(added))

    def remove_below(self, offset: int, key_range: KeyRange) -> KeyedEdit:
        """Remove every offset below `offset` of exactly these keys; a range across it is cut."""
        return self._change(key_range, lambda ranges: ranges.remove_below(offset))

    def remove_from(self, offset: int, key_ranges: Iterable[KeyRange]) -> KeyedEdit:
        """Remove `offset` and all above it wherever any of these keys has it.

        Other keys of the same range lose it as well: they are read again, and none is passed over.
        """
        wanted = list(key_ranges)
        removed: list[KeyedRange] = []
        added: list[KeyedRange] = []
        for key_range in list(self._sets):
            if any(key_range.lo <= one.hi and one.lo <= key_range.hi for one in wanted):
                edit = self._change(key_range, lambda ranges: ranges.remove_from(offset))
                removed += edit.removed
                added += edit.added
        return KeyedEdit(tuple(removed), tuple(added))

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        for of_keys in self._sets.values():
            assert len(of_keys) > 0
            of_keys.check()
        assert self._order is None or self._order == _order_of(self._sets)

    def _change(self, key_range: KeyRange, change: Callable[[RangeSet], RangeEdit]) -> KeyedEdit:
        ranges = self._sets.get(key_range)
        if ranges is None:
            ranges = RangeSet()
        elif key_range in self._shared:
            ranges = ranges.copy()
        edit = change(ranges)
        if not edit.removed and not edit.added:
            return NOTHING
        self._shared.discard(key_range)
        if (key_range in self._sets) != bool(len(ranges)):
            self._order = None
        if len(ranges):
            self._sets[key_range] = ranges
        else:
            self._sets.pop(key_range, None)
        return KeyedEdit(_keyed(edit.removed, key_range), _keyed(edit.added, key_range))


class _Order(NamedTuple):
    """Key ranges but that of all keys, ascending."""

    lows: list[int]
    key_ranges: list[KeyRange]
    is_apart: bool
    has_whole: bool


def _order_of(key_ranges: Collection[KeyRange]) -> _Order:
    ascending = sorted(one for one in key_ranges if one != WHOLE)
    is_apart = all(one.hi < after.lo for one, after in pairwise(ascending))
    lows = [one.lo for one in ascending]
    return _Order(lows, ascending, is_apart, len(ascending) < len(key_ranges))


def _depth_of(ascending: Iterable[KeyRange]) -> int:
    """Return the highest number of key ranges that share a key."""
    ends: list[int] = []
    depth = 0
    for one in ascending:
        while ends and ends[0] < one.lo:
            heapq.heappop(ends)
        heapq.heappush(ends, one.hi)
        depth = max(depth, len(ends))
    return depth


def _keyed(ranges: Iterable[Range], key_range: KeyRange) -> tuple[KeyedRange, ...]:
    return tuple(KeyedRange(*bounds, key_range.lo, key_range.hi) for bounds in ranges)


def skip_all(sets: Iterable[RangeSet], offset: int) -> int:
    """Return the first offset at or above `offset` that is in none of the sets."""
    sets = list(sets)
    while True:
        skipped = offset
        for ranges in sets:
            skipped = ranges.skip(skipped)
        if skipped == offset:
            return offset
        offset = skipped


def covers_all(sets: Sequence[RangeSet], first: int, last: int) -> bool:
    """Return whether every offset of `[first, last]` is in one of the sets at least."""
    if last < first or any(ranges.covers(first, last) for ranges in sets):
        return True
    return len(sets) > 1 and skip_all(sets, first) > last


def gaps_of_all(sets: Iterable[RangeSet], first: int, last: int) -> list[Range]:
    """Return the parts of `[first, last]` that are in none of the sets, ascending."""
    found = [(first, last)] if first <= last else []
    for ranges in sets:
        found = [gap for bounds in found for gap in ranges.gaps(*bounds)]
    return found
