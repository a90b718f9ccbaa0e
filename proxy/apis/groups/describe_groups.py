"""ListGroups v0-5, DescribeGroups v0-6, ConsumerGroupDescribe v0-1: groups by clients' names.

Behaviour: among many nodes a group is listed by the node that serves it, once in all: admin clients
ask every pair of node and broker, and librdkafka's adds up the answers.
Topics that keylane adds to the subscriptions of members of lanes are taken out of the answer, and
so is its mark; without any it passes as bytes.
A KIP-848 member is shown with its lanes and those that it is to get, by its names of topics. A
member of either protocol that has joined at a broker's own address has whole partitions: if it has
a partition of a topic whose own name means lanes, it is shown with all lanes of it, like offsets of
the group.
Not done: transactions are listed once per node.

Source: docs/decisions/024; KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kio.schema.types import TopicName
from kio.static.primitive import i32

from keylane.assignor.marks import read_shown
from keylane.assignor.protocol import Assignment, read_assignment, write_assignment
from keylane.errors import FrameInvalid
from keylane.proxy.apis.groups.consumer.wire import KEY_RANGE
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import CONSUMER
from keylane.proxy.apis.shared.lane_wishes import show_numbers, shows_lanes
from keylane.proxy.apis.shared.relay import forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupMember, Lanes
from keylane.proxy.groups.direct_members import are_lanes, expand
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.whole_topics import direct_of, known_topics
from keylane.wire.group_members import (
    Edit,
    MemberEntry,
    read_described_groups,
    replace_bytes,
    splice,
)


async def handle_list_groups(request: Request, context: Context) -> Buffers:
    """Relay ListGroups, and keep the groups that this node lists."""
    answer = request.decode_answer(await forward(request, context))
    groups = tuple(entry for entry in answer.groups if context.placement.lists(entry.group_id))
    return request.answer_entity(replace(answer, groups=groups))


def without_hidden_names(request: Request, frame: Frame, context: Context) -> Buffers:
    """Return the answer to DescribeGroups as clients see it. Raises: FrameInvalid."""
    body = request.answer_body(frame)
    edits: list[Edit] = []
    for group in read_described_groups(body, request.api_version):
        if group.protocol_type == CONSUMER:
            edits += _show_classic(group.members, context, flexible=request.is_flexible)
    return request.with_answer_body(frame, splice(body, edits)) if edits else (frame,)


def _show_classic(
    members: Sequence[MemberEntry], context: Context, *, flexible: bool
) -> Iterator[Edit]:
    """Yield the edits of a classic group: subscriptions as sent; lanes while some are direct."""
    registry = context.registry
    shown = {
        member.member_id: read_shown(member.metadata.data, registry.physical_name)
        for member in members
    }
    for member in members:
        taken = shown[member.member_id].changed
        if taken is not None:
            yield replace_bytes(member.metadata, taken, flexible=flexible)
    direct = direct_of(shown, registry)
    if not direct:
        return
    topics = known_topics({name for one in shown.values() for name in one.names}, registry)
    given = {member.member_id: _read_given(member) for member in members}
    if are_lanes((given[member_id].lanes for member_id in direct), topics):
        return  # they are behind a keylane of a version before marks
    for member in members:
        mine = given[member.member_id]
        # A leader at a broker's own address gives partitions to members behind keylane, too.
        lanes = mine.lanes if are_lanes([mine.lanes], topics) else expand(mine.lanes, topics)
        if member.assignment is not None and sorted(lanes) != sorted(mine.lanes):
            data = write_assignment(lanes, version=mine.version, user_data=mine.user_data)
            yield replace_bytes(member.assignment, data, flexible=flexible)


def _read_given(member: MemberEntry) -> Assignment:
    try:
        return read_assignment(b"" if member.assignment is None else member.assignment.data)
    except FrameInvalid:
        return Assignment(version=0, lanes=())  # of a client with bytes that are not Kafka's


async def handle_consumer_group_describe(request: Request, context: Context) -> Buffers:
    """Show partitions that members have as lanes, where the topic's own name means lanes."""
    frame = await forward(request, context)
    if not shows_lanes(context) and not context.consumer_groups.names():
        return (frame,)
    answer = request.decode_answer(frame)
    groups = [await _show_group(request, group, context) for group in answer.groups]
    shown = replace(answer, groups=tuple(groups))
    return (frame,) if shown == answer else request.answer_entity(shown)


async def _show_group(request: Request, group: Any, context: Context) -> Any:
    served = context.consumer_groups.find(str(group.group_id))
    members = []
    for entry in group.members:
        member = None if served is None else served.find(str(entry.member_id))
        if served is not None and member is not None:
            members.append(_show_member(request, entry, member, served, context))
            continue
        if shows_lanes(context):
            entry = replace(
                entry,
                assignment=await _show_lanes(entry.assignment, context),
                target_assignment=await _show_lanes(entry.target_assignment, context),
            )
        members.append(entry)
    assignor = group.assignor_name if served is None else KEY_RANGE
    return replace(group, members=tuple(members), assignor_name=assignor)


def _show_member(
    request: Request, entry: Any, member: GroupMember, served: ConsumerGroup, context: Context
) -> Any:
    """Return a kio member entry with lanes for the partitions of lane topics."""
    physical = context.registry.physical_name
    named = {physical(name): name for name in member.subscribed.names}
    target = served.target.get(member.identity, member.given)
    return replace(
        entry,
        subscribed_topic_names=tuple(
            TopicName(named.get(str(name), str(name))) for name in entry.subscribed_topic_names
        ),
        assignment=_with_lanes(request, entry.assignment, member.given, served),
        target_assignment=_with_lanes(request, entry.target_assignment, target, served),
    )


def _with_lanes(request: Request, assignment: Any, lanes: Lanes, served: ConsumerGroup) -> Any:
    hidden = {topic.topic_id for topic in served.topics.values()}
    shown = [each for each in assignment.topic_partitions if each.topic_id not in hidden]
    by_topic: dict[str, list[int]] = {}
    for name, index in sorted(lanes):
        by_topic.setdefault(name, []).append(index)
    make: Any = request.answer_module
    shown += [
        make.TopicPartitions(
            topic_id=served.topics[name].view_id,
            topic_name=TopicName(name),
            partitions=tuple(map(i32, indexes)),
        )
        for name, indexes in by_topic.items()
        if name in served.topics
    ]
    return replace(assignment, topic_partitions=tuple(shown))


async def _show_lanes(assignment: Any, context: Context) -> Any:
    topics = await show_numbers(assignment.topic_partitions, context, "topic_name")
    return replace(assignment, topic_partitions=topics)
