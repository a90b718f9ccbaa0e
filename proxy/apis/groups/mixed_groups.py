"""Classic groups with members on both sides: behind keylane, and at brokers' own addresses.

Source: docs/decisions/047.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache

from keylane.assignor.marks import LaneCounts, mark
from keylane.assignor.protocol import Subscription, add_hidden_names, read_subscription
from keylane.errors import ConfigInvalid, FrameInvalid, UpstreamLost
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.groups.direct_members import WholeTopics
from keylane.proxy.topics.view import View
from keylane.proxy.topics.whole_topics import whole_topics
from keylane.wire.group_members import JoinRequest

log = logging.getLogger("keylane.groups")


def note_direct(group: str, count: int, context: Context) -> None:
    """Note the direct members of a generation: in the log where their number has changed."""
    if context.group_names.note_direct(group, count):
        log_direct(group, count, context)


def log_direct(group: str, count: int, context: Context) -> None:
    """Log how many members of a group bypass keylane from now on."""
    if count:
        context.stats.members_bypassing += 1
        log.warning(
            "members bypass keylane: partitions stay whole group=%s members=%d "
            "remedy=have all members of the group connect to keylane",
            group, count,
        )  # fmt: skip
    else:
        log.info("no member bypasses keylane: lanes are spread group=%s", group)


def log_streams(group: str, member_id: str) -> None:
    """Log the refusal of a member of Kafka Streams, whose tasks are of partitions or of lanes."""
    log.warning(
        "member refused: its application has instances that bypass keylane group=%s member_id=%s "
        "remedy=stop the application, and start all instances on one side",
        group, member_id,
    )  # fmt: skip


async def mark_protocols(join: JoinRequest, context: Context) -> list[bytes]:
    """Return the metadata of each protocol as the broker gets it.

    Topics behind lane names stand behind the others, and the member has the mark.
    """
    counts: dict[str, LaneCounts] = {}
    for name in sorted({name for _, span in join.protocols for name in _owned_names(span.data)}):
        try:
            view = await context.find_view(name)
        except (ConfigInvalid, UpstreamLost):
            continue  # the topic is gone, or refused: no leader deals it out
        if view is not None:
            counts[name] = LaneCounts(view.topic, view.layout.partition_count)
    physical = cache(context.registry.physical_name)
    marked = []
    for protocol, span in join.protocols:
        shown = add_hidden_names(span.data, physical)
        marked.append(mark(span.data if shown is None else shown, protocol, counts.get))
    return marked


def _owned_names(metadata: memoryview) -> frozenset[str]:
    """Return the topics of which a member may own lanes: all, if it owns any."""
    try:
        said = read_subscription(metadata)
    except FrameInvalid:
        return frozenset()
    return frozenset(said.topics) if said.owned or said.user_data else frozenset()


async def find_whole_topics(
    members: Iterable[tuple[Subscription, bool]], context: Context
) -> tuple[WholeTopics, dict[str, View]]:
    """Return the topics with lanes of a mixed group, and their views by name.

    members: each with whether it is direct. Raises: UpstreamLost.
    """
    said = list(members)
    views: dict[str, View] = {}
    for name in sorted({name for one, is_direct in said if not is_direct for name in one.topics}):
        view = await context.find_view(name)
        if view is not None:
            views[name] = view
    whole = dict(whole_topics(views.values()))
    for name in sorted({name for one, is_direct in said if is_direct for name in one.topics}):
        view = None if name in whole else await context.find_view(name)
        if view is not None:
            views[name] = view
            whole |= whole_topics([view])
    return whole, views
