"""Faults of a plan that no generation may have, whatever made it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from keylane.assignor.model import Lane, LaneTopic, Member


def find_faults(
    plan: Mapping[str, Sequence[Lane]],
    members: Sequence[Member],
    topics: Sequence[LaneTopic],
    *,
    withheld: Collection[Lane] = (),
) -> list[str]:
    """Overlap, gap, a lane at a member that may not have it; in a fixed order.

    A topic without a subscriber needs no owner. Lanes in `withheld` (the first step of a
    cooperative rebalance) may be missing, and must be: their owner still reads them.
    """
    by_name = {topic.name: topic for topic in topics}
    by_id = {member.member_id: member for member in members}
    owners: dict[Lane, list[str]] = {}
    for member_id in sorted(plan):
        for lane in plan[member_id]:
            owners.setdefault(lane, []).append(member_id)
    faults = [f"{member_id} is no member" for member_id in sorted(plan) if member_id not in by_id]
    for lane in sorted(owners):
        topic, index = lane
        place = f"lane {index} of {topic}"
        if topic not in by_name or not 0 <= index < by_name[topic].index_count:
            faults.append(f"{place} does not exist")
        if len(owners[lane]) > 1:
            faults.append(f"{place} overlaps: at {', '.join(owners[lane])}")
        if lane in withheld:
            faults.append(f"{place} is withheld, but at {', '.join(owners[lane])}")
        faults += [
            f"{place} is at {member_id}, which does not subscribe to it"
            for member_id in owners[lane]
            if member_id in by_id and topic not in by_id[member_id].topics
        ]
    faults += _find_gaps(owners, members, topics, withheld)
    faults += _find_parts(plan, by_id, by_name, withheld)
    return faults


def _find_gaps(
    owners: Mapping[Lane, Sequence[str]],
    members: Sequence[Member],
    topics: Sequence[LaneTopic],
    withheld: Collection[Lane],
) -> Iterator[str]:
    subscribed = {name for member in members for name in member.topics}
    for topic in sorted(topics, key=lambda topic: topic.name):
        if topic.name not in subscribed:
            continue
        for index in range(topic.index_count):
            lane = (topic.name, index)
            if lane not in owners and lane not in withheld:
                yield f"gap: lane {index} of {topic.name} has no member"


def _find_parts(
    plan: Mapping[str, Sequence[Lane]],
    by_id: Mapping[str, Member],
    by_name: Mapping[str, LaneTopic],
    withheld: Collection[Lane],
) -> Iterator[str]:
    """Members that do not share, and topics that are not split: a part of a partition there."""
    all_split = all(topic.is_split for topic in by_name.values())
    for member_id in sorted(plan):
        if member_id not in by_id or (by_id[member_id].shares and all_split):
            continue
        mine = set(plan[member_id])
        for name, partition in sorted({_partition_of(lane, by_name) for lane in mine}):
            if name not in by_name:
                continue
            topic = by_name[name]
            if by_id[member_id].may_share(topic):
                continue
            whole = {
                (name, index)
                for index in range(partition, topic.index_count, topic.partition_count)
            }
            if not whole <= mine.union(withheld):
                place = f"partition {partition} of {name}"
                yield f"{member_id} does not share, but has a part of {place}"


def _partition_of(lane: Lane, by_name: Mapping[str, LaneTopic]) -> tuple[str, int]:
    name, index = lane
    return (name, index % by_name[name].partition_count) if name in by_name else (name, index)
