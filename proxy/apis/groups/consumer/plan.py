"""Plans of lanes for KIP-848 groups: by the key-range assignor, for any member's assignor."""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Final

from keylane.assignor.checks import find_faults
from keylane.assignor.gain import find_gain
from keylane.assignor.level import COARSE, FINE
from keylane.assignor.sticky import plan_sticky
from keylane.proxy.apis.groups.consumer.wish import find_names
from keylane.proxy.apis.groups.lane_topics import lane_loads, lane_topic
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.groups.consumer_group import LOAD, ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupTopic, Names
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.assignor")

FAULTS_SHOWN: Final = 3
LANES_MAX: Final = 200_000
"""Lanes of one group: a single member may hold them all, in one record of less than a megabyte."""
LOAD_PARTS: Final = 10
"""Of the interval of classic groups: lanes move without a rebalance here, and only theirs stop."""
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
    faults = find_faults(plan, members, lanes)
    if faults:
        context.stats.assignments_refused += 1
        log.error(
            "plan refused: lanes stay where they are group=%s faults=%s",
            name, "; ".join(faults[:FAULTS_SHOWN]),
        )  # fmt: skip
        return
    context.consumer_groups.weigh(name)
    moves = group.set_target(plan, reason, context.clock(), context.groups.now_ms())
    context.stats.assignments_planned += 1
    context.stats.lanes_moved += len(moves)
    context.stats.lane_moves[reason] += len(moves)
    log.info(
        "lanes dealt out group=%s epoch=%d reason=%s members=%d lanes=%d moved=%d took_ms=%.1f",
        name, group.epoch, reason, len(members), sum(map(len, plan.values())), len(moves),
        1000 * (context.clock() - started_s),
    )  # fmt: skip
