"""ShareFetch v1-2: records in the order of keys where a rule says so, all else from the broker.

Behaviour: of a group without a rule, requests pass as bytes, and answers but for the addresses of
brokers. Of a group with one (`share_groups`), share sessions end here: epochs are those of keylane,
and topics without a rule are asked for in a second session of the same member, at the broker.
A member gets records of ordered topics after its own principal was seen to have READ on group and
topic. It gets one record of a key at a time, at most its share of what is ready, and with the mode
`record_limit` never more than it asks for (KIP-1206). In the other mode a member that works fast
gets records of up to eight polls, in batches of one poll. Batches have only the records that it
gets.
A partition that this broker does not lead is answered NOT_LEADER_OR_FOLLOWER, with the leader.
Not done: records at members do not go over to the next node with their locks: they come again, one
delivery later.

Source: KIP-932, KIP-1206, KIP-1222; docs/decisions/048.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.proxy.apis.share.members import (
    MemberRequest,
    acknowledge,
    close_session,
    confirm,
    enter_session,
    is_final,
    part_topics,
    refuse_member,
)
from keylane.proxy.apis.share.plain import PlainPart
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.relay import Handler
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.share.groups import Collector, HandedOut
from keylane.proxy.share.hand_out import acquired_of, plan_picks
from keylane.proxy.share.partition import OrderedPartition
from keylane.share.sessions import ShareSession
from keylane.wire.parts import NodeEndpoint
from keylane.wire.share import (
    BATCH_OPTIMIZED,
    ShareFetchRequest,
    ShareResponse,
    read_share_fetch_request,
    write_share_fetch_response,
)
from keylane.wire.share_acks import group_of

AT_ONCE_BYTES_MAX: Final = 256 * 1024
"""Bytes that are put into batches in the loop's own thread; to wake another takes longer."""
RECORDS_MAX: Final = 10_000
"""Records of one answer; no window of a partition is larger."""


def look_share_fetch(request: Request, context: Context) -> Handler | None:
    """Return whether to relay: the group has no rule."""
    if not context.ordered.has_rules:
        return None
    at = request.body_position
    if not context.ordered.has_group(group_of(request.frame, at)):
        return None
    wanted = read_share_fetch_request(request.frame, at, request.api_version)
    return partial(handle_share_fetch, wanted=wanted)


async def handle_share_fetch(
    request: Request, context: Context, wanted: ShareFetchRequest
) -> Buffers:
    """Take outcomes, wait for records, build one answer."""
    response = await refuse_member(wanted, context) or _refuse_renewal(wanted)
    if response is None:
        session, code = enter_session(wanted, context, may_open=True)
        if session is None:
            response = ShareResponse(error_code=code)
        else:
            asked = await part_topics(session, wanted.topics, context)
            response = await _serve(request, wanted, asked, context)
    return request.answer(write_share_fetch_response(response))


def _refuse_renewal(wanted: ShareFetchRequest) -> ShareResponse | None:
    """A fetch that renews locks fetches nothing (KIP-1222)."""
    amounts = wanted.max_wait_ms, wanted.min_bytes, wanted.max_bytes, wanted.max_records
    if not wanted.is_renewal or not any(amounts):
        return None
    return ShareResponse(
        error_code=ErrorCode.invalid_request,
        error_message="maxWaitMs, minBytes, maxBytes and maxRecords must be 0 with isRenewAck",
    )


async def _serve(
    request: Request, wanted: ShareFetchRequest, asked: MemberRequest, context: Context
) -> ShareResponse:
    acknowledge(asked, context, is_renewal=wanted.is_renewal, version=request.api_version)
    _update_places(wanted, asked, context)
    plain = PlainPart(request, wanted, asked.plain, asked.session, context)
    taken: list[HandedOut] = []
    records_max = _records_of(wanted, asked.session, context)
    if is_final(wanted):
        await plain.ask(wait_ms=0, records_max=0)
    elif wanted.is_renewal or wanted.max_records <= 0:
        if plain.is_needed:
            await plain.ask(wait_ms=0, records_max=wanted.max_records)
    else:
        if not plain.is_needed:
            # Keys that are freed by this can go with the same poll: it is answered no sooner.
            await confirm(asked, may_be_early=True)
        taken = await _collect(wanted, asked, plain, records_max, context)
    await confirm(asked, may_be_early=not is_final(wanted))
    if is_final(wanted):
        close_session(wanted, context)
    for partition, records in taken:
        # Its time may be over since, or its session: what it does not hold, it must not get.
        kept = partition.keep(asked.session, records)
        place = partition.place.topic_id.bytes, partition.place.partition
        picks = plan_picks(kept, wanted.max_records)
        is_large = picks.largest_bytes > AT_ONCE_BYTES_MAX
        pieces = await context.in_thread(picks.write) if is_large else picks.write()
        acquired = acquired_of(kept)
        context.ordered.tallies.note(partition.place, acquired)
        asked.answer(place, records=pieces, acquired=acquired)
    if taken:
        asked.session.pace.give(sum(len(each.records) for each in taken), context.clock())
    return ShareResponse(
        throttle_ms=plain.throttle_ms,
        error_code=plain.error_code,
        error_message=plain.error_message,
        lock_ms=asked.lock_ms,
        topics=(*asked.topics(), *plain.topics),
        endpoints=tuple(asked.endpoints.values()),
    )


def _records_of(wanted: ShareFetchRequest, session: ShareSession, context: Context) -> int:
    """Return how many records the member gets at most."""
    records_max = wanted.max_records
    if wanted.acquire_mode == BATCH_OPTIMIZED:
        is_free = not context.ordered.is_busy(session)
        records_max = session.pace.ask(records_max, context.clock(), is_free=is_free)
    return min(records_max, RECORDS_MAX)


def _update_places(wanted: ShareFetchRequest, asked: MemberRequest, context: Context) -> None:
    """Add the partitions of the request to the session, drop the forgotten ones."""
    session, ordered = asked.session, context.ordered
    if not is_final(wanted):
        records_max = min(wanted.max_records, RECORDS_MAX)
        for topic in asked.ordered:
            for entry in topic.partitions:
                place = topic.ref.topic_id.bytes, entry.partition
                if code := topic.error_of(entry.partition):
                    asked.answer(place, error_code=code)
                elif place not in session.places:
                    shared = topic.place_of(session.key.group, entry.partition)
                    ordered.join(session, shared, topic.rule, records_max)
    for forgotten in wanted.forgotten:
        assert forgotten.topic_id is not None, "share requests name topics by id"
        for partition in forgotten.partitions:
            ordered.forget(session, (forgotten.topic_id, partition))


def _led_here(asked: MemberRequest, records_max: int, context: Context) -> list[OrderedPartition]:
    """Return the partitions of the session that are led here; the others are answered."""
    found: list[OrderedPartition] = []
    for place in asked.session.turn():
        partition = context.ordered.find(asked.session.key.group, place)
        if partition is None:
            continue
        partition.join(asked.session, records_max)
        name = partition.place
        leader = context.leader_elsewhere(name.topic, name.topic_id, name.partition)
        if leader is not None:
            leader_id, leader_epoch, address = leader
            code = int(ErrorCode.not_leader_or_follower)
            asked.answer(place, error_code=code, leader_id=leader_id, leader_epoch=leader_epoch)
            if address is not None:
                asked.endpoints[leader_id] = NodeEndpoint(leader_id, *address, None)
        elif partition.error_code:
            asked.answer(place, error_code=partition.error_code)
        else:
            found.append(partition)
    return found


async def _collect(
    wanted: ShareFetchRequest,
    asked: MemberRequest,
    plain: PlainPart,
    records_max: int,
    context: Context,
) -> list[HandedOut]:
    """Take records as soon as there are some, of either side."""
    partitions = _led_here(asked, records_max, context)
    asked.partitions += [each for each in partitions if each not in asked.partitions]
    collector = Collector(
        asked.session,
        partitions,
        poll_max=wanted.max_records,
        records_max=records_max,
        bytes_max=min(wanted.max_bytes, context.config.fetch_answer_bytes_max),
        clock=context.clock,
    )
    taken = collector.collect()
    try:
        if plain.is_needed:
            room = max(0, wanted.max_records - sum(len(each.records) for each in taken))
            wait_ms = 0 if taken or wanted.min_bytes <= 0 else wanted.max_wait_ms
            more = await plain.ask_in_turns(wait_ms, room, collector if not taken else None)
            taken = taken or more
        elif not taken and wanted.min_bytes > 0:
            taken = await collector.wait(wanted.max_wait_ms / 1000)
    except BaseException:
        collector.give_back(taken)
        raise
    return taken
