"""What is done of a partition, offset by offset: what `client.progress` must agree with."""

from __future__ import annotations

from collections.abc import Iterable

from keylane.offsets.intervals import Range


class NaiveProgress:
    """Every offset by itself. It is done if it was at first, or if its record is.

    The record of an offset is the last one given at or below it; before the first there is none,
    and nothing to wait for.
    """

    def __init__(self, position: int, done: Iterable[Range]) -> None:
        self.position, self.next = position, position
        self.old = {offset for first, last in done for offset in range(first, last + 1)}
        self.given: list[int] = []
        self.marked: set[int] = set()
        self.committed: set[int] = set()

    def wanted(self, first: int, last: int) -> set[int]:
        """Return the offsets that are neither given nor done."""
        return {
            offset
            for offset in range(first, last + 1)
            if offset >= self.next and not self.is_done(offset)
        }

    def is_done(self, offset: int) -> bool:
        """Return whether an offset is done."""
        if offset < self.position or offset in self.old:
            return True
        if offset >= self.next:
            return False
        below = [each for each in self.given if each <= offset]
        return not below or below[-1] in self.marked

    def plain_offset(self) -> int:
        """Return the lowest offset that is not done."""
        offset = self.position
        while self.is_done(offset):
            offset += 1
        return offset

    def fresh(self) -> set[int]:
        """Return what is done and is not committed."""
        return {
            offset
            for offset in range(self.position, self.next)
            if self.is_done(offset) and offset not in self.old | self.committed
        }

    def open_count(self) -> int:
        """Return the number of records that were given and are not done."""
        return sum(1 for offset in self.given if not self.is_done(offset))
