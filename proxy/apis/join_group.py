"""JoinGroup v0-9: passed on as bytes; who is in a generation is noted on the way back.

Behaviour: only for groups that a rule gives the key-range assignor: the answer to the member
that leads tells all members' subscriptions, which SyncGroup needs. Neither the request nor
the answer is changed: clients subscribe, and offer protocols, as they do direct.
Not done: Kafka Streams (protocol `stream`) and Connect keep their own assignors, whose
assignments carry more than partitions.

In:    the request, the broker's answer.  Out: the answer as it is.
Next:  `apis.sync_group` plans with what was noted.
Pure:  what is noted is `context.generations`.
Source: Kafka protocol guide, JoinGroup; KIP-62, KIP-345, KIP-814.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from keylane.errors import FrameInvalid
from keylane.proxy.apis.context import Context, Request
from keylane.proxy.connection import Buffers
from keylane.proxy.framing import Frame
from keylane.proxy.generations import Joined, JoinedMember
from keylane.wire.primitives import Reader

log = logging.getLogger("keylane.assignor")

JOIN_GROUP: Final = 11
FLEXIBLE_VERSIONS: Final = {JOIN_GROUP: 6, 12: 4, 14: 4}
CONSUMER: Final = "consumer"
STREAMS: Final = "stream"


def planned_group(request: Request, context: Context) -> str | None:
    """The group that a JoinGroup or SyncGroup names, when keylane deals out its lanes.

    Raises: FrameInvalid, when there is no group id to be read.
    """
    if not context.config.groups:
        return None
    group = read_group(request)
    return group if context.config.has_key_range_assignor(group) else None


def read_group(request: Request) -> str:
    """The group that a JoinGroup or SyncGroup names. Raises: FrameInvalid."""
    flexible = request.api_version >= FLEXIBLE_VERSIONS[request.api_key]
    return Reader(request.body, flexible=flexible).string()


def is_elsewhere(request: Request, context: Context) -> bool:
    """Whether another node serves the group that a JoinGroup, SyncGroup or Heartbeat names.

    The broker would take it here as well. But a member that joins here asks for its offsets here
    next, and librdkafka takes nothing but a repetition for an answer to that: so it is sent to
    the other node before, by what every client knows.
    """
    if context.placement.is_alone:
        return False
    try:
        number = context.placement.node_of_group(read_group(request))
    except FrameInvalid:
        return False  # the broker says so
    return number is not None and number != context.placement.number


def note_joining(request: Request, context: Context) -> bool:
    """Take note of who begins a round; the request is relayed, whatever it is."""
    try:
        group = read_group(request)
    except FrameInvalid:
        return True  # the broker says so
    context.stats.rebalances += context.generations.rounds.joins(group, context.clock())
    return True


def note_syncing(request: Request, context: Context) -> None:
    """Take note of how long a member had nothing to read."""
    try:
        group = read_group(request)
    except FrameInvalid:
        return  # the same
    seconds = context.generations.rounds.syncs(group, context.clock())
    if seconds is not None:
        context.stats.rebalance_seconds.observe(seconds)


def note_leader(request: Request, frame: Frame, context: Context) -> Buffers:
    """Remember what a leader is told; the answer passes as it is, whatever it is."""
    try:
        group = planned_group(request, context)
        if group is not None and request.decode().protocol_type == CONSUMER:
            _note(group, request.decode_answer(frame), context)
    except FrameInvalid as error:
        # The client may well read it: what cannot be planned is left to its own assignor.
        log.warning("JoinGroup not read session_id=%s reason=%s", context.session_id, error)
    return (frame,)


def _note(group: str, answer: Any, context: Context) -> None:
    is_leader = answer.error_code == 0 and answer.leader == answer.member_id
    if not is_leader or not answer.members or answer.protocol_name in {None, STREAMS}:
        return
    members = tuple(
        JoinedMember(
            member_id=member.member_id,
            instance_id=getattr(member, "group_instance_id", None),
            metadata=bytes(member.metadata),
        )
        for member in answer.members
    )
    context.generations.note_joined(
        group,
        Joined(
            generation_id=int(answer.generation_id),
            leader_id=answer.leader,
            protocol_name=answer.protocol_name,
            members=members,
        ),
    )
