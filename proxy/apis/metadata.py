"""Metadata v0-13: addresses become keylane's, lane topics show P*L partitions.

Behaviour: a lane topic under its own name keeps its id; a lane name (`orders.lanes-16`) is
asked for as the topic itself and answered with an id of its own. Lane `lane * P + p` has
leader, replicas and ISR of partition p. A topic without lanes differs in nothing. A topic
whose plan is for another partition count is answered with TOPIC_AUTHORIZATION_FAILED. Among
many nodes each pair of node and broker is a broker; a partition and its lanes are at the node
that they are placed on, the controller is at this node.
Not done: lane names are not listed when all topics are asked for (any count is one).

In:    requests and answers.  Out: the answer as the client is to see it.
Next:  `session` writes it.
Pure:  the outside world is the `Context` argument.
Source: protocol guide, Metadata; KIP-516 (topic ids).
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import ConfigInvalid
from keylane.proxy.apis.context import Context, Request
from keylane.proxy.apis.places import place_topic, show_brokers
from keylane.proxy.connection import Buffers
from keylane.proxy.topics import LaneView

TOPIC_ID_VERSION: Final = 10
ZERO_ID: Final = uuid.UUID(int=0)


async def handle_metadata(request: Request, context: Context) -> Buffers:
    """Translate names, relay, translate back."""
    wanted = request.decode()
    names, upstream = await _translate(wanted, request.api_version, context)
    frame = (request.frame,) if upstream is None else (request.with_entity(upstream),)
    pending = context.send(frame)
    context.release()
    answer = request.decode_answer(await pending)
    await context.learn_brokers(answer.brokers)
    topics: list[Any] = []
    for topic in answer.topics:
        topics.extend(await _present(topic, names, context))
    changes: dict[str, Any] = {
        "brokers": show_brokers(answer.brokers, context),
        "topics": tuple(topics),
    }
    if hasattr(answer, "controller_id"):
        own_id = context.placement.own_id(int(answer.controller_id))
        changes["controller_id"] = type(answer.controller_id)(own_id)
    return request.answer_entity(replace(answer, **changes))


async def _translate(
    wanted: Any, api_version: int, context: Context
) -> tuple[dict[str, list[str]], Any]:
    """Lane names asked for, by physical topic; and the request to send, None if unchanged."""
    names: dict[str, list[str]] = {}
    if not wanted.topics:
        return names, None
    upstream: list[Any] = []
    sent: set[str] = set()
    is_changed = False
    for entry in wanted.topics:
        entry, name = await _entry_to_physical(entry, api_version, context)
        if name is None:
            upstream.append(entry)
            continue
        physical = context.registry.physical_name(name)
        names.setdefault(physical, []).append(name)
        if physical != name:
            is_changed = True
            entry = replace(entry, name=type(entry.name or "")(physical))
        if physical in sent:
            is_changed = True
            continue
        sent.add(physical)
        upstream.append(entry)
    return names, replace(wanted, topics=tuple(upstream)) if is_changed else None


async def _entry_to_physical(
    entry: Any, api_version: int, context: Context
) -> tuple[Any, str | None]:
    """(entry, the name that the client means); None for an id that is no lane name's."""
    if entry.name is not None:
        return entry, entry.name
    if api_version >= TOPIC_ID_VERSION and entry.topic_id:
        view = await context.find_view_by_id(entry.topic_id)
        if view is not None and view.is_renamed:
            # Asked by the physical name: the lane name's id means nothing to the broker.
            return replace(entry, topic_id=None, name=view.topic), view.name
    return entry, None


async def _present(topic: Any, names: dict[str, list[str]], context: Context) -> list[Any]:
    """The topic as the client is to see it, once per name that it asked for."""
    if topic.name is None:
        return [topic]
    topic_id = getattr(topic, "topic_id", None)
    if topic_id and topic.error_code == 0:
        context.learn_topic(topic)  # by the ids of brokers
    topic = place_topic(topic, context)
    shown = []
    for name in dict.fromkeys(names.get(topic.name, [topic.name])):
        view = None
        if topic.error_code == 0 and context.registry.rule_of(name) is not None:
            try:
                view = await context.find_view(name)
            except ConfigInvalid:
                shown.append(refused_topic(topic, name))
                continue
        if view is None:
            shown.append(
                topic if name == topic.name else replace(topic, name=type(topic.name)(name))
            )
        else:
            shown.append(expand_topic(topic, view))
    return shown


def refused_topic(topic: Any, name: str) -> Any:
    """A kio topic entry that stops clients: its lanes are not served, for a reason in the log.

    Of the codes that clients know here this is the one that all of them tell their application.
    """
    code = ErrorCode.topic_authorization_failed
    return replace(topic, name=type(topic.name)(name), partitions=(), error_code=code)


def expand_topic(topic: Any, view: LaneView) -> Any:
    """A kio topic entry with one partition per lane, in lane index order."""
    count = view.layout.partition_count
    partitions = [entry for entry in topic.partitions if entry.partition_index < count]
    index_type = type(partitions[0].partition_index) if partitions else int
    expanded = tuple(
        replace(entry, partition_index=index_type(lane * count + entry.partition_index))
        for lane in range(view.layout.lane_count)
        for entry in partitions
    )
    changes: dict[str, Any] = {"name": type(topic.name)(view.name), "partitions": expanded}
    if hasattr(topic, "topic_id"):
        changes["topic_id"] = view.view_id
    return replace(topic, **changes)
