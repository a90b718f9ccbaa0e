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
from keylane.assignor.model import NO_GENERATION, LaneTopic, Member
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
from keylane.wire.primitives import INT32

SUBSCRIPTION_VERSION: Final = 3

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
