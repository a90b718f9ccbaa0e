"""Plans of lanes for KIP-848 groups: by the key-range assignor, for any member's assignor."""

from __future__ import annotations

import logging
from typing import Final

from keylane.assignor.checks import find_faults
from keylane.assignor.sticky import plan_sticky
from keylane.proxy.apis.groups.consumer_wish import find_names
from keylane.proxy.apis.groups.lane_topics import lane_loads, lane_topic
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupTopic, Names

log = logging.getLogger("keylane.assignor")

FAULTS_SHOWN: Final = 3
NO_NAMES: Final[Names] = frozenset()


async def plan_lanes(name: str, group: ConsumerGroup, context: Context) -> None:
    """Plan anew if members or topics have changed, or the load has for some time.

    Heartbeats that come while a plan is made go by the last one.
    """
    now_s = context.clock()
    if group.is_planning or not group.is_plan_due(now_s):
        return
    group.is_planning = True
    try:
        await _plan(name, group, context)
    finally:
        group.is_planning = False


async def _plan(name: str, group: ConsumerGroup, context: Context) -> None:
    names = NO_NAMES.union(*(one.subscribed.names for one in group.members.values()))
    views = await find_names(names, context)
    rule = context.config.group_rule(name)
    joined = rule is not None and rule.co_partitioned is True
    topics = {
        each: GroupTopic(
            lanes=lane_topic(each, view, context, is_co_partitioned=joined),
            topic_id=view.topic_id,
            view_id=view.view_id,
        )
        for each, view in views.items()
    }
    group.set_topics(topics)
    members, reason = group.begin_plan()
    started_s = context.clock()
    lanes = [topic.lanes for topic in topics.values()]
    loads = lane_loads(views, context)
    plan = await context.in_thread(plan_sticky, members, lanes, loads)
    faults = find_faults(plan, members, lanes)
    if faults:
        context.stats.assignments_refused += 1
        log.error(
            "plan refused: lanes stay where they are group=%s faults=%s",
            name, "; ".join(faults[:FAULTS_SHOWN]),
        )  # fmt: skip
        return
    moves = group.set_target(plan, reason, context.clock(), context.groups.now_ms())
    context.stats.assignments_planned += 1
    context.stats.lanes_moved += len(moves)
    context.stats.lane_moves[reason] += len(moves)
    log.info(
        "lanes dealt out group=%s epoch=%d reason=%s members=%d lanes=%d moved=%d took_ms=%.1f",
        name, group.epoch, reason, len(members), sum(map(len, plan.values())), len(moves),
        1000 * (context.clock() - started_s),
    )  # fmt: skip
