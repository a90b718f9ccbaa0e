"""ListOffsets v1-11 and OffsetForLeaderEpoch v2-4: a lane's answer is its partition's.

Behaviour: latest and earliest of lanes are answered from recent Fetch answers (Spark asks twice
per poll). For all else keylane asks the broker, for each partition once. Offset by time, max
timestamp and end of an epoch are the partition's, so a lane starts at or before its own first
record of that time. Topics without lanes pass unchanged.
Not done: nothing.

Source: protocol guide, ListOffsets; KIP-101, KIP-320 (epochs), KIP-734 (max timestamp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i32, i64

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.large import check_partitions
from keylane.proxy.apis.shared.physical import PhysicalRounds
from keylane.proxy.apis.shared.relay import absent_lanes, ask_rounds, relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.commits.log_ends import EARLIEST, LATEST
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.header import ApiKey

THROTTLE_VERSION: Final = 2


async def handle_list_offsets(request: Request, context: Context) -> Buffers:
    """Answer lanes from fresh knowledge where there is any; ask the broker for the rest."""
    wanted = request.decode()
    check_partitions(wanted.topics)
    views = [await context.find_view(topic.name) for topic in wanted.topics]
    if not any(views):
        return await relay(request, context)
    rounds = PhysicalRounds()
    known: list[dict[int, Any]] = []
    for topic, view in zip(wanted.topics, views, strict=True):
        fresh = await _own_answers(request.api_version, wanted, topic, view, context)
        known.append(fresh)
        asked = [entry for entry in topic.partitions if int(entry.partition_index) not in fresh]
        rounds.add_topic(topic, view, asked)
    answered = await ask_rounds(request, wanted, rounds, context)
    return request.answer_entity(_build(request.api_version, wanted, known, rounds, answered))


async def handle_offset_for_leader_epoch(request: Request, context: Context) -> Buffers:
    """Ask the broker once per partition; lanes share the answer."""
    wanted = request.decode()
    check_partitions(wanted.topics)
    views = [await context.find_view(topic.topic) for topic in wanted.topics]
    if not any(views):
        return await relay(request, context)
    module: Any = load_payload_module(request.api_key, request.api_version, EntityType.response)
    rounds = PhysicalRounds(index_field="partition", name_field="topic")
    unknown: list[dict[int, Any]] = []
    for topic, view in zip(wanted.topics, views, strict=True):
        refusals = await _refusals(view, [int(e.partition) for e in topic.partitions], context)
        absent = {
            index: module.EpochEndOffset(error_code=code, partition=i32(index))
            for index, code in refusals.items()
        }
        unknown.append(absent)
        rounds.add_topic(
            topic, view, [e for e in topic.partitions if int(e.partition) not in absent]
        )
    answered = await ask_rounds(request, wanted, rounds, context)
    topics = []
    for topic, absent, (answer, entries) in zip(
        wanted.topics, unknown, rounds.answers(answered), strict=True
    ):
        if answer is None:
            answer = module.OffsetForLeaderTopicResult(topic=topic.topic, partitions=())
        topics.append(replace(answer, partitions=(*entries, *absent.values())))
    if answered:
        return request.answer_entity(replace(answered[0], topics=tuple(topics)))
    return request.answer_entity(
        module.OffsetForLeaderEpochResponse(throttle_time=timedelta(0), topics=tuple(topics))
    )


async def _refusals(
    view: View | None, indexes: Sequence[int], context: Context
) -> dict[int, ErrorCode]:
    """Return refusals by lane index; all lanes, when the client may not know of the topic."""
    if view is None:
        return {}
    code = await context.right_error(view, Operation.DESCRIBE)
    if code:
        return dict.fromkeys(indexes, ErrorCode(code))
    return dict.fromkeys(absent_lanes(view, indexes), ErrorCode.unknown_topic_or_partition)


async def _own_answers(
    api_version: int, wanted: Any, topic: Any, view: View | None, context: Context
) -> dict[int, Any]:
    """Return answers by lane index that are known without asking and are allowed."""
    fresh: dict[int, Any] = {}
    if view is None:
        return fresh
    module: Any = load_payload_module(ApiKey.LIST_OFFSETS, api_version, EntityType.response)
    isolation_level = int(getattr(wanted, "isolation_level", 0))
    indexes = [int(entry.partition_index) for entry in topic.partitions]
    for index, code in (await _refusals(view, indexes, context)).items():
        fresh[index] = module.ListOffsetsPartitionResponse(
            partition_index=i32(index), error_code=code
        )
    for entry in topic.partitions:
        index = int(entry.partition_index)
        if index in fresh or int(entry.timestamp) not in (LATEST, EARLIEST):
            continue
        ends = context.log_end(view, view.partition_of(index), isolation_level)
        if ends is not None:
            offset = ends[0] if int(entry.timestamp) == LATEST else ends[1]
            fresh[index] = module.ListOffsetsPartitionResponse(
                partition_index=i32(index),
                error_code=ErrorCode.none,
                timestamp=i64(-1),
                offset=i64(offset),
            )
    return fresh


def _build(
    api_version: int,
    wanted: Any,
    known: list[dict[int, Any]],
    rounds: PhysicalRounds,
    answered: list[Any],
) -> Any:
    module: Any = load_payload_module(ApiKey.LIST_OFFSETS, api_version, EntityType.response)
    topics = []
    for topic, fresh, (answer, entries) in zip(
        wanted.topics, known, rounds.answers(answered), strict=True
    ):
        found = fresh | {int(entry.partition_index): entry for entry in entries}
        partitions = tuple(
            found[int(entry.partition_index)]
            for entry in topic.partitions
            if int(entry.partition_index) in found
        )
        if answer is None:
            answer = module.ListOffsetsTopicResponse(name=topic.name, partitions=())
        topics.append(replace(answer, partitions=partitions))
    if answered:
        return replace(answered[0], topics=tuple(topics))
    changes = {} if api_version < THROTTLE_VERSION else {"throttle_time": timedelta(0)}
    return module.ListOffsetsResponse(topics=tuple(topics), **changes)
