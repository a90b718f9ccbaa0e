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
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i64

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.large import check_partitions
from keylane.proxy.apis.shared.refusals import with_results
from keylane.proxy.apis.shared.relay import PhysicalRounds, ask_rounds, relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.commits.log_ends import EARLIEST, LATEST
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View


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
        fresh = await _own_answers(request, topic, view, context)
        known.append(fresh)
        asked = [entry for entry in topic.partitions if int(entry.partition_index) not in fresh]
        rounds.add_topic(topic, view, asked)
    answered = await ask_rounds(request, wanted, rounds, context)
    topics = []
    for topic, fresh, entries in zip(wanted.topics, known, rounds.answers(answered), strict=True):
        found = fresh | {int(entry.partition_index): entry for entry in entries}
        indexes = (int(entry.partition_index) for entry in topic.partitions)
        partitions = tuple(found[index] for index in indexes if index in found)
        of_topic = request.answer_module.ListOffsetsTopicResponse
        topics.append(of_topic(name=topic.name, partitions=partitions))
    return request.answer_entity(with_results(request, next(iter(answered), None), topics))


async def handle_offset_for_leader_epoch(request: Request, context: Context) -> Buffers:
    """Ask the broker once per partition; lanes share the answer."""
    wanted = request.decode()
    check_partitions(wanted.topics)
    views = [await context.find_view(topic.topic) for topic in wanted.topics]
    if not any(views):
        return await relay(request, context)
    module = request.answer_module
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
    found = rounds.answers(answered)
    topics = (
        module.OffsetForLeaderTopicResult(
            topic=topic.topic, partitions=(*entries, *absent.values())
        )
        for topic, absent, entries in zip(wanted.topics, unknown, found, strict=True)
    )
    return request.answer_entity(with_results(request, next(iter(answered), None), topics))


async def _refusals(
    view: View | None, indexes: Sequence[int], context: Context
) -> dict[int, ErrorCode]:
    """Return refusals by lane index; all lanes, when the client may not know of the topic."""
    if view is None:
        return {}
    code = await context.right_error(view, Operation.DESCRIBE)
    if code:
        return dict.fromkeys(indexes, ErrorCode(code))
    absent = [index for index in indexes if view.error_of(index)]
    return dict.fromkeys(absent, ErrorCode.unknown_topic_or_partition)


async def _own_answers(
    request: Request, topic: Any, view: View | None, context: Context
) -> dict[int, Any]:
    """Return answers by lane index that are known without asking and are allowed."""
    fresh: dict[int, Any] = {}
    if view is None:
        return fresh
    of_partition = request.answer_module.ListOffsetsPartitionResponse
    isolation_level = int(getattr(request.decode(), "isolation_level", 0))
    indexes = [int(entry.partition_index) for entry in topic.partitions]
    for index, code in (await _refusals(view, indexes, context)).items():
        fresh[index] = of_partition(partition_index=i32(index), error_code=code)
    for entry in topic.partitions:
        index = int(entry.partition_index)
        if index in fresh or int(entry.timestamp) not in (LATEST, EARLIEST):
            continue
        ends = context.log_end(view, view.partition_of(index), isolation_level)
        if ends is not None:
            offset = ends[0] if int(entry.timestamp) == LATEST else ends[1]
            fresh[index] = of_partition(
                partition_index=i32(index),
                error_code=ErrorCode.none,
                timestamp=i64(-1),
                offset=i64(offset),
            )
    return fresh
