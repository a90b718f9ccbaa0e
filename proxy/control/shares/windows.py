"""Windows of ordered share groups at this node, looked at without holding up their members.

A summary is one pass over the records that are held, 0.6 us each. Windows have 10,000 at most, and
there is one for each group and partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.groups import OrderedGroups
from keylane.share.summary import WindowSummary

RECORDS_AT_ONCE: Final = 10_000
"""Records that are looked at, some 6 ms, before others are served."""


class SharedWindow(NamedTuple):
    """One open partition at a moment."""

    place: SharedPlace
    leader_id: int | None
    """None: no session at the broker is open."""
    error_code: int
    """0: members are served."""
    look_ahead: int
    summary: WindowSummary

    @property
    def used(self) -> float:
        """Return the part of the look-ahead from the oldest record held to the highest offset."""
        return self.summary.span / self.look_ahead


async def look_at_windows(
    ordered: OrderedGroups, group: str | None = None
) -> Sequence[SharedWindow]:
    """Return the windows of a group, or of all groups, by group, topic and partition."""
    found, seen = [], 0
    for partition in list(ordered.partitions()):
        place = partition.place
        rule = ordered.rule_of(place.group, place.topic)
        if rule is None or group not in (None, place.group):
            continue
        summary, leader = partition.summary(), partition.leader
        leader_id = leader[0] if leader is not None else None
        code = int(partition.error_code)
        found.append(SharedWindow(place, leader_id, code, rule.look_ahead, summary))
        seen += summary.records
        if seen >= RECORDS_AT_ONCE:
            seen = 0
            await asyncio.sleep(0)
    found.sort(key=lambda window: (window.place.group, window.place.topic, window.place.partition))
    return found
