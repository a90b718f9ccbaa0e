"""The lowest offset of a window of records."""

from __future__ import annotations

from collections.abc import Container
from heapq import heappop, heappush


class LowestOffset:
    """A heap of offsets, with some of those that have left."""

    def __init__(self, records: Container[int]) -> None:
        """records: the offsets that are there."""
        self._records = records
        self._offsets: list[int] = []

    def __len__(self) -> int:
        """Return the size of the heap."""
        return len(self._offsets)

    def add(self, offset: int) -> None:
        """Note an offset that has come."""
        heappush(self._offsets, offset)

    def forget(self) -> None:
        """Forget offsets that have left, below the lowest one: the heap takes no more memory."""
        while self._offsets and self._offsets[0] not in self._records:
            heappop(self._offsets)

    def find(self, default: int) -> int:
        """Return the lowest offset; `default`: there is none."""
        self.forget()
        return self._offsets[0] if self._offsets else default
