"""Key ranges as a plug-in to a strategy that deals out partitions.

A client keeps the strategy that it is configured with.

A topic is shared when more of its subscribers allow sharing than it has partitions, and both the
coordinator and the topic allow it. Then members are dealt to partitions instead of partitions to
members, and the hash space of a partition is split evenly over its members. That is decided topic
by topic. A member that does not allow sharing gets nothing of a shared topic;
`sticky` gives it a whole partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
