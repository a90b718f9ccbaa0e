"""ConsumerGroupHeartbeat v0-1 (KIP-848): members of groups whose topics have lanes.

Behaviour: the broker keeps members, epochs, fencing and rights; keylane plans lanes. A member's
heartbeat goes to the broker over the member's own connection, with the topics behind lane names,
and without lanes among what it owns. The answer comes back with the member's lanes in the place of
those topics' partitions. A lane goes to another member only after its last one has confirmed that
it gave it up, or has ended. While lanes are on their way members are asked to come every 0.5 s.
The broker's epoch is the sign that members have come or gone: keylane then asks for the group's
members, once per epoch. Lanes in members' hands are written to the group's partition of the journal
before a member gets new ones. After a restart nothing changes hands for a heartbeat interval
and two seconds, and a member that this node does not know is asked to say all again.
A member that keeps a lane longer than its rebalance time-out has left the group, in its own name.
A group with members of the classic protocol is refused with INVALID_REQUEST and a message, and so
is a member that names a topic otherwise than its group.
Members that connect to brokers directly keep the partitions that the broker gives them: lanes of
these partitions are withheld here.
A member that asks for it in a tagged field is answered what each of its lane indexes stands for.
One that says so gets whole partitions only (docs/protocol-extensions.md).
Groups without lanes pass as bytes.

Source: KIP-848, KIP-1251; docs/decisions/043, 049.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any, Final

from kio.schema.consumer_group_heartbeat.v0.request import (
    ConsumerGroupHeartbeatRequest as LeaveRequest,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId
from kio.static.primitive import i32

from keylane.errors import KeylaneError, UpstreamLost
from keylane.proxy.apis.commits.late_offsets import push_owed
from keylane.proxy.apis.commits.steps_back import note_held
from keylane.proxy.apis.groups.consumer.contact import (
    ask_for_members,
    begin_group,
    find_group,
    look_at_members,
    meet,
    unknown_code,
)
from keylane.proxy.apis.groups.consumer.plan import note_members, plan_lanes
from keylane.proxy.apis.groups.consumer.ranges import (
    read_takes_parts,
    with_lane_ranges,
    without_extensions,
)
from keylane.proxy.apis.groups.consumer.wire import (
    JOIN_EPOCH,
    downstream,
    is_full,
    parts_of,
    says_topics,
    upstream,
    without_parts,
)
from keylane.proxy.apis.groups.consumer.wish import (
    find_clash,
    find_names,
    owned_of,
    read_subscription,
    refuse_clash,
)
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import shows_lanes
from keylane.proxy.apis.shared.refusals import RefusalReason, refusal
from keylane.proxy.apis.shared.relay import forward, relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupMember, Parts, Subscribed, Word
from keylane.proxy.groups.group_plans import identity_of
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.runtime.event_log import NAME_CHARS_MAX
from keylane.wire.extensions import LANE_RANGES

log = logging.getLogger("keylane.groups")

AGAIN: Final = ErrorCode.coordinator_not_available
"""Error after which all clients repeat everything that they know, with their epoch and lanes."""
ENDED: Final = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch)
LEAVE_EPOCH: Final = -1
_ORDER: Final = count()


async def handle_consumer_group_heartbeat(
    request: Request, wanted: Any, context: Context
) -> Buffers:
    """Serve a member of a group with lanes; relay others."""
    request, wanted, own = without_extensions(request, wanted)
    name = str(wanted.group_id)
    group = None if _stays_plain(wanted, context) else await find_group(name, context)
    before = None if group is None else group.find(str(wanted.member_id))
    subscribed = await read_subscription(name, wanted, before, context)
    if isinstance(subscribed, RefusalReason):
        return _refuse(request, wanted, subscribed)
    has_lanes = subscribed is not None and bool(subscribed.names)
    if group is None and not has_lanes:
        return await _relay_plain(request, wanted, context)
    if has_lanes:
        context.consumer_groups.note_lanes(name, str(wanted.member_id))
    if await context.group_error(name, Operation.READ):
        return await relay(request, context)  # the broker refuses it
    if wanted.member_epoch < JOIN_EPOCH:
        return await _leave(request, wanted, group, context)
    says_all = wanted.member_epoch == JOIN_EPOCH or is_full(wanted)
    group = group or begin_group(name, context)
    if not group.is_met or (says_all and not group.members):
        refused = await meet(name, group, context)
        if refused is not None:
            return _refuse(request, wanted, refused)
        before = group.find(str(wanted.member_id))
    if not says_all and (before is None or not before.has_spoken):
        code = await unknown_code(name, str(wanted.member_id), context)
        return _refuse(request, wanted, RefusalReason(code))
    is_other = before is None or subscribed != before.subscribed
    clash = find_clash(group, wanted, subscribed, context) if is_other or says_all else None
    if clash is not None and group.members:
        # The broker may have ended the members that it clashes with since it was asked last.
        await ask_for_members(name, group, context)
        clash = find_clash(group, wanted, subscribed, context)
    if clash is not None:
        return _refuse(request, wanted, refuse_clash(clash, wanted, context))
    return await _serve(request, wanted, own, subscribed, group, context)


async def _serve(
    request: Request,
    wanted: Any,
    own: Mapping[int, bytes],
    subscribed: Subscribed | None,
    group: ConsumerGroup,
    context: Context,
) -> Buffers:
    """Ask the broker, take the member's word, plan, and answer with its lanes."""
    name, member_id, order = str(wanted.group_id), str(wanted.member_id), next(_ORDER)
    context.groups.check_ownership(name)
    lanes, plain = await owned_of(wanted, context)
    before = group.find(member_id)
    owned = plain if plain is not None else (before.plain_owned if before else ())
    claimed = () if before is None else group.claim(before.identity)
    sent = upstream(request, wanted, {*owned, *claimed}, context.registry.physical_name)
    group.begin_join(member_id)
    group_epoch = group.epoch
    try:
        answer = request.decode_answer(await forward(request, context, sent))
    finally:
        group.end_join(member_id)
    if answer.error_code != ErrorCode.none:
        await _note_refused(group, wanted, answer.error_code, context)
        return request.answer_entity(answer)
    assigned = await _assigned(answer, group, subscribed, context)
    if assigned is None:
        return _refuse(request, wanted, RefusalReason(AGAIN))
    instance_id = wanted.instance_id or (None if before is None else before.instance_id)
    identity = identity_of(str(answer.member_id or member_id), instance_id)
    client = wanted.instance_id or request.header.client_id or ""
    timeout_s = wanted.rebalance_timeout.total_seconds()
    takes_parts = read_takes_parts(own, before, is_full=is_full(wanted))
    word = Word(
        order=order,
        member_id=str(answer.member_id or member_id),
        instance_id=instance_id,
        client_id=(request.header.client_id or "")[:NAME_CHARS_MAX],
        epoch=int(answer.member_epoch),
        group_epoch=group_epoch,
        is_join=wanted.member_epoch == JOIN_EPOCH,
        is_full=is_full(wanted),
        subscribed=subscribed,
        rack=wanted.rack_id,
        rebalance_timeout_s=timeout_s if timeout_s > 0 else None,
        owned=lanes,
        plain_owned=plain,
        parts=assigned[0],
        plain_parts=assigned[1],
        shares=context.switches.allows_individual_commit(client) and takes_parts,
        takes_parts=takes_parts,
        asks_ranges=LANE_RANGES in own,
    )
    return await _answer(request, answer, identity, word, group, context)


async def _answer(
    request: Request,
    answer: Any,
    identity: str,
    word: Word,
    group: ConsumerGroup,
    context: Context,
) -> Buffers:
    """Take the word into the group, and answer with what comes of it."""
    wanted = request.decode()
    name = str(wanted.group_id)
    member = group.take(identity, word)
    group.begin_grace(answer.heartbeat_interval.total_seconds())
    await look_at_members(name, group, context)
    await plan_lanes(name, group, context)
    if group.members.get(identity) is not member:
        return _refuse(request, wanted, RefusalReason(ErrorCode.unknown_member_id))
    if context.consumer_groups.get(name, context.groups.held_table(name)) is not group:
        return _refuse(request, wanted, RefusalReason(AGAIN))  # another node may have served it
    # From here on the member may hold what it is given.
    given = group.give(identity, context.clock())
    is_asked = word.is_join or word.is_full
    try:
        await _save(name, group, context)
    except UpstreamLost as error:
        log.warning("lanes are not given: the journal is away group=%s reason=%s", name, error)
        return _refuse(request, wanted, RefusalReason(AGAIN))
    shown = downstream(
        request, answer, group, member, is_asked=is_asked, is_librdkafka=context.is_librdkafka
    )
    if word.asks_ranges:
        shown = await with_lane_ranges(shown, group, context)
    note_held(name, request.header.client_id or "", given, context)
    _end_late(name, group, context)
    push_owed(Beat(name, member.epoch, member.member_id, member.instance_id), context)
    return request.answer_entity(shown)


async def _assigned(
    answer: Any, group: ConsumerGroup, subscribed: Subscribed | None, context: Context
) -> tuple[Parts | None, Parts | None] | None:
    """Return partitions of lane topics and of others in the answer; None: a topic is not known."""
    if answer.assignment is None:
        return None, None
    ids = {topic.topic_id for topic in group.topics.values()}
    if subscribed is not None:
        ids |= {view.topic_id for view in (await find_names(subscribed.names, context)).values()}
    parts = parts_of(answer.assignment.topic_partitions)
    for topic_id in {part[0] for part in parts} - ids:
        try:
            if await context.find_view_by_id(topic_id) is not None:
                ids.add(topic_id)
        except KeylaneError as error:
            log.info("topic of an assignment is not known topic_id=%s reason=%s", topic_id, error)
            return None
    lanes = frozenset(part for part in parts if part[0] in ids)
    return lanes, frozenset(parts) - lanes


async def _leave(
    request: Request, wanted: Any, group: ConsumerGroup | None, context: Context
) -> Buffers:
    """Pass a member's end on; its lanes are free when the broker has taken it."""
    name = str(wanted.group_id)
    answer = request.decode_answer(await forward(request, context))
    if group is not None and answer.error_code == ErrorCode.none:
        known = group.find(str(wanted.member_id))
        identity = identity_of(str(wanted.member_id), wanted.instance_id)
        identity = identity if known is None else known.identity
        if wanted.member_epoch == LEAVE_EPOCH:
            group.end(identity)
            note_members(name, group, context)
        else:
            group.pause(identity)
        await _save_later(name, group, context)
    return request.answer_entity(answer)


async def _note_refused(
    group: ConsumerGroup, wanted: Any, code: ErrorCode, context: Context
) -> None:
    """Free the lanes of a member that the broker does not have, or that has dropped its lanes.

    A member with FENCED_MEMBER_EPOCH is one of the group until its session is over, and reads until
    it has this answer. It drops its lanes before it joins anew, whatever comes of the join.
    """
    member = group.find(str(wanted.member_id))
    has_dropped = code in ENDED and wanted.member_epoch == JOIN_EPOCH
    if member is not None and (code == ErrorCode.unknown_member_id or has_dropped):
        group.end(member.identity)
        await _save_later(str(wanted.group_id), group, context)


async def _save(name: str, group: ConsumerGroup, context: Context) -> None:
    """Write lanes in hand. Raises: UpstreamLost, NotCoordinator."""
    changes = group.changes()
    await context.groups.save_held(name, changes)
    group.note_written(changes)


async def _save_later(name: str, group: ConsumerGroup, context: Context) -> None:
    """Write ends of members; where that fails, the next write has them."""
    try:
        await _save(name, group, context)
    except KeylaneError as error:
        log.info("end of a member is not written yet group=%s reason=%s", name, error)


def _end_late(name: str, group: ConsumerGroup, context: Context) -> None:
    """Have members leave that do not confirm their lanes in time; they join anew, if they live.

    Kafka ends those that keep partitions. librdkafka may also lose the question for the offsets of
    new ones, and never reads them (docs/clients.md).
    """
    for member in group.late(context.clock()):
        member.late_since_s = None
        log.warning(
            "member leaves: it has not confirmed its lanes within its rebalance time-out group=%s "
            "member_id=%s lanes_kept=%d lanes_not_taken=%d timeout_s=%g "
            "remedy=poll more often, or raise max.poll.interval.ms",
            name, member.member_id, len(member.owned - member.given),
            len(member.given - member.owned), member.rebalance_timeout_s,
        )  # fmt: skip
        context.stats.members_late += 1
        context.aside(partial(_leave_for, name, group, member, context))


async def _leave_for(
    name: str, group: ConsumerGroup, member: GroupMember, context: Context
) -> None:
    leaving = LeaveRequest(
        group_id=GroupId(name),
        member_id=member.member_id,
        member_epoch=i32(LEAVE_EPOCH),
        instance_id=member.instance_id,
        topic_partitions=None,
    )
    try:
        answer = await context.ask(leaving)
    except KeylaneError as error:
        log.info("member did not leave group=%s reason=%s", name, error)
        return
    if (
        answer.error_code in (ErrorCode.none, *ENDED)
        and group.members.get(member.identity) is member
    ):
        group.end(member.identity)
        await _save_later(name, group, context)


def _stays_plain(wanted: Any, context: Context) -> bool:
    """Return whether a member without lanes says nothing new: it needs no journal, which may hang.

    Should one of its topics have lanes by now, the answer has it say all.
    """
    group, known = str(wanted.group_id), context.consumer_groups
    if says_topics(wanted) or known.find(group) is not None:
        return False
    return known.is_plain(group, str(wanted.member_id))


async def _relay_plain(request: Request, wanted: Any, context: Context) -> Buffers:
    """Relay; a topic that has lanes by now, and that the client does not name, is not given."""
    if not shows_lanes(context):
        return (await forward(request, context),)
    frame = await forward(request, context)
    answer = request.decode_answer(frame)
    if answer.error_code != ErrorCode.none:
        return (frame,)
    if _may_have_lanes(wanted, context):
        return _refuse(request, wanted, RefusalReason(AGAIN))
    if says_topics(wanted):
        member_id = str(answer.member_id or wanted.member_id)
        context.consumer_groups.note_plain(str(wanted.group_id), member_id)
    if answer.assignment is None:
        return (frame,)
    registry, parts = context.registry, parts_of(answer.assignment.topic_partitions)
    hidden = frozenset(
        part for part in parts if registry.rule_of(registry.name_of_id(part[0]) or "") is not None
    )
    if not hidden:
        return (frame,)
    if not is_full(wanted):
        return _refuse(request, wanted, RefusalReason(AGAIN))
    return request.answer_entity(without_parts(request, answer, hidden))


def _may_have_lanes(wanted: Any, context: Context) -> bool:
    """Return whether a member that is not known here may be one of lanes: it does not say.

    It may have joined before a restart and hold no lane yet. The journal does not have it then, and
    a client that has not noticed the restart would be relayed, and never get a lane.
    """
    group, member_id = str(wanted.group_id), str(wanted.member_id)
    if wanted.member_epoch < JOIN_EPOCH or says_topics(wanted):
        return False
    if context.consumer_groups.is_plain(group, member_id):
        return False
    try:
        context.groups.held_table(group)
    except KeylaneError:
        return False  # it is asked once the journal is there; until then it stays a member
    return True


def _refuse(request: Request, wanted: Any, reason: RefusalReason) -> Buffers:
    return request.answer_entity(refusal(request, *reason, member_epoch=wanted.member_epoch))
