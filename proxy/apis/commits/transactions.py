"""AddPartitionsToTxn v0-3, EndTxn v0-5, TxnOffsetCommit v0-5: transactions over lanes.

Behaviour: a producer that writes to lanes adds their physical partitions to its transaction.
TxnOffsetCommit of lanes becomes one of their physical partitions' stable positions in the client's
own transaction, and beside each, as its metadata, the positions of the lanes
(`offsets.lane_note`): Kafka makes both visible when the transaction commits, and never when it
does not. The member id and generation pass through, so the broker fences zombies. Kafka keeps the
metadata of the last one that was written, so transactions of one group take turns on a partition,
from the TxnOffsetCommit to the end: the next one waits, as long as Kafka has a pending offset
there. EndTxn is looked at, so that one transaction of a producer epoch is not taken for the next;
among many nodes it may pass another one, and the broker's word stands for it (decision 014).
Not done: offset ranges of native consumers.

In:    requests and answers.  Out: answers per lane.
Source: KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i32

from keylane.offsets.pushes import UNANSWERED_S, Push, Writer
from keylane.offsets.records.journal import StateKey
from keylane.offsets.txn_metadata import LaneCommit, LaneNote, merged, write_note
from keylane.proxy.apis.commits.lane_offsets import (
    BUSY,
    NONE,
    UNKNOWN_PARTITION,
    UNSTABLE,
    Draft,
    Place,
    denied_places,
    find_views,
    open_drafts,
)
from keylane.proxy.apis.commits.late_offsets import note_transaction
from keylane.proxy.apis.commits.offset_commit import (
    Codes,
    Errors,
    apply_commits,
    committed_lanes,
    committed_places,
    error_codes,
    merge_topics,
    physical_topics,
    refuse_shared,
    touched_drafts,
)
from keylane.proxy.apis.shared.context import Context, Operation
from keylane.proxy.apis.shared.large import check_partitions
from keylane.proxy.apis.shared.refusals import expect_right
from keylane.proxy.apis.shared.relay import relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.transactions")

TXN_OFFSET_COMMIT: Final = 28
MEMBER_VERSION: Final = 3
"""From here on a request names the member, and clients know that a member may be fenced."""
ABORTABLE_VERSION: Final = 5
TURN_WAIT_S: Final = 2.0
"""How long a request waits for its turn before the client is answered to ask again. Well below
the time-outs of requests and sessions, as other requests of the connection stand behind it."""
TURN_PAUSE_S: Final = 0.002
TURN_PAUSE_S_MAX: Final = 0.05
"""Pauses between questions whether the broker still has a pending offset, of which there is no
event: the first is about a round trip, the last 20 questions a second."""
OWN_PAUSE_S: Final = 0.02
"""Before 4.0 a broker's coordinator forgets a transaction some time after its markers are there."""


async def handle_add_partitions(request: Request, context: Context) -> Buffers:
    """Add physical partitions, each once; answer per lane."""
    wanted = request.decode()
    check_partitions(wanted.v3_and_below_topics)
    views = await find_views(wanted.v3_and_below_topics, context)
    if not any(views):
        return await relay(request, context)
    physical: dict[str, dict[i32, None]] = {}
    for topic, view in zip(wanted.v3_and_below_topics, views, strict=True):
        name = str(topic.name) if view is None else view.topic
        partitions = physical.setdefault(name, {})
        for index in topic.partitions:
            if view is None:
                partitions[index] = None
            elif not view.error_of(index):
                partitions[i32(view.partition_of(index))] = None
    template = wanted.v3_and_below_topics[0]
    topics = tuple(
        replace(template, name=type(template.name)(name), partitions=tuple(partitions))
        for name, partitions in physical.items()
        if partitions
    )
    if not topics:
        return request.answer_entity(_per_lane(request, wanted, views, None))
    pending = context.send((request.with_entity(replace(wanted, v3_and_below_topics=topics)),))
    context.release()
    answer = request.decode_answer(await pending)
    return request.answer_entity(_per_lane(request, wanted, views, answer))


def _per_lane(request: Request, wanted: Any, views: list[View | None], answer: Any) -> Any:
    """The broker's answer spread over lanes; None: it was not asked."""
    module: Any = load_payload_module(request.api_key, request.api_version, EntityType.response)
    codes: dict[Place, ErrorCode] = {
        (str(topic.name), int(entry.partition_index)): entry.partition_error_code
        for topic in (answer.results_by_topic_v3_and_below if answer is not None else ())
        for entry in topic.results_by_partition
    }

    def code_of(topic: Any, view: View | None, index: int) -> ErrorCode:
        if view is None:
            return codes.get((str(topic.name), index), UNKNOWN_PARTITION)
        if code := view.error_of(index):
            return ErrorCode(code)
        return codes.get((view.topic, view.partition_of(index)), UNKNOWN_PARTITION)

    results = tuple(
        module.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                module.AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=code_of(topic, view, int(index))
                )
                for index in topic.partitions
            ),
        )
        for topic, view in zip(wanted.v3_and_below_topics, views, strict=True)
    )
    if answer is not None:
        return replace(answer, results_by_topic_v3_and_below=results)
    return module.AddPartitionsToTxnResponse(
        throttle_time=timedelta(0), results_by_topic_v3_and_below=results
    )


def relays_end_txn(_request: Request, context: Context) -> bool:
    """Nobody's transaction holds lanes, so its end means nothing here."""
    return context.groups.pushes.is_idle


async def handle_end_txn(request: Request, context: Context) -> Buffers:
    """Relay; note that this transaction is over before the client knows.

    Only by the broker's word: anybody can send the producer id of somebody else.
    """
    wanted = request.decode()
    writer = Writer(int(wanted.producer_id), int(wanted.producer_epoch))
    context.groups.pushes.leave(writer)
    pending = context.send((request.frame,))
    context.release()
    frame = await pending
    if request.decode_answer(frame).error_code == NONE:
        context.groups.pushes.end(writer)
    return (frame,)


async def handle_txn_offset_commit(request: Request, context: Context) -> Buffers:
    """Put stable positions, and lanes beside them, into the client's transaction."""
    wanted = request.decode()
    check_partitions(wanted.topics)
    views = await find_views(wanted.topics, context, request.header.client_id)
    if not any(views):
        return await relay(request, context)
    group = str(wanted.group_id)
    await expect_right(group, Operation.READ, context)
    writer = Writer(int(wanted.producer_id), int(wanted.producer_epoch))
    places = committed_places(wanted, views)
    denied = await denied_places(places, context)
    allowed = {place: view for place, view in places.items() if place not in denied}
    pushes = context.groups.pushes
    await context.groups.wait_scanned(group, committed_lanes(wanted, views))
    until_s, pause_s, code = context.clock() + TURN_WAIT_S, TURN_PAUSE_S, BUSY
    trusts_own, generation = context.groups.sees_ends, context.generations.newest(group)
    await context.caught_up()
    pushes.wait(writer)
    try:
        # Nothing else of the connection is sent meanwhile. The end of the transaction may come
        # over another one, when the client waits no longer.
        while pushes.is_waiting(writer):
            async with context.hold(group):
                if _is_overtaken(request, group, generation, context):
                    code = ErrorCode.group_authorization_failed
                    break
                drafts, refused = await open_drafts(
                    group, allowed, context, writer=writer, trusts_own=trusts_own
                )
                refused |= denied
                if UNSTABLE not in refused.values() and pushes.is_waiting(writer):
                    return await _commit(request, wanted, views, drafts, refused, context)
                if context.clock() >= until_s:
                    code = _busy_code(request, group, refused, places, context)
                    break
            await context.pause(pause_s if trusts_own else OWN_PAUSE_S)
            pause_s, trusts_own = min(2 * pause_s, TURN_PAUSE_S_MAX), True
    finally:
        pushes.leave(writer)
    errors = {
        (number, int(entry.partition_index)): code
        for number, topic in enumerate(wanted.topics)
        for entry in topic.partitions
    }
    return request.answer_entity(_build(request, wanted, views, errors, {}, None))


def _is_overtaken(request: Request, group: str, generation: int | None, context: Context) -> bool:
    """Whether the group has dealt out its lanes anew while the request waited for its turn.

    Later versions name the generation, and the broker refuses what is of an earlier one. Without,
    it would take offsets of lanes that are another member's by now, and only for the wait here.
    """
    if request.api_version >= MEMBER_VERSION:
        return False
    if context.generations.newest(group) == generation:
        return False
    log.warning(
        "transaction has to abort session_id=%s group=%s "
        "reason=the group has a new generation, and the request names none",
        context.session_id,
        group,
    )
    return True


def _busy_code(
    request: Request,
    group: str,
    refused: dict[Place, ErrorCode],
    places: dict[Place, View],
    context: Context,
) -> ErrorCode:
    """The code for a client whose turn does not come.

    It comes when the transaction before it ends, so the client asks again. Unless this proxy does
    not know whose transaction that is, since it was started after the push: it may be the
    client's own, and what that has committed is not known. The client has to abort it.
    """
    pushes = context.groups.pushes
    unknown = [
        place
        for place, code in refused.items()
        if code == UNSTABLE
        and not pushes.is_known(StateKey(group, places[place].topic_id, place[1]))
    ]
    if not unknown:
        return BUSY
    log.warning(
        "transaction has to abort session_id=%s group=%s topic=%s partition=%d "
        "reason=offsets of a transaction from before the start are pending",
        context.session_id,
        group,
        *unknown[0],
    )
    if request.api_version >= ABORTABLE_VERSION:
        return ErrorCode.transaction_abortable
    if request.api_version >= MEMBER_VERSION:
        return ErrorCode.illegal_generation
    # The only code of these versions that makes clients abort; others end the producer.
    return ErrorCode.group_authorization_failed


async def _commit(
    request: Request,
    wanted: Any,
    views: Sequence[View | None],
    drafts: dict[Place, Draft],
    refused: dict[Place, ErrorCode],
    context: Context,
) -> Buffers:
    """Commit to drafts, send what comes of it; the group's lock is held."""
    errors = apply_commits(wanted, views, drafts, refused, context, reset=False)
    touched = touched_drafts(wanted.topics, views, drafts, errors)
    errors |= refuse_shared(wanted, views, touched, by_id=False)
    pushes = context.groups.pushes
    writer = Writer(int(wanted.producer_id), int(wanted.producer_epoch))
    earlier = {draft.place: pushes.commits_of(draft.key, writer) for draft in touched}
    commits = {draft.place: merged(earlier[draft.place], draft.said) for draft in touched}
    notes = {draft.place: _note(draft, commits[draft.place], context) for draft in touched}
    lanes = physical_topics(wanted, views, touched, by_id=False, notes=notes)
    plain = [topic for topic, view in zip(wanted.topics, views, strict=True) if view is None]
    topics = merge_topics(plain, lanes, by_id=False)
    answer = None
    if topics:
        if touched:
            context.groups.check_tenure(str(wanted.group_id))
        until_s = context.clock() + UNANSWERED_S
        for draft in touched:
            pushes.note_push(draft.key, Push(writer, commits[draft.place], until_s))
        pending = context.send((request.with_entity(replace(wanted, topics=tuple(topics))),))
        # The next request may go behind this one now; this one's answer waits for the broker.
        context.release()
        answer = request.decode_answer(await pending)
    codes = error_codes(answer, by_id=False)
    for draft in touched:
        is_taken = codes.get((draft.view.topic, draft.partition)) == NONE
        if is_taken:
            context.groups.note_used(draft.group, draft.view)
            note_transaction(draft, context)
        held = commits if is_taken else earlier
        pushes.settle_push(draft.key, Push(writer, held[draft.place]))
    return request.answer_entity(_build(request, wanted, views, errors, codes, answer))


def _note(draft: Draft, commits: tuple[LaneCommit, ...], context: Context) -> str:
    seen = context.groups.concluded_epoch(draft.key, draft.state)
    return write_note(draft.view.topic_id, LaneNote(draft.state.stable_position, commits, seen))


def _build(
    request: Request,
    wanted: Any,
    views: Sequence[View | None],
    errors: Errors,
    codes: Codes,
    answer: Any,
) -> Any:
    module: Any = load_payload_module(TXN_OFFSET_COMMIT, request.api_version, EntityType.response)

    def code_of(number: int, topic: Any, view: View | None, index: int) -> ErrorCode:
        if (number, index) in errors:
            return errors[number, index]
        name = str(topic.name) if view is None else view.topic
        partition = index if view is None else view.partition_of(index)
        return codes.get((name, partition), UNKNOWN_PARTITION)

    topics = tuple(
        module.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=tuple(
                module.TxnOffsetCommitResponsePartition(
                    partition_index=entry.partition_index,
                    error_code=code_of(number, topic, view, int(entry.partition_index)),
                )
                for entry in topic.partitions
            ),
        )
        for number, (topic, view) in enumerate(zip(wanted.topics, views, strict=True))
    )
    if answer is not None:
        return replace(answer, topics=topics)
    return module.TxnOffsetCommitResponse(throttle_time=timedelta(0), topics=topics)
