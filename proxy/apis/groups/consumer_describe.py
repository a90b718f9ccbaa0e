"""ConsumerGroupDescribe v0-1 (KIP-848): members of groups whose assignment the broker computes.

Behaviour: such a member is refused lanes, but may have joined at a broker's own address, where it
has whole partitions. If it has a partition of a topic whose own name means lanes, it is shown with
all lanes of it, like offsets of the group. All other answers pass unchanged.
Not done: nothing.

Source: KIP-848.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kio.static.primitive import i32

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import find_target, lanes_of, shows_lanes
from keylane.proxy.apis.shared.relay import forward, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers


async def handle_consumer_group_describe(request: Request, context: Context) -> Buffers:
    """Show partitions that members have as lanes, where the topic's own name means lanes."""
    if not shows_lanes(context):
        return await relay(request, context)
    frame = await forward(request, context)
    answer = request.decode_answer(frame)
    groups = []
    for group in answer.groups:
        members = [await _present(member, context) for member in group.members]
        groups.append(replace(group, members=tuple(members)))
    if tuple(groups) == tuple(answer.groups):
        return (frame,)
    return request.answer_entity(replace(answer, groups=tuple(groups)))


async def _present(member: Any, context: Context) -> Any:
    return replace(
        member,
        assignment=await _in_lanes(member.assignment, context),
        target_assignment=await _in_lanes(member.target_assignment, context),
    )


async def _in_lanes(assignment: Any, context: Context) -> Any:
    topics = []
    for topic in assignment.topic_partitions:
        view = (await find_target(topic.topic_name, context)).view
        lanes = topic.partitions if view is None else lanes_of(topic.partitions, view)
        topics.append(replace(topic, partitions=tuple(map(i32, lanes))))
    return replace(assignment, topic_partitions=tuple(topics))
