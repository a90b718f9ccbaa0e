"""Views of key ranges that a request names itself, in tagged fields of keylane's own.

The index beside them is the broker's partition, also where the topic's name means lanes.
Source: docs/protocol-extensions.md; docs/decisions/015, 049.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.keyrange.key_split import KeySplit
from keylane.keyrange.space import WHOLE, KeyRange, merge_ranges
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.views import resolve_view
from keylane.proxy.topics.registry import PhysicalTopic
from keylane.proxy.topics.view import Share, View

UNCUT: Final = KeySplit(())
"""Of a topic without lanes: what other members have of it is not known by a split."""


async def view_of_ranges(
    topic: Any, parts: Mapping[int, tuple[KeyRange, ...]], client_id: str | None, context: Context
) -> View:
    """Return the view of a topic entry's partitions, each with some of its keys; () is all keys.

    A topic that cannot be resolved, or a partition that is not there, is refused by the view.
    Raises: UpstreamLost, when the connection to the broker is lost.
    """
    by_id = hasattr(topic, "topic_id")
    name, topic_id = (None, topic.topic_id) if by_id else (str(topic.name), None)
    lanes = None
    if not by_id or topic_id is not None:
        lanes = await resolve_view(None, name, topic_id, context)
    if lanes is not None and lanes.error_code:
        return lanes
    found = await _physical(name, topic_id, lanes, context)
    if found is None:
        unknown = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
        shown_id = topic_id or uuid.UUID(int=0)
        unresolved = View.of_shares(client_id or "", name or str(topic_id), shown_id, {})
        return replace(unresolved, error_code=int(unknown))
    shares = {
        partition: Share(
            merge_ranges(ranges) or WHOLE,
            UNCUT if lanes is None else lanes.key_split(partition),
            0,
        )
        for partition, ranges in parts.items()
        if 0 <= partition < found.partition_count
    }
    view = View.of_shares(client_id or "", found.name, found.topic_id, shares)
    return replace(
        view,
        name=name or view.name,
        view_id=topic_id or view.view_id,
        unshared_code=int(ErrorCode.unknown_topic_or_partition),
    )


async def _physical(
    name: str | None, topic_id: uuid.UUID | None, lanes: View | None, context: Context
) -> PhysicalTopic | None:
    """Return the broker's topic; None: it is not there, or not shown to the client."""
    if lanes is not None:
        name = lanes.topic
    elif topic_id is not None:
        name = context.registry.name_of_id(topic_id)
    return None if name is None else await context.find_topic(name)
