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

from kio.index import load_payload_module
from kio.static.constants import EntityType
from kio.static.primitive import i32, i64

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import (
    LaneWishes,
    TopicTarget,
    any_lane,
    by_place,
    find_target,
    find_targets,
    show_lanes,
    shows_lanes,
)
from keylane.proxy.apis.shared.relay import ask, forward, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View


async def handle_describe_log_dirs(request: Request, context: Context) -> Buffers:
    """Ask for partitions, answer for lanes."""
    wanted = request.decode()
    if wanted.topics is None:
        return await _describe_all(request, context)
    targets = await find_targets((topic.topic for topic in wanted.topics), context)
    if all(target.is_plain for target in targets):
        return await relay(request, context)
    wishes: LaneWishes[None] = LaneWishes(any_lane)
    for target, topic in zip(targets, wanted.topics, strict=True):
        wishes.add(target, ((int(index), None) for index in topic.partitions))
    of_topic = wanted.topics[0]
    topics = tuple(
        replace(of_topic, topic=type(of_topic.topic)(name), partitions=tuple(map(i32, partitions)))
        for name, partitions in wishes.settle().items()
    )
    answer = await ask(request, replace(wanted, topics=topics), context)
    module: Any = load_payload_module(request.api_key, request.api_version, EntityType.response)
    results = []
    for folder in answer.results:
        found = by_place(folder.topics, "name", "partitions", "partition_index")
        shown = [
            module.DescribeLogDirsTopic(name=target.name, partitions=_parts(entries, target))
            for target, entries in wishes.answers(found)
        ]
        results.append(replace(folder, topics=tuple(topic for topic in shown if topic.partitions)))
    return request.answer_entity(replace(answer, results=tuple(results)))


async def _describe_all(request: Request, context: Context) -> Buffers:
    if not shows_lanes(context):
        return await relay(request, context)
    frame = await forward(request, context)
    answer = request.decode_answer(frame)
    results = []
    for folder in answer.results:
        topics = tuple([await _present(topic, context) for topic in folder.topics])
        results.append(replace(folder, topics=topics))
    if tuple(results) == tuple(answer.results):
        return (frame,)
    return request.answer_entity(replace(answer, results=tuple(results)))


async def _present(topic: Any, context: Context) -> Any:
    target = await find_target(topic.name, context)
    if target.view is None:
        return topic
    shown = show_lanes(topic.partitions, target.view, "partition_index")
    return replace(topic, partitions=_parts(shown, target))


def _parts(entries: tuple[Any, ...], target: TopicTarget) -> tuple[Any, ...]:
    """Return entries of lanes with their part of the partition's size."""
    view = target.view
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
    named = [(folder, topic) for folder in wanted.dirs for topic in folder.topics]
    targets = await find_targets((topic.name for _, topic in named), context)
    if all(target.is_plain for target in targets):
        return await relay(request, context)
    wishes: LaneWishes[str] = LaneWishes(any_lane)
    for target, (folder, topic) in zip(targets, named, strict=True):
        wishes.add(target, ((int(index), folder.path) for index in topic.partitions))
    asked = _folders(wanted, wishes.settle())
    wishes.log_refusals("AlterReplicaLogDirs", context)
    answer = await ask(request, replace(wanted, dirs=asked), context)
    return request.answer_entity(wishes.answer(request, answer))


def _folders(wanted: Any, asked: Mapping[str, Mapping[int, str]]) -> tuple[Any, ...]:
    """Return folders with their topics, from folders by topic and partition."""
    named = [topic for folder in wanted.dirs for topic in folder.topics]
    topics: dict[str, list[Any]] = {}
    for name, paths in asked.items():
        for path in dict.fromkeys(paths.values()):
            partitions = tuple(i32(number) for number, other in paths.items() if other == path)
            topic = replace(named[0], name=type(named[0].name)(name), partitions=partitions)
            topics.setdefault(path, []).append(topic)
    of_folder = wanted.dirs[0]
    return tuple(replace(of_folder, path=path, topics=tuple(t)) for path, t in topics.items())
