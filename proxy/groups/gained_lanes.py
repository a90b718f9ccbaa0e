"""Lanes that a member has just been given: what it was answered, and how low it has fetched since.

A member that commits below the offset that it was answered, and has fetched nothing below it
since the lane came to it, has not sought back: it commits records of an earlier turn.
Only lanes that are new to the member are kept here: of a lane that it held before, it may still
have records that it fetched long ago.

Source: docs/decisions/031.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from keylane.assignor.model import Lane

LANES_MAX: Final = 200_000
"""Lanes of all members together; those beyond are not watched, and commits count as they come."""
WATCHERS_MAX: Final = 64
"""Groups in which one client id gained one lane: a Fetch looks at each of them."""
NEVER: Final = 2**63 - 1


@dataclass(slots=True)
class GainedLane:
    """One lane that is new to a member, in the generation that goes on."""

    fetched_min: int = NEVER
    """The lowest offset that any connection with the member's client id has asked for."""
    answered: int | None = None
    """The first committed offset that the member was answered; None: not asked yet, or none."""


@dataclass(slots=True)
class GainedLanes:
    """Lanes of a node's members, by client id: a Fetch says no more of its sender."""

    by_client: dict[str, dict[Lane, list[GainedLane]]] = field(default_factory=dict)
    """Several of one lane where members of several groups go by one client id."""
    lane_count: int = 0
    """Lanes that are held in assignments, gained or not."""

    def note_fetched(
        self, client_id: str, topic: str, positions: Iterable[tuple[int, int]]
    ) -> None:
        """Note the records that a client asks for: (index, offset) of each lane."""
        lanes = self.by_client.get(client_id)
        if lanes is None:
            return
        for index, offset in positions:
            for lane in lanes.get((topic, index), ()):
                lane.fetched_min = min(lane.fetched_min, offset)

    def add(self, client_id: str, lane: Lane) -> GainedLane | None:
        """Watch a lane; None: as many as may be are watched already."""
        watchers = self.by_client.setdefault(client_id, {}).setdefault(lane, [])
        if len(watchers) >= WATCHERS_MAX:
            return None
        watchers.append(GainedLane())
        return watchers[-1]

    def remove(self, client_id: str, lane: Lane, gained: GainedLane) -> None:
        """Watch a lane no longer."""
        lanes = self.by_client[client_id]
        kept = [each for each in lanes[lane] if each is not gained]
        if kept:
            lanes[lane] = kept
            return
        del lanes[lane]
        if not lanes:
            del self.by_client[client_id]


class MemberLanes:
    """Lanes of the member behind one connection, its only one to its coordinator."""

    def __init__(self, shared: GainedLanes) -> None:
        self._shared = shared
        self._group: str | None = None
        self._client_id = ""
        self._given: frozenset[Lane] = frozenset()
        self._gained: dict[Lane, GainedLane] = {}

    def note_given(self, group: str, client_id: str, lanes: Iterable[Lane]) -> None:
        """Note that a generation begins, in which the member holds these lanes.

        In the first one that this connection sees, it may have held them before.
        """
        is_known = (group, client_id) == (self._group, self._client_id)
        before = self._given
        self.clear()
        given = frozenset(lanes)
        if self._shared.lane_count + len(given) > LANES_MAX:
            return
        self._group, self._client_id, self._given = group, client_id, given
        self._shared.lane_count += len(given)
        for lane in given - before if is_known else ():
            gained = self._shared.add(client_id, lane)
            if gained is not None:
                self._gained[lane] = gained

    def note_held(self, group: str, client_id: str, given: frozenset[Lane]) -> None:
        """Note the lanes of a KIP-848 member, which come and go one by one."""
        if given is self._given and (group, client_id) == (self._group, self._client_id):
            return  # as with almost every heartbeat
        is_more = self._shared.lane_count + len(given) - len(self._given) > LANES_MAX
        if is_more or (group, client_id) != (self._group, self._client_id):
            self.note_given(group, client_id, given)
            return
        for lane in self._gained.keys() - given:
            self._shared.remove(client_id, lane, self._gained.pop(lane))
        self._shared.lane_count += len(given) - len(self._given)
        for lane in given - self._given:
            gained = self._shared.add(client_id, lane)
            if gained is not None:
                self._gained[lane] = gained
        self._given = given

    def note_answered(self, group: str, lane: Lane, offset: int) -> None:
        """Note a committed offset that the member was answered; the first of a generation counts.

        From a later one the member does not go on.
        """
        gained = self._gained.get(lane) if group == self._group else None
        if gained is not None and gained.answered is None:
            gained.answered = offset

    def is_left_over(self, group: str, lane: Lane, offset: int) -> bool:
        """Return whether a commit of this offset must be of records of an earlier turn."""
        gained = self._gained.get(lane) if group == self._group else None
        if gained is None or gained.answered is None:
            return False
        return offset < gained.answered <= gained.fetched_min

    def clear(self) -> None:
        """Forget the member: its connection is gone, or its assignment another."""
        for lane, gained in self._gained.items():
            self._shared.remove(self._client_id, lane, gained)
        self._shared.lane_count -= len(self._given)
        self._group, self._given, self._gained = None, frozenset(), {}
