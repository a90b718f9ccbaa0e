"""A bound of log lines in a time, for lines that strangers can cause as often as they like."""

from __future__ import annotations


class LogPace:
    """A window that begins with its first line. Invariant: at most `lines_max` are let through."""

    def __init__(self, *, lines_max: int, interval_s: float) -> None:
        self._lines_max, self._interval_s = lines_max, interval_s
        self._began_s, self._count = float("-inf"), 0

    def let(self, now_s: float) -> int | None:
        """Return the number of lines left out since the last one; None: leave this one out, too."""
        left_out = 0
        if now_s - self._began_s >= self._interval_s:
            left_out = max(0, self._count - self._lines_max)
            self._began_s, self._count = now_s, 0
        self._count += 1
        return left_out if self._count <= self._lines_max else None
