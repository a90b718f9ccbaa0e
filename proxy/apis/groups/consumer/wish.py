"""Lane topics that a KIP-848 member subscribes to, and lanes that it says it owns.

Source: KIP-848; docs/decisions/024 (a group means a topic by one name).
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.errors import ConfigInvalid, TopicNotReady
from keylane.proxy.apis.groups.consumer.wire import parts_of, pattern_of
from keylane.proxy.apis.groups.lane_patterns import matched_lane_topics
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import shows_lanes
from keylane.proxy.apis.shared.refusals import RefusalReason
from keylane.proxy.apis.shared.request import Operation
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import (
    GroupMember,
    Lanes,
    Names,
    Parts,
    Subscribed,
)

log = logging.getLogger("keylane.groups")

CLASH: Final = (
    "keylane: the group reads topic {topic} as {running}, and this member names it {other}; "
    "stop the whole group first, or give the new members another group id"
)


class NameClash(NamedTuple):
    """Two names of one topic in a group."""

    topic: str
    running: str
    """The name by which the group reads it."""
    other: str


async def read_subscription(
    group: str, wanted: Any, member: GroupMember | None, context: Context
) -> Subscribed | RefusalReason | None:
    """Return the member's lane topics from now on; None: as before, or it leaves."""
    if wanted.member_epoch < 0:
        return None
    before = member.subscribed if member is not None else Subscribed()
    listed, pattern = before.listed, pattern_of(wanted)
    if wanted.subscribed_topic_names is not None:
        names = map(str, wanted.subscribed_topic_names)
        listed = frozenset(name for name in names if context.registry.rule_of(name) is not None)
    if pattern is None:
        pattern = before.pattern
    matched, compared = before.matched, before.compared
    if pattern and shows_lanes(context):
        topics = context.registry.lane_topics()
        if (pattern, topics) != (before.pattern, before.compared):
            if await context.group_error(group, Operation.READ):
                return None  # the broker refuses it
            found = await matched_lane_topics(pattern, context)
            if isinstance(found, RefusalReason):
                return found
            matched, compared = frozenset(found), topics
    elif not pattern:
        matched, compared = frozenset(), ()
    return Subscribed(listed, pattern, matched, compared)


def find_clash(
    group: ConsumerGroup, wanted: Any, subscribed: Subscribed | None, context: Context
) -> NameClash | None:
    """Return the names of one topic by which a member may not join its group; None: it may.

    To the assignor two names of one topic are two topics, and each key would be at two members.
    """
    if subscribed is None:
        return None
    physical = context.registry.physical_name
    running: dict[str, str] = {}
    for one in group.members.values():
        if one.member_id != str(wanted.member_id):
            running |= {physical(name): name for name in one.subscribed.names}
    own = {str(name) for name in wanted.subscribed_topic_names or ()} | subscribed.names
    for name in sorted(own):
        other = running.setdefault(physical(name), name)
        if other != name:
            return NameClash(physical(name), running=other, other=name)
    return None


def refuse_clash(clash: NameClash, wanted: Any, context: Context) -> RefusalReason:
    """Return why the member is refused."""
    context.stats.joins_refused += 1
    log.warning(
        "member refused: its group reads the topic by another name group=%s member_id=%s "
        "topic=%s running=%s refused=%s", wanted.group_id, wanted.member_id, *clash,
    )  # fmt: skip
    return RefusalReason(ErrorCode.invalid_request, CLASH.format(**clash._asdict()))


async def find_names(names: Names, context: Context) -> dict[str, Any]:
    """Return the views of lane topics that are there and served now."""
    views = {}
    for name in sorted(names):
        try:
            view = await context.find_view(name)
        except (ConfigInvalid, TopicNotReady) as error:
            log.info("lanes are not served at this moment topic=%s reason=%s", name, error)
            continue
        if view is not None:
            views[name] = view
    return views


async def owned_of(wanted: Any, context: Context) -> tuple[Lanes | None, Parts | None]:
    """Return the lanes and the partitions that a member says it owns; None: as before.

    Lanes of a topic that is gone are left out: the topic's next incarnation has another id.
    """
    if wanted.topic_partitions is None:
        return None, None
    lanes, parts = set(), set()
    for topic_id, index in parts_of(wanted.topic_partitions):
        try:
            view = await context.find_view_by_id(topic_id)
        except (ConfigInvalid, TopicNotReady):
            continue
        if view is None:
            parts.add((topic_id, index))
        elif not view.error_of(index):
            lanes.add((view.name, index))
    return frozenset(lanes), frozenset(parts)
