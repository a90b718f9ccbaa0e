"""ElectLeaders v0-2: the leader of a lane is that of its partition.

Behaviour: an election for a lane is one for its partition, once per request, and its result is the
answer for all lanes that were named. An election for all partitions is answered for all lanes of
the partitions that it changed.
Not done: nothing.

Source: KIP-460.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import (
    find_numbers,
    show_answer,
    show_topic,
    wished_topics,
)
from keylane.proxy.apis.shared.relay import ask, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers


async def handle_elect_leaders(request: Request, context: Context) -> Buffers:
    """Ask for partitions, answer for lanes; the broker is always asked, it judges the right."""
    wanted = request.decode()
    if wanted.topic_partitions is None:
        return await show_answer(request, context, _present)
    wishes = await find_numbers(wanted.topic_partitions, context)
    if wishes is None:
        return await relay(request, context)
    asked = wished_topics(wanted.topic_partitions, wishes.settle())
    answer = await ask(request, replace(wanted, topic_partitions=asked), context)
    if getattr(answer, "error_code", 0):
        return request.answer_entity(answer)
    return request.answer_entity(wishes.answer(request, answer))


async def _present(answer: Any, context: Context) -> Any:
    shown = [await show_topic(result, context) for result in answer.replica_election_results]
    return replace(answer, replica_election_results=tuple(shown))
