"""Groups whose lanes keylane deals out: their members, and the last plan.

Source: KIP-345 (static membership), KIP-429 (cooperative rebalancing).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from keylane.proxy.groups.rebalance_times import Rounds

Lane = tuple[str, int]
"""Topic as the client names it, lane index."""
Signature = tuple[object, ...]
"""Reason of a target: it is kept while this stays the same."""

COST_MAX: Final = 64 * 1024**2
"""Bytes of all memories: 1,000 groups of 100 members on 1,000 lanes."""
LANE_COST: Final = 64
MEMBER_COST: Final = 256
"""Roughly what CPython takes beside the bytes."""


def identity_of(member_id: str, instance_id: str | None) -> str:
    """Name under which a member's lanes are remembered over generations."""
    return f"static {instance_id}" if instance_id else member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader gets it."""

    member_id: str
    instance_id: str | None
    """`group.instance.id`: it outlives the member id."""
    metadata: bytes
    """The subscription, in the protocol that the broker chose."""

    @property
    def identity(self) -> str:
        """Name under which its lanes are remembered over generations."""
        return identity_of(self.member_id, self.instance_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The members of one generation."""

    generation_id: int
    leader_id: str
    protocol_name: str
    members: tuple[JoinedMember, ...]

    @property
    def cost(self) -> int:
        """Bytes to keep it."""
        return sum(MEMBER_COST + len(member.metadata) for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Lanes that keylane gave out in one generation."""

    generation_id: int
    lanes: Mapping[str, tuple[Lane, ...]]
    """By `JoinedMember.identity`."""
    target: Mapping[str, tuple[Lane, ...]]
    """By member id: what the generations on the way lead to."""
    signature: Signature
    withheld_count: int
    moved_count: int
    gained: Mapping[str, tuple[Lane, ...]] = field(default_factory=dict)
    """By identity: lanes that it did not have one generation before; those without left out."""
    lost: Mapping[str, tuple[Lane, ...]] = field(default_factory=dict)
    """By identity: lanes that it had one generation before, and has no more."""

    @property
    def cost(self) -> int:
        """Bytes to keep it."""
        kept = (self.lanes, self.target, self.gained, self.lost)
        count = sum(len(lanes) for by_name in kept for lanes in by_name.values())
        return MEMBER_COST * len(self.lanes) + LANE_COST * count


@dataclass(slots=True)
class _Memory:
    joined: Joined | None = None
    planned: Planned | None = None
    is_warned: bool = False

    @property
    def cost(self) -> int:
        joined = self.joined.cost if self.joined else 0
        return MEMBER_COST + joined + (self.planned.cost if self.planned else 0)


@dataclass(slots=True)
class Generations:
    """The last generation of each group, as far as memory goes; the idlest are forgotten first.

    A group that is forgotten between JoinGroup and SyncGroup keeps its client's assignment.
    Invariants: `cost` is the sum over the groups; it passes `cost_max` only while one group is
    alone.
    """

    cost_max: int = COST_MAX
    cost: int = 0
    rounds: Rounds = field(default_factory=Rounds)
    """Of all groups, those with their client's assignor too."""
    _groups: OrderedDict[str, _Memory] = field(default_factory=OrderedDict)

    def note_joined(self, group: str, joined: Joined) -> None:
        """Record the members of a generation, as its leader got them."""
        memory = self._take(group)
        memory.joined = joined
        self._put(group, memory)

    def note_planned(self, group: str, planned: Planned) -> None:
        """A generation was dealt out."""
        memory = self._take(group)
        memory.planned = planned
        memory.is_warned = False
        self._put(group, memory)

    def joined(self, group: str, generation_id: int) -> Joined | None:
        """Return the members of the generation; None: it was not seen, or forgotten."""
        memory = self._groups.get(group)
        found = memory.joined if memory else None
        return found if found and found.generation_id == generation_id else None

    def newest(self, group: str) -> int | None:
        """The newest generation that is known; None: none is."""
        memory = self._groups.get(group)
        return memory.joined.generation_id if memory and memory.joined else None

    def is_past(self, group: str, generation_id: int) -> bool:
        """Return whether a newer generation is known."""
        memory = self._groups.get(group)
        return bool(memory and memory.joined and memory.joined.generation_id > generation_id)

    def planned(self, group: str) -> Planned | None:
        """Return what was dealt out last."""
        memory = self._groups.get(group)
        return memory.planned if memory else None

    def groups(self) -> Iterator[str]:
        """Groups that are known."""
        return iter(self._groups)

    def warn_once(self, group: str) -> bool:
        """Return whether this is the first trouble since the last plan."""
        memory = self._take(group)
        was_warned, memory.is_warned = memory.is_warned, True
        self._put(group, memory)
        return not was_warned

    def check(self) -> None:
        """Assert the invariants."""
        assert self.cost == sum(memory.cost for memory in self._groups.values())
        assert self.cost <= self.cost_max or len(self._groups) <= 1

    def _take(self, group: str) -> _Memory:
        memory = self._groups.pop(group, None)
        if memory is None:
            return _Memory()
        self.cost -= memory.cost
        return memory

    def _put(self, group: str, memory: _Memory) -> None:
        self._groups[group] = memory
        self.cost += memory.cost
        while self.cost > self.cost_max and len(self._groups) > 1:
            _, forgotten = self._groups.popitem(last=False)
            self.cost -= forgotten.cost
