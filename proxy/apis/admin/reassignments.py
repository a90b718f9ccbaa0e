"""AlterPartitionReassignments v0-1, ListPartitionReassignments v0: replicas of lanes' partitions.

Behaviour: a lane has the replicas of its partition, so to move a lane is to move its partition,
and all lanes of a partition show as moving with it. If one request sends lanes of one partition to
different brokers, they are refused with INVALID_REPLICA_ASSIGNMENT and a reason. Among many nodes
ids of brokers are those of any pair in requests, and of the partition's node in answers.
Not done: a plan of kafka-reassign-partitions that names another node's pairs than the partition's
is carried out, but its `--verify` compares ids.

Source: KIP-455.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import (
    by_place,
    find_numbers,
    find_wishes,
    lanes_text,
    show_topic,
    shows_lanes,
    wished_topics,
)
from keylane.proxy.apis.shared.places import place_partition, real_ids
from keylane.proxy.apis.shared.refusals import RefusalReason
from keylane.proxy.apis.shared.relay import ask, forward, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View

Replicas = tuple[Any, ...] | None
"""Target replicas; None cancels a reassignment under way."""


async def handle_alter_reassignments(request: Request, context: Context) -> Buffers:
    """Move the partitions of lanes; the broker is always asked, since it judges the right."""
    wanted = request.decode()
    topics = tuple(_with_real_ids(topic, context) for topic in wanted.topics)
    replicas = [
        (topic, [(int(e.partition_index), e.replicas) for e in topic.partitions])
        for topic in topics
    ]
    wishes = await find_wishes(replicas, equal_replicas, context)
    if wishes is None:
        is_changed = not context.placement.is_alone
        return await relay(request, context, replace(wanted, topics=topics) if is_changed else None)
    asked = wished_topics(topics, wishes.settle())
    answer = await ask(request, replace(wanted, topics=asked), context)
    if answer.error_code != ErrorCode.none:
        return request.answer_entity(answer)
    return request.answer_entity(wishes.answer(request, answer))


def equal_replicas(
    view: View, partition: int, wishes: Mapping[int, Replicas]
) -> Replicas | RefusalReason:
    """Return the replicas that all lanes of a partition are to have."""
    first = next(iter(wishes.values()))
    if all(replicas == first for replicas in wishes.values()):
        return first
    return RefusalReason(
        ErrorCode.invalid_replica_assignment,
        f"{lanes_text(view)}: lanes {', '.join(map(str, wishes))} are one partition, {partition}, "
        "and cannot have different replicas; give all of them the same, or ask a broker's own "
        "address",
    )


async def handle_list_reassignments(request: Request, context: Context) -> Buffers:
    """Show reassignments as Metadata shows replicas; of all topics, or of those that are named."""
    wanted = request.decode()
    if wanted.topics is None and context.placement.is_alone and not shows_lanes(context):
        return await relay(request, context)
    if wanted.topics is None:
        answer = request.decode_answer(await forward(request, context))
        shown = tuple([await show_topic(topic, context) for topic in _placed(answer, context)])
        return request.answer_entity(replace(answer, topics=shown))
    is_changed = not context.placement.is_alone
    wishes = await find_numbers(wanted.topics, context, also_plain=is_changed)
    if wishes is None:
        return await relay(request, context)
    topics = wished_topics(wanted.topics, wishes.settle())
    answer = await ask(request, replace(wanted, topics=topics), context)
    found = by_place(_placed(answer, context))
    shown = tuple(
        request.answer_module.OngoingTopicReassignment(name=target.name, partitions=entries)
        for target, entries in wishes.answers(found)
        if entries  # brokers leave out topics without a reassignment, known or not
    )
    return request.answer_entity(replace(answer, topics=shown))


def _placed(answer: Any, context: Context) -> list[Any]:
    """Return the topics of an answer, with replicas as Metadata shows them."""
    topics = []
    for topic in answer.topics:
        counts = (int(entry.partition_index) + 1 for entry in topic.partitions)
        count = max(context.registry.count_of(topic.name), *counts, 0)
        partitions = tuple(
            place_partition(entry, topic.name, count, context) for entry in topic.partitions
        )
        topics.append(replace(topic, partitions=partitions))
    return topics


def _with_real_ids(topic: Any, context: Context) -> Any:
    """Return a kio topic entry with replicas by the brokers' own ids; None (cancel) stays."""
    partitions = tuple(
        entry
        if entry.replicas is None
        else replace(entry, replicas=real_ids(entry.replicas, context))
        for entry in topic.partitions
    )
    return replace(topic, partitions=partitions)
