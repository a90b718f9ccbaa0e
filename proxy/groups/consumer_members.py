"""Members of KIP-848 groups on lanes: their words, and the lanes in their hands. No I/O."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from keylane.assignor.model import Lane, LaneTopic
from keylane.offsets.records.held import HeldLanes

Lanes = frozenset[Lane]
Part = tuple[uuid.UUID, int]
"""The broker's topic id, and a partition."""
Parts = frozenset[Part]
Names = frozenset[str]

NO_LANES: Final[Lanes] = frozenset()
NO_PARTS: Final[Parts] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopic:
    """A lane topic of the group."""

    lanes: LaneTopic
    topic_id: uuid.UUID
    """The broker's id."""
    view_id: uuid.UUID
    """The id that clients know."""

    def part_of(self, index: int) -> Part:
        """Return the partition of a lane."""
        return self.topic_id, index % self.lanes.partition_count

    def lanes_of(self, parts: Parts) -> Lanes:
        """Return the lanes of some partitions."""
        name, count = self.lanes.name, self.lanes.index_count
        return frozenset((name, i) for i in range(count) if self.part_of(i) in parts)


class Subscribed(NamedTuple):
    """Lane topics that a member subscribes to."""

    listed: Names = frozenset()
    """By name."""
    pattern: str = ""
    matched: Names = frozenset()
    """By the pattern."""
    compared: tuple[str, ...] = ()
    """Lane topics that the pattern was compared with."""

    @property
    def names(self) -> Names:
        """Return all of them."""
        return self.listed | self.matched


NOTHING: Final = Subscribed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A heartbeat that the broker has taken; None: as before."""

    order: int
    """Number of the request: an answer that comes late does not bring an old word back."""
    member_id: str
    epoch: int
    """The epoch that the broker answered."""
    group_epoch: int = -1
    """The group's newest epoch that was known when the heartbeat was sent."""
    instance_id: str | None = None
    client_id: str = ""
    is_join: bool = False
    is_full: bool = False
    subscribed: Subscribed | None = None
    rack: str | None = None
    rebalance_timeout_s: float | None = None
    owned: Lanes | None = None
    plain_owned: Parts | None = None
    """Partitions of topics without lanes."""
    parts: Parts | None = None
    """Partitions of lane topics that the broker has assigned."""
    plain_parts: Parts | None = None
    """Partitions of other topics that it has assigned."""
    shares: bool = True
    """It takes a part of a partition; else whole partitions only."""
    takes_parts: bool = True
    """The same by its own word, where a switch may say otherwise."""
    asks_ranges: bool = False
    """It asks what its lane indexes stand for."""


class Move(NamedTuple):
    """A lane that goes to another member."""

    at_ms: int
    lane: Lane
    giver: str
    """Identity of the member that had it."""
    receiver: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A member in the broker's description of the group."""

    identity: str
    member_id: str
    parts: Parts = NO_PARTS
    """Partitions that it has, or is to get."""
    reads_lanes: bool = True
    """It has or may get partitions of the group's lane topics."""


@dataclass(slots=True)
class GroupMember:
    """A member that speaks with this node, or has lanes by the journal."""

    identity: str
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    """Its name to people; empty: not known since the start."""
    subscribed: Subscribed = NOTHING
    rack: str | None = None
    rebalance_timeout_s: float = 300.0
    shares: bool = True
    takes_parts: bool = True
    epoch: int = 0
    """The newest epoch that it was answered."""
    owned: Lanes = NO_LANES
    given: Lanes = NO_LANES
    since: dict[Lane, int] = field(default_factory=dict)
    """Epoch at which each lane of `given` was given."""
    plain_owned: Parts = NO_PARTS
    plain_parts: Parts = NO_PARTS
    plain_since: dict[Part, int] = field(default_factory=dict)
    """Epoch at which each of `plain_parts` was assigned."""
    assigned: Parts = NO_PARTS
    """Partitions of lane topics that the broker has given it."""
    claimed: Parts = NO_PARTS
    """These, and others that keylane has not released yet."""
    order: int = -1
    seen: int = -1
    """Turn of its last heartbeat that the broker has taken."""
    has_spoken: bool = False
    sent: Lanes | None = None
    """Lanes of the last answer."""
    is_written: bool = False
    """The journal may have a record of it."""
    is_away: bool = False
    """A static member that went, and will be back."""
    late_since_s: float | None = None
    """Time since which it has neither given up nor taken up the lanes that it was asked to."""

    @property
    def held(self) -> Lanes:
        """Return the lanes that may be in its hands."""
        return self.owned if self.owned is self.given else self.owned | self.given

    @property
    def record(self) -> HeldLanes | None:
        """Return what the journal is to have of it; None: nothing."""
        held = self.held
        return HeldLanes(self.member_id, self.instance_id, self.epoch, held) if held else None
