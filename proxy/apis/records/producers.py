"""DescribeProducers v0, DescribeTransactions v0: producers and transactions of lanes.

Behaviour: the producers of a lane are those of its partition, which has one log. A transaction
that wrote to a partition of a topic whose own name means lanes is answered with all lanes of it,
so that a tool that looks for hanging transactions lane by lane finds it in each lane.
Not done: transactions do not name the lanes of lane names, of which there may be any number. With
`kafka-transactions find-hanging`, look at the topic under its own name. To abort a transaction,
use a broker's own address (WriteTxnMarkers is not served).

Source: KIP-664.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kio.static.primitive import i32

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import (
    LaneWishes,
    any_lane,
    find_target,
    find_targets,
    lanes_of,
    shows_lanes,
)
from keylane.proxy.apis.shared.relay import ask, forward, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers


async def handle_describe_producers(request: Request, context: Context) -> Buffers:
    """Ask for partitions, answer for lanes."""
    wanted = request.decode()
    targets = await find_targets((topic.name for topic in wanted.topics), context)
    if all(target.is_plain for target in targets):
        return await relay(request, context)
    wishes: LaneWishes[None] = LaneWishes(any_lane)
    for target, topic in zip(targets, wanted.topics, strict=True):
        wishes.add(target, ((int(index), None) for index in topic.partition_indexes))
    of_topic = wanted.topics[0]
    topics = tuple(
        replace(
            of_topic, name=type(of_topic.name)(name), partition_indexes=tuple(map(i32, partitions))
        )
        for name, partitions in wishes.settle().items()
    )
    answer = None
    if topics:
        answer = await ask(request, replace(wanted, topics=topics), context)
    return request.answer_entity(wishes.answer(request, answer))


async def handle_describe_transactions(request: Request, context: Context) -> Buffers:
    """Show the partitions of transactions as the lanes that clients know."""
    if not shows_lanes(context):
        return await relay(request, context)
    frame = await forward(request, context)
    answer = request.decode_answer(frame)
    states = tuple([await _in_lanes(state, context) for state in answer.transaction_states])
    if states == tuple(answer.transaction_states):
        return (frame,)
    return request.answer_entity(replace(answer, transaction_states=states))


async def _in_lanes(state: Any, context: Context) -> Any:
    topics = []
    for topic in state.topics:
        view = (await find_target(topic.topic, context)).view
        lanes = topic.partitions if view is None else lanes_of(topic.partitions, view)
        topics.append(replace(topic, partitions=tuple(map(i32, lanes))))
    return replace(state, topics=tuple(topics))
