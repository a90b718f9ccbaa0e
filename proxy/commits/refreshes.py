"""When the stable offsets of a running group are committed again, so that brokers keep them.

In:    heartbeats of members, as they pass.  Out: groups whose offsets are due.
Source: docs/decisions/025; `offsets.retention.minutes` of Kafka (7 days since KIP-186).

A lane may be quiet for weeks, and its members commit nothing meanwhile. Their heartbeats go on, and
name all that a commit needs, so they are the clock: no timer, and nothing for groups without one.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import Final, NamedTuple

GROUPS_MAX: Final = 100_000
"""Groups whose turn is remembered, some 150 bytes each; the longest unseen are forgotten."""
RETENTION_PARTS: Final = 4
"""Of the retention: one refresh may fail, and another, and the offset is still there."""
SPREAD_S_MAX: Final = 600.0
"""After a start all groups are due, spread over this time at most."""
AGAIN_PARTS: Final = 16
"""Of the interval, until a refresh that failed is tried again."""
AGAIN_S_MAX: Final = 60.0


class Beat(NamedTuple):
    """A member that a heartbeat names."""

    group: str
    generation_id: int
    member_id: str
    instance_id: str | None


class Refreshes:
    """The next turn of each group that has offsets of lanes."""

    def __init__(self, interval_s: float, *, groups_max: int = GROUPS_MAX) -> None:
        """interval_s: from the configuration; `note_retention` may make it shorter."""
        self._wanted_s = self.interval_s = interval_s
        self._groups_max = groups_max
        self._due_s: OrderedDict[str, float] = OrderedDict()

    def note_retention(self, retention_s: float) -> None:
        """How long brokers keep offsets without a commit."""
        self.interval_s = min(self._wanted_s, retention_s / RETENTION_PARTS)

    def knows(self, group: str) -> bool:
        """Whether the group has a turn."""
        return group in self._due_s

    def is_due(self, group: str, now_s: float) -> bool:
        """A member of a group with offsets of lanes lives; True: its offsets are due, once.

        A group that is new here gets a turn soon: when its offsets were committed is not known.
        """
        due_s = self._due_s.get(group)
        if due_s is None:
            share = zlib.crc32(group.encode()) / 2**32
            self._put(group, now_s + share * min(self.interval_s / RETENTION_PARTS, SPREAD_S_MAX))
            return False
        if now_s < due_s <= now_s + self.interval_s:
            return False  # a later turn was given when the interval was longer
        self._put(group, now_s + self.interval_s)
        return True

    def try_again(self, group: str, now_s: float) -> None:
        """The group's offsets could not be committed."""
        self._put(group, now_s + min(self.interval_s / AGAIN_PARTS, AGAIN_S_MAX))

    def set_due(self, group: str, now_s: float) -> None:
        """An offset is missing, or a turn was taken by a client that may not commit."""
        self._put(group, now_s)

    def forget(self, group: str) -> None:
        """It has no offsets any more."""
        self._due_s.pop(group, None)

    def _put(self, group: str, due_s: float) -> None:
        self._due_s[group] = due_s
        self._due_s.move_to_end(group)
        if len(self._due_s) > self._groups_max:
            self._due_s.popitem(last=False)
