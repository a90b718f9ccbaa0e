"""Key ranges: inclusive intervals of the hash space.

Source: docs/decisions/001.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

HASH_MAX: Final = 2**63 - 1
"""The last point of the hash space, `java.lang.Long.MAX_VALUE`; it belongs to the last range."""
LANE_COUNT_MAX: Final = 1024
"""Lanes of one partition. More than any group has members; keeps the kernels' tables small."""


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The hashes from `lo` to `hi`, both inclusive; ordered by `lo`, then `hi`."""

    lo: int
    hi: int

    def __post_init__(self) -> None:
        if not 0 <= self.lo <= self.hi <= HASH_MAX:
            raise ValueError(f"key range needs 0 <= lo <= hi <= 2**63-1, got {self.lo}, {self.hi}")

    def contains(self, key_hash: int) -> bool:
        """Return whether the hash lies inside."""
        return self.lo <= key_hash <= self.hi


WHOLE: Final = (KeyRange(0, HASH_MAX),)
"""A partition that is not cut."""


def merge_ranges(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """Sort, and join ranges that overlap or touch."""
    merged: list[KeyRange] = []
    for part in sorted(ranges):
        if merged and part.lo <= merged[-1].hi + 1:
            merged[-1] = KeyRange(merged[-1].lo, max(merged[-1].hi, part.hi))
        else:
            merged.append(part)
    return tuple(merged)


def split_even(count: int) -> tuple[KeyRange, ...]:
    """Cut the whole hash space into `count` ranges of near-equal size, in ascending order.

    Range k is [k * N // count, (k + 1) * N // count - 1] and the last one ends at N = HASH_MAX.
    With two ranges the second is larger by two. Clients and jobs cut at the same hashes, so the
    form must not change.

    Raises:
        ValueError: `count` is below 1, or so large that a range would be empty.
    """
    if not 1 <= count <= HASH_MAX:
        raise ValueError(f"cannot cut the hash space into {count} ranges")
    starts = [k * HASH_MAX // count for k in range(count)]
    ends = [start - 1 for start in starts[1:]] + [HASH_MAX]
    return tuple(KeyRange(lo, hi) for lo, hi in zip(starts, ends, strict=True))
