"""ListGroups v0-5, DescribeGroups v0-6, ConsumerGroupDescribe v0-1: groups by clients' names.

Behaviour: among many nodes a group is listed by the node that serves it, once in all: admin clients
ask every pair of node and broker, and librdkafka's adds up the answers.
Topics that keylane adds to the subscriptions of members of lanes are taken out of the answer;
without any it passes as bytes.
A KIP-848 member is refused lanes, but may have joined at a broker's own address, where it has whole
partitions. If it has a partition of a topic whose own name means lanes, it is shown with all lanes
of it, like offsets of the group.
Not done: transactions are listed once per node.

Source: docs/decisions/024; KIP-848.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keylane.assignor.protocol import take_hidden_names
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import CONSUMER
from keylane.proxy.apis.shared.lane_wishes import show_answer, show_numbers
from keylane.proxy.apis.shared.relay import forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.wire.group_members import read_described_groups, replace_bytes, splice


async def handle_list_groups(request: Request, context: Context) -> Buffers:
    """Relay ListGroups, and keep the groups that this node lists."""
    answer = request.decode_answer(await forward(request, context))
    groups = tuple(entry for entry in answer.groups if context.placement.lists(entry.group_id))
    return request.answer_entity(replace(answer, groups=groups))


def without_hidden_names(request: Request, frame: Frame, context: Context) -> Buffers:
    """Return the answer to DescribeGroups as clients see it. Raises: FrameInvalid."""
    body = request.answer_body(frame)
    physical_name = context.registry.physical_name
    edits = []
    for group in read_described_groups(body, request.api_version):
        for member in group.members if group.protocol_type == CONSUMER else ():
            taken = take_hidden_names(member.metadata.data, physical_name)
            if taken is not None:
                edits.append(replace_bytes(member.metadata, taken, flexible=request.is_flexible))
    return request.with_answer_body(frame, splice(body, edits)) if edits else (frame,)


async def handle_consumer_group_describe(request: Request, context: Context) -> Buffers:
    """Show partitions that members have as lanes, where the topic's own name means lanes."""
    return await show_answer(request, context, _show_groups)


async def _show_groups(answer: Any, context: Context) -> Any:
    groups = []
    for group in answer.groups:
        members = [
            replace(
                member,
                assignment=await _show_lanes(member.assignment, context),
                target_assignment=await _show_lanes(member.target_assignment, context),
            )
            for member in group.members
        ]
        groups.append(replace(group, members=tuple(members)))
    return replace(answer, groups=tuple(groups))


async def _show_lanes(assignment: Any, context: Context) -> Any:
    topics = await show_numbers(assignment.topic_partitions, context, "topic_name")
    return replace(assignment, topic_partitions=topics)
