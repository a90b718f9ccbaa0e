"""DescribeTopicPartitions v0: topics by the names that clients use.

Behaviour: a lane is shown per partition, as in Metadata. The answer is paged, and a page has all
lanes of its partitions; keylane's own topics are internal.
Not done: nothing.

Source: KIP-966 (DescribeTopicPartitions).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kio.schema.types import TopicName

from keylane.proxy.apis.connection.metadata import mark_own, show_names
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.large import (
    AnswerRoom,
    Shown,
    count_partitions,
    expand_all,
    read_answer,
    write_answer,
)
from keylane.proxy.apis.shared.places import place_topic
from keylane.proxy.apis.shared.relay import forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers


async def handle_describe_topic_partitions(request: Request, context: Context) -> Buffers:
    """Translate names, relay, show lanes."""
    wanted = request.decode()
    names: dict[str, list[str]] = {}
    entries: dict[str, Any] = {}
    for topic in wanted.topics:
        physical = context.registry.physical_name(topic.name)
        names.setdefault(physical, []).append(topic.name)
        entries.setdefault(physical, replace(topic, name=TopicName(physical)))
    cursor, upstream = wanted.cursor, None
    if cursor is not None:
        name = TopicName(context.registry.physical_name(cursor.topic_name))
        cursor = replace(cursor, topic_name=name)
    if cursor != wanted.cursor or any(topic.name not in entries for topic in wanted.topics):
        upstream = replace(wanted, topics=tuple(entries.values()), cursor=cursor)
    answer = await read_answer(request, await forward(request, context, upstream), context)
    shown: list[Shown] = []
    room = AnswerRoom()
    for topic in answer.topics:
        shown.extend(await _present(topic, names, room, context))
    topics = await expand_all(shown, context)
    following = answer.next_cursor
    if following is not None and following.topic_name in names:
        name = TopicName(names[following.topic_name][0])
        following = replace(following, topic_name=name)
    shown_answer = replace(answer, topics=topics, next_cursor=following)
    return await write_answer(request, shown_answer, count_partitions(topics), context)


async def _present(
    topic: Any, names: dict[str, list[str]], room: AnswerRoom, context: Context
) -> list[Shown]:
    """Return the topic once per name that the client asked for."""
    if topic.name is None:
        return [(topic, None)]
    topic = mark_own(place_topic(topic, context))
    return await show_names(topic, names.get(topic.name, [topic.name]), room, context)
