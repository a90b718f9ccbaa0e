"""Members of a KIP-848 group: the first contact with a group, and members that come and go.

Source: docs/decisions/043; KIP-848.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import KeylaneError
from keylane.proxy.apis.groups.consumer.listing import list_members
from keylane.proxy.apis.groups.mixed_groups import log_direct
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import ask_group_state
from keylane.proxy.apis.shared.refusals import RefusalReason
from keylane.proxy.groups.consumer_group import ConsumerGroup

log = logging.getLogger("keylane.groups")

MIXED: Final = (
    "keylane: the group has members of the classic protocol, and its topics have lanes; "
    "stop the classic members first, or give the new members another group id"
)

SMALL_GROUP: Final = 100
MEMBER_S: Final = 0.001
"""Pause between two descriptions for each member beyond: to read the answer takes a tenth of it."""


async def find_group(name: str, context: Context) -> ConsumerGroup | None:
    """Return a group with lanes as this node knows it, or as the journal does; None: neither does.

    A group without lanes is not held up by a journal that is away.
    """
    try:
        await context.groups.ready(name)
        table = context.groups.held_table(name)
    except KeylaneError as error:
        log.debug("group is taken for one without lanes group=%s reason=%s", name, error)
        return None
    group = context.consumer_groups.get(name, table)
    if group is None and table.has_group(name):
        group = begin_group(name, context)
    return group


def begin_group(name: str, context: Context) -> ConsumerGroup:
    """Begin with what the journal has of a group, unless another heartbeat has meanwhile.

    Raises: NotCoordinator.
    """
    table = context.groups.held_table(name)
    known = context.consumer_groups.get(name, table)
    if known is not None:
        return known
    group = ConsumerGroup(context.clock())
    group.load(table.of_group(name).values())
    if group.members:
        group.still_until_s = math.inf
    # They were there before. Without any, the first that a sample finds has joined just now.
    ids = {identity: member.member_id for identity, member in group.members.items()}
    context.event_log.note_members(name, ids, is_first=False)
    context.consumer_groups.begin(name, table, group)
    return group


async def meet(name: str, group: ConsumerGroup, context: Context) -> RefusalReason | None:
    """Learn the group's members from the broker; return why it cannot be served, or None."""
    asked = group.turn, group.epoch
    listing = await list_members(name, context)
    if listing is not None:
        if not listing.is_there and (await ask_group_state(name, context)).has_members:
            context.stats.joins_refused += 1
            log.warning(
                "member refused: its group has members of the classic protocol group=%s "
                "remedy=stop the classic members first, or give the new ones another group id",
                name,
            )
            return RefusalReason(ErrorCode.invalid_request, MIXED)
        if not group.has_passed(listing.members):
            group.still_until_s = math.inf  # one of them may read on, not knowing its end
        _note_listing(name, group, group.note_listed(listing.members, asked), context)
    group.is_met = True
    return None


async def look_at_members(name: str, group: ConsumerGroup, context: Context) -> None:
    """Ask the broker for the group's members, if they may have changed.

    A description that is on its way may be older than the change: a later heartbeat asks again.
    """
    if not group.is_list_due(context.clock()):
        return
    group.list_due_s = context.clock() + MEMBER_S * max(0, len(group.members) - SMALL_GROUP)
    group.is_asking = True
    try:
        await ask_for_members(name, group, context)
    finally:
        group.is_asking = False


async def ask_for_members(name: str, group: ConsumerGroup, context: Context) -> None:
    """Ask the broker for the group's members now, and end those that are gone."""
    asked = group.turn, group.epoch
    listing = await list_members(name, context)
    if listing is not None:
        _note_listing(name, group, group.note_listed(listing.members, asked), context)


async def unknown_code(name: str, member_id: str, context: Context) -> ErrorCode:
    """Return the answer to a member that this node does not know, and that says not all.

    Passed on, its heartbeat would move its epoch, and the member would not learn it.
    """
    listing = await list_members(name, context)
    is_listed = listing is None or any(one.member_id == member_id for one in listing.members)
    return ErrorCode.coordinator_not_available if is_listed else ErrorCode.unknown_member_id


def _note_listing(name: str, group: ConsumerGroup, gone: list[str], context: Context) -> None:
    for identity in gone:
        log.info("member ended: its lanes are free group=%s member=%s", name, identity)
    direct_count = sum(map(bool, group.foreign.values()))
    if direct_count != group.foreign_logged:
        group.foreign_logged = direct_count
        log_direct(name, direct_count, context)
