"""SyncGroup v0-5: keylane's plan of lanes in the place of the leader's.

Behaviour: this applies only to groups that a rule gives the key-range assignor. keylane replaces
the leader's plan for lane topics; topics without lanes and user data stay unchanged. With a
cooperative protocol another member gets a lane only in the generation after its owner gave it up.
Owners that lose lanes rejoin by themselves, and the target is kept until all lanes have arrived,
so that a change of load cannot make it go on without end.
Every plan is checked for overlaps and gaps. A bad plan is dropped, and the client's assignment
kept. The same holds for a generation whose members this process has not seen (it was started
since).
A topic whose switch `accept.range.fetch` is off is assigned in whole partitions. Members whose
`allow.individual.commit` is off, by a switch or in their subscription, get whole partitions only.
Members that report their rack (KIP-881) get lanes of partitions that are led there, if no more
important goal is against it.
A member with another name of a topic than its group is refused (see `join_group`). Followers'
requests, other groups' and those without an assignment pass as bytes.
Not done: fencing; the broker judges an unknown member, a late leader, and an old generation.

Source: KIP-429 (cooperative), KIP-345 (static members).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from keylane.assignor.checks import find_faults
from keylane.assignor.cooperative import find_withheld, first_step
from keylane.assignor.model import NO_GENERATION, Lane, LaneTopic, Member
from keylane.assignor.protocol import (
    TOPIC_BYTES_MIN,
    Subscription,
    read_allow_key_share,
    read_assignment,
    read_subscription,
    write_assignment,
)
from keylane.assignor.sticky import join_rates, plan_sticky
from keylane.errors import FrameInvalid, UpstreamLost
from keylane.proxy.apis.commits.steps_back import note_given
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.member_ids import note_syncing, planned_group, read_beat
from keylane.proxy.apis.shared.refusals import refusal
from keylane.proxy.apis.shared.relay import Handler, forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.groups.group_plans import Joined, JoinedMember, Planned
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.header import ApiKey
from keylane.wire.primitives import Reader

log = logging.getLogger("keylane.assignor")

EAGER: Final = frozenset({"range", "roundrobin", "sticky"})
"""Protocols whose members own nothing while they join. Members of others are believed."""
STICKY: Final = "sticky"
COOPERATIVE_STICKY: Final = "cooperative-sticky"
GENERATION: Final = struct.Struct(">i")
FAULTS_SHOWN: Final = 3
UUID_SUFFIX: Final = "-00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """The input of a plan."""

    joined: Joined
    subscriptions: Sequence[Subscription]
    """Subscriptions, one per member, in order."""
    topics: tuple[LaneTopic, ...]
    loads: Mapping[Lane, float]
    previous: Planned | None
    loners: frozenset[str] = frozenset()
    """Member ids that take whole partitions only."""

    @property
    def signature(self) -> tuple[object, ...]:
        """Return the members and topics that a target is for."""
        members = zip(self.joined.members, self.subscriptions, strict=True)
        return (
            self.topics,
            tuple(sorted((one.member_id, *sorted(said.topics)) for one, said in members)),
            self.loners,
        )


class PlanRefused(Exception):
    """A plan with an overlap or a gap: a mistake of keylane, which must not reach a group."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults[:FAULTS_SHOWN]))


def look_sync_group(request: Request, context: Context) -> Handler | None:
    """Return whether to relay: keylane has no part in the group's assignment."""
    if is_left_out(request, context):
        return refuse_left_out
    return None if planned_group(request, context) is None else handle_sync_group


def is_left_out(request: Request, context: Context) -> bool:
    """Return whether the member goes by other names of topics than its group."""
    try:
        member = read_beat(request)
    except FrameInvalid:
        return False  # the broker refuses it
    return context.group_names.is_refused(member.group, member.member_id)


async def refuse_left_out(request: Request, context: Context) -> Buffers:
    """Refuse a member that goes by other names of topics than its group."""
    note_syncing(request, context)
    context.stats.joins_refused += 1
    return request.answer_entity(refusal(request, ErrorCode.inconsistent_group_protocol))


async def handle_sync_group(request: Request, context: Context) -> Buffers:
    """Replace a leader's assignments of lanes; send; pass the answer on."""
    note_syncing(request, context)
    wanted = request.decode()
    changed = None
    if wanted.assignments:
        assignments = await _plan(request, wanted, context)
        if assignments is not None:
            changed = replace(wanted, assignments=assignments)
    return note_given(request, await forward(request, context, changed), context)


async def _plan(request: Request, wanted: Any, context: Context) -> tuple[Any, ...] | None:
    """Return the assignments to send; None: the client's own."""
    group, generation_id = str(wanted.group_id), int(wanted.generation_id)
    joined = context.generations.joined(group, generation_id)
    if joined is None or joined.leader_id != wanted.member_id:
        if context.generations.is_past(group, generation_id):
            return None  # the broker refuses it
        context.stats.assignments_unplanned += 1
        _warn(context, group, generation_id, "its members are not known here")
        return None
    started_s = context.clock()
    try:
        subscriptions = await context.in_thread(read_subscriptions, joined.members)
        views = await find_lane_views(subscriptions, context)
        if not views:
            return None
        deal = make_deal(group, joined, subscriptions, views, context)
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
        return None
    context.generations.note_planned(group, planned)
    _log(context, group, deal, planned, context.clock() - started_s)
    module: Any = load_payload_module(ApiKey.SYNC_GROUP, request.api_version, EntityType.request)
    return tuple(
        module.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
        for member_id, assignment in merged
    )


def read_subscriptions(members: Iterable[JoinedMember]) -> list[Subscription]:
    """Return the subscription of each member. Raises: FrameInvalid."""
    return [read_subscription(member.metadata) for member in members]


async def find_lane_views(
    subscriptions: Iterable[Subscription], context: Context
) -> dict[str, View]:
    """Return lane topics that a member subscribes to, by name. Raises: UpstreamLost."""
    names = sorted({name for one in subscriptions for name in one.topics})
    found = {name: await context.find_view(name) for name in names}
    return {name: view for name, view in found.items() if view is not None}


def make_deal(
    group: str,
    joined: Joined,
    subscriptions: Sequence[Subscription],
    views: Mapping[str, View],
    context: Context,
) -> Deal:
    """Put together the input of a plan."""
    rule = context.config.group_rule(group)
    is_co_partitioned = rule is not None and rule.co_partitioned
    topics = []
    bytes_per_s: dict[Lane, float] = {}
    records_per_s: dict[Lane, float] = {}
    for name, view in views.items():
        layout = view.layout
        co_group = None
        if is_co_partitioned:  # lanes that are cut elsewhere hold other keys
            cuts = layout.fingerprint.hex()
            co_group = f"{layout.partition_count}x{layout.lane_count} {cuts}"
        topics.append(
            LaneTopic(
                name=name,
                partition_count=layout.partition_count,
                lane_count=layout.lane_count,
                co_group=co_group,
                partition_racks=context.read_racks(view),
                is_split=context.switches.accepts_range_fetch(view.topic, is_lane_view=True),
            )
        )
        for index, rate in context.loads.bytes_per_s(view).items():
            bytes_per_s[name, index] = rate
        for index, rate in context.loads.records_per_s(view).items():
            records_per_s[name, index] = rate
    return Deal(
        joined=joined,
        subscriptions=subscriptions,
        topics=tuple(topics),
        loads=join_rates(bytes_per_s, records_per_s),
        previous=context.generations.planned(group),
        loners=frozenset(
            one.member_id
            for one, said in zip(joined.members, subscriptions, strict=True)
            if not context.switches.allows_individual_commit(client_of(one))
            or not read_allow_key_share(said.user_data)
        ),
    )


def client_of(member: JoinedMember) -> str:
    """Return a member's name for switches: its instance id, else its client id.

    A leader does not learn client ids. But a broker makes member ids of them, with a UUID behind
    (GroupMetadata.generateMemberId), since clients no longer may (KIP-394).
    """
    return member.instance_id or member.member_id[: -len(UUID_SUFFIX)]


def deal_out(deal: Deal) -> Planned:
    """Plan one generation. Raises: PlanRefused."""
    signature, previous = deal.signature, deal.previous
    if previous is not None and previous.signature != signature:
        previous = None  # of other members, or other topics
    if previous is not None and previous.generation_id == deal.joined.generation_id:
        return previous  # the leader asks again: the broker may have its first request
    claimed = members_of(deal)
    if previous is not None and previous.withheld_count:
        target, moved_count = dict(previous.target), 0
    else:
        members = _with_history(claimed, deal)
        target = plan_sticky(members, deal.topics, deal.loads)
        moved_count = _count_moved(target, members, deal)
    _check(find_faults(target, claimed, deal.topics))
    given = target
    if deal.joined.protocol_name not in EAGER:
        given = first_step(target, claimed, deal.topics)
    withheld = find_withheld(target, given)
    _check(find_faults(given, claimed, deal.topics, withheld=withheld))
    lanes = {one.identity: given.get(one.member_id, ()) for one in deal.joined.members}
    held = _held_before(claimed, deal)
    return Planned(
        generation_id=deal.joined.generation_id,
        lanes=lanes,
        target=target,
        signature=signature,
        withheld_count=len(withheld),
        moved_count=moved_count,
        gained=_without(lanes, held),
        lost=_without({name: held.get(name, ()) for name in lanes}, lanes),
    )


def _held_before(claimed: Sequence[Member], deal: Deal) -> Mapping[str, tuple[Lane, ...]]:
    """Return former lanes by identity; by the members' word after a restart."""
    if deal.previous is not None:
        return deal.previous.lanes
    return {
        one.identity: member.owned for one, member in zip(deal.joined.members, claimed, strict=True)
    }


def _without(
    lanes: Mapping[str, tuple[Lane, ...]], others: Mapping[str, tuple[Lane, ...]]
) -> dict[str, tuple[Lane, ...]]:
    """Return lanes by name that are not in `others` under the same name; no name is left out."""
    found = {}
    for name, mine in lanes.items():
        theirs = set(others.get(name, ()))
        rest = tuple(lane for lane in mine if lane not in theirs)
        if rest:
            found[name] = rest
    return found


def _check(faults: Sequence[str]) -> None:
    if faults:
        raise PlanRefused(faults)


def members_of(deal: Deal) -> list[Member]:
    """Return the members with the lanes that they hold now, by their own word."""
    protocol = deal.joined.protocol_name
    counts = {topic.name: topic.index_count for topic in deal.topics}
    return [
        Member(
            member_id=one.member_id,
            topics=frozenset(said.topics),
            owned=() if protocol in EAGER else _existing(said.owned, counts),
            generation_id=_generation_of(said, protocol),
            instance_id=one.instance_id,
            rack=said.rack,
            shares=one.member_id not in deal.loners,
        )
        for one, said in zip(deal.joined.members, deal.subscriptions, strict=True)
    ]


def _generation_of(said: Subscription, protocol: str) -> int:
    """Return the generation of the owned lanes."""
    is_old = said.generation_id == NO_GENERATION and protocol == COOPERATIVE_STICKY
    if is_old and len(said.user_data) >= GENERATION.size:
        # Before version 2 it stood at the end of the assignor's user data (KIP-429).
        return int(GENERATION.unpack(said.user_data[-GENERATION.size :])[0])
    return said.generation_id


def _existing(lanes: Iterable[Lane], counts: Mapping[str, int]) -> tuple[Lane, ...]:
    return tuple((topic, index) for topic, index in lanes if 0 <= index < counts.get(topic, 0))


def _with_history(claimed: Sequence[Member], deal: Deal) -> list[Member]:
    """Give members without a lane their last lanes to own: lanes stay put.

    These are all members of an eager protocol, and a static member that was started again. The own
    word of members of the sticky assignor comes before keylane's memory.
    """
    held = {lane for member in claimed for lane in member.owned}
    counts = {topic.name: topic.index_count for topic in deal.topics}
    before = deal.previous.lanes if deal.previous else {}
    members = []
    for joined, said, member in zip(deal.joined.members, deal.subscriptions, claimed, strict=True):
        if not member.owned:
            lanes: tuple[Lane, ...] = ()
            generation_id = NO_GENERATION
            if deal.joined.protocol_name == STICKY:
                lanes, generation_id = read_sticky_data(said.user_data)
            if not lanes and deal.previous is not None:
                lanes = before.get(joined.identity, ())
                generation_id = deal.previous.generation_id
            owned = tuple(lane for lane in _existing(lanes, counts) if lane not in held)
            member = replace(member, owned=owned, generation_id=generation_id)
        members.append(member)
    return members


def read_sticky_data(data: bytes) -> tuple[tuple[Lane, ...], int]:
    """Return the lanes of a member of the eager `sticky` assignor, and their generation.

    Return none when they cannot be read: a group plans without them as well.
    Source: Kafka's StickyAssignor, user data versions 0 and 1; aiokafka's and kafka-python's.
    """
    lanes: list[Lane] = []
    try:
        reader = Reader(data, flexible=False)
        for _ in range(reader.count(TOPIC_BYTES_MIN) if data else 0):
            topic = reader.string()
            lanes += [(topic, reader.int32()) for _ in range(reader.count(4))]
        return tuple(lanes), reader.int32() if reader.remaining else NO_GENERATION
    except FrameInvalid:
        return (), NO_GENERATION


def _count_moved(
    target: Mapping[str, Sequence[Lane]], members: Sequence[Member], deal: Deal
) -> int:
    """Return the number of lanes that go to another member than before, as far as known."""
    names = {one.member_id: one.identity for one in deal.joined.members}
    before = deal.previous.lanes if deal.previous else {}
    owners = {lane: name for name, lanes in before.items() for lane in lanes}
    owners |= {lane: names[one.member_id] for one in members for lane in one.owned}
    return sum(
        owners.get(lane, names[member_id]) != names[member_id]
        for member_id, lanes in target.items()
        for lane in lanes
    )


def merge(assignments: Sequence[Any], deal: Deal, planned: Planned) -> list[tuple[str, bytes]]:
    """Return (member id, assignment) of each member: planned lanes and the client's plain topics.

    A member that is not known here keeps its plain topics. Raises: FrameInvalid.
    """
    lane_topics = {topic.name for topic in deal.topics}
    sent = {str(entry.member_id): bytes(entry.assignment) for entry in assignments}
    given = {one.member_id: planned.lanes.get(one.identity, ()) for one in deal.joined.members}
    merged = []
    for member_id in dict.fromkeys((*sent, *given)):
        # A leader may leave out members that get nothing.
        said = read_assignment(sent[member_id]) if sent.get(member_id) else None
        kept = [lane for lane in (said.lanes if said else ()) if lane[0] not in lane_topics]
        lanes = sorted((*kept, *given.get(member_id, ())))
        if said is not None:
            assignment = write_assignment(lanes, version=said.version, user_data=said.user_data)
        else:
            assignment = write_assignment(lanes, version=0) if lanes else b""
        merged.append((member_id, assignment))
    return merged


def _log(context: Context, group: str, deal: Deal, planned: Planned, took_s: float) -> None:
    is_repeated = deal.previous is planned
    stats = context.stats
    stats.assignments_planned += not is_repeated
    stats.lanes_moved += 0 if is_repeated else planned.moved_count
    stats.lanes_withheld += 0 if is_repeated else planned.withheld_count
    log.info(
        "lanes dealt out group=%s generation_id=%d protocol=%s members=%d lanes=%d moved=%d "
        "withheld=%d took_ms=%.1f",
        group, planned.generation_id, deal.joined.protocol_name, len(deal.joined.members),
        sum(map(len, planned.lanes.values())), planned.moved_count, planned.withheld_count,
        took_s * 1000,
    )  # fmt: skip


def _warn(context: Context, group: str, generation_id: int, reason: str) -> None:
    if context.generations.warn_once(group):
        log.warning(
            "plan not made: the client's assignment is kept group=%s generation_id=%d reason=%s",
            group, generation_id, reason,
        )  # fmt: skip
