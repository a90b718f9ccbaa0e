"""Metadata v0-13: addresses become keylane's, lane topics show P*L partitions.

Behaviour: a lane topic under its own name keeps its id. For a lane name (`orders.lanes-16`)
keylane asks the broker for the topic itself, and answers with a separate id. A request has topics
by name, or by id; names beside ids mean nothing, whether null or empty. Lane `lane * P + p` has
leader, replicas and ISR of partition p. A topic without lanes is answered unchanged; keylane's own
topics are internal, as Kafka's are. A topic whose plan is for another partition count is answered
with TOPIC_AUTHORIZATION_FAILED. Among many nodes each pair of node and broker is a broker; a
partition and its lanes are at the node of their placement, the controller is at this node.
Not done: lane names are not listed when all topics are asked for (any count is one).

Source: protocol guide, Metadata; KIP-516 (topic ids).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.config.own_names import OWN_TOPICS
from keylane.errors import ConfigInvalid, FrameInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.large import (
    ENTRIES_AT_ONCE,
    LANE_NAME_ENTRIES_MAX,
    AnswerRoom,
    Shown,
    count_partitions,
    expand_all,
    read_answer,
    too_many,
    write_answer,
)
from keylane.proxy.apis.shared.places import are_reached, hide_unlistened, place_topic, show_brokers
from keylane.proxy.apis.shared.relay import forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers

log = logging.getLogger("keylane.metadata")

TOPICS_MAX: Final = 50_000
"""Topics of one request; a client that wants all topics names none."""
TOPIC_ID_VERSION: Final = 10
IDS_VERSION: Final = 12
"""The first version whose ids brokers accept."""


@dataclass(slots=True)
class _Asked:
    """The client's names and ids of the topics that the broker is asked for."""

    names: dict[str, list[str]] = field(default_factory=dict)
    """By the broker's name of a topic, the names that the client asked for."""
    ids: dict[uuid.UUID, list[uuid.UUID]] = field(default_factory=dict)
    """By the broker's id of a topic, the ids that the client asked for."""


async def handle_metadata(request: Request, context: Context) -> Buffers:
    """Translate names and ids, relay, translate back."""
    wanted = request.decode()
    if len(wanted.topics or ()) > ENTRIES_AT_ONCE:
        asked, upstream = await context.in_turn(_translate, wanted, request.api_version, context)
    else:
        asked, upstream = _translate(wanted, request.api_version, context)
    answer = await read_answer(request, await forward(request, context, upstream), context)
    await context.learn_brokers(answer.brokers)
    shown: list[Shown] = []
    room = AnswerRoom()
    are_all_reached = are_reached(answer.brokers, context)
    for topic in answer.topics:
        placed = _placed(topic, context)
        if not are_all_reached:
            placed = hide_unlistened(placed, context)
        shown.extend(await _present(placed, asked, room, context))
    topics = await expand_all(shown, context)
    changes: dict[str, Any] = {
        "brokers": show_brokers(answer.brokers, context),
        "topics": topics,
    }
    if hasattr(answer, "controller_id"):
        own_id = context.placement.home_id(int(answer.controller_id))
        changes["controller_id"] = type(answer.controller_id)(own_id)
    shown_answer = replace(answer, **changes)
    return await write_answer(request, shown_answer, count_partitions(topics), context)


def _translate(wanted: Any, api_version: int, context: Context) -> tuple[_Asked, Any]:
    """Return the client's names and ids, and the request to send; None: it stays as it came.

    A broker goes by ids alone where any entry has one, whatever names stand beside it: null,
    or "" as Java's client writes them (KafkaApis.handleTopicMetadataRequest).
    """
    asked = _Asked()
    if len(wanted.topics or ()) > TOPICS_MAX:
        raise FrameInvalid(f"{len(wanted.topics)} topics, at most {TOPICS_MAX}")
    if not wanted.topics:
        return asked, None
    if api_version >= TOPIC_ID_VERSION and any(entry.topic_id for entry in wanted.topics):
        # Before v12 brokers refuse ids, under the names that stand there.
        entries = _ids_to_physical(wanted, asked, context) if api_version >= IDS_VERSION else None
    else:
        entries = _names_to_physical(wanted, asked, context)
    return asked, None if entries is None else replace(wanted, topics=entries)


def _names_to_physical(wanted: Any, asked: _Asked, context: Context) -> tuple[Any, ...] | None:
    """Return entries with the broker's names, each topic once; None without a lane name."""
    entries: dict[str | None, Any] = {}
    is_changed = False
    for entry in wanted.topics:
        if entry.name is None:
            entries[None] = entry
            continue
        name = context.registry.physical_name(entry.name)
        asked.names.setdefault(name, []).append(entry.name)
        if name != entry.name:
            is_changed = True
            entry = replace(entry, name=type(entry.name)(name))
        entries.setdefault(name, entry)
    return tuple(entries.values()) if is_changed else None


def _ids_to_physical(wanted: Any, asked: _Asked, context: Context) -> tuple[Any, ...] | None:
    """Return entries with the broker's ids, each topic once; None without a lane name's id."""
    entries: dict[uuid.UUID | None, Any] = {}
    is_changed = False
    for entry in wanted.topics:
        topic_id = entry.topic_id
        if topic_id is not None:
            view = context.registry.renamed_of_id(topic_id)
            name = context.registry.name_of_id(topic_id) if view is None else view.name
            topic_id = topic_id if view is None else view.topic_id
            asked.ids.setdefault(topic_id, []).append(entry.topic_id)
            if name is not None:
                asked.names.setdefault(name if view is None else view.topic, []).append(name)
        if topic_id != entry.topic_id:
            is_changed = True
            entry = replace(entry, topic_id=topic_id)
        entries.setdefault(topic_id, entry)
    return tuple(entries.values()) if is_changed else None


def _placed(topic: Any, context: Context) -> Any:
    """Note the topic as the broker shows it, and return it with partitions at their nodes."""
    if topic.name is None:
        return topic
    if getattr(topic, "topic_id", None) and topic.error_code == 0:
        context.learn_topic(topic)  # by the brokers' own ids
    return mark_own(place_topic(topic, context))


async def _present(topic: Any, asked: _Asked, room: AnswerRoom, context: Context) -> list[Shown]:
    """Return the placed topic as the client is to see it, once per name that it asked for."""
    topic_id = getattr(topic, "topic_id", None)
    if topic.name is None:
        ids = dict.fromkeys(asked.ids.get(topic_id, [topic_id])) if topic_id else [topic_id]
        return [(topic if one == topic_id else replace(topic, topic_id=one), None) for one in ids]
    return await show_names(topic, asked.names.get(topic.name, [topic.name]), room, context)


async def show_names(
    topic: Any, names: Sequence[str], room: AnswerRoom, context: Context
) -> list[Shown]:
    """Return a kio topic entry once per name, with the lanes that the name stands for."""
    shown: list[Shown] = []
    for name in dict.fromkeys(names):
        view = None
        if topic.error_code == 0 and context.registry.rule_of(name) is not None:
            if not room.takes(name, topic, context):
                shown.append((too_many(topic, name), None))
                continue
            try:
                view = await context.find_view(name)
            except ConfigInvalid:
                shown.append((refused_topic(topic, name), None))
                continue
        if view is None and name != topic.name:
            shown.append((replace(topic, name=type(topic.name)(name)), None))
        else:
            shown.append((topic, view))
    if any(found.error_code == ErrorCode.invalid_topic_exception for found, _ in shown):
        # Not as a warning: any client could fill the log with it.
        log.debug(
            "lane names refused: name fewer in one request lanes_max=%d session_id=%s "
            "topic=%s names=%d",
            LANE_NAME_ENTRIES_MAX, context.session_id, topic.name, len(shown),
        )  # fmt: skip
    return shown


def mark_own(topic: Any) -> Any:
    """Return a kio topic entry, marked as internal where the topic is keylane's.

    Java, aiokafka and kafka-python leave internal topics out of patterns (KIP-4).
    """
    is_own = topic.name in OWN_TOPICS and hasattr(topic, "is_internal")  # Metadata from v1
    return replace(topic, is_internal=True) if is_own else topic


def refused_topic(topic: Any, name: str) -> Any:
    """Return a kio topic entry that stops clients: its lanes are not served (the log says why).

    All clients report this code to their application, of the codes that they know here.
    """
    code = ErrorCode.topic_authorization_failed
    return replace(topic, name=type(topic.name)(name), partitions=(), error_code=code)
