"""CreateTopics v2-7, DeleteTopics v1-6, CreatePartitions v0-3: topics that come, go and grow.

Behaviour: a count of partitions always means the topic's own partitions.
A new topic cannot have a name that means lanes of another one: INVALID_TOPIC_EXCEPTION.
A topic is deleted under its own name, or by its own id. A lane name, or its id, is refused with
POLICY_VIOLATION, since clients use the topic under other names, too.
A topic whose lanes the client sees gets no more partitions: POLICY_VIOLATION, since the client
counts lanes, and lanes stay on their present partitions (docs/decisions/006).
All refusals have a reason. Among many nodes replicas that the client chose are brokers by the id
of any pair.
Not done: nothing.

Source: KIP-4 (error messages), KIP-195 (CreatePartitions), KIP-516 (topic ids).
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import REFUSED, TopicTarget, find_target, lanes_text, log
from keylane.proxy.apis.shared.places import real_ids
from keylane.proxy.apis.shared.refusals import (
    RefusalReason,
    judged,
    pass_rest,
    refused_entry,
)
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.refused import entries_of

MESSAGE_VERSION: Final = 5
"""DeleteTopics before this version has no room for a reason: it is logged."""


async def handle_create_topics(request: Request, context: Context) -> Buffers:
    """Refuse lane names; pass the rest, with replicas by the brokers' own ids."""
    wanted = request.decode()
    refused: dict[int, Any] = {}
    for position, topic in enumerate(wanted.topics):
        physical = context.registry.physical_name(topic.name)
        if physical != topic.name:
            reason = (
                f"keylane: {topic.name} means lanes of the topic {physical} (`lane_name_pattern`), "
                "which would hide a topic of that name; choose another one"
            )
            code = ErrorCode.invalid_topic_exception
            refused[position] = refused_entry(request, topic, code, reason)
    topics = [_with_real_ids(topic, context) for topic in wanted.topics]
    return await pass_rest(request, topics, refused, context)


async def handle_delete_topics(request: Request, context: Context) -> Buffers:
    """Refuse lane names and their ids; pass the rest."""
    _, entries = entries_of(request.decode())
    refused: dict[int, Any] = {}
    for position, entry in enumerate(entries):
        by_name = isinstance(entry, str)
        name, topic_id = (entry, None) if by_name else (entry.name, entry.topic_id)
        found = await _lane_target(name, topic_id, context)
        if found is not None:
            refused[position] = await _refused_deletion(request, entry, found, context)
    return await pass_rest(request, entries, refused, context)


async def _lane_target(
    name: str | None, topic_id: uuid.UUID | None, context: Context
) -> TopicTarget | None:
    """Return the target of a lane name, or of its id; None where the topic itself is meant."""
    if name:
        is_lanes = context.registry.physical_name(name) != name
        return await find_target(name, context) if is_lanes else None
    view = context.registry.view_by_id(topic_id) if topic_id is not None else None
    return TopicTarget(view.name, view) if view is not None and view.is_renamed else None


async def _refused_deletion(
    request: Request, entry: Any, target: TopicTarget, context: Context
) -> Any:
    view, refusal = target.view, target.refusal
    name: str | None = target.name
    if view is not None:
        refusal = RefusalReason(REFUSED, _reason(view))
        refusal = await judged(refusal, view, Operation.DELETE, context)
        if refusal.message is None and getattr(entry, "topic_id", None) is not None:
            name = None  # the client need not be allowed to know it
    assert refusal is not None, "a lane name has a view, or a reason why not"
    if refusal.message is not None and request.api_version < MESSAGE_VERSION:
        log.warning(
            "entry refused api=DeleteTopics topic=%s session_id=%s reason=%s",
            target.name, context.session_id, refusal.message,
        )  # fmt: skip
    return refused_entry(request, entry, refusal.code, refusal.message, name=name)


def _reason(view: View) -> str:
    return (
        f"keylane: {view.name} means lanes of the topic {view.topic}, which others use under "
        f"other names; to delete it and its records, name {view.topic} itself"
    )


async def handle_create_partitions(request: Request, context: Context) -> Buffers:
    """Refuse topics that the client sees as lanes; pass the rest, with brokers' own ids."""
    wanted = request.decode()
    refused: dict[int, Any] = {}
    for position, topic in enumerate(wanted.topics):
        refusal = await _refused_growth(topic, context)
        if refusal is not None:
            refused[position] = refused_entry(request, topic, *refusal)
    topics = [_with_real_ids(topic, context) for topic in wanted.topics]
    return await pass_rest(request, topics, refused, context)


async def _refused_growth(topic: Any, context: Context) -> RefusalReason | None:
    target = await find_target(topic.name, context)
    view = target.view
    if view is None:
        return target.refusal
    refusal = RefusalReason(
        REFUSED,
        f"{lanes_text(view)}, {view.layout.index_count} in all: a count of {topic.count} is one of "
        "lanes, and lanes do not read partitions that are added; to add some, stop "
        f"the groups, ask a broker's own address for more than {view.layout.partition_count} "
        "partitions, and start keylane with the topic in `accept_layout`",
    )
    return await judged(refusal, view, Operation.ALTER, context)


def _with_real_ids(topic: Any, context: Context) -> Any:
    """Return a kio topic entry with the chosen replicas by the brokers' own ids."""
    if context.placement.is_alone or not topic.assignments:
        return topic
    assignments = tuple(
        replace(entry, broker_ids=real_ids(entry.broker_ids, context))
        for entry in topic.assignments
    )
    return replace(topic, assignments=assignments)
