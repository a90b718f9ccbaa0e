"""DescribeTopicPartitions v0: topics by the names that clients use.

Behaviour: shows a lane per partition, as Metadata does; it is paged, and a page holds all lanes
of the partitions in it; keylane's own topics are internal.
Not done: nothing.

In:    requests and answers.  Out: the answer as the client is to see it.
Pure:  the outside world is the `Context` argument.
Source: KIP-966 (DescribeTopicPartitions).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kio.schema.types import TopicName

from keylane.errors import ConfigInvalid
from keylane.proxy.apis.context import Context, Request
from keylane.proxy.apis.metadata import expand_topic, mark_own, refused_topic
from keylane.proxy.apis.places import place_topic
from keylane.proxy.connection import Buffers


async def handle_describe_topic_partitions(request: Request, context: Context) -> Buffers:
    """Translate names, relay, show lanes."""
    wanted = request.decode()
    names: dict[str, list[str]] = {}
    entries: dict[str, Any] = {}
    for topic in wanted.topics:
        physical = context.registry.physical_name(topic.name)
        names.setdefault(physical, []).append(topic.name)
        entries.setdefault(physical, replace(topic, name=TopicName(physical)))
    cursor, frame = wanted.cursor, request.frame
    if cursor is not None:
        name = TopicName(context.registry.physical_name(cursor.topic_name))
        cursor = replace(cursor, topic_name=name)
    if cursor != wanted.cursor or any(topic.name not in entries for topic in wanted.topics):
        upstream = replace(wanted, topics=tuple(entries.values()), cursor=cursor)
        frame = request.with_entity(upstream)
    pending = context.send((frame,))
    context.release()
    answer = request.decode_answer(await pending)
    shown = [entry for topic in answer.topics for entry in await _present(topic, names, context)]
    following = answer.next_cursor
    if following is not None and following.topic_name in names:
        name = TopicName(names[following.topic_name][0])
        following = replace(following, topic_name=name)
    return request.answer_entity(replace(answer, topics=tuple(shown), next_cursor=following))


async def _present(topic: Any, names: dict[str, list[str]], context: Context) -> list[Any]:
    """The topic once per name that the client asked for."""
    if topic.name is None:
        return [topic]
    topic = mark_own(place_topic(topic, context))
    shown = []
    for name in dict.fromkeys(names.get(topic.name, [topic.name])):
        try:
            view = await context.find_view(name) if topic.error_code == 0 else None
        except ConfigInvalid:
            shown.append(refused_topic(topic, name))
            continue
        if view is not None:
            shown.append(expand_topic(topic, view))
        else:
            shown.append(replace(topic, name=TopicName(name)))
    return shown
