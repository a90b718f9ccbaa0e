"""JoinGroup v0-9: members whose topics have lanes, and the coordinator's answers to them.

Behaviour: keylane makes a member that names lanes (`orders.lanes-8`) known to the broker as
subscribed to the topic behind them as well: the broker keeps offsets of subscribed topics only,
and refuses to delete them. It also marks members of lanes: to a leader on either side, to another
node and to a later process, the others have joined at a broker's own address.
Answers to leaders have both removed. Everything else of the metadata, of the request and of the
answer stays byte for byte; of members and groups without lanes both pass unchanged.
Members without the mark take partitions. While a group has some, keylane assigns all its lanes in
whole partitions, whichever assignor it has.
A group means a topic by one name. A member with another name than the present members is refused
with INCONSISTENT_GROUP_PROTOCOL before the broker sees it, so that these go on. A member with
another name that came in past this node is left out of the leader's plan.
An answer with a generation and no leader comes from a group whose partitions the broker assigns
(KIP-848): to a member of lanes these would be lanes. It is refused the same way.
If keylane assigns the lanes of a group, its generation is noted for SyncGroup.
Not done: Kafka Streams (protocol `stream`) and Connect keep their own assignors, whose
assignments carry more than partitions; Streams is refused beside members without the mark. An
assignor that comes with no client library is kept unless a rule says otherwise.

Source: Kafka protocol guide, JoinGroup; docs/decisions/024, 045 and 047;
ClassicGroup.computeSubscribedTopics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.assignor.marks import ShownMember, read_shown
from keylane.assignor.protocol import (
    read_names,
)
from keylane.errors import FrameInvalid, NotCoordinator
from keylane.proxy.apis.groups.mixed_groups import (
    log_streams,
    mark_protocols,
    note_direct,
)
from keylane.proxy.apis.groups.planned_members import note_planned
from keylane.proxy.apis.groups.seen_lanes import UNKNOWN_GENERATION, note_lanes
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import (
    CONSUMER,
    STABLE,
    ask_group_state,
    has_brokers_members,
)
from keylane.proxy.apis.shared.leaving import leave_group
from keylane.proxy.apis.shared.member_ids import note_joining, read_group
from keylane.proxy.apis.shared.refusals import refusal
from keylane.proxy.apis.shared.relay import Handler, forward
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.groups.assignors import STREAMS
from keylane.proxy.groups.group_names import (
    NO_NAMES,
    Clash,
    Names,
    choose_names,
    clashes_of,
    own_clash,
)
from keylane.proxy.groups.group_plans import NOTHING_HELD, identity_of
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.whole_topics import direct_of
from keylane.wire.group_members import (
    JoinAnswer,
    JoinRequest,
    MemberEntry,
    keep_members,
    read_join_answer,
    read_join_request,
    replace_bytes,
    splice,
)

log = logging.getLogger("keylane.groups")

INCONSISTENT: Final = ErrorCode.inconsistent_group_protocol
"""Error that all stock clients raise; brokers answer it to a member that does not fit a group."""
LATER: Final = ErrorCode.coordinator_load_in_progress
"""Error after which all stock clients join again."""
REMEDY: Final = "stop the whole group first, or give the new members another group id"


@dataclass(frozen=True, slots=True)
class Asked:
    """A JoinGroup of a consumer."""

    join: JoinRequest
    names: Names

    @property
    def identity(self) -> str:
        """Return the member for `GroupNames`; a new one has no name yet."""
        join = self.join
        if not join.member_id and join.instance_id is None:
            return f"new {id(self)}"
        return identity_of(join.member_id, join.instance_id)


def read_asked(request: Request) -> Asked | None:
    """Return the JoinGroup of a consumer; None: of another client, or the broker refuses it."""
    try:
        join = read_join_request(request.body, request.api_version)
    except FrameInvalid:
        return None
    if join.protocol_type != CONSUMER:
        return None
    said = (read_names(span.data) or () for _, span in join.protocols)
    return Asked(join, NO_NAMES.union(*said))


def look_join_group(request: Request, context: Context) -> Handler | None:
    """Return whether to relay: neither the member nor, as far as known, its group has lanes."""
    asked = read_asked(request)
    if asked is None or not _may_have_lanes(asked, context):
        return None
    return partial(handle_join_group, asked=asked)


def _may_have_lanes(asked: Asked, context: Context) -> bool:
    group = asked.join.group_id
    if _lane_names(asked, context) or group in context.group_names:
        return True
    try:
        return not context.groups.topics_of(group).isdisjoint(asked.names)
    except NotCoordinator:
        return False  # not loaded yet; the leader's answer shows the group's names


async def handle_join_group(request: Request, context: Context, asked: Asked) -> Buffers:
    """Refuse a member that does not fit, else pass it on; judge the answer."""
    note_joining(request, context)
    group = asked.join.group_id
    # Otherwise names of a stranger, whose broker may refuse it late, would keep members out.
    code = ErrorCode(await context.group_error(group, Operation.READ))
    if code == ErrorCode.none:
        code = await _find_refusal(asked, context)
    if code != ErrorCode.none:
        return request.answer_entity(refusal(request, code, member_id=asked.join.member_id))
    if any(name == STREAMS for name, _ in asked.join.protocols):
        context.streams.note_joined(group)
    is_here = bool(_lane_names(asked, context))
    named = asked.names if is_here else NO_NAMES
    join = context.group_names.begin_join(group, asked.identity, named)
    member: str | None = None
    try:
        shown = await _as_member(request, asked.join, context) if is_here else request.frame
        frame = await forward(request, context, frame=shown)
        member = _member_of(request, frame, asked)
    finally:
        context.group_names.end_join(group, join, member)
    return _judge(request, frame, context, lambda: asked)


def judge_relayed_join(request: Request, frame: Frame, context: Context) -> Buffers:
    """Change the answer to a relayed member; it is read again for few members."""
    return _judge(request, frame, context, lambda: read_asked(request))


def _judge(
    request: Request, frame: Frame, context: Context, find_asked: Callable[[], Asked | None]
) -> Buffers:
    """Return the answer to a member: without the names that keylane has added, or a refusal."""
    try:
        answer = read_join_answer(request.answer_body(frame), request.api_version)
    except FrameInvalid as error:
        # The client may be able to read it: its own assignor then decides.
        log.warning(
            "JoinGroup not read: relayed session_id=%s reason=%s", context.session_id, error
        )
        return (frame,)
    is_follower = answer.leader and not answer.members
    if is_follower and answer.error_code == 0:
        group = read_group(request)
        context.generations.note_leader(group, answer.generation_id, answer.leader)
        context.group_names.note_leader(group, answer.generation_id, answer.leader)
    asked = None if answer.error_code != 0 or is_follower else find_asked()
    if asked is None:
        return (frame,)
    if not answer.members:
        return _judge_leaderless(request, frame, asked, answer, context)
    return _judge_leader(request, frame, asked, answer, context)


async def _find_refusal(asked: Asked, context: Context) -> ErrorCode:
    """Return the reason to refuse a member: `INCONSISTENT`, or `LATER` while it is unknown."""
    names, physical = context.group_names, cache(context.registry.physical_name)
    group = asked.join.group_id
    clash = own_clash(asked.names, physical)
    if clash is not None:
        _refuse(asked, clash, context)
        return INCONSISTENT
    if await _is_brokers(asked, context):
        _note_brokers(asked, context)
        return INCONSISTENT
    find = partial(names.find_clash, group, asked.identity, asked.names, physical)
    if names.is_complete(group) and find() is None:
        return ErrorCode.none
    is_known, running = await _learn_members(asked, context)
    if names.is_brokers(group) and _lane_names(asked, context):
        _note_brokers(asked, context)
        return INCONSISTENT
    if not _lane_names(asked, context) and asked.identity in running:
        return ErrorCode.none  # it takes partitions, and was there before the lanes
    clash = find()
    if clash is not None:
        _refuse(asked, clash, context)
        return INCONSISTENT
    return ErrorCode.none if is_known else LATER


async def _is_brokers(asked: Asked, context: Context) -> bool:
    """Return whether the broker deals out the group's partitions, by its last answer.

    The members that it deals out to are then not even rebalanced by one that comes again and again.
    """
    names, group = context.group_names, asked.join.group_id
    if not _lane_names(asked, context):
        return False
    served = context.consumer_groups.find(group)
    if not names.is_brokers(group) and (served is None or not served.members):
        return False
    is_brokers = await has_brokers_members(group, context)
    names.note_brokers(group, is_brokers=is_brokers)
    return is_brokers


async def _learn_members(asked: Asked, context: Context) -> tuple[bool, Collection[str]]:
    """Ask the coordinator for the group's members; False: a new member has to wait for them.

    While a group rebalances, a coordinator names its members and not their subscriptions.
    """
    names, group = context.group_names, asked.join.group_id
    found = await ask_group_state(group, context)
    if found.error_code != ErrorCode.none:
        return True, ()  # the coordinator refuses the JoinGroup, too
    if not found.has_members:
        # A group of KIP-848 is Dead to DescribeGroups, as one that is not there.
        if context.has_consumer_groups and await has_brokers_members(group, context):
            names.note_brokers(group, is_brokers=True)
            return True, ()
        names.note_empty(group)
        return True, ()
    if found.protocol_type != CONSUMER:
        return True, ()  # the coordinator refuses it
    members = {
        identity_of(str(one.member_id), one.group_instance_id): bytes(one.member_metadata)
        for one in found.members
    }
    if found.state == STABLE:
        if context.generations.held(group) is NOTHING_HELD:
            note_lanes(group, UNKNOWN_GENERATION, found, context)
        physical = cache(context.registry.physical_name)
        shown = {key: read_shown(data, physical) for key, data in members.items()}
        direct = direct_of({**shown, "": ShownMember(asked.names, None, True)}, context.registry)
        said = {key: one.names for key, one in shown.items() if key not in direct}
        names.note_members(group, said)
        return True, members
    return names.keep_only(group, members) or asked.identity in members, members


def _refuse(asked: Asked, clash: Clash, context: Context) -> None:
    join = asked.join
    _log_clash(join.group_id, identity_of(join.member_id, join.instance_id), clash, context)
    context.stats.joins_refused += 1


def _log_clash(group: str, member: str, clash: Clash, context: Context) -> None:
    if context.group_names.log_once(group, clash):
        log.warning(
            "member refused: its group reads the topic by another name group=%s member_id=%s "
            "topic=%s running=%s refused=%s remedy=%s",
            group, member, clash.topic, clash.name, clash.other, REMEDY,
        )  # fmt: skip


async def _as_member(request: Request, join: JoinRequest, context: Context) -> bytes:
    """Return the request as one of a member of lanes, in all protocols."""
    marked = await mark_protocols(join, context)
    edits = [
        replace_bytes(span, data, flexible=request.is_flexible)
        for (_, span), data in zip(join.protocols, marked, strict=True)
    ]
    return request.with_body(splice(request.body, edits))


def _member_of(request: Request, frame: Frame, asked: Asked) -> str | None:
    """Return the member that an answer has let in; None: none, or a leader, judged elsewhere."""
    try:
        answer = read_join_answer(request.answer_body(frame), request.api_version)
    except FrameInvalid:
        return None
    is_follower = answer.error_code == 0 and answer.leader and not answer.members
    return identity_of(answer.member_id, asked.join.instance_id) if is_follower else None


def _judge_leaderless(
    request: Request, frame: Frame, asked: Asked, answer: JoinAnswer, context: Context
) -> Buffers:
    """Refuse a member of lanes in a group whose partitions the broker deals out."""
    if not _lane_names(asked, context):
        return (frame,)
    _note_brokers(asked, context)
    return _refuse_member(request, asked, answer, context)


def _note_brokers(asked: Asked, context: Context) -> None:
    names, join = context.group_names, asked.join
    names.note_brokers(join.group_id, is_brokers=True)
    context.stats.joins_refused += 1
    topic = _lane_names(asked, context)[0]
    if names.log_once(join.group_id, Clash(topic, "", topic)):
        log.warning(
            "member refused: its group has members of the consumer protocol group=%s member_id=%s "
            "topic=%s remedy=stop the members with group.protocol=consumer first, or give the new "
            "members another group id",
            join.group_id, identity_of(join.member_id, join.instance_id), topic,
        )  # fmt: skip


def _lane_names(asked: Asked, context: Context) -> list[str]:
    """Return the member's topics that are lanes to it, in order."""
    return sorted(name for name in asked.names if context.registry.rule_of(name) is not None)


def _refuse_member(request: Request, asked: Asked, answer: JoinAnswer, context: Context) -> Buffers:
    """Answer with the refusal, and have the member leave: it must not be dealt any lanes."""
    join = asked.join
    context.aside(partial(leave_group, join.group_id, answer.member_id, join.instance_id, context))
    return request.answer_entity(refusal(request, INCONSISTENT, member_id=answer.member_id))


def _judge_leader(
    request: Request, frame: Frame, asked: Asked, answer: JoinAnswer, context: Context
) -> Buffers:
    """Return a leader's answer: members by their own names, without those that do not fit."""
    flexible, physical = request.is_flexible, cache(context.registry.physical_name)
    shown = {one.member_id: read_shown(one.metadata.data, physical) for one in answer.members}
    edits = [
        replace_bytes(one.metadata, changed, flexible=flexible)
        for one in answer.members
        if (changed := shown[one.member_id].changed) is not None
    ]
    direct = direct_of(shown, context.registry)
    refused = _note_names(asked.join.group_id, answer, shown, direct, context)
    is_mixed = bool(direct) and answer.protocol_name == STREAMS
    if is_mixed or answer.member_id in refused:
        context.stats.joins_refused += 1
        if is_mixed:
            log_streams(asked.join.group_id, answer.member_id)
        return _refuse_member(request, asked, answer, context)
    dropped = [one for one in answer.members if one.member_id in refused]
    if dropped:
        places = {one.metadata.start for one in dropped}
        edits = [edit for edit in edits if edit[0] not in places]
        edits += keep_members(answer, dropped, flexible=flexible)
    if _have_lanes(shown.values(), context):
        note_planned(asked.join.group_id, answer, shown, refused, direct, context)
    else:
        context.generations.note_left_out(asked.join.group_id)
    if not edits:
        return (frame,)
    return request.with_answer_body(frame, splice(request.answer_body(frame), edits))


def _note_names(
    group: str,
    answer: JoinAnswer,
    shown: Mapping[str, ShownMember],
    direct: Collection[str],
    context: Context,
) -> frozenset[str]:
    """Note a generation that has lanes; return member ids that go by another name."""
    names, physical = context.group_names, cache(context.registry.physical_name)
    if not _have_lanes(shown.values(), context) and group not in names:
        return frozenset()
    here = [one for one in answer.members if one.member_id not in direct]
    members = {_identity(one): shown[one.member_id].names for one in here}
    chosen = choose_names(members.values(), physical, names.chosen(group))
    clashes = dict(clashes_of(members, chosen, physical))
    refused = frozenset(one.member_id for one in here if _identity(one) in clashes)
    for identity, clash in clashes.items():
        _log_clash(group, identity, clash, context)
    kept = {key: said for key, said in members.items() if key not in clashes}
    names.note_generation(group, kept, chosen, [m.member_id for m in answer.members], refused)
    if answer.leader == answer.member_id:
        names.note_led_here(group, answer.generation_id, answer.leader)
    note_direct(group, len(direct), context)
    return refused


def _have_lanes(shown: Iterable[ShownMember], context: Context) -> bool:
    names = NO_NAMES.union(*(one.names for one in shown))
    return any(context.registry.rule_of(name) is not None for name in names)


def _identity(one: MemberEntry) -> str:
    return identity_of(one.member_id, one.instance_id)
