"""Offset ranges in OffsetFetch: which key ranges a request asks for, and what it is answered.

Source: docs/protocol-extensions.md; KIP draft "Cooperative consumer processing semantic", "Offset
Fetch"; docs/decisions/049.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from keylane.offsets.state import OffsetState
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.ranged_views import view_of_ranges
from keylane.proxy.apis.shared.views import find_views
from keylane.proxy.topics.view import View
from keylane.wire.entities import unknown_tags_of, with_unknown_tags
from keylane.wire.extensions import (
    LANE_RANGES,
    OFFSET_RANGES,
    PARTITION_KEY_RANGES,
    STABLE_OFFSET,
    LaneRange,
    read_extensions,
    read_partition_key_ranges,
    write_int64,
    write_lane_ranges,
    write_pairs,
)
from keylane.wire.primitives import write_tags


async def find_asked(
    topics: Sequence[Any], client_id: str | None, context: Context
) -> list[tuple[Any, View | None]]:
    """Return the topic entries of a request with their views; those of key ranges stand apart.

    Raises: FrameInvalid, a field is not well formed; UpstreamLost.
    """
    found: list[tuple[Any, View | None]] = []
    views = await find_views(topics, context, client_id)
    for topic, view in zip(topics, views, strict=True):
        own, tags = read_extensions(unknown_tags_of(topic))
        if (data := own.get(PARTITION_KEY_RANGES)) is None:
            found.append((topic, view))
            continue
        topic, keys = with_unknown_tags(topic, tags), read_partition_key_ranges(data)
        indexes = [int(index) for index in topic.partition_indexes]
        ranged = dict(keys) if view is not None else dict.fromkeys(indexes, ()) | keys
        once = tuple(dict.fromkeys(topic.partition_indexes))  # an answer may have many ranges
        rest = tuple(index for index in once if int(index) not in ranged)
        if rest or not indexes:
            shown = None if view is None else replace(view, says_ranges=True)
            found.append((replace(topic, partition_indexes=rest), shown))
        asked = tuple(index for index in once if int(index) in ranged)
        if asked:
            parts = {int(index): ranged[int(index)] for index in asked}
            of_keys = await view_of_ranges(topic, parts, client_id, context)
            shown = replace(of_keys, says_ranges=True)
            found.append((replace(topic, partition_indexes=asked), shown))
    return found


def with_ranges(entry: Any, state: OffsetState, view: View, index: int) -> Any:
    """Return a partition's answer with the ranges above its position, and the stable offset."""
    fields = {
        OFFSET_RANGES: write_pairs(state.ranges(*view.key_ranges(index))),
        STABLE_OFFSET: write_int64(state.stable_offset),
    }
    return with_unknown_tags(entry, write_tags(fields))


def with_meaning(topic: Any, view: View) -> Any:
    """Return a topic's answer with what each of its lane indexes stands for."""
    ranges = [
        LaneRange(view.partition_of(index), *view.key_ranges(index))
        for index in (int(entry.partition_index) for entry in topic.partitions)
        if not view.error_of(index)
    ]
    if len(ranges) != len(topic.partitions):
        return topic  # an index that is none has no meaning, and the others could not be parted
    section = write_tags({LANE_RANGES: write_lane_ranges(ranges)})
    return with_unknown_tags(topic, section)
