"""The leader's plan of a classic group, and what members say to each other in it.

Subscriptions and assignments are those of Kafka's cooperative-sticky assignor, so that stock
clients with it and members of this client are in one group, and each of them can lead it.
A stock client with an eager assignor cannot be: it offers no strategy of this name.
Source: KIP-429, KIP-792; CooperativeStickyAssignor (its user data is the generation, int32), for
members that have it in no field; keylane.assignor for the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from keylane.assignor.cooperative import first_step
from keylane.assignor.model import NO_GENERATION, Lane, LaneTopic, Member
from keylane.assignor.protocol import (
    SHARE_MARK,
    Subscription,
    read_allow_key_share,
    read_subscription,
    write_assignment,
    write_subscription,
)
from keylane.assignor.sticky import plan_sticky
from keylane.client.group.settings import GroupSettings
from keylane.client.values import TopicPartition
from keylane.errors import FrameInvalid
from keylane.wire.extensions import LaneRange, read_lane_ranges, write_lane_ranges
from keylane.wire.primitives import INT32, Reader, Writer

SUBSCRIPTION_VERSION: Final = 3
RANGES_MARK: Final = b"keylane\x02"
"""An assignment's user data that begins with it has the key ranges of the lanes."""
TOPIC_BYTES_MIN: Final = 2

JoinedMember = tuple[str, str | None, bytes]
"""Id, instance id, subscription."""


def subscription_bytes(
    settings: GroupSettings,
    topics: Iterable[str],
    owned: Iterable[TopicPartition],
    generation_id: int,
) -> bytes:
    """Return a member's subscription.

    owned: what it has, in the generation `generation_id`; NO_GENERATION: in none.
    """
    user_data = INT32.pack(generation_id)
    if not settings.allow_individual_commit:
        user_data = SHARE_MARK + b"\x00"
    return write_subscription(
        Subscription(
            version=SUBSCRIPTION_VERSION,
            topics=tuple(sorted(topics)),
            user_data=user_data,
            owned=tuple(sorted((part.topic, part.partition) for part in owned)),
            generation_id=generation_id,
            rack=settings.rack,
        )
    )


def subscribed_topics(members: Sequence[JoinedMember]) -> frozenset[str]:
    """Return the topics that any member wants."""
    found: set[str] = set()
    for _, _, metadata in members:
        found.update(_subscription(metadata).topics)
    return frozenset(found)


def plan_generation(
    members: Sequence[JoinedMember], counts: Mapping[str, int]
) -> tuple[tuple[str, bytes], ...]:
    """Return each member's assignment: no partition that another member still has.

    counts: partitions of each topic; a topic without any is in no assignment.
    """
    subscriptions = {member_id: _subscription(metadata) for member_id, _, metadata in members}
    topics = [
        LaneTopic(name=name, partition_count=count, lane_count=1)
        for name, count in sorted(counts.items())
        if count > 0
    ]
    planned = [
        _planned(member_id, instance_id, subscriptions[member_id], counts)
        for member_id, instance_id, _ in members
    ]
    step = first_step(plan_sticky(planned, topics, {}), planned)
    version = min(one.version for one in subscriptions.values())
    return tuple(
        (member_id, write_assignment(lanes, version=version)) for member_id, lanes in step.items()
    )


def read_ranges(lanes: Sequence[Lane], user_data: bytes) -> dict[Lane, LaneRange]:
    """Return the meaning of the lanes of an assignment; empty: they are whole partitions.

    Form: RANGES_MARK, then a compact array of (topic compact string, LANE_RANGES with one entry for
    each of its lanes, in their order, as compact bytes).

    Raises:
        FrameInvalid: the data is marked and not well formed, or does not fit the lanes.
    """
    if user_data[: len(RANGES_MARK)] != RANGES_MARK:
        return {}
    by_topic = _indexes(lanes)
    reader = Reader(user_data, len(RANGES_MARK), flexible=True)
    found: dict[Lane, LaneRange] = {}
    for _ in range(reader.count(TOPIC_BYTES_MIN)):
        topic = reader.string()
        ranges = read_lane_ranges(reader.nullable_bytes() or b"")
        indexes = by_topic.get(topic, [])
        if len(ranges) != len(indexes):
            text = f"{len(ranges)} lane ranges for {len(indexes)} indexes"
            raise FrameInvalid(f"assignment: topic {topic}: {text}")
        found |= {(topic, index): each for index, each in zip(indexes, ranges, strict=True)}
    reader.end()
    return found


def write_ranges(lanes: Sequence[Lane], ranges: Mapping[Lane, LaneRange]) -> bytes:
    """Return user data with the meaning of the lanes of an assignment, for topics that have one."""
    by_topic = {
        topic: indexes
        for topic, indexes in _indexes(lanes).items()
        if all((topic, index) in ranges for index in indexes)
    }
    writer = Writer(flexible=True)
    writer.raw(RANGES_MARK)
    writer.count(len(by_topic))
    for topic, indexes in by_topic.items():
        data = write_lane_ranges([ranges[topic, index] for index in indexes])
        writer.string(topic)
        writer.count(len(data))
        writer.raw(data)
    return writer.to_bytes()


def _indexes(lanes: Iterable[Lane]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in lanes:
        found.setdefault(topic, []).append(index)
    return found


def _subscription(metadata: bytes) -> Subscription:
    try:
        return read_subscription(metadata)
    except FrameInvalid:
        return Subscription(version=0, topics=())  # the member gets nothing, the others go on


def _planned(
    member_id: str, instance_id: str | None, subscription: Subscription, counts: Mapping[str, int]
) -> Member:
    return Member(
        member_id=member_id,
        topics=frozenset(subscription.topics),
        owned=tuple(lane for lane in subscription.owned if lane[1] < counts.get(lane[0], 0)),
        generation_id=_generation(subscription),
        instance_id=instance_id,
        rack=subscription.rack,
        shares=read_allow_key_share(subscription.user_data),
    )


def _generation(subscription: Subscription) -> int:
    """Return the generation of what a member owns, from its field, or the stock user data."""
    if subscription.version >= 2 or len(subscription.user_data) != INT32.size:
        return subscription.generation_id
    generation: int = INT32.unpack(subscription.user_data)[0]
    return max(generation, NO_GENERATION)
