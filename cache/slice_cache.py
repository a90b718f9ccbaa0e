"""Slices that wait for their lane: bounded in bytes over the whole process.

Source: docs/decisions/004.

Lanes need not be read side by side (Spark runs as many as it has slots), so no lane waits until a
block was read by every other one. The slice that has waited longest goes first: its lane is stuck,
or so late that reading the slice once more costs little beside the rest of its way.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class CacheEntry(Protocol):
    """An entry of the cache; it must forget its data when it is evicted."""

    def evicted(self) -> None:
        """Forget the data: the cache gives the entry up."""


class SliceCache:
    """Entries in the order they came, the oldest first to go. Single-threaded.

    Evicting costs a read from upstream, never a record.
    Invariants: 0 <= bytes_used <= bytes_max at every instant; bytes_used is the sum of costs; with
    what is reserved it is within the bound, or nothing is kept.
    """

    __slots__ = (
        "_costs", "bytes_max", "bytes_reserved", "bytes_used", "eviction_count", "hit_count",
        "sent_count",
    )  # fmt: skip

    def __init__(self, *, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.bytes_reserved = 0
        """Bytes of the bound that records of share groups have."""
        self.eviction_count = 0
        self.hit_count = 0
        self.sent_count = 0
        self._costs: OrderedDict[CacheEntry, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._costs)

    def put(self, entry: CacheEntry, cost_bytes: int, *, may_evict: bool) -> bool:
        """Keep `entry`; False when there is no room for it.

        may_evict: older entries may go for it. Otherwise it takes only free room: data that no
        client has asked for yet does not push out data that a client waits for.
        """
        assert entry not in self._costs, "an entry is put once"
        if cost_bytes > self._room:
            return False
        if self.bytes_used + cost_bytes > self._room:
            if not may_evict:
                return False
            self._make_room(cost_bytes)
        self._costs[entry] = cost_bytes
        self.bytes_used += cost_bytes
        return True

    def remove(self, entry: CacheEntry) -> None:
        """Forget an entry; one that is not kept does not count."""
        self.bytes_used -= self._costs.pop(entry, 0)

    def reserve(self, size_bytes: int) -> None:
        """Take bytes of the bound for something else, or give them back (negative)."""
        self.bytes_reserved += size_bytes
        self._make_room(0)

    @property
    def _room(self) -> int:
        return max(0, self.bytes_max - self.bytes_reserved)

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        assert 0 <= self.bytes_used <= self._room
        assert self.bytes_used == sum(self._costs.values())

    def _make_room(self, cost_bytes: int) -> None:
        while self._costs and self.bytes_used + cost_bytes > self._room:
            entry, freed = self._costs.popitem(last=False)
            self.bytes_used -= freed
            self.eviction_count += 1
            entry.evicted()
