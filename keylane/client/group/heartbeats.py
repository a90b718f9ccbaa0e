"""ConsumerGroupHeartbeat v0-1 as values, and between them and kio's entities.

Source: KIP-848; ConsumerGroupHeartbeatRequest.json and its response; docs/protocol-extensions.md
for the tags: LANE_RANGES (the request asks for the keys of lanes) and ALLOW_KEY_SHARE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, Final
from uuid import UUID

from kio.index import load_request_schema
from kio.static.primitive import i32Timedelta

from keylane.client.group.codes import UNSUPPORTED_VERSION
from keylane.client.group.effects import GroupRefused
from keylane.errors import FrameInvalid
from keylane.wire.entities import UNKNOWN, tagged_type
from keylane.wire.extensions import (
    ALLOW_KEY_SHARE,
    LANE_RANGES,
    LaneRange,
    read_extensions,
    read_lane_ranges,
)
from keylane.wire.primitives import INT8, NO_TAGS, write_tags

API_KEY: Final = 68
VERSION_MAX: Final = 1
PATTERN_VERSION: Final = 1
"""SubscribedTopicRegex is of version 1."""
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""The member's partitions wait for its return until its session ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A heartbeat; None: has not changed since the last one."""

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_s: float | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    """Empty: there is none any more."""
    server_assignor: str | None = None
    owned: frozenset[tuple[UUID, int]] | None = None
    asks_ranges: bool = False
    allow_key_share: bool | None = None


AssignedPart = tuple[UUID, int, LaneRange | None]
"""Topic id, partition or lane index, meaning of a lane index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """An answer; without an assignment it is as it was."""

    code: int
    name: str = "NONE"
    message: str | None = None
    member_id: str | None = None
    epoch: int = -1
    interval_s: float = 0.0
    assignment: tuple[AssignedPart, ...] | None = None


def heartbeat_entity(request: HeartbeatRequest, version: int) -> Any:
    """Return kio's entity. Raises: GroupRefused, the version has no room for a pattern."""
    schema = load_request_schema(API_KEY, version)
    timeout_s = request.rebalance_timeout_s
    timeout = timedelta(milliseconds=-1) if timeout_s is None else timedelta(seconds=timeout_s)
    values: dict[str, Any] = {
        "group_id": request.group_id,
        "member_id": request.member_id,
        "member_epoch": request.epoch,
        "instance_id": request.instance_id,
        "rack_id": request.rack,
        "rebalance_timeout": i32Timedelta.parse(timeout),
        "subscribed_topic_names": None if request.topics is None else tuple(sorted(request.topics)),
        "server_assignor": request.server_assignor,
        "topic_partitions": _owned_topics(schema, request.owned),
        UNKNOWN: _tags(request),
    }
    if version >= PATTERN_VERSION:
        values["subscribed_topic_regex"] = request.pattern
    elif request.pattern:
        text = f"ConsumerGroupHeartbeat v{version} has no pattern of topics"
        raise GroupRefused(request.group_id, UNSUPPORTED_VERSION, "UNSUPPORTED_VERSION", text)
    return tagged_type(schema)(**values)


def read_heartbeat_answer(entity: Any) -> HeartbeatAnswer:
    """Return an answer's values.

    Raises:
        FrameInvalid: the lane ranges are not well formed, or not one for each partition.
    """
    assignment = entity.assignment
    return HeartbeatAnswer(
        code=int(entity.error_code),
        name=entity.error_code.name.upper(),
        message=entity.error_message,
        member_id=entity.member_id,
        epoch=int(entity.member_epoch),
        interval_s=entity.heartbeat_interval.total_seconds(),
        assignment=None if assignment is None else _assigned_parts(assignment.topic_partitions),
    )


def _tags(request: HeartbeatRequest) -> bytes:
    fields: dict[int, bytes] = {}
    if request.asks_ranges:
        fields[LANE_RANGES] = b""
    if request.allow_key_share is not None:
        fields[ALLOW_KEY_SHARE] = INT8.pack(request.allow_key_share)
    return write_tags(fields) if fields else NO_TAGS


def _owned_topics(schema: Any, owned: frozenset[tuple[UUID, int]] | None) -> Any:
    if owned is None:
        return None
    by_topic: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(owned):
        by_topic.setdefault(topic_id, []).append(partition)
    entry = import_module(schema.__module__).TopicPartitions
    return tuple(
        entry(topic_id=topic_id, partitions=tuple(partitions))
        for topic_id, partitions in by_topic.items()
    )


def _assigned_parts(topics: Sequence[Any]) -> tuple[AssignedPart, ...]:
    found: list[AssignedPart] = []
    for topic in topics:
        if topic.topic_id is None:
            raise FrameInvalid("an assignment names a topic by the zero id")
        own, _ = read_extensions(getattr(topic, UNKNOWN, NO_TAGS))
        lanes: Sequence[LaneRange | None] = [None] * len(topic.partitions)
        if LANE_RANGES in own:
            lanes = read_lane_ranges(own[LANE_RANGES])
        if len(lanes) != len(topic.partitions):
            text = f"{len(lanes)} lane ranges for {len(topic.partitions)} indexes"
            raise FrameInvalid(f"topic {topic.topic_id}: {text}")
        found += zip([topic.topic_id] * len(lanes), map(int, topic.partitions), lanes, strict=True)
    return tuple(found)
