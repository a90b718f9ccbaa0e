"""Comparisons of subscribed patterns with lane topics: one at a time, for a share of the time.

RE2 holds the interpreter's lock while it compiles, so a thread alone would not keep a pattern from
stopping the event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from keylane.proxy.groups.patterns import ComparedPatterns, check_pattern, find_matches

REST_SHARE: Final = 4.0
"""Pause after a comparison, in times of what it took: patterns take a fifth of the time."""
REST_S_MAX: Final = 1.0
WAITING_MAX: Final = 32
"""Clients that wait for their turn."""


class PatternTurns:
    """Comparisons for all connections of a node. Invariant: at most WAITING_MAX wait."""

    def __init__(self, patterns: ComparedPatterns) -> None:
        self._patterns = patterns
        self._lock, self._waiting = asyncio.Lock(), 0

    async def compare(self, pattern: str, topics: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the topics that match; None: too many wait. Raises: PatternUnreadable."""
        check_pattern(pattern)
        known = self._patterns.matches(pattern, topics)
        if known is not None:
            return known
        if self._waiting >= WAITING_MAX:
            return None
        self._waiting += 1
        # A client that goes away does not end what a thread has begun.
        return await asyncio.shield(self._compare(pattern, topics))

    async def _compare(self, pattern: str, topics: tuple[str, ...]) -> tuple[str, ...]:
        try:
            async with self._lock:
                began_s = time.monotonic()
                try:
                    found = await asyncio.to_thread(find_matches, pattern, topics)
                finally:
                    rest_s = REST_SHARE * (time.monotonic() - began_s)
                    await asyncio.sleep(min(REST_S_MAX, rest_s))
        finally:
            self._waiting -= 1
        self._patterns.note_matches(pattern, topics, found)
        return found
