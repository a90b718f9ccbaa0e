"""Heartbeat answers: a group whose measured load is out of balance is asked to rebalance.

The coordinator's answer shows that the member and its generation are real. Only an answer without
an error is changed, to REBALANCE_IN_PROGRESS, and only the leader's: the coordinator takes its
JoinGroup for the begin of a rebalance.
"""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.assignor.gain import Gain, find_gain
from keylane.assignor.protocol import read_assignment, split_names
from keylane.errors import FrameInvalid, KeylaneError, NotCoordinator
from keylane.proxy.apis.groups.sync_group import find_lane_views, make_deal
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import CONSUMER, STABLE, ask_group_state
from keylane.proxy.apis.shared.member_ids import read_beat
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.groups.assignors import is_replaced
from keylane.proxy.groups.dealing import Deal, owners_of, read_subscriptions
from keylane.proxy.groups.group_plans import HeldLanes, Joined, JoinedMember
from keylane.proxy.groups.load_turns import LoadTurn
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.wire.primitives import INT16, INT32

log = logging.getLogger("keylane.assignor")

AGAIN: Final = INT16.pack(ErrorCode.rebalance_in_progress)
NONE: Final = INT16.pack(ErrorCode.none)


def judge_beat(request: Request, frame: Frame, context: Context) -> Buffers:
    """Return the coordinator's answer, or ask the member to join again."""
    body = bytes(request.answer_body(frame))
    position = INT32.size if request.api_version >= 1 else 0  # behind the throttle time
    if body[position : position + INT16.size] != NONE:
        return (frame,)
    try:
        beat = read_beat(request)
    except FrameInvalid:
        return (frame,)  # the coordinator could read it
    if not _may_deal_out(beat.group, context):
        return (frame,)
    turn = context.load_turns.next(beat.group, beat.generation_id, context.clock())
    current = context.generations.current(beat.group, beat.generation_id)
    if turn is LoadTurn.WEIGH or (turn is LoadTurn.LOOK and current is None):
        context.aside(partial(check_load, beat, turn, context))
    leader_id = context.generations.leader(beat.group, beat.generation_id)
    if not context.load_turns.is_asked(beat.group, beat.member_id, leader_id):
        return (frame,)
    changed = body[:position] + AGAIN + body[position + INT16.size :]
    return request.with_answer_body(frame, changed)


def _may_deal_out(group: str, context: Context) -> bool:
    """Return whether the group has lanes, and no rule that leaves them to its clients."""
    if context.config.has_client_assignor(group):
        return False
    if group in context.generations:
        return True
    try:
        return context.groups.has_offsets(group)
    except NotCoordinator:
        return False  # its states are not loaded, or another node's


async def check_load(beat: Beat, turn: LoadTurn, context: Context) -> None:
    """Learn the lanes of a generation that was not dealt out here; ask for another if it is due."""
    group, rule = beat.group, context.config.group_rule(beat.group)
    try:
        current = context.generations.current(group, beat.generation_id)
        if current is None:
            current = await _look(beat, context)
        if current is None or turn is LoadTurn.LOOK or (rule and not rule.rebalance_by_load):
            return
        joined, held = current
        subscriptions = await context.in_thread(read_subscriptions, joined.members)
        views = await find_lane_views(subscriptions, context)
        deal = make_deal(group, joined, subscriptions, views, context)
        gain = await context.in_thread(_weigh, deal, held)
    except KeylaneError as error:
        log.debug("load not compared group=%s reason=%s", group, error)
        return
    record_count = sum(context.loads.record_count(view) for view in views.values())
    if gain is None or not gain.is_worth(record_count):
        return
    if context.load_turns.ask(group, beat.generation_id, context.clock()):
        context.stats.rebalances_asked += 1
        log.info(
            "rebalance asked for: load is out of balance group=%s generation_id=%d members=%d "
            "busiest=%.2f busiest_after=%.2f lanes_to_move=%d unit=mean of members",
            group, beat.generation_id, len(joined.members), gain.busiest, gain.after,
            gain.moved_count,
        )  # fmt: skip


def _weigh(deal: Deal, held: HeldLanes) -> Gain | None:
    return find_gain(owners_of(deal, held), deal.topics, deal.loads) if deal.loads else None


async def _look(beat: Beat, context: Context) -> tuple[Joined, HeldLanes] | None:
    """Ask the coordinator for members and their lanes; None: there are none to deal out here."""
    found = await ask_group_state(beat.group, context)
    rule = context.config.group_rule(beat.group)
    if found.error_code != ErrorCode.none or found.state != STABLE:
        return None
    if found.protocol_type != CONSUMER or not is_replaced(found.protocol_name, rule):
        return None
    members, lanes = [], {}
    physical = cache(context.registry.physical_name)
    for one in found.members:
        metadata = bytes(one.member_metadata)
        _, shown = split_names(metadata, physical)
        member = JoinedMember(
            member_id=str(one.member_id),
            instance_id=one.group_instance_id,
            metadata=metadata if shown is None else shown,
        )
        members.append(member)
        lanes[member.identity] = tuple(
            lane
            for lane in read_assignment(bytes(one.member_assignment)).lanes
            if context.registry.rule_of(lane[0]) is not None
        )
    if not any(lanes.values()) or beat.member_id not in {one.member_id for one in members}:
        return None
    joined = Joined(
        generation_id=beat.generation_id,
        leader_id="",
        protocol_name=found.protocol_name,
        members=tuple(members),
    )
    held = HeldLanes(beat.generation_id, lanes)
    context.generations.note_seen(beat.group, joined, held)
    return joined, held
