"""Heartbeats of KIP-848 as clients and brokers are to see them: lanes here, partitions there.

Source: ConsumerGroupHeartbeatRequest.json, ConsumerGroupHeartbeatResponse.json of Apache Kafka 4.3.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal

from kio.index import load_payload_module
from kio.schema.types import TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i32, i32Timedelta

from keylane.proxy.apis.shared.request import Request
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupMember, Part, Parts
from keylane.wire.header import ApiKey

KEY_RANGE: Final = "key-range"
"""The assignor of lanes, which a member may name and brokers do not know."""
QUICK_S: Final = 0.5
"""Interval of heartbeats while lanes are on their way."""
QUICK_LIBRDKAFKA_S: Final = 2.0
"""librdkafka waits no longer than the interval for an answer, and closes the connection then."""
MEMBERS_PER_S: Final = 500
"""Heartbeats in a second that a group may cause so."""
JOIN_EPOCH: Final = 0
Kind = Literal[EntityType.request, EntityType.response]


def is_full(wanted: Any) -> bool:
    """Return whether a heartbeat says everything, as after a failure."""
    says_time = wanted.rebalance_timeout.total_seconds() > 0
    return says_topics(wanted) and says_time and wanted.topic_partitions is not None


def says_topics(wanted: Any) -> bool:
    """Return whether a heartbeat says what the member subscribes to."""
    return wanted.subscribed_topic_names is not None or pattern_of(wanted) is not None


def pattern_of(wanted: Any) -> str | None:
    """Return the pattern, which version 0 does not have; None: as before."""
    pattern = getattr(wanted, "subscribed_topic_regex", None)
    return None if pattern is None else str(pattern)


def upstream(
    request: Request, wanted: Any, owned: Iterable[Part], physical: Callable[[str], str]
) -> Any:
    """Return the heartbeat for the broker: topics by its names, and no lane.

    owned: partitions that the member owns in the broker's eyes; empty is not null, which would
    have the broker wait for a member that revokes.
    """
    names = wanted.subscribed_topic_names
    if names is not None:
        names = tuple(map(TopicName, dict.fromkeys(physical(str(name)) for name in names)))
    assignor = wanted.server_assignor
    if wanted.member_epoch == JOIN_EPOCH:
        owned = ()
    return replace(
        wanted,
        subscribed_topic_names=names,
        server_assignor=None if assignor == KEY_RANGE else assignor,
        topic_partitions=_topics(request, EntityType.request, owned),
    )


def downstream(
    request: Request,
    answer: Any,
    group: ConsumerGroup,
    member: GroupMember,
    *,
    is_asked: bool,
    is_librdkafka: bool,
) -> Any:
    """Return the broker's answer with the member's lanes; those count as sent.

    is_asked: the member is to be given in any case.
    """
    is_new = is_asked or member.sent != member.given or answer.assignment is not None
    assignment = None
    if is_new:
        parts = {
            (group.topics[name].view_id, index)
            for name, index in member.given
            if name in group.topics
        }
        topics = _topics(request, EntityType.response, (*parts, *member.plain_parts))
        module: Any = _module(request, EntityType.response)
        assignment = module.Assignment(topic_partitions=topics)
        member.sent = member.given
    least_s = QUICK_LIBRDKAFKA_S if is_librdkafka else QUICK_S
    quick_s = max(least_s, len(group.members) / MEMBERS_PER_S)
    interval = answer.heartbeat_interval
    if not group.is_settled and interval.total_seconds() > quick_s:
        interval = i32Timedelta.parse(timedelta(seconds=quick_s))
    return replace(answer, assignment=assignment, heartbeat_interval=interval)


def without_parts(request: Request, answer: Any, hidden: Parts) -> Any:
    """Return the broker's answer without some of the partitions that it assigns."""
    left = [part for part in parts_of(answer.assignment.topic_partitions) if part not in hidden]
    module: Any = _module(request, EntityType.response)
    topics = _topics(request, EntityType.response, left)
    return replace(answer, assignment=module.Assignment(topic_partitions=topics))


def parts_of(topics: Iterable[Any]) -> list[Part]:
    """Return partitions of kio entries; a zero id is no topic's."""
    return [
        (topic.topic_id, int(index))
        for topic in topics
        if topic.topic_id is not None
        for index in topic.partitions
    ]


def _topics(request: Request, kind: Kind, parts: Iterable[Part]) -> tuple[Any, ...]:
    by_topic: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(parts):
        by_topic.setdefault(topic_id, []).append(index)
    make: Any = _module(request, kind)
    return tuple(
        make.TopicPartitions(topic_id=topic_id, partitions=tuple(map(i32, indexes)))
        for topic_id, indexes in by_topic.items()
    )


def _module(request: Request, kind: Kind) -> Any:
    return load_payload_module(ApiKey.CONSUMER_GROUP_HEARTBEAT, request.api_version, kind)
