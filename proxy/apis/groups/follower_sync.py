"""SyncGroup v0-5 of followers whose leader is at a broker's own address: lanes for partitions.

Behaviour: such a leader deals out partitions. A member behind keylane is answered all lanes of each
partition, under its own name of the topic. Of a cooperative group, lanes that another member still
reads come in the generation after: that member gives them up, and joins again.
The coordinator's description of the stable group shows the leader, the members and what they own.
While the group rebalances it does not: the member is asked to join again.
If the leader is known to be behind keylane, the answer passes as it came.
Not done: a plan for members that subscribe to nothing that the leader knows.

Source: docs/decisions/047; KIP-429.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.assignor.marks import ShownMember, read_shown
from keylane.assignor.model import Lane, Member
from keylane.assignor.protocol import (
    Assignment,
    Subscription,
    read_assignment,
    read_names,
    read_subscription,
    write_assignment,
)
from keylane.errors import FrameInvalid
from keylane.proxy.apis.commits.steps_back import note_given
from keylane.proxy.apis.groups.mixed_groups import find_whole_topics, note_direct
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import STABLE, GroupState, ask_group_state
from keylane.proxy.apis.shared.member_ids import note_syncing, read_beat
from keylane.proxy.apis.shared.refusals import refusal
from keylane.proxy.apis.shared.relay import Handler, forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.groups.assignors import EAGER
from keylane.proxy.groups.direct_members import (
    WholeTopics,
    are_lanes,
    expand,
    take_step,
    with_lanes,
)
from keylane.proxy.groups.group_plans import Joined, JoinedMember, LanesBefore
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.whole_topics import direct_of
from keylane.wire.group_members import replace_bytes, splice
from keylane.wire.group_syncs import SyncRequest, find_given

log = logging.getLogger("keylane.groups")

AGAIN: Final = ErrorCode.rebalance_in_progress
"""Error after which all stock clients join again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    """A stable group whose leader is at a broker's own address."""

    joined: Joined
    shown: Mapping[str, ShownMember]
    """Subscriptions by member id."""
    said: Mapping[str, Subscription]
    """The same in lanes, as far as they can be read."""
    given: Mapping[str, Assignment]
    """The leader's plan."""
    topics: WholeTopics


def look_follower_sync(sync: SyncRequest, context: Context) -> Handler | None:
    """Return whether to relay: the leader is behind keylane, or the group has no lanes."""
    names, group = context.group_names, sync.group_id
    if sync.assignments or (group not in names and context.generations.rounds.knows(group)):
        return None
    if names.is_led_here(group, sync.generation_id):
        return ask_again if _is_taken_for_direct(sync, context) else None
    return handle_follower_sync


async def ask_again(request: Request, context: Context) -> Buffers:
    """Ask a member to join again: it came in past this node, and is behind keylane all the same."""
    note_syncing(request, context)
    return request.answer_entity(refusal(request, AGAIN))


async def handle_follower_sync(request: Request, context: Context) -> Buffers:
    """Pass the request on; give lanes for the partitions in the answer."""
    note_syncing(request, context)
    frame = await forward(request, context)
    beat = read_beat(request)
    if context.group_names.is_led_here(beat.group, beat.generation_id):
        return note_given(request, frame, context)
    try:
        span = find_given(request.answer_body(frame), request.api_version)
        given = read_assignment(b"" if span is None else span.data)
    except FrameInvalid as error:
        # The client may be able to read it.
        log.warning(
            "SyncGroup not read: relayed session_id=%s reason=%s", context.session_id, error
        )
        return (frame,)
    if span is None or not given.lanes or not _may_have_lanes(beat.group, given, context):
        return note_given(request, frame, context)
    found = await ask_group_state(beat.group, context)
    if not _shows(found, beat.member_id):
        return request.answer_entity(refusal(request, AGAIN))
    generation = await _read_generation(beat, found, context)
    code, lanes = _judge(beat, generation, context)
    if code != ErrorCode.none:
        return request.answer_entity(refusal(request, code))
    if lanes is None:
        return note_given(request, frame, context)
    changed = write_assignment(lanes, version=given.version, user_data=given.user_data)
    edit = replace_bytes(span, changed, flexible=request.is_flexible)
    answer = request.with_answer_body(frame, splice(request.answer_body(frame), [edit]))
    note_given(request, b"".join(answer), context)
    return answer


async def is_led_directly(request: Request, context: Context) -> bool:
    """Return whether a follower's leader is at a broker's own address. Raises: UpstreamLost."""
    beat = read_beat(request)
    names = context.group_names
    if beat.group not in names or names.is_led_here(beat.group, beat.generation_id):
        return False
    leader = names.leader(beat.group, beat.generation_id)
    if leader is None:
        return False
    found = await ask_group_state(beat.group, context)
    physical = cache(context.registry.physical_name)
    members = {str(one.member_id): bytes(one.member_metadata) for one in found.members}
    if found.state != STABLE or leader not in members:
        return False
    return not read_shown(members[leader], physical).is_marked


def _is_taken_for_direct(sync: SyncRequest, context: Context) -> bool:
    """Return whether a member of lanes has partitions in the plan of its generation."""
    joined = context.generations.joined(sync.group_id, sync.generation_id)
    for one in joined.members if joined is not None else ():
        if one.is_direct and one.member_id == sync.member_id:
            names = read_names(one.metadata) or ()
            return any(context.registry.rule_of(name) is not None for name in names)
    return False


def _may_have_lanes(group: str, given: Assignment, context: Context) -> bool:
    registry = context.registry
    names = context.group_names.names_of(group)
    topics = {registry.physical_name(name) for name in names if registry.rule_of(name) is not None}
    return any(name in topics or registry.rule_of(name) is not None for name, _ in given.lanes)


def _shows(found: GroupState, member_id: str) -> bool:
    """Return whether the coordinator describes a generation with this member."""
    is_stable = found.error_code == ErrorCode.none and found.state == STABLE
    return is_stable and any(str(one.member_id) == member_id for one in found.members)


async def _read_generation(beat: Beat, found: GroupState, context: Context) -> _Generation:
    """Return the generation in lanes. Raises: UpstreamLost."""
    physical = cache(context.registry.physical_name)
    shown = {str(one.member_id): read_shown(one.member_metadata, physical) for one in found.members}
    direct = direct_of(shown, context.registry)
    members, said = [], {}
    for one in found.members:
        member_id = str(one.member_id)
        metadata = shown[member_id].sent(one.member_metadata)
        member = JoinedMember(
            member_id=member_id,
            instance_id=one.group_instance_id,
            metadata=metadata,
            is_direct=member_id in direct,
        )
        members.append(member)
        said[member_id] = _read_said(metadata, shown[member_id])
    topics, _ = await find_whole_topics(
        ((said[one.member_id], one.is_direct) for one in members), context
    )
    return _Generation(
        joined=Joined(
            generation_id=beat.generation_id,
            leader_id=context.group_names.leader(beat.group, beat.generation_id) or "",
            protocol_name=found.protocol_name,
            members=tuple(members),
        ),
        shown=shown,
        said={
            one.member_id: with_lanes(said[one.member_id], topics)
            if one.is_direct
            else said[one.member_id]
            for one in members
        },
        given={str(one.member_id): _read_given(one) for one in found.members},
        topics=topics,
    )


def _read_said(metadata: bytes, shown: ShownMember) -> Subscription:
    try:
        return read_subscription(metadata)
    except FrameInvalid:
        return Subscription(version=0, topics=tuple(sorted(shown.names)))


def _read_given(entry: Any) -> Assignment:
    try:
        return read_assignment(bytes(entry.member_assignment))
    except FrameInvalid:
        return Assignment(version=0, lanes=())


def _judge(
    beat: Beat, generation: _Generation, context: Context
) -> tuple[ErrorCode, list[Lane] | None]:
    """Return the lanes of a member; None: those that it was answered; or an error."""
    joined, names = generation.joined, context.group_names
    direct = {one.member_id for one in joined.members if one.is_direct}
    leader = generation.shown.get(joined.leader_id)
    are_all_here = all(one.is_marked for one in generation.shown.values())
    plan = (given.lanes for given in generation.given.values())
    is_led_here = are_all_here or are_lanes(plan, generation.topics)
    if is_led_here or (leader is not None and leader.is_marked):
        names.note_led_here(beat.group, beat.generation_id, joined.leader_id)
        return ErrorCode.none, None
    if leader is None or _is_lost_mark(beat, generation, context):
        return AGAIN, None
    note_direct(beat.group, len(direct), context)
    lanes = {
        one.member_id: expand(generation.given[one.member_id].lanes, generation.topics)
        for one in joined.members
    }
    held = {one.identity: tuple(lanes[one.member_id]) for one in joined.members}
    context.generations.note_seen(beat.group, joined, LanesBefore(beat.generation_id, held))
    if beat.member_id in direct:
        return ErrorCode.none, None  # to it the topics are plain
    mine = lanes[beat.member_id]
    if joined.protocol_name in EAGER:
        return ErrorCode.none, mine
    members = [
        Member(
            member_id=key,
            topics=frozenset(said.topics),
            owned=said.owned,
            generation_id=said.generation_id,
        )
        for key, said in generation.said.items()
    ]
    return ErrorCode.none, take_step(beat.member_id, mine, members, generation.topics)


def _is_lost_mark(beat: Beat, generation: _Generation, context: Context) -> bool:
    """Return whether the member is one of lanes that joined through a version without the mark."""
    mine = generation.shown[beat.member_id]
    has_lanes = (context.registry.rule_of(name) is not None for name in mine.names)
    return not mine.is_marked and any(has_lanes)
