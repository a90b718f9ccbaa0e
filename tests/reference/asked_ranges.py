"""Key ranges in use, as a list: the naive twin of `proxy.topics.range_splits`."""

from __future__ import annotations

from keylane.keyrange.space import KeyRange
from keylane.proxy.topics.range_splits import IDLE_S, Ranges


class AskedRanges:
    """Which ranges of one partition were asked for, and when."""

    def __init__(self) -> None:
        self.asked_s: dict[Ranges, float] = {}

    def ask(self, ranges: Ranges, now_s: float) -> None:
        """Note a fetch."""
        self.asked_s[ranges] = now_s

    def since(self, from_s: float) -> list[Ranges]:
        """Ranges that were asked for since then."""
        return [ranges for ranges, asked_s in self.asked_s.items() if asked_s >= from_s]

    def in_use(self, now_s: float) -> list[Ranges]:
        """Ranges that do not give way."""
        return [ranges for ranges, asked_s in self.asked_s.items() if now_s - asked_s <= IDLE_S]

    def overlapping(self, ranges: Ranges, now_s: float) -> list[Ranges]:
        """Ranges in use, other than these, that have a key in common with them."""
        return [o for o in self.in_use(now_s) if o != ranges and overlap(o, ranges)]

    def are_disjoint(self, now_s: float) -> bool:
        """Whether no key is in two of the ranges in use."""
        return not any(self.overlapping(ranges, now_s) for ranges in self.in_use(now_s))


def overlap(one: Ranges, other: Ranges) -> bool:
    """Whether a key is in both."""
    return any(meet(a, b) for a in one for b in other)


def meet(one: KeyRange, other: KeyRange) -> bool:
    """Whether a hash is in both."""
    return one.lo <= other.hi and other.lo <= one.hi


def holds(ranges: Ranges, point: int) -> bool:
    """Whether a hash is in the ranges."""
    return any(part.contains(point) for part in ranges)
