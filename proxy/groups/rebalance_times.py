"""Time for which members stand still while their group deals out its partitions anew.

Source: KIP-429: members of an eager group have nothing from their JoinGroup until the answer to
their SyncGroup, which the coordinator gives as soon as the leader's SyncGroup is there.

A round begins with the first JoinGroup after a SyncGroup. Its members' times are counted from
there, not from their own JoinGroup: lanes of a member that left have no reader from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keylane.bounded import BoundedDict

GROUPS_MAX: Final = 10_000
"""Groups that are remembered; the longest unseen are forgotten first."""
ABANDONED_S: Final = 600.0
"""Time without a JoinGroup after which a round is over: twice Java's `max.poll.interval.ms`, for
which the coordinator waits for members."""


@dataclass(slots=True)
class _Round:
    started_s: float
    joined_s: float
    """Time when the last JoinGroup came."""
    is_synced: bool = False


class Rounds:
    """The last round of each group, as seen by one process."""

    def __init__(self) -> None:
        self._groups: BoundedDict[str, _Round] = BoundedDict(GROUPS_MAX)

    def joins(self, group: str, now_s: float) -> bool:
        """Note that a member asks to join; True: this begins a round."""
        known = self._groups.use(group)
        if known is not None and not known.is_synced and now_s - known.joined_s < ABANDONED_S:
            known.joined_s = now_s
            return False
        self._groups[group] = _Round(now_s, now_s)
        return True

    def knows(self, group: str) -> bool:
        """Return whether a JoinGroup of the group passed this process."""
        return group in self._groups

    def syncs(self, group: str, now_s: float) -> float | None:
        """Note that a member asks for its assignment; return the round's seconds, None: unseen."""
        known = self._groups.get(group)
        if known is None:
            return None
        known.is_synced = True
        return max(0.0, now_s - known.started_s)
