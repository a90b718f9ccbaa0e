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

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import (
    find_numbers,
    show_answer,
    show_numbers,
    wished_topics,
)
from keylane.proxy.apis.shared.relay import ask, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers


async def handle_describe_producers(request: Request, context: Context) -> Buffers:
    """Ask for partitions, answer for lanes."""
    wanted = request.decode()
    wishes = await find_numbers(wanted.topics, context)
    if wishes is None:
        return await relay(request, context)
    topics = wished_topics(wanted.topics, wishes.settle())
    answer = None
    if topics:
        answer = await ask(request, replace(wanted, topics=topics), context)
    return request.answer_entity(wishes.answer(request, answer))


async def handle_describe_transactions(request: Request, context: Context) -> Buffers:
    """Show the partitions of transactions as the lanes that clients know."""
    return await show_answer(request, context, _present)


async def _present(answer: Any, context: Context) -> Any:
    states = [
        replace(state, topics=await show_numbers(state.topics, context))
        for state in answer.transaction_states
    ]
    return replace(answer, transaction_states=tuple(states))
