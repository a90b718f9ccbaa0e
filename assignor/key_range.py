"""Key ranges as a plug-in to a strategy that deals out partitions: range, and round robin.

Source: Apache Kafka's RangeAssignor and RoundRobinAssignor. A client keeps the strategy that it is
configured with.

A topic is shared when more of its subscribers allow sharing than it has partitions, and both the
coordinator and the topic allow it. Then members are dealt to partitions instead of partitions to
members, and the hash space of a partition is split evenly over its members. That is decided topic
by topic. A member that does not allow sharing gets nothing of a shared topic;
`sticky` gives it a whole partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from keylane.assignor.model import Member, member_order
from keylane.keyrange.space import KeyRange, split_even

TopicPlan = dict[str, list[tuple[int, KeyRange]]]
"""Partition and key range, by member id; members without any are left out."""
RangedPlan = dict[str, TopicPlan]
"""By topic."""
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Strategy:
    """An existing strategy, and how it deals when members and partitions change their places."""

    name: str
    """The name that clients configure (`partition.assignment.strategy`)."""
    deal_members: Callable[[Sequence[str], int], list[list[str]]]
    """Members (ids in order) of each partition of one topic; there are more than partitions."""
    assign_partitions: Callable[[Mapping[str, int], Sequence[Member]], dict[str, list[Partition]]]
    """The ordinary assignment: topics with their partition counts, members in order."""


def assign_key_ranges(
    strategy: Strategy,
    partitions_per_topic: Mapping[str, int],
    topic_allows_range_fetch: Mapping[str, bool],
    subscriptions: Sequence[Member],
    *,
    coordinator_allows_ic: bool,
) -> RangedPlan:
    """Assign every partition of every subscribed topic, whole or in key ranges.

    Guarantees: the ranges of a partition cover the hash space and do not overlap; the order in
    which members are listed does not matter. Topics that are not shared get, all together, what
    the strategy gives without keylane. Cost: O(members * topics + ranges).
    """
    members = member_order(subscriptions)
    plan: RangedPlan = {}
    ordinary: dict[str, int] = {}
    for topic in sorted(partitions_per_topic):
        subscribed = [member for member in members if topic in member.topics]
        sharers = [member.member_id for member in subscribed if member.shares]
        count = partitions_per_topic[topic]
        allowed = coordinator_allows_ic and topic_allows_range_fetch.get(topic, False)
        if allowed and 0 < count < len(sharers):
            plan[topic] = split_topic(strategy.deal_members(sharers, count))
        elif subscribed:
            ordinary[topic] = count
            plan[topic] = {}
    whole = split_even(1)[0]
    for member_id, partitions in strategy.assign_partitions(ordinary, members).items():
        for topic, partition in partitions:
            plan[topic].setdefault(member_id, []).append((partition, whole))
    return plan


def split_topic(members_of: Sequence[Sequence[str]]) -> TopicPlan:
    """Split each partition evenly over its members, in their order."""
    plan: TopicPlan = {}
    for partition, members in enumerate(members_of):
        for member_id, key_range in zip(members, split_even(len(members)), strict=True):
            plan.setdefault(member_id, []).append((partition, key_range))
    return plan


def cut_blocks(count: int, block_count: int) -> list[range]:
    """Cut `count` places into blocks of neighbours; the first ones have one more when uneven."""
    size, longer_count = divmod(count, block_count)
    starts = [block * size + min(block, longer_count) for block in range(block_count)]
    return [range(start, end) for start, end in pairwise([*starts, count])]


def deal_blocks(member_ids: Sequence[str], partition_count: int) -> list[list[str]]:
    """Give each partition a block of members."""
    blocks = cut_blocks(len(member_ids), partition_count)
    return [list(member_ids[block.start : block.stop]) for block in blocks]


def assign_blocks(
    partitions_per_topic: Mapping[str, int], members: Sequence[Member]
) -> dict[str, list[Partition]]:
    """Give each member that subscribes to a topic a block of its partitions."""
    assigned: dict[str, list[Partition]] = {member.member_id: [] for member in members}
    for topic in sorted(partitions_per_topic):
        subscribed = [member.member_id for member in members if topic in member.topics]
        if not subscribed:
            continue
        blocks = cut_blocks(partitions_per_topic[topic], len(subscribed))
        for member_id, block in zip(subscribed, blocks, strict=True):
            assigned[member_id] += [(topic, partition) for partition in block]
    return assigned


def deal_in_turn(member_ids: Sequence[str], partition_count: int) -> list[list[str]]:
    """Member i goes to partition i modulo their count."""
    return [list(member_ids[partition::partition_count]) for partition in range(partition_count)]


def assign_in_turn(
    partitions_per_topic: Mapping[str, int], members: Sequence[Member]
) -> dict[str, list[Partition]]:
    """Deal all partitions, topic by topic, to the next member that subscribes to the topic.

    The turn goes on from one topic to the next, as in Kafka's assignor.
    """
    assigned: dict[str, list[Partition]] = {member.member_id: [] for member in members}
    turn = 0
    for topic in sorted(partitions_per_topic):
        if not any(topic in member.topics for member in members):
            continue
        for partition in range(partitions_per_topic[topic]):
            while topic not in members[turn].topics:
                turn = (turn + 1) % len(members)
            assigned[members[turn].member_id].append((topic, partition))
            turn = (turn + 1) % len(members)
    return assigned


RANGE: Final = Strategy("range", deal_blocks, assign_blocks)
ROUND_ROBIN: Final = Strategy("roundrobin", deal_in_turn, assign_in_turn)
