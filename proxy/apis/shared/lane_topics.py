"""Topics of requests that are seen as lanes, or are shared by key ranges.

Source: KIP-516 (topic ids).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.topics.registry import TopicRegistry
from keylane.proxy.topics.view import View
from keylane.wire.topic_key import NamedTopic


def are_plain(topics: Iterable[NamedTopic], registry: TopicRegistry) -> bool:
    """Return whether no topic is known to have lanes; cheap, it runs per request."""
    for topic in topics:
        if topic.topic_id is not None:
            if not registry.is_plain_id(uuid.UUID(bytes=topic.topic_id)):
                return False
        elif registry.rule_of(topic.name or "") is not None:
            return False
    return True


async def find_view(topic: NamedTopic, context: Context) -> View | None:
    """Return the lanes of a topic; None: it is plain, or unknown to the broker."""
    if topic.topic_id is not None:
        return await context.find_view_by_id(uuid.UUID(bytes=topic.topic_id))
    return await context.find_view(topic.name or "")


async def find_shared(
    client_id: str | None, name: str | None, topic_id: uuid.UUID | None, context: Context
) -> View | None:
    """Return the view of a topic that a client reads or commits: lanes, or its key ranges.

    client_id: of the request; name or topic_id: of the topic. None: it is plain, or unknown.
    """
    if topic_id is not None:
        lanes = await context.find_view_by_id(topic_id)
        name = context.registry.name_of_id(topic_id)
    else:
        lanes = await context.find_view(name or "")
    if client_id is None or not context.range_views.has_ranges(client_id):
        return lanes
    if lanes is not None:
        return context.range_views.refused(client_id, lanes) or lanes
    topic = await context.find_topic(name) if name is not None else None
    return context.range_views.view(client_id, topic) if topic is not None else None
