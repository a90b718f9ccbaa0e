"""CreateTopics, CreatePartitions, reassignments, AlterConfigs and co: broker ids among many nodes.

Behaviour: clients know pairs of node and broker, and what they send with an id of one means the
broker; so does the broker's own id. Answers name what was asked for, replicas are shown at the
node that the partition is placed on. A group is listed by the node that serves it, once in all.
The lone node relays all of these as bytes.
Not done: a plan of kafka-reassign-partitions that names another node's pairs than the partition's
is carried out, but its `--verify` compares ids; transactions are listed once per node.

In:    requests and answers.  Out: the same with ids for brokers, or for clients.
Next:  `session` writes them.
Pure:  the outside world is the `Context` argument.
Source: protocol guide; KIP-455 (reassignments), KIP-339 (IncrementalAlterConfigs).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from keylane.proxy.apis.context import Context, Request
from keylane.proxy.apis.list_offsets import relay
from keylane.proxy.apis.places import place_partition, real_name
from keylane.proxy.connection import Buffers


def relays_alone(_request: Request, context: Context) -> bool:
    """Whether ids mean the same to clients and brokers."""
    return context.placement.is_alone


async def handle_create_topics(request: Request, context: Context) -> Buffers:
    """CreateTopics v2-7: replicas that the client chose."""
    wanted = request.decode()
    if not any(topic.assignments for topic in wanted.topics):
        return await relay(request, context)
    topics = tuple(
        replace(topic, assignments=_real_assignments(topic.assignments, context))
        for topic in wanted.topics
    )
    return await _pass(request, replace(wanted, topics=topics), context)


async def handle_create_partitions(request: Request, context: Context) -> Buffers:
    """CreatePartitions v0-3: replicas that the client chose."""
    wanted = request.decode()
    if not any(topic.assignments for topic in wanted.topics):
        return await relay(request, context)
    topics = tuple(
        replace(topic, assignments=_real_assignments(topic.assignments, context))
        if topic.assignments
        else topic
        for topic in wanted.topics
    )
    return await _pass(request, replace(wanted, topics=topics), context)


async def handle_alter_reassignments(request: Request, context: Context) -> Buffers:
    """AlterPartitionReassignments v0-1: target replicas; None, which cancels, stays."""
    wanted = request.decode()
    topics = tuple(
        replace(
            topic,
            partitions=tuple(
                entry
                if entry.replicas is None
                else replace(entry, replicas=_real_ids(entry.replicas, context))
                for entry in topic.partitions
            ),
        )
        for topic in wanted.topics
    )
    return await _pass(request, replace(wanted, topics=topics), context)


async def handle_list_reassignments(request: Request, context: Context) -> Buffers:
    """ListPartitionReassignments v0: replicas as Metadata shows them."""
    pending = context.send((request.frame,))
    context.release()
    answer = request.decode_answer(await pending)
    topics = []
    for topic in answer.topics:
        counts = (int(entry.partition_index) + 1 for entry in topic.partitions)
        count = max(context.registry.count_of(topic.name), *counts, 0)
        partitions = tuple(
            place_partition(entry, topic.name, count, context) for entry in topic.partitions
        )
        topics.append(replace(topic, partitions=partitions))
    return request.answer_entity(replace(answer, topics=tuple(topics)))


async def handle_alter_configs(request: Request, context: Context) -> Buffers:
    """AlterConfigs v0-2, IncrementalAlterConfigs v0-1: brokers by name."""
    wanted = request.decode()
    asked = [real_name(resource, context) for resource in wanted.resources]
    if asked == [resource.resource_name for resource in wanted.resources]:
        return await relay(request, context)
    resources = tuple(
        replace(resource, resource_name=name)
        for resource, name in zip(wanted.resources, asked, strict=True)
    )
    pending = context.send((request.with_entity(replace(wanted, resources=resources)),))
    context.release()
    answer = request.decode_answer(await pending)
    names = {
        (int(resource.resource_type), name): resource.resource_name
        for resource, name in zip(wanted.resources, asked, strict=True)
    }
    responses = tuple(
        replace(
            entry,
            resource_name=names.get(
                (int(entry.resource_type), entry.resource_name), entry.resource_name
            ),
        )
        for entry in answer.responses
    )
    return request.answer_entity(replace(answer, responses=responses))


async def handle_unregister_broker(request: Request, context: Context) -> Buffers:
    """UnregisterBroker v0: the broker, whichever node its id is of."""
    wanted = request.decode()
    broker_id = context.placement.real_id(int(wanted.broker_id))
    changed = replace(wanted, broker_id=type(wanted.broker_id)(broker_id))
    return await _pass(request, changed, context)


async def handle_list_groups(request: Request, context: Context) -> Buffers:
    """ListGroups v0-5: clients ask every pair, and some count a group as often as it is told."""
    pending = context.send((request.frame,))
    context.release()
    answer = request.decode_answer(await pending)
    groups = tuple(entry for entry in answer.groups if context.placement.lists(entry.group_id))
    return request.answer_entity(replace(answer, groups=groups))


async def _pass(request: Request, wanted: Any, context: Context) -> Buffers:
    pending = context.send((request.with_entity(wanted),))
    context.release()
    return (await pending,)


def _real_assignments(assignments: Iterable[Any], context: Context) -> tuple[Any, ...]:
    return tuple(
        replace(entry, broker_ids=_real_ids(entry.broker_ids, context)) for entry in assignments
    )


def _real_ids(virtual_ids: Iterable[Any], context: Context) -> tuple[Any, ...]:
    return tuple(type(one)(context.placement.real_id(int(one))) for one in virtual_ids)
