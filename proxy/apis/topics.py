"""DescribeTopicPartitions v0, DescribeConfigs v1-4: topics by the names that clients use.

Behaviour: DescribeTopicPartitions shows a lane per partition, as Metadata does; it is paged,
and a page holds all lanes of the partitions in it; keylane's own topics are internal.
DescribeConfigs of a lane name tells the configuration of its topic. Among many nodes a broker is
told by the id that clients know. All other requests pass as they are.
Not done: nothing.

In:    requests and answers.  Out: the answer as the client is to see it.
Pure:  the outside world is the `Context` argument.
Source: KIP-966 (DescribeTopicPartitions), KIP-226 (DescribeConfigs).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from kio.schema.types import TopicName

from keylane.errors import ConfigInvalid
from keylane.proxy.apis.context import Context, Request
from keylane.proxy.apis.list_offsets import relay
from keylane.proxy.apis.metadata import expand_topic, mark_own, refused_topic
from keylane.proxy.apis.places import place_topic, real_name
from keylane.proxy.connection import Buffers

TOPIC_RESOURCE: Final = 2


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


async def handle_describe_configs(request: Request, context: Context) -> Buffers:
    """Ask by the topic's or broker's own name, answer under the one that was asked for."""
    wanted = request.decode()
    asked = [_physical_name(resource, context) for resource in wanted.resources]
    if asked == [resource.resource_name for resource in wanted.resources]:
        return await relay(request, context)
    resources = tuple(
        replace(resource, resource_name=name)
        for resource, name in zip(wanted.resources, asked, strict=True)
    )
    pending = context.send((request.with_entity(replace(wanted, resources=resources)),))
    context.release()
    answer = request.decode_answer(await pending)
    found = {(int(result.resource_type), result.resource_name): result for result in answer.results}
    results = tuple(
        replace(found[int(resource.resource_type), name], resource_name=resource.resource_name)
        for resource, name in zip(wanted.resources, asked, strict=True)
        if (int(resource.resource_type), name) in found
    )
    return request.answer_entity(replace(answer, results=results))


def _physical_name(resource: Any, context: Context) -> str:
    if resource.resource_type != TOPIC_RESOURCE:
        return real_name(resource, context)
    return context.registry.physical_name(resource.resource_name)
