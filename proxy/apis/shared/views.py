"""Topics of requests as views: lanes, key ranges of the client, plain, or refused for now.

A topic that a client names may not be resolvable at this moment. It is refused then, never relayed.
A broker refuses most of what names a topic or partition that it does not know. An OffsetFetch it
answers: "no offset", without an error, and the client starts where its own reset policy says. So
an index of a lane must never reach it. Where a name means lanes by the rules, or an id is of no
known topic, and the broker does not show the topic now, keylane answers in the broker's place.

Source: KIP-516 (topic ids); Kafka 4.3, `OffsetMetadataManager.fetchOffsets`, which looks at offsets
only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import ConfigInvalid, TopicNotReady
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.topics.registry import TopicRegistry
from keylane.proxy.topics.view import View
from keylane.wire.parts import KeyedTopic

ZERO_ID: Final = uuid.UUID(int=0)


async def find_views(
    topics: Iterable[Any], context: Context, client_id: str | None = None
) -> list[View | None]:
    """The view of each kio topic entry, by its id where it has one, else by its name.

    None: the topic is plain for certain. What cannot be resolved is a view that refuses all.
    client_id: of the request; without, a client's key ranges do not count.
    """
    views: list[View | None] = []
    for topic in topics:
        if not hasattr(topic, "topic_id"):
            views.append(await resolve_view(client_id, str(topic.name), None, context))
        elif topic.topic_id is None:  # kio's value of the zero id, which the broker refuses
            views.append(None)
        else:
            views.append(await resolve_view(client_id, None, topic.topic_id, context))
    return views


def are_plain(topics: Iterable[KeyedTopic[object]], registry: TopicRegistry) -> bool:
    """Return whether no topic is known to have lanes; cheap, it runs per request."""
    for topic in topics:
        if topic.topic_id is not None:
            if not registry.is_plain_id(uuid.UUID(bytes=topic.topic_id)):
                return False
        elif registry.rule_of(topic.name or "") is not None:
            return False
    return True


async def find_view(topic: KeyedTopic[object], context: Context) -> View | None:
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


async def resolve_view(
    client_id: str | None, name: str | None, topic_id: uuid.UUID | None, context: Context
) -> View | None:
    """Return the view of a topic, by its name or its id; None: it is plain for certain.

    Raises: UpstreamLost, when the connection to the broker is lost.
    """
    try:
        view = await find_shared(client_id, name, topic_id, context)
    except ConfigInvalid:
        # A plan that does not fit, or nodes that do not agree; `cluster` and `topics` log it.
        return _unresolved(name, topic_id, ErrorCode.topic_authorization_failed, context)
    except TopicNotReady as error:
        return _unresolved(name, topic_id, error.topic_error_code, context)
    if view is not None or _is_plain(client_id, name, topic_id, context):
        return view
    return _unresolved(name, topic_id, context.refusal_of(topic_id or name or ""), context)


def unresolved_lanes(name: str | None, context: Context) -> View | None:
    """Return the refusal of a name without a view when it means lanes; None: it does not."""
    if name is None or context.registry.rule_of(name) is None:
        return None
    return _unresolved(name, None, context.refusal_of(name), context)


def _is_plain(
    client_id: str | None, name: str | None, topic_id: uuid.UUID | None, context: Context
) -> bool:
    """Return whether a topic without a view is certainly plain, without asking the broker."""
    registry = context.registry
    if topic_id is not None:
        return registry.is_plain_id(topic_id)
    if registry.rule_of(name or "") is not None:
        return False
    # A client with key ranges may have some of this topic: that is known with its id only.
    return not context.range_views.has_ranges(client_id) or (name or "") in registry.topics


def _unresolved(
    name: str | None, topic_id: uuid.UUID | None, error_code: int, context: Context
) -> View:
    known = name if name is not None else str(topic_id)
    shown_id = topic_id or ZERO_ID
    return View(
        name=known,
        topic=context.registry.physical_name(known),
        view_id=shown_id,
        topic_id=shown_id,
        error_code=error_code,
    )
