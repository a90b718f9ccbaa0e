"""A map that is constant on intervals, for the naive twin of positions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")


class IntervalMap(Generic[V]):
    """A value for every integer of `[first, last]`, constant on a few intervals.

    Neighbouring intervals of equal value are merged, so equal maps are equal lists.
    Cost: an update moves O(n) list slots and calls `change` once per interval it meets.
    """

    __slots__ = ("_starts", "_values", "first", "last")

    def __init__(self, first: int, last: int, value: V) -> None:
        assert first <= last, "an interval map covers at least one integer"
        self.first, self.last = first, last
        self._starts: list[int] = [first]
        self._values: list[V] = [value]

    @classmethod
    def from_ends(cls, first: int, last: int, ends: Sequence[tuple[int, V]]) -> IntervalMap[V]:
        """Build from `(last integer, value)` of each interval, ascending up to `last`."""
        assert ends and ends[-1][0] == last, "intervals cover the map"
        made = cls(first, last, ends[0][1])
        starts = [first, *(end + 1 for end, _ in ends[:-1])]
        pieces = [(start, value) for start, (_, value) in zip(starts, ends, strict=True)]
        made._starts = [start for start, _ in _merge(pieces)]
        made._values = [value for _, value in _merge(pieces)]
        return made

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalMap) and list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"IntervalMap({list(self.items())})"

    def copy(self) -> IntervalMap[V]:
        """Return an independent copy; values are shared, so they must be immutable."""
        other: IntervalMap[V] = IntervalMap(self.first, self.last, self._values[0])
        other._starts, other._values = self._starts.copy(), self._values.copy()
        return other

    def values(self) -> list[V]:
        """Return the value of each interval, ascending; not to be changed by the caller."""
        return self._values

    def items(
        self, first: int | None = None, last: int | None = None
    ) -> Iterator[tuple[int, int, V]]:
        """Yield `(first, last, value)` of each interval that meets the bounds, cut to them."""
        low = self.first if first is None else first
        high = self.last if last is None else last
        index = bisect_right(self._starts, low) - 1
        while index < len(self._starts) and self._starts[index] <= high:
            yield max(low, self._starts[index]), min(high, self._end(index)), self._values[index]
            index += 1

    def update(self, first: int, last: int, change: Callable[[int, int, V], V]) -> bool:
        """Put `change(first, last, value)` on each interval in the bounds; True if any differs."""
        assert self.first <= first <= last <= self.last, "bounds outside of the map"
        start = bisect_right(self._starts, first) - 1
        stop = bisect_right(self._starts, last)
        pieces = [(lo, change(lo, hi, value)) for lo, hi, value in self.items(first, last)]
        olds = self._values[start:stop]
        if all(new is old or new == old for (_, new), old in zip(pieces, olds, strict=True)):
            return False
        if self._starts[start] < first:
            pieces.insert(0, (self._starts[start], self._values[start]))
        if self._end(stop - 1) > last:
            pieces.append((last + 1, self._values[stop - 1]))
        if start:
            start -= 1
            pieces.insert(0, (self._starts[start], self._values[start]))
        if stop < len(self._starts):
            pieces.append((self._starts[stop], self._values[stop]))
            stop += 1
        merged = _merge(pieces)
        self._starts[start:stop] = [lo for lo, _ in merged]
        self._values[start:stop] = [value for _, value in merged]
        return True

    def cuts_added(self, first: int, last: int) -> int:
        """Return by how many intervals an update of these bounds can lengthen the map."""
        return sum(
            self.first <= at <= self.last and self._starts[bisect_right(self._starts, at) - 1] != at
            for at in (first, last + 1)
        )

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        assert len(self._starts) == len(self._values)
        assert self._starts[0] == self.first and self._starts[-1] <= self.last
        for index in range(1, len(self._starts)):
            assert self._starts[index - 1] < self._starts[index]
            assert self._values[index - 1] != self._values[index]

    def _end(self, index: int) -> int:
        return self._starts[index + 1] - 1 if index + 1 < len(self._starts) else self.last


def _merge(pieces: list[tuple[int, V]]) -> list[tuple[int, V]]:
    """Drop every piece whose value equals that of the piece before it."""
    merged = pieces[:1]
    for start, value in pieces[1:]:
        if value != merged[-1][1]:
            merged.append((start, value))
    return merged
