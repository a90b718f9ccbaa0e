"""Fields of keylane's own in heartbeats of KIP-848 groups: what lane indexes stand for.

Source: docs/protocol-extensions.md; docs/decisions/049.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupMember
from keylane.proxy.topics.view import View
from keylane.wire.entities import unknown_tags_of, with_unknown_tags
from keylane.wire.extensions import (
    ALLOW_KEY_SHARE,
    LANE_RANGES,
    LaneRange,
    read_extensions,
    write_lane_ranges,
)
from keylane.wire.primitives import write_tags

REFUSES: Final = b"\x00"


def without_extensions(request: Request, wanted: Any) -> tuple[Request, Any, Mapping[int, bytes]]:
    """Return the heartbeat as brokers are to see it, and its fields of keylane's own.

    Raises: FrameInvalid, the tagged fields are not well formed.
    """
    own, rest = read_extensions(unknown_tags_of(wanted))
    if not own:
        return request, wanted, own
    request = replace(request, frame=request.with_entity(with_unknown_tags(wanted, rest)))
    return request, request.decode(), own


def read_takes_parts(
    own: Mapping[int, bytes], before: GroupMember | None, *, is_full: bool
) -> bool:
    """Return whether a member takes a part of a partition: by its last word, True without any."""
    if before is None or is_full or ALLOW_KEY_SHARE in own:
        return own.get(ALLOW_KEY_SHARE) != REFUSES
    return before.takes_parts


async def with_lane_ranges(answer: Any, group: ConsumerGroup, context: Context) -> Any:
    """Return an answer whose assignment says what each lane index stands for."""
    if answer.assignment is None:
        return answer
    names = {topic.view_id: name for name, topic in group.topics.items()}
    topics = []
    for topic in answer.assignment.topic_partitions:
        view = None
        if topic.topic_id in names:
            view = await context.find_view(names[topic.topic_id])
        if view is not None:
            ranges = [_lane_range(view, int(index)) for index in topic.partitions]
            section = write_tags({LANE_RANGES: write_lane_ranges(ranges)})
            topic = with_unknown_tags(topic, section)
        topics.append(topic)
    return replace(answer, assignment=replace(answer.assignment, topic_partitions=tuple(topics)))


def _lane_range(view: View, index: int) -> LaneRange:
    (key_range,) = view.key_ranges(index)
    return LaneRange(view.partition_of(index), key_range)
