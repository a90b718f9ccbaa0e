"""Plans of lanes for KIP-848 groups: by the key-range assignor, for any member's assignor."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from keylane.assignor.checks import find_faults
from keylane.assignor.gain import Comparison, compare, find_gain
from keylane.assignor.level import COARSE, FINE
from keylane.assignor.model import Lane, LaneTopic, Member, Plan
from keylane.assignor.sticky import plan_sticky
from keylane.errors import ActionRefused
from keylane.proxy.apis.groups.consumer.wish import find_names
from keylane.proxy.apis.groups.lane_topics import lane_loads, lane_topic
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.groups.balance import balance_of
from keylane.proxy.groups.consumer_group import LOAD, ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupTopic, Move, Names
from keylane.proxy.runtime.event_log import Kind, Severity
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.assignor")

FAULTS_SHOWN: Final = 3
LANES_MAX: Final = 200_000
"""Lanes of one group: a single member may hold them all, in one record of less than a megabyte."""
LOAD_PARTS: Final = 10
"""Of the interval of classic groups: lanes move without a rebalance here, and only theirs stop."""
CAUSES: Final = {
    "bypass": "because members connect to brokers directly",
    "join": "because a member joined",
    "leave": "because a member left",
    "load": "to even out the load",
    "restart": "because this node met the group for the first time",
    "subscription": "because a member subscribed to other topics",
    "topics": "because a topic came, went or was made anew",
}
"""Reasons of plans, in words."""
NO_NAMES: Final[Names] = frozenset()


async def plan_lanes(name: str, group: ConsumerGroup, context: Context) -> None:
    """Plan anew if members or topics have changed, or the load has for some time.

    Heartbeats that come while a plan is made go by the last one. Topics are looked up at each
    epoch, which moves with them, also while nothing changes hands: answers name lanes by them.
    """
    now_s = context.clock()
    is_new = group.is_still(now_s) and not _names(group) <= group.topics.keys()
    if is_new or group.epoch > group.topics_epoch:
        epoch = group.epoch
        topics, _ = await _find_topics(name, group, context)
        group.set_topics(topics)
        group.topics_epoch = max(group.topics_epoch, min(epoch, group.epoch))
    rule = context.config.group_rule(name)
    load_s = context.config.load_rebalance_interval_s / LOAD_PARTS
    if rule is not None and not rule.rebalance_by_load:
        load_s = math.inf
    if group.is_planning or not group.is_plan_due(now_s, load_s):
        return
    group.is_planning = True
    try:
        await _plan(name, group, context)
    finally:
        group.is_planning = False


def _names(group: ConsumerGroup) -> Names:
    return NO_NAMES.union(*(one.subscribed.names for one in group.members.values()))


async def _find_topics(
    name: str, group: ConsumerGroup, context: Context
) -> tuple[dict[str, GroupTopic], dict[str, View]]:
    """Return the lane topics that are served now, with their views."""
    views = await find_names(_names(group), context)
    rule = context.config.group_rule(name)
    joined = rule is not None and rule.co_partitioned is True
    topics: dict[str, GroupTopic] = {}
    count = 0
    for each, view in list(views.items()):
        count += view.layout.index_count
        if count > LANES_MAX:
            log.warning(
                "topic left out: its group has too many lanes group=%s topic=%s lanes=%d "
                "lanes_max=%d remedy=fewer lanes per partition", name, each, count, LANES_MAX,
            )  # fmt: skip
            count -= view.layout.index_count
            del views[each]
            continue
        topics[each] = GroupTopic(
            lanes=lane_topic(each, view, context, is_co_partitioned=joined),
            topic_id=view.topic_id,
            view_id=view.view_id,
        )
    return topics, views


async def even_out(
    name: str, group: ConsumerGroup, context: Context, *, is_dry: bool
) -> tuple[Comparison | None, dict[str, View]]:
    """Compare with a plan for load by fine margins, and go by it; is_dry: only compare.

    The group is settled, and no plan is due. Returns views by name as well.
    Raises: ActionRefused, where the plan has faults.
    """
    group.is_planning = True  # from here on: a heartbeat's plan, or another such one, would be lost
    try:
        topics, views = await _find_topics(name, group, context)
        if not topics:
            return None, views
        lanes = [topic.lanes for topic in topics.values()]
        members, loads = group.plan_members(), lane_loads(views, context)
        found = await context.in_thread(compare, members, lanes, loads, FINE)
        if group.is_stale:
            return None, views  # a member came or went meanwhile: the next plan is for that
        if found is not None and found.gain.moved_count and not is_dry:
            if _has_faults(name, found.plan, members, lanes, context):
                raise ActionRefused(
                    f"lanes of group {name} stay where they are, because keylane's plan failed its "
                    "checks; the log has the faults"
                )
            _take(name, group, found.plan, (LOAD, loads), context)
    finally:
        group.is_planning = False
    return found, views


async def _plan(name: str, group: ConsumerGroup, context: Context) -> None:
    topics, views = await _find_topics(name, group, context)
    group.set_topics(topics)
    members, reason = group.begin_plan()
    started_s = context.clock()
    lanes = [topic.lanes for topic in topics.values()]
    loads = lane_loads(views, context)
    margins = FINE if reason == LOAD and group.is_rough else COARSE
    if reason == LOAD:
        gain = await context.in_thread(find_gain, members, lanes, loads, margins) if loads else None
        measured = sum(context.loads.record_count(view) for view in views.values())
        if gain is None or not gain.is_worth(measured, margins):
            group.skip_plan(context.clock())
            return
    # Lanes that members keep stay where they are; a better balance waits for the next look.
    plan_for = partial(plan_sticky, evens_out=reason == LOAD, margins=margins)
    plan = await context.in_thread(plan_for, members, lanes, loads)
    if not _has_faults(name, plan, members, lanes, context):
        _take(name, group, plan, (reason, loads), context, started_s)


def _has_faults(
    name: str,
    plan: Plan,
    members: Sequence[Member],
    lanes: Sequence[LaneTopic],
    context: Context,
) -> bool:
    """Return whether a plan must not be put in place; log and publish it then."""
    faults = find_faults(plan, members, lanes)
    if not faults:
        return False
    context.stats.assignments_refused += 1
    log.error(
        "plan refused: lanes stay where they are group=%s faults=%s",
        name, "; ".join(faults[:FAULTS_SHOWN]),
    )  # fmt: skip
    context.event_log.note(
        Kind.ERROR,
        f"Lanes of group {name} stay where they are, because keylane's plan failed its checks; "
        "the log has the faults.",
        severity=Severity.ERROR,
        group=name,
    )
    return True


def _take(
    name: str,
    group: ConsumerGroup,
    plan: Plan,
    cause: tuple[str, Mapping[Lane, float]],
    context: Context,
    started_s: float | None = None,
) -> None:
    """Put a plan in place; members get it with their next heartbeats. cause: as `_note_event`."""
    now_s, reason = context.clock(), cause[0]
    context.consumer_groups.weigh(name)
    moves = group.set_target(plan, reason, now_s, context.groups.now_ms())
    context.stats.assignments_planned += 1
    context.stats.lanes_moved += len(moves)
    context.stats.lane_moves[reason] += len(moves)
    log.info(
        "lanes dealt out group=%s epoch=%d reason=%s members=%d lanes=%d moved=%d took_ms=%.1f",
        name, group.epoch, reason, len(plan), _count(group.target), len(moves),
        1000 * (now_s - (now_s if started_s is None else started_s)),
    )  # fmt: skip
    note_members(name, group, context)
    _note_event(name, group, moves, cause, context)


def _count(plan: Mapping[str, Collection[Lane]]) -> int:
    """Return the number of lanes."""
    return sum(map(len, plan.values()))


def note_members(name: str, group: ConsumerGroup, context: Context) -> None:
    """Publish members that came and went."""
    labels = {
        identity: member.instance_id or member.client_id or member.member_id
        for identity, member in group.members.items()
    }
    context.event_log.note_members(name, labels, is_first=True)


def _note_event(
    name: str,
    group: ConsumerGroup,
    moves: Sequence[Move],
    cause: tuple[str, Mapping[Lane, float]],
    context: Context,
) -> None:
    """Publish the plan in place with its reason; cause: this, and the loads of lanes."""
    reason, loads = cause
    balance = balance_of(group.target, loads)
    context.event_log.note(
        Kind.MOVE if moves else Kind.REBALANCE,
        f"{len(moves)} of {_count(group.target)} lanes of group {name} move "
        f"{CAUSES[reason]}: epoch {group.epoch}, {len(group.members)} members."
        + (f" The busiest will have {balance:.2f} times the mean load." if balance else ""),
        group=name,
    )
