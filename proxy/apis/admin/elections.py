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

from kio.static.primitive import i32

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import (
    LaneWishes,
    any_lane,
    find_target,
    find_targets,
    show_lanes,
    shows_lanes,
)
from keylane.proxy.apis.shared.relay import ask, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers


async def handle_elect_leaders(request: Request, context: Context) -> Buffers:
    """Ask for partitions, answer for lanes; the broker is always asked, it judges the right."""
    wanted = request.decode()
    if wanted.topic_partitions is None and not shows_lanes(context):
        return await relay(request, context)
    if wanted.topic_partitions is None:
        answer = await ask(request, wanted, context)
        shown = [await _present(result, context) for result in answer.replica_election_results]
        return request.answer_entity(replace(answer, replica_election_results=tuple(shown)))
    targets = await find_targets((topic.topic for topic in wanted.topic_partitions), context)
    if all(target.is_plain for target in targets):
        return await relay(request, context)
    wishes: LaneWishes[None] = LaneWishes(any_lane)
    for target, topic in zip(targets, wanted.topic_partitions, strict=True):
        wishes.add(target, ((int(index), None) for index in topic.partitions))
    of_topic = wanted.topic_partitions[0]
    asked = tuple(
        replace(of_topic, topic=type(of_topic.topic)(name), partitions=tuple(map(i32, partitions)))
        for name, partitions in wishes.settle().items()
    )
    answer = await ask(request, replace(wanted, topic_partitions=asked), context)
    if getattr(answer, "error_code", 0):
        return request.answer_entity(answer)
    return request.answer_entity(wishes.answer(request, answer))


async def _present(result: Any, context: Context) -> Any:
    view = (await find_target(result.topic, context)).view
    if view is None:
        return result
    shown = show_lanes(result.partition_result, view, "partition_id")
    return replace(result, partition_result=shown)
