"""Heartbeat answers: a group whose measured load is out of balance is asked to rebalance.

The coordinator's answer shows that the member and its generation are real. Only an answer without
an error is changed, to REBALANCE_IN_PROGRESS, and only the leader's: the coordinator takes its
JoinGroup for the begin of a rebalance.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.assignor.gain import Gain, find_gain
from keylane.errors import FrameInvalid, KeylaneError, NotCoordinator
from keylane.proxy.apis.groups.seen_lanes import note_lanes
from keylane.proxy.apis.groups.sync_group import make_deal
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import ask_group_state
from keylane.proxy.apis.shared.member_ids import read_beat
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.groups.dealing import Deal, owners_of
from keylane.proxy.groups.group_plans import LanesBefore
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
            found = await ask_group_state(group, context)
            current = note_lanes(group, beat.generation_id, found, context)
        if current is None or turn is LoadTurn.LOOK or (rule and not rule.rebalance_by_load):
            return
        joined, held = current
        if joined.is_mixed:
            return  # whole partitions are all that can be dealt out
        deal = await make_deal(group, joined, context)
        views = [context.registry.view(topic.name) for topic in deal.topics]
        gain = await context.in_thread(_weigh, deal, held)
    except KeylaneError as error:
        log.debug("load not compared group=%s reason=%s", group, error)
        return
    record_count = sum(context.loads.record_count(view) for view in views if view is not None)
    if gain is None or not gain.is_worth(record_count):
        return
    if context.load_turns.ask(group, beat.generation_id, context.clock()):
        context.stats.rebalances_asked += 1
        log.info(
            "rebalance asked for: load is out of balance group=%s generation_id=%d members=%d "
            "busiest_of_mean=%.2f after=%.2f lanes_to_move=%d",
            group, beat.generation_id, len(joined.members), gain.busiest, gain.after,
            gain.moved_count,
        )  # fmt: skip


def _weigh(deal: Deal, held: LanesBefore) -> Gain | None:
    return find_gain(owners_of(deal, held), deal.topics, deal.loads) if deal.loads else None
