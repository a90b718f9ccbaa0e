"""ConsumerGroupHeartbeat v0-1 (KIP-848), StreamsGroupHeartbeat v0 (KIP-1071).

Behaviour: the broker computes these groups' assignments and knows no lanes: a member that
subscribes to a lane topic would silently see the first lane of each partition only. So a
heartbeat that names one, or whose pattern can match one, is refused with INVALID_REQUEST and
a message; members of plain topics, and whoever leaves, pass as they are. A pattern is kept per
member and looked at again at every heartbeat, since a lane topic may be created later.
Not done: serving such groups (their members can use `group.protocol=classic`).

In:    heartbeats.  Out: the broker's answer, or the refusal.
Next:  `session` writes it.
Pure:  the outside world is the `Context` argument.
Source: KIP-848, KIP-1071. Patterns are RE2, which Python's `re` is not: a hostile one would
block the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import re2
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i32

from keylane.proxy.apis.context import Context, Request
from keylane.proxy.apis.list_offsets import relay
from keylane.proxy.connection import Buffers

MEMBERS_MAX: Final = 10_000
"""Patterns remembered per node; beyond it the oldest is asked for again by a refusal."""
REASON: Final = (
    "keylane: topic {topic} is seen as lanes, which this group protocol does not know; "
    "set group.protocol=classic, or subscribe to the topic where it has no lanes"
)


OF_PATTERN: Final = "of the pattern"
"""Not its name: who sends a pattern need not be allowed to know of it."""


async def handle_consumer_group_heartbeat(request: Request, context: Context) -> Buffers:
    """Refuse lanes, relay the rest."""
    wanted = request.decode()
    if wanted.member_epoch < 0:
        context.patterns.pop((wanted.group_id, wanted.member_id), None)
        return await relay(request, context)
    topic = _first_lane_topic(wanted.subscribed_topic_names or (), context)
    pattern = getattr(wanted, "subscribed_topic_regex", None)
    if topic is None and _pattern_match((wanted.group_id, wanted.member_id), pattern, context):
        topic = OF_PATTERN
    if topic is None:
        return await relay(request, context)
    return _refuse(request, REASON.format(topic=topic), member_epoch=wanted.member_epoch)


async def handle_streams_group_heartbeat(request: Request, context: Context) -> Buffers:
    """Refuse a topology that reads lanes, relay the rest."""
    wanted = request.decode()
    topic = None
    if wanted.topology is not None and wanted.member_epoch >= 0:
        for part in wanted.topology.subtopologies:
            topic = topic or _first_lane_topic(part.source_topics, context)
            for pattern in part.source_topic_regex:
                topic = topic or (OF_PATTERN if _match(pattern, context) else None)
    if topic is None:
        return await relay(request, context)
    return _refuse(request, REASON.format(topic=topic), member_epoch=wanted.member_epoch)


def _first_lane_topic(names: Iterable[str], context: Context) -> str | None:
    return next((name for name in names if context.registry.rule_of(name) is not None), None)


def _pattern_match(member: tuple[str, str], pattern: str | None, context: Context) -> str | None:
    patterns = context.patterns
    if pattern is not None:
        patterns.pop(member, None)
        if pattern:
            patterns[member] = pattern
            if len(patterns) > MEMBERS_MAX:
                del patterns[next(iter(patterns))]
    known = patterns.get(member)
    return _match(known, context) if known else None


def _match(pattern: str, context: Context) -> str | None:
    """A lane topic that the pattern matches; a pattern that cannot be read matches any."""
    topics = context.registry.lane_topics()
    try:
        compiled = re2.compile(pattern)
    except re2.error:
        return topics[0] if topics else None
    return next((topic for topic in topics if compiled.fullmatch(topic)), None)


def _refuse(request: Request, reason: str, *, member_epoch: int) -> Buffers:
    module: Any = load_payload_module(request.api_key, request.api_version, EntityType.response)
    if request.api_key == 68:
        return request.answer_entity(
            module.ConsumerGroupHeartbeatResponse(
                throttle_time=timedelta(0),
                error_code=ErrorCode.invalid_request,
                error_message=reason,
                member_epoch=i32(member_epoch),
                heartbeat_interval=timedelta(0),
                assignment=None,
            )
        )
    return request.answer_entity(
        module.StreamsGroupHeartbeatResponse(
            throttle_time=timedelta(0),
            error_code=ErrorCode.invalid_request,
            error_message=reason,
            member_id="",
            member_epoch=i32(member_epoch),
            heartbeat_interval=timedelta(0),
            acceptable_recovery_lag=i32(0),
            task_offset_interval=timedelta(0),
            status=None,
            active_tasks=None,
            standby_tasks=None,
            warmup_tasks=None,
            partitions_by_user_endpoint=None,
            endpoint_information_epoch=i32(0),
        )
    )
