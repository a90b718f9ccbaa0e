"""Groups whose lanes keylane deals out: their members, and the last plan.

Source: KIP-345 (static membership), KIP-429 (cooperative rebalancing).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from keylane.bounded import CostBoundedDict
from keylane.proxy.groups.rebalance_times import Rounds
from keylane.proxy.groups.streams_groups import StreamsGroups

Lane = tuple[str, int]
"""Topic as the client names it, lane index."""
Signature = tuple[object, ...]
"""Reason of a target, which is kept while this stays the same."""

COST_MAX: Final = 64 * 1024**2
"""Bytes of all memories: 1,000 groups of 100 members on 1,000 lanes."""
LANE_COST: Final = 64
MEMBER_COST: Final = 256
"""Roughly what CPython takes beside the bytes."""


def identity_of(member_id: str, instance_id: str | None) -> str:
    """Return the name under which a member's lanes are remembered over generations."""
    return f"static {instance_id}" if instance_id else member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader gets it."""

    member_id: str
    instance_id: str | None
    """`group.instance.id`: it outlives the member id."""
    metadata: bytes
    """The subscription, in the protocol that the broker chose."""
    is_direct: bool = False
    """It has joined at the broker's own address: it takes partitions, not lanes."""

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        return identity_of(self.member_id, self.instance_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The members of one generation."""

    generation_id: int
    leader_id: str
    protocol_name: str
    members: tuple[JoinedMember, ...]

    @property
    def is_mixed(self) -> bool:
        """Return whether some members take partitions."""
        return any(member.is_direct for member in self.members)

    @property
    def cost(self) -> int:
        """Return the bytes to keep it."""
        return sum(MEMBER_COST + len(member.metadata) for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Lanes that keylane gave out in one generation."""

    generation_id: int
    lanes: Mapping[str, tuple[Lane, ...]]
    """Lanes by `JoinedMember.identity`."""
    target: Mapping[str, tuple[Lane, ...]]
    """Lanes by member id to which the generations on the way lead."""
    signature: Signature
    withheld_count: int
    moved_count: int
    gained: Mapping[str, tuple[Lane, ...]] = field(default_factory=dict)
    """Lanes by identity that it did not have one generation before; those without are left out."""
    lost: Mapping[str, tuple[Lane, ...]] = field(default_factory=dict)
    """Lanes by identity that it had one generation before, and has no more."""

    @property
    def cost(self) -> int:
        """Return the bytes to keep it."""
        kept = (self.lanes, self.target, self.gained, self.lost)
        count = sum(len(lanes) for by_name in kept for lanes in by_name.values())
        return MEMBER_COST * len(self.lanes) + LANE_COST * count


@dataclass(frozen=True, slots=True)
class LanesBefore:
    """Lanes that members had in one generation, by `JoinedMember.identity`."""

    generation_id: int
    lanes: Mapping[str, tuple[Lane, ...]]

    @property
    def cost(self) -> int:
        """Return the bytes to keep it."""
        return sum(MEMBER_COST + LANE_COST * len(lanes) for lanes in self.lanes.values())


NOTHING_HELD: Final = LanesBefore(-1, {})


@dataclass(slots=True)
class _Memory:
    joined: Joined | None = None
    planned: Planned | None = None
    seen: tuple[Joined, LanesBefore] | None = None
    """Members and lanes as the coordinator has them, where this process has not dealt them out."""
    leader: tuple[int, str] | None = None
    is_warned: bool = False

    @property
    def cost(self) -> int:
        joined = self.joined.cost if self.joined else 0
        planned = self.planned.cost if self.planned else 0
        seen = self.seen[0].cost + self.seen[1].cost if self.seen else 0
        return MEMBER_COST + joined + planned + seen


_UNKNOWN: Final = _Memory()


class Generations:
    """The last generation of each group, as far as memory goes; the idlest are forgotten first.

    A group that is forgotten between JoinGroup and SyncGroup keeps its client's assignment.
    """

    def __init__(self, *, cost_max: int = COST_MAX) -> None:
        self.rounds = Rounds()
        """Rounds of every group, also of those with their client's assignor."""
        self.streams = StreamsGroups()
        """Groups of Kafka Streams, which keep their client's assignor."""
        self._groups: CostBoundedDict[str, _Memory] = CostBoundedDict(_Memory, cost_max=cost_max)

    def note_joined(self, group: str, joined: Joined) -> None:
        """Record the members of a generation, as its leader got them."""
        with self._groups.changed(group) as memory:
            memory.joined = joined
            memory.leader = (joined.generation_id, joined.leader_id)

    def note_left_out(self, group: str) -> None:
        """Record that keylane does not deal out the group's newest generation."""
        if group in self._groups:
            with self._groups.changed(group) as memory:
                memory.joined = memory.leader = None

    def note_leader(self, group: str, generation_id: int, leader_id: str) -> None:
        """Record the leader in the answer to a follower."""
        if group in self._groups:
            with self._groups.changed(group) as memory:
                memory.leader = (generation_id, leader_id)

    def leader(self, group: str, generation_id: int) -> str | None:
        """Return the generation's leader; None: it is not known."""
        leader = self._groups.get(group, _UNKNOWN).leader
        return leader[1] if leader and leader[0] == generation_id else None

    def note_seen(self, group: str, joined: Joined, held: LanesBefore) -> None:
        """Record the members and lanes of a generation, as the coordinator has them."""
        with self._groups.changed(group) as memory:
            memory.seen = (joined, held)

    def current(self, group: str, generation_id: int) -> tuple[Joined, LanesBefore] | None:
        """Return members and lanes of a generation; None: it was neither dealt out nor seen."""
        memory = self._groups.get(group, _UNKNOWN)
        joined, planned = self.joined(group, generation_id), memory.planned
        if joined is not None and planned is not None and planned.generation_id == generation_id:
            return joined, LanesBefore(generation_id, planned.lanes)
        is_seen = memory.seen is not None and memory.seen[0].generation_id == generation_id
        return memory.seen if is_seen else None

    def held(self, group: str) -> LanesBefore:
        """Return the last lanes of members, as dealt out here or as the coordinator had them."""
        memory = self._groups.get(group, _UNKNOWN)
        dealt, seen = NOTHING_HELD, memory.seen[1] if memory.seen else NOTHING_HELD
        if memory.planned is not None:
            dealt = LanesBefore(memory.planned.generation_id, memory.planned.lanes)
        return seen if seen.generation_id > dealt.generation_id else dealt

    def note_planned(self, group: str, planned: Planned) -> None:
        """Record that a generation was dealt out."""
        with self._groups.changed(group) as memory:
            memory.planned, memory.seen, memory.is_warned = planned, None, False

    def joined(self, group: str, generation_id: int) -> Joined | None:
        """Return the members of the generation; None: it was not seen, or forgotten."""
        found = self._groups.get(group, _UNKNOWN).joined
        return found if found and found.generation_id == generation_id else None

    def newest(self, group: str) -> int | None:
        """Return the newest generation that is known; None: none is."""
        found = self._groups.get(group, _UNKNOWN).joined
        return found.generation_id if found else None

    def is_mixed(self, group: str) -> bool:
        """Return whether the newest generation that is known has members that take partitions."""
        found = self._groups.get(group, _UNKNOWN).joined
        return found is not None and found.is_mixed

    def planned(self, group: str) -> Planned | None:
        """Return what was dealt out last."""
        return self._groups.get(group, _UNKNOWN).planned

    def __contains__(self, group: str) -> bool:
        """Return whether anything is known of the group."""
        return group in self._groups

    def groups(self) -> Iterator[str]:
        """Return the groups that are known."""
        return iter(self._groups)

    def warn_once(self, group: str) -> bool:
        """Return whether this is the first trouble since the last plan."""
        with self._groups.changed(group) as memory:
            was_warned, memory.is_warned = memory.is_warned, True
        return not was_warned

    def check(self) -> None:
        """Assert the invariants."""
        self._groups.check()
