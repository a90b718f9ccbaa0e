"""SyncGroup v0-5: keylane's plan of lanes in the place of the leader's.

Behaviour: keylane replaces the leader's plan for lane topics, if its assignor comes with a client
library, or a rule names the key-range assignor; topics without lanes and user data stay unchanged.
With `range`, whose members have the same partitions of all topics, a member gets the same lanes of
topics that are cut alike. With a
cooperative protocol another member gets a lane only in the generation after its owner gave it up.
Owners that lose lanes rejoin by themselves, and the target is kept until all lanes have arrived,
so that a change of load cannot make it go on without end.
Every plan is checked for overlaps and gaps. A bad plan is dropped, and the client's assignment
kept. The same holds for assignors that are left to their clients (see `join_group`). The leader of
a generation whose members this process has not seen (it was started since) is asked to join again.
While a group has members at brokers' own addresses, each partition is at one member, and a bad plan
is refused; `follower_sync` has the groups that such a member leads.
A topic whose switch `accept.range.fetch` is off is assigned in whole partitions. Members whose
`allow.individual.commit` is off, by a switch or in their subscription, get whole partitions only.
Members that report their rack (KIP-881) get lanes of partitions that are led there, if no more
important goal is against it.
A member with another name of a topic than its group is refused (see `join_group`), and a group of
Kafka Streams whose topics place a key differently (see `streams_sync`). Requests of followers and
of groups without lanes pass as bytes.
Not done: fencing; the broker judges an unknown member, a late leader, and an old generation.

Source: KIP-429 (cooperative), KIP-345 (static members), docs/decisions/012 and 045.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from keylane.assignor.protocol import read_allow_key_share, read_assignment
from keylane.errors import FrameInvalid, UpstreamLost
from keylane.proxy.apis.commits.steps_back import note_given
from keylane.proxy.apis.groups.follower_sync import look_follower_sync
from keylane.proxy.apis.groups.lane_topics import lane_loads, lane_topic
from keylane.proxy.apis.groups.mixed_groups import find_whole_topics
from keylane.proxy.apis.groups.streams_sync import look_streams_sync
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.leaving import leave_group
from keylane.proxy.apis.shared.member_ids import note_syncing
from keylane.proxy.apis.shared.refusals import refusal
from keylane.proxy.apis.shared.relay import Handler, forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.groups.assignors import keeps_topics_together
from keylane.proxy.groups.balance import balance_of
from keylane.proxy.groups.dealing import (
    Deal,
    PlanRefused,
    client_of,
    deal_out,
    merge,
    read_subscriptions,
)
from keylane.proxy.groups.direct_members import with_lanes
from keylane.proxy.groups.group_plans import Joined, Planned
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.runtime.event_log import EventLog, Kind, Severity
from keylane.proxy.topics.registry import TopicRegistry
from keylane.wire.group_syncs import SyncRequest, read_sync_request
from keylane.wire.header import ApiKey

log = logging.getLogger("keylane.assignor")


def look_sync_group(request: Request, context: Context) -> Handler | None:
    """Return whether to relay: keylane has no part in the group's assignment."""
    try:
        sync = read_sync_request(request.body, request.api_version)
    except FrameInvalid:
        return None  # the broker refuses it
    if context.group_names.is_refused(sync.group_id, sync.member_id):
        return refuse_left_out
    streams = look_streams_sync(request, sync, context)
    if streams is not None:
        return streams
    if _is_dealt_here(sync, context):
        return handle_sync_group
    return look_follower_sync(sync, context)


def _is_dealt_here(sync: SyncRequest, context: Context) -> bool:
    """Return whether a leader's plan has lanes that keylane deals out, or may have: not seen."""
    if not sync.assignments:
        return False
    generations, group = context.generations, sync.group_id
    if context.config.has_client_assignor(group) and not generations.is_mixed(group):
        return False
    newest = generations.newest(group)
    if newest is None:
        return not generations.rounds.knows(group)
    return newest <= sync.generation_id


async def refuse_left_out(request: Request, context: Context) -> Buffers:
    """Refuse a member that goes by other names of topics than its group."""
    note_syncing(request, context)
    context.stats.joins_refused += 1
    return request.answer_entity(refusal(request, ErrorCode.inconsistent_group_protocol))


async def handle_sync_group(request: Request, context: Context) -> Buffers:
    """Replace a leader's assignments of lanes; send; pass the answer on."""
    note_syncing(request, context)
    wanted = request.decode()
    if not wanted.assignments:
        return note_given(request, await forward(request, context), context)
    group, generation_id = str(wanted.group_id), int(wanted.generation_id)
    joined = context.generations.joined(group, generation_id)
    if joined is None or joined.leader_id != wanted.member_id:
        if await context.in_thread(_names_lanes, wanted, context.registry):
            context.stats.assignments_unplanned += 1
            if _warn(context, group, generation_id, "its members are not known here"):
                return request.answer_entity(refusal(request, ErrorCode.rebalance_in_progress))
        return note_given(request, await forward(request, context), context)
    assignments = await _plan(request, wanted, joined, context)
    if assignments is None and joined.is_mixed:
        # The client's plan has lanes, and direct members would take them for partitions.
        context.stats.joins_refused += 1
        instance_id = getattr(wanted, "group_instance_id", None)
        leave = partial(leave_group, group, str(wanted.member_id), instance_id, context)
        context.aside(leave)
        return request.answer_entity(refusal(request, ErrorCode.inconsistent_group_protocol))
    changed = None if assignments is None else replace(wanted, assignments=assignments)
    return note_given(request, await forward(request, context, changed), context)


async def _plan(
    request: Request, wanted: Any, joined: Joined, context: Context
) -> tuple[Any, ...] | None:
    """Return the assignments to send; None: the client's own."""
    group, generation_id = str(wanted.group_id), joined.generation_id
    started_s = context.clock()
    try:
        deal = await make_deal(group, joined, context)
        if not deal.topics:
            return None
        if shown_loads := context.load_turns.shown_loads(group, generation_id):
            # An operator has seen which lanes move; since then loads have changed.
            deal = replace(deal, loads={**deal.loads, **shown_loads})
        plain = _joined_plain_topic(group, deal, context)
        if plain is not None:
            _warn(context, group, generation_id, f"its lanes may be joined with the topic {plain}")
            return None
        planned = await context.in_thread(deal_out, deal)
        merged = await context.in_thread(merge, wanted.assignments, deal, planned)
    except (FrameInvalid, UpstreamLost) as error:
        context.stats.assignments_unplanned += 1
        _warn(context, group, generation_id, str(error))
        return None
    except Exception as error:
        # A mistake of keylane must not stop a group.
        context.stats.assignments_refused += 1
        log.error(
            "plan refused: the client's is kept group=%s generation_id=%d faults=%s",
            group, generation_id, error, exc_info=None if isinstance(error, PlanRefused) else error,
        )  # fmt: skip
        context.event_log.note(
            Kind.ERROR,
            f"Generation {generation_id} of group {group} keeps its clients' assignment, because "
            "keylane's plan failed its checks; the log has the faults.",
            severity=Severity.ERROR,
            group=group,
        )
        return None
    context.generations.note_planned(group, planned)
    _log(context, group, deal, planned, context.clock() - started_s)
    module: Any = load_payload_module(ApiKey.SYNC_GROUP, request.api_version, EntityType.request)
    return tuple(
        module.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
        for member_id, assignment in merged
    )


def _joined_plain_topic(group: str, deal: Deal, context: Context) -> str | None:
    """Return a plain topic that has the keys of lanes by Kafka's partitioner under equal numbers.

    `range` gives a member equal numbers of both, and applications join by that. None: none has.
    """
    if not keeps_topics_together(deal.joined.protocol_name, context.config.group_rule(group)):
        return None
    views = {topic.name: context.registry.view(topic.name) for topic in deal.topics}
    counts = {
        view.layout.index_count
        for view in views.values()
        if view is not None and view.layout.hash == "murmur2"
    }
    names = {name for one in deal.subscriptions for name in one.topics} - views.keys()
    found = (name for name in sorted(names) if context.registry.count_of(name) in counts)
    return next(found, None) if counts else None


def _names_lanes(wanted: Any, registry: TopicRegistry) -> bool:
    """Return whether the client's assignments have lanes in them, as far as they can be read."""
    names: set[str] = set()
    for entry in wanted.assignments:
        try:
            names |= {topic for topic, _ in read_assignment(entry.assignment).lanes}
        except FrameInvalid:
            continue  # another protocol's, such as Connect's: it passes as it came
    return any(registry.rule_of(name) is not None for name in names)


async def make_deal(group: str, joined: Joined, context: Context) -> Deal:
    """Put together the input of a plan. Raises: FrameInvalid, UpstreamLost."""
    said = await context.in_thread(read_subscriptions, joined.members)
    areas = [one.is_direct for one in joined.members]
    whole, views = await find_whole_topics(zip(said, areas, strict=True), context)
    subscriptions = [
        with_lanes(one, whole) if is_direct else one
        for one, is_direct in zip(said, areas, strict=True)
    ]
    rule = context.config.group_rule(group)
    is_together = keeps_topics_together(joined.protocol_name, rule)
    topics = [
        lane_topic(name, view, context, is_co_partitioned=is_together)
        for name, view in views.items()
    ]
    if joined.is_mixed:
        topics = [replace(topic, is_split=False) for topic in topics]
    return Deal(
        joined=joined,
        subscriptions=subscriptions,
        topics=tuple(topics),
        loads=lane_loads(views, context),
        previous=context.generations.planned(group),
        held=context.generations.held(group),
        loners=frozenset(
            one.member_id
            for one, said in zip(joined.members, subscriptions, strict=True)
            if not context.switches.allows_individual_commit(client_of(one))
            or not read_allow_key_share(said.user_data)
        ),
        whole=whole if joined.is_mixed else {},
    )


def _log(context: Context, group: str, deal: Deal, planned: Planned, took_s: float) -> None:
    is_repeated = deal.previous is planned
    stats = context.stats
    stats.assignments_planned += not is_repeated
    stats.lanes_moved += 0 if is_repeated else planned.moved_count
    stats.lanes_withheld += 0 if is_repeated else planned.withheld_count
    if not is_repeated:
        _note_event(context.event_log, group, deal, planned)
    log.info(
        "lanes dealt out group=%s generation_id=%d protocol=%s members=%d lanes=%d moved=%d "
        "withheld=%d took_ms=%.1f",
        group, planned.generation_id, deal.joined.protocol_name, len(deal.joined.members),
        sum(map(len, planned.lanes.values())), planned.moved_count, planned.withheld_count,
        took_s * 1000,
    )  # fmt: skip


def _note_event(event_log: EventLog, group: str, deal: Deal, planned: Planned) -> None:
    """Publish members that came and went, and the generation that was dealt out to them."""
    members = {one.identity: client_of(one) for one in deal.joined.members}
    event_log.note_members(group, members, is_first=True)
    balance = balance_of(planned.lanes, deal.loads)
    event_log.note(
        Kind.REBALANCE,
        f"Generation {planned.generation_id} of group {group}: "
        f"{sum(map(len, planned.lanes.values()))} lanes to {len(members)} members, "
        f"{planned.moved_count} moved"
        + (f", {planned.withheld_count} move next." if planned.withheld_count else ".")
        + (f" The busiest has {balance:.2f} times the mean load." if balance else ""),
        group=group,
    )


def _warn(context: Context, group: str, generation_id: int, reason: str) -> bool:
    is_first = context.generations.warn_once(group)
    if is_first:
        log.warning(
            "plan not made: the client's assignment is kept group=%s generation_id=%d reason=%s",
            group, generation_id, reason,
        )  # fmt: skip
        context.event_log.note(
            Kind.REFUSED,
            f"Generation {generation_id} of group {group} is not dealt out by keylane: {reason}.",
            severity=Severity.WARNING,
            group=group,
        )
    return is_first
