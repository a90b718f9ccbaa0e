"""Refusals of topics that a client names and that cannot be resolved now: never relayed.

A broker refuses most requests that name a topic or partition that it does not know. But it answers
an OffsetFetch "no offset", without an error, and the client starts by its own reset policy. So an
index of a lane must never reach it. Where a name means lanes by the rules, or an id is of no known
topic, and the broker does not show the topic now, keylane answers in the broker's place.

Source: Kafka 4.3, `OffsetMetadataManager.fetchOffsets`, which looks at offsets only.
"""

from __future__ import annotations

import uuid
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import ConfigInvalid, TopicNotReady
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_topics import find_shared
from keylane.proxy.topics.view import View

ZERO_ID: Final = uuid.UUID(int=0)


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
