"""Input and output of an assignor: members, topics, loads, a plan.

Source: Kafka's ConsumerPartitionAssignor for the words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Lane = tuple[str, int]
"""Topic as the client names it, and lane index (`lane * partition_count + partition`)."""
Loads = Mapping[Lane, float]
"""Bytes per second of a lane; one that is missing is unknown."""
Plan = dict[str, tuple[Lane, ...]]
"""Lanes by member id, ascending; a member without lanes has an empty tuple."""

NO_GENERATION: Final = -1
"""Generation of a member that did not say one (subscription version 0 or 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTopic:
    """A topic as the assignor sees it: `partition_count * lane_count` lanes."""

    name: str
    partition_count: int
    lane_count: int
    co_group: str | None = None
    """Topics of one name here are joined by key: equal lanes of them go to one member."""
    partition_racks: tuple[frozenset[str], ...] = ()
    """Racks that have a replica, by partition; empty where nothing is known."""
    is_split: bool = True
    """True: its partitions may be shared; else each goes to one member."""

    def __post_init__(self) -> None:
        if self.partition_count < 1 or self.lane_count < 1:
            raise ValueError(f"topic {self.name}: needs a partition and a lane at least")
        if self.partition_racks and len(self.partition_racks) != self.partition_count:
            raise ValueError(f"topic {self.name}: racks of {len(self.partition_racks)} partitions")

    @property
    def index_count(self) -> int:
        """Number of lanes over all partitions."""
        return self.partition_count * self.lane_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of a group, as it stands in the generation that is being planned."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[Lane, ...] = ()
    """Lanes that it reads now; of an eager member, which gave up all: those that it had before."""
    generation_id: int = NO_GENERATION
    """Generation that `owned` is of (KIP-792)."""
    instance_id: str | None = None
    rack: str | None = None
    shares: bool = True
    """True: it takes a part of a partition; else whole partitions only."""

    def may_share(self, topic: LaneTopic) -> bool:
        """Return whether the member may have a part of a partition of the topic."""
        return self.shares and topic.is_split


def member_order(members: Sequence[Member]) -> list[Member]:
    """Members in Kafka's order: static ones first, with their place under any id.

    Raises:
        ValueError: two members have one id.
    """
    if len({member.member_id for member in members}) != len(members):
        raise ValueError("two members have the same id")
    return sorted(
        members, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id)
    )


def find_owners(members: Sequence[Member]) -> dict[Lane, list[Member]]:
    """Members that claim each lane: those of the newest generation that claims it (KIP-792).

    More than one member is a double claim: they cannot both be right, and neither is believed.
    """
    owners: dict[Lane, list[Member]] = {}
    for member in member_order(members):
        for lane in dict.fromkeys(member.owned):
            others = owners.setdefault(lane, [])
            if others and others[0].generation_id > member.generation_id:
                continue
            if others and others[0].generation_id < member.generation_id:
                others.clear()
            others.append(member)
    return owners
