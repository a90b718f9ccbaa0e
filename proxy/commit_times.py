"""When each lane of a group was last committed, since this process runs.

In:    commits that were taken.  Out: a time per group and lane.
Next:  `describe` tells them.
Pure:  time is an argument.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

ENTRIES_MAX: Final = 1_000_000
"""Lanes of all groups together, 8 bytes each; groups that are idle longest are forgotten first."""

Key = tuple[str, str]
"""Group, topic as the client names it."""


@dataclass(slots=True)
class CommitTimes:
    """Times of last commits in ms since 1970; used by the event loop alone.

    Invariant: `entry_count` is the sum over the groups' topics, and at most ENTRIES_MAX unless
    one topic alone has more.
    """

    entry_count: int = 0
    _times: OrderedDict[Key, array[int]] = field(default_factory=OrderedDict)

    def note(
        self, group: str, topic: str, index_count: int, indexes: Iterable[int], now_ms: int
    ) -> None:
        """Lanes (indexes) of a topic with `index_count` lanes were committed."""
        key = (group, topic)
        times = self._times.get(key)
        if times is None or len(times) != index_count:
            self.entry_count += index_count - (len(times) if times is not None else 0)
            times = self._times[key] = array("q", bytes(8 * index_count))
        for index in indexes:
            times[index] = now_ms
        self._times.move_to_end(key)
        while self.entry_count > ENTRIES_MAX and len(self._times) > 1:
            _, forgotten = self._times.popitem(last=False)
            self.entry_count -= len(forgotten)

    def last_ms(self, group: str, topic: str, index: int) -> int | None:
        """When a lane was last committed; None: not since the start, or forgotten."""
        times = self._times.get((group, topic))
        return times[index] or None if times is not None and index < len(times) else None
