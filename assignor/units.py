"""Units that are dealt out as one piece, the members that may have them, and their holders.

A unit is a lane; or the same lane of all topics that are joined by key, when the same members
subscribe to them; or a whole partition, where members that do not share take it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from keylane.assignor.model import Lane, LaneTopic, Member, find_owners, member_order

Part = tuple[str, int]
"""Partition that a unit is of; the first topic's name stands for topics joined by key."""
NO_MEMBER: Final = -1


@dataclass(frozen=True, slots=True)
class Unit:
    """Lanes that go to one member together."""

    lanes: tuple[Lane, ...]
    weight: int
    part: Part
    crowd: int
    """Index of the members that may have it, in `Board.crowds`."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Topics that are dealt out together: subscribed by the same members, joined by key or one."""

    topics: tuple[LaneTopic, ...]
    sharers: tuple[int, ...]
    loners: tuple[int, ...]
    """Members (indexes) that take whole partitions only."""

    def lanes_of(self, partition: int, lane: int) -> tuple[Lane, ...]:
        """The lanes that stand for one key range of one partition."""
        return tuple(
            (topic.name, lane * topic.partition_count + partition) for topic in self.topics
        )


class Board:
    """The holder of each unit.

    Invariants: `load[m]` is the sum of the weights of `held[m]`, `spread[m]` counts them by part,
    and `holder` is its inverse. Only members of a unit's crowd are given it.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = member_order(members)
        self.units: list[Unit] = []
        self.crowds: list[tuple[int, ...]] = []
        self.racks: dict[Part, frozenset[str]] = {}
        self.holder: list[int] = []
        self.load = [0] * len(self.members)
        self.held: list[set[int]] = [set() for _ in self.members]
        self.spread: list[Counter[Part]] = [Counter() for _ in self.members]
        self._crowd_index: dict[tuple[int, ...], int] = {}

    def add(self, lanes: tuple[Lane, ...], weight: int, part: Part, crowd: tuple[int, ...]) -> int:
        """Add a unit without a holder; return its index."""
        index = self._crowd_index.setdefault(crowd, len(self.crowds))
        if index == len(self.crowds):
            self.crowds.append(crowd)
        self.units.append(Unit(lanes, weight, part, index))
        self.holder.append(NO_MEMBER)
        return len(self.units) - 1

    def give(self, unit: int, member: int) -> None:
        """Give a unit to a member, taking it from its holder."""
        value, before = self.units[unit], self.holder[unit]
        if before != NO_MEMBER:
            self.held[before].remove(unit)
            self.load[before] -= value.weight
            self.spread[before][value.part] -= 1
        self.holder[unit] = member
        self.held[member].add(unit)
        self.load[member] += value.weight
        self.spread[member][value.part] += 1

    def check(self) -> None:
        """Assert the invariants."""
        for member, held in enumerate(self.held):
            assert self.load[member] == sum(self.units[unit].weight for unit in held)
            assert +self.spread[member] == Counter(self.units[unit].part for unit in held)
        for unit, member in enumerate(self.holder):
            assert member == NO_MEMBER or unit in self.held[member]
            assert member == NO_MEMBER or member in self.crowds[self.units[unit].crowd]


def set_up_board(
    members: Sequence[Member], topics: Sequence[LaneTopic], weights: Mapping[Lane, int]
) -> Board:
    """Cut the topics into units and leave each one at the member that owns most of it."""
    board = Board(members)
    places = {member.member_id: place for place, member in enumerate(board.members)}
    # A double claim is settled for the first of them; `cooperative` makes both give up first.
    owners = {lane: places[found[0].member_id] for lane, found in find_owners(members).items()}
    for bundle in _bundle(board.members, topics):
        if bundle.sharers or bundle.loners:
            _add_units(board, bundle, weights, owners)
    for unit, value in enumerate(board.units):
        owner = _main_owner(value, weights, owners)
        if owner in board.crowds[value.crowd]:
            board.give(unit, owner)
    return board


def _bundle(members: Sequence[Member], topics: Sequence[LaneTopic]) -> list[Bundle]:
    """Join topics of one co-group that have equal counts and the same subscribers."""
    subscribed: dict[str, list[int]] = {topic.name: [] for topic in topics}
    for place, member in enumerate(members):
        for name in member.topics:
            if name in subscribed:
                subscribed[name].append(place)
    groups: dict[object, list[LaneTopic]] = {}
    for topic in sorted(topics, key=lambda topic: topic.name):
        together: object = topic.name
        if topic.co_group is not None:
            counts = topic.partition_count, topic.lane_count
            together = topic.co_group, counts, topic.is_split, tuple(subscribed[topic.name])
        groups.setdefault(together, []).append(topic)
    bundles = []
    for joined in groups.values():
        places = subscribed[joined[0].name]
        sharers = tuple(place for place in places if members[place].may_share(joined[0]))
        loners = tuple(place for place in places if not members[place].may_share(joined[0]))
        bundles.append(Bundle(tuple(joined), sharers, loners))
    return bundles


def _add_units(
    board: Board, bundle: Bundle, weights: Mapping[Lane, int], owners: Mapping[Lane, int]
) -> None:
    first = bundle.topics[0]
    whole = _pick_whole_partitions(bundle, weights, owners)
    for partition in range(first.partition_count):
        part = (first.name, partition)
        if first.partition_racks:
            board.racks[part] = first.partition_racks[partition]
        pieces = [bundle.lanes_of(partition, lane) for lane in range(first.lane_count)]
        if partition in whole:
            pieces = [tuple(lane for piece in pieces for lane in piece)]
        crowd = bundle.loners if partition in whole else bundle.sharers
        for lanes in pieces:
            board.add(lanes, sum(weights[lane] for lane in lanes), part, crowd)


def _pick_whole_partitions(
    bundle: Bundle, weights: Mapping[Lane, int], owners: Mapping[Lane, int]
) -> frozenset[int]:
    """Partitions for the members that do not share: one each if there are enough, or their part.

    One partition at least stays for members that share: they would rather have a part than
    nothing, too. Partitions that the loners have come first, then those nearest to a mean load.
    """
    first = bundle.topics[0]
    if not bundle.loners:
        return frozenset()
    if not bundle.sharers:
        return frozenset(range(first.partition_count))
    loners, size, claimed = set(bundle.loners), [], []
    for partition in range(first.partition_count):
        lanes = [
            lane for index in range(first.lane_count) for lane in bundle.lanes_of(partition, index)
        ]
        size.append(sum(weights[lane] for lane in lanes))
        claimed.append(sum(owners.get(lane) in loners for lane in lanes))
    mean = sum(size) / (len(loners) + len(bundle.sharers))
    order = sorted(
        range(first.partition_count),
        key=lambda partition: (-claimed[partition], abs(size[partition] - mean), partition),
    )
    picked: list[int] = []
    taken = 0
    for partition in order[:-1]:
        if len(picked) >= len(loners) and taken + size[partition] / 2 > mean * len(loners):
            break
        picked.append(partition)
        taken += size[partition]
    return frozenset(picked)


def _main_owner(unit: Unit, weights: Mapping[Lane, int], owners: Mapping[Lane, int]) -> int:
    """The member that owns most of the unit by weight, the first one of equals."""
    if len(unit.lanes) == 1:
        return owners.get(unit.lanes[0], NO_MEMBER)
    owned: Counter[int] = Counter()
    for lane in unit.lanes:
        if lane in owners:
            owned[owners[lane]] += weights[lane]
    return min(owned, key=lambda member: (-owned[member], member), default=NO_MEMBER)
