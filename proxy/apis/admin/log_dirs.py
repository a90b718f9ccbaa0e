"""DescribeLogDirs v1-5, AlterReplicaLogDirs v1-2: folders of the partitions that lanes are of.

Behaviour: a lane lies in the folder of its partition. Its size is an equal part of the
partition's, so that the sizes of all lanes add up to the size on disk. To move a lane is to move
its partition. If one request sends lanes of one partition to different folders, they are refused
with INVALID_REQUEST, and the reason is logged. A request for all topics shows topics whose own
name means lanes as lanes.
Not done: nothing.

Source: KIP-113.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kio.static.primitive import i64

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import (
    any_lane,
    by_place,
    find_numbers,
    find_target,
    find_wishes,
    show_answer,
    show_lanes,
    wished_topics,
)
from keylane.proxy.apis.shared.relay import ask, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View


async def handle_describe_log_dirs(request: Request, context: Context) -> Buffers:
    """Ask for partitions, answer for lanes."""
    wanted = request.decode()
    if wanted.topics is None:
        return await show_answer(request, context, _present)
    wishes = await find_numbers(wanted.topics, context)
    if wishes is None:
        return await relay(request, context)
    topics = wished_topics(wanted.topics, wishes.settle())
    answer = await ask(request, replace(wanted, topics=topics), context)
    of_topic = request.answer_module.DescribeLogDirsTopic
    results = []
    for folder in answer.results:
        shown = [
            of_topic(name=target.name, partitions=_parts(entries, target.view))
            for target, entries in wishes.answers(by_place(folder.topics))
        ]
        results.append(replace(folder, topics=tuple(topic for topic in shown if topic.partitions)))
    return request.answer_entity(replace(answer, results=tuple(results)))


async def _present(answer: Any, context: Context) -> Any:
    results = []
    for folder in answer.results:
        topics = []
        for topic in folder.topics:
            view = (await find_target(topic.name, context)).view
            if view is not None:
                topic = replace(topic, partitions=_parts(show_lanes(topic.partitions, view), view))
            topics.append(topic)
        results.append(replace(folder, topics=tuple(topics)))
    return replace(answer, results=tuple(results))


def _parts(entries: tuple[Any, ...], view: View | None) -> tuple[Any, ...]:
    """Return entries of lanes with their part of the partition's size."""
    if view is None:
        return entries
    return tuple(
        replace(entry, partition_size=i64(part_of(int(entry.partition_size), entry, view)))
        for entry in entries
    )


def part_of(size_bytes: int, entry: Any, view: View) -> int:
    """Return a lane's bytes of its partition's; the remainder is the first lane's."""
    lane, count = view.output_of(int(entry.partition_index)), view.layout.lane_count
    return size_bytes // count + (size_bytes % count if lane == 0 else 0)


async def handle_alter_replica_log_dirs(request: Request, context: Context) -> Buffers:
    """Move the partitions of lanes; the broker is always asked, since it judges the right."""
    wanted = request.decode()
    named = [
        (topic, [(int(index), str(folder.path)) for index in topic.partitions])
        for folder in wanted.dirs
        for topic in folder.topics
    ]
    wishes = await find_wishes(named, any_lane, context)
    if wishes is None:
        return await relay(request, context)
    asked = _folders(wanted, wishes.settle())
    wishes.log_refusals("AlterReplicaLogDirs", context)
    answer = await ask(request, replace(wanted, dirs=asked), context)
    return request.answer_entity(wishes.answer(request, answer))


def _folders(wanted: Any, asked: Mapping[str, Mapping[int, str]]) -> tuple[Any, ...]:
    """Return folders with their topics, from folders by topic and partition."""
    named = [topic for folder in wanted.dirs for topic in folder.topics]
    folders: dict[str, dict[str, dict[int, str]]] = {}
    for name, paths in asked.items():
        for partition, path in paths.items():
            folders.setdefault(path, {}).setdefault(name, {})[partition] = path
    return tuple(
        replace(wanted.dirs[0], path=path, topics=wished_topics(named, topics))
        for path, topics in folders.items()
    )
