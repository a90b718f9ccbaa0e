"""Key ranges of members without a group: `keylane.assign`.

The functions are those of the proxy, so the ranges are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from keylane.assignor.checks import find_faults
from keylane.assignor.key_range import RANGE, ROUND_ROBIN, Strategy, assign_key_ranges
from keylane.assignor.model import LaneTopic, Loads, Member
from keylane.assignor.range_plan import RangePlan
from keylane.assignor.sticky import plan_sticky
from keylane.errors import ConfigInvalid
from keylane.keyrange.hash import HashName
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import LANE_COUNT_MAX, WHOLE, KeyRange, merge_ranges

StrategyName = Literal["sticky-load", "round-robin", "range"]
STRATEGY_NAMES: Final[tuple[StrategyName, ...]] = get_args(StrategyName)
MEMBERS_MAX: Final = 100_000
PARTITIONS_MAX: Final = 100_000
LANES_MAX: Final = 2_000_000
"""Lanes of all topics together: some seconds of planning."""
LANES_PER_MEMBER: Final = 4
"""Lanes per member where `lanes` is left out: enough to differ by a quarter at most."""
_PLAIN: Final[dict[str, Strategy]] = {"round-robin": ROUND_ROBIN, "range": RANGE}

Assignment = dict[str, dict[tuple[str, int], tuple[KeyRange, ...]]]
"""Key ranges by member and (topic, partition), ascending; an empty tuple is the whole partition."""


def assign(
    topics: Mapping[str, int],
    members: int | Sequence[str | Member],
    *,
    strategy: StrategyName = "sticky-load",
    lanes: int | None = None,
    plans: Sequence[RangePlan] = (),
    loads: Loads | None = None,
    hash: HashName = "xxh64",  # noqa: A002 - the name of the lane rule's key
) -> Assignment:
    """Deal out every partition of the topics to the members, whole or in key ranges.

    topics   partition count by topic name
    members  their count, their names, or `Member`s with topics, owned lanes, rack, opt-out
    strategy `round-robin` and `range` cut a partition evenly by its members (for topics with
             fewer partitions than members); `sticky-load` deals out lanes by their load
    lanes    lanes per partition for `sticky-load`; by default 4 per member or 16, if that is more
    plans    cuts made from measured load, at most one per topic, in place of `lanes`
    loads    bytes per second by (topic, lane index), in place of what the plans predict
    hash     of keys; `murmur2` gives ranges of the space of lanes by Kafka's default partitioner
             (`KeyHash`), whose points depend on the number of lanes: `lanes` is needed

    Every hash of every partition is at exactly one member. Same input, same answer.

    Raises:
        ConfigInvalid: the input does not fit together; the text says where.
    """
    group = _name_members(members, topics)
    _check_counts(topics, group, lanes)
    if strategy not in STRATEGY_NAMES:
        raise ConfigInvalid(f"strategy {strategy}: known are {', '.join(STRATEGY_NAMES)}")
    if strategy != "sticky-load":
        if lanes is not None or plans or loads:
            raise ConfigInvalid(f"strategy {strategy}: lanes and loads are for sticky-load alone")
        if hash != "xxh64":
            raise ConfigInvalid(f"strategy {strategy}: cuts by members, which lanes by {hash} lack")
        return _assign_plain(_PLAIN[strategy], topics, group)
    if hash != "xxh64" and (lanes is None or plans):
        raise ConfigInvalid(f"hash {hash}: needs a number of lanes, and takes no plan")
    cuts = _cut_topics(topics, len(group), lanes, plans, hash)
    if loads is None:
        loads = {lane: load for plan in plans for lane, load in plan.loads().items()}
    return _assign_lanes(cuts, group, loads)


def name_members(count: int) -> list[str]:
    """`member-0` and so on, with as many digits as keep them in order.

    Raises:
        ConfigInvalid: fewer than one, or too many.
    """
    if not 1 <= count <= MEMBERS_MAX:
        raise ConfigInvalid(f"members: 1 to {MEMBERS_MAX}, got {count}")
    digits = len(str(count - 1))
    return [f"member-{place:0{digits}}" for place in range(count)]


def _name_members(members: int | Sequence[str | Member], topics: Mapping[str, int]) -> list[Member]:
    listed = name_members(members) if isinstance(members, int) else members
    group = [
        Member(member_id=member, topics=frozenset(topics)) if isinstance(member, str) else member
        for member in listed
    ]
    ids = [member.member_id for member in group]
    if len(set(ids)) != len(ids):
        twin = next(name for place, name in enumerate(ids) if name in ids[:place])
        raise ConfigInvalid(f"members: {twin} is named twice")
    return group


def _check_counts(topics: Mapping[str, int], group: Sequence[Member], lanes: int | None) -> None:
    if not topics:
        raise ConfigInvalid("topics: need at least one")
    for topic, count in topics.items():
        if not 1 <= count <= PARTITIONS_MAX:
            raise ConfigInvalid(f"topic {topic}: 1 to {PARTITIONS_MAX} partitions, got {count}")
    if not 1 <= len(group) <= MEMBERS_MAX:
        raise ConfigInvalid(f"members: 1 to {MEMBERS_MAX}, got {len(group)}")
    if lanes is not None and not 1 <= lanes <= LANE_COUNT_MAX:
        raise ConfigInvalid(f"lanes: 1 to {LANE_COUNT_MAX} per partition, got {lanes}")


def _assign_plain(
    strategy: Strategy, topics: Mapping[str, int], group: Sequence[Member]
) -> Assignment:
    shared = dict.fromkeys(topics, True)
    plan = assign_key_ranges(strategy, topics, shared, group, coordinator_allows_ic=True)
    answer: Assignment = {member.member_id: {} for member in group}
    for topic, held in plan.items():
        for member_id, parts in held.items():
            for partition, key_range in parts:
                answer[member_id][topic, partition] = _written([key_range])
    return answer


def _cut_topics(
    topics: Mapping[str, int],
    member_count: int,
    lanes: int | None,
    plans: Sequence[RangePlan],
    key_hash: HashName,
) -> dict[str, LaneLayout]:
    by_topic = {plan.topic: plan for plan in plans}
    if len(by_topic) != len(plans):
        raise ConfigInvalid("plans: two are for one topic, give one of them")
    for plan in plans:
        count = topics.get(plan.topic)
        if count is None:
            raise ConfigInvalid(f"plan of {plan.topic}: the topic is not among the topics")
        if count != plan.partition_count:
            raise ConfigInvalid(
                f"plan of {plan.topic}: has {plan.partition_count} partitions, the topic {count}"
            )
        if lanes is not None and lanes != plan.lane_count:
            raise ConfigInvalid(f"plan of {plan.topic}: has {plan.lane_count} lanes, not {lanes}")
    cuts = {}
    for topic, count in topics.items():
        found = by_topic.get(topic)
        lane_count = lanes or _count_lanes(count, member_count)
        cuts[topic] = found.layout() if found else LaneLayout(count, lane_count, hash=key_hash)
    lane_total = sum(layout.index_count for layout in cuts.values())
    if lane_total > LANES_MAX:
        raise ConfigInvalid(f"lanes: {lane_total} in all topics, at most {LANES_MAX}")
    return cuts


def _count_lanes(partition_count: int, member_count: int) -> int:
    wanted = max(16, -(-LANES_PER_MEMBER * member_count // partition_count))
    return min(LANE_COUNT_MAX, 1 << (wanted - 1).bit_length())


def _assign_lanes(
    cuts: Mapping[str, LaneLayout], group: Sequence[Member], loads: Loads
) -> Assignment:
    topics = [
        LaneTopic(
            name=topic,
            partition_count=layout.partition_count,
            lane_count=layout.lane_count,
        )
        for topic, layout in cuts.items()
    ]
    plan = plan_sticky(group, topics, loads)
    faults = find_faults(plan, group, topics)
    assert not faults, faults
    answer: Assignment = {}
    for member in group:
        ranges: dict[tuple[str, int], list[KeyRange]] = {}
        for topic, index in plan[member.member_id]:
            layout = cuts[topic]
            partition, lane = layout.partition_of(index), layout.lane_of(index)
            ranges.setdefault((topic, partition), []).append(layout.key_range(partition, lane))
        answer[member.member_id] = {place: _written(ranges[place]) for place in sorted(ranges)}
    return answer


def _written(ranges: Sequence[KeyRange]) -> tuple[KeyRange, ...]:
    merged = merge_ranges(ranges)
    return () if merged == WHOLE else merged
