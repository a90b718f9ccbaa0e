"""Memory of records that wait for their turn, bounded per group and in all.

Source: docs/decisions/035, 048.

The bound of all is a part of the cache's: what share groups hold, lanes do not have. A partition
that holds nothing may always fetch once, so that no group waits for another one without end.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Final

from keylane.cache.slice_cache import SliceCache
from keylane.kernel.pick import RecordBlock

ALL_PART: Final = 2
"""Part of the cache's bound that all share groups may have together."""
GROUP_PART: Final = 4
"""Part of it that one group may have."""


class HeldBlock:
    """A block of records; its bytes are given back when its last record is finished."""

    __slots__ = ("__weakref__", "epoch_of", "largest_bytes", "records")

    def __init__(self, records: RecordBlock) -> None:
        self.records = records
        self.largest_bytes = int(records.sizes.max(initial=0))
        self.epoch_of = records.epoch_of


class HeldBytes:
    """Bytes of all blocks by group."""

    def __init__(self, cache: SliceCache) -> None:
        self._cache = cache
        self.by_group: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Bytes of all groups."""
        return self.by_group.total()

    @property
    def bytes_max(self) -> int:
        """Bound of all groups together."""
        return self._cache.bytes_max // ALL_PART

    def has_room(self, group: str) -> bool:
        """Return whether a group may hold more."""
        group_max = self._cache.bytes_max // GROUP_PART
        return self.total < self.bytes_max and self.by_group[group] < group_max

    def hold(self, group: str, records: RecordBlock) -> HeldBlock:
        """Count a block until it is used no more."""
        block = HeldBlock(records)
        self._count(group, records.size_bytes)
        weakref.finalize(block, self._count, group, -records.size_bytes)
        return block

    def _count(self, group: str, size_bytes: int) -> None:
        self.by_group[group] += size_bytes
        if self.by_group[group] <= 0:
            del self.by_group[group]
        self._cache.reserve(size_bytes)
