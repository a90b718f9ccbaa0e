"""Times at which the load of a group is looked at, and the member that is asked to join again.

A coordinator begins a rebalance when the leader of a stable group joins again, and not for any
other member whose subscription is the same (KIP-62; GroupMetadataManager.classicGroupJoin). Which
member leads stands in each answer to a JoinGroup. While it is not known, one member is asked, and
the answer to it names the leader.

    first heartbeat of a generation -> LOOK, once
    interval / 10 later             -> WEIGH, and again after each such time
    `ask`                           -> the leader's heartbeats are answered REBALANCE_IN_PROGRESS,
                                       until there is another generation
    after it                        -> no WEIGH within the interval

Source: docs/decisions/045; `probing.rebalance.interval.ms` of Kafka Streams (KIP-441).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from keylane.assignor.model import Lane
from keylane.bounded import BoundedDict

GROUPS_MAX: Final = 10_000
"""Groups that are remembered; the longest unseen are forgotten first."""
FIRST_PARTS: Final = 10
"""Of the interval: time in which the load of a new generation is measured."""


class LoadTurn(Enum):
    """Work that a heartbeat is the time for."""

    LOOK = auto()
    """Learn the lanes of its members, if this process has not dealt them out."""
    WEIGH = auto()
    """Compare their loads."""


@dataclass(slots=True)
class _Group:
    generation_id: int
    due_s: float
    asked_s: float = float("-inf")
    """Time when a rebalance was asked for last, of any generation."""
    is_asked: bool = False
    """Of this generation."""
    first_asked: str | None = None
    """The member that was asked while the leader was not known."""
    shown_loads: Mapping[Lane, float] = field(default_factory=dict)
    """Loads of the answer to an operator, in bytes per second; kept for one generation."""


class LoadTurns:
    """Turns of each group, by heartbeats that its coordinator has accepted."""

    def __init__(self, interval_s: float) -> None:
        """interval_s: least time between two rebalances of a group that are asked for."""
        self._interval_s, self._step_s = interval_s, interval_s / FIRST_PARTS
        self._groups: BoundedDict[str, _Group] = BoundedDict(GROUPS_MAX)

    def next(self, group: str, generation_id: int, now_s: float) -> LoadTurn | None:
        """Note a heartbeat; return the work that is due now, each once."""
        known = self._groups.use(group)
        if known is None or known.generation_id != generation_id:
            asked_s = float("-inf") if known is None else known.asked_s
            due_s = max(now_s + self._step_s, asked_s + self._interval_s)
            self._groups[group] = _Group(generation_id, due_s, asked_s)
            return LoadTurn.LOOK
        if known.is_asked or now_s < known.due_s:
            return None
        known.due_s = now_s + self._step_s
        return LoadTurn.WEIGH

    def ask(
        self,
        group: str,
        generation_id: int,
        now_s: float,
        shown_loads: Mapping[Lane, float] | None = None,
    ) -> bool:
        """Ask the group to rebalance; False: it has another generation by now.

        shown_loads: bytes per second of each lane, which the next generation is planned by; None:
        it is planned by those of its time.
        """
        known = self._groups.get(group)
        if known is None or known.generation_id != generation_id:
            return False
        known.is_asked, known.asked_s = True, now_s
        known.shown_loads = shown_loads or {}
        return True

    def shown_loads(self, group: str, generation_id: int) -> Mapping[Lane, float]:
        """Return the loads that an operator saw, if this generation is the one asked for."""
        known = self._groups.get(group)
        if known is None or not known.is_asked or generation_id != known.generation_id + 1:
            return {}
        return known.shown_loads

    def generation_of(self, group: str) -> int | None:
        """Return the generation of the last heartbeat; None: none has passed, as far as known."""
        known = self._groups.get(group)
        return None if known is None else known.generation_id

    def is_asked(self, group: str, member_id: str, leader_id: str | None) -> bool:
        """Return whether this member is to join again; the first one, while no leader is known."""
        known = self._groups.get(group)
        if known is None or not known.is_asked:
            return False
        if leader_id is None:
            known.first_asked = known.first_asked or member_id
            return member_id == known.first_asked
        return member_id == leader_id
