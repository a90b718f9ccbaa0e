"""Naive twin of `proxy.scans.lag`: remembers the lane of every record that was scanned."""

from __future__ import annotations


class NaiveTally:
    """Lane by offset, and which offsets were looked at."""

    def __init__(self, lane_count: int) -> None:
        self.lane_count = lane_count
        self.lane_of: dict[int, int] = {}
        self.scanned: set[int] = set()

    def add(self, start: int, end: int, records: dict[int, int]) -> None:
        """All offsets of `[start, end)` were looked at; `records` is lane by offset."""
        self.scanned |= set(range(start, end))
        self.lane_of |= records

    def truncate(self, end: int) -> None:
        """The log was cut at `end`."""
        self.scanned = {offset for offset in self.scanned if offset < end}
        self.lane_of = {offset: lane for offset, lane in self.lane_of.items() if offset < end}

    def remaining(self, lane: int, start: int, end: int) -> tuple[int, bool]:
        """Records of a lane in `[start, end)` that were scanned, and whether all was."""
        count = sum(self.lane_of.get(offset) == lane for offset in range(start, end))
        return count, self.scanned >= set(range(start, end))
