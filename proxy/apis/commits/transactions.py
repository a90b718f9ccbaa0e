"""AddPartitionsToTxn v0-3, EndTxn v0-5, TxnOffsetCommit v0-5: transactions over lanes.

Behaviour: a producer that writes to lanes adds their physical partitions to its transaction.
A TxnOffsetCommit of lanes becomes one of their partitions' stable positions in the client's own
transaction, with the positions of the lanes beside each as its metadata (`offsets.txn_metadata`).
Kafka makes both visible when the transaction commits, and never when it does not. The member id
and generation pass through, so the broker fences zombies.
Kafka keeps only the last metadata, so transactions of one group take turns on a partition, from
the TxnOffsetCommit to the end: the next one waits while Kafka has a pending offset there. keylane
reads EndTxn, so that it does not take one transaction of a producer epoch for the next. Among many
nodes EndTxn may pass another node, and the broker's answer decides (decision 014).
Offset ranges (v3+, docs/protocol-extensions.md) stand beside the positions there, as far as a
broker takes metadata: some 150 of them. Beyond that its OFFSET_METADATA_TOO_LARGE is the answer.

Source: KIP-98, KIP-447, KIP-890; docs/decisions/049.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from keylane.offsets.pushes import UNANSWERED_S, Push, TransactionWriter
from keylane.offsets.records.journal import StateKey
from keylane.offsets.txn_metadata import LaneCommit, LaneNote, merged, write_note
from keylane.proxy.apis.commits.entries import (
    Entry,
    admit,
    answer_codes,
    apply_commits,
    code_of,
    draft_key,
    error_codes,
    pushed_topics,
    refuse_shared,
    resolve,
    resolve_commits,
)
from keylane.proxy.apis.commits.lane_offsets import (
    BUSY,
    NONE,
    UNKNOWN_PARTITION,
    UNSTABLE,
    Draft,
    open_drafts,
)
from keylane.proxy.apis.commits.late_offsets import note_transaction
from keylane.proxy.apis.commits.member_epochs import epoch_for
from keylane.proxy.apis.commits.ranged_commits import find_ranged, note_ranges
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import wished_topics
from keylane.proxy.apis.shared.large import check_partitions
from keylane.proxy.apis.shared.refusals import expect_right
from keylane.proxy.apis.shared.relay import relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.apis.shared.views import find_views
from keylane.proxy.groups.group_names import Place
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.transactions")

MEMBER_VERSION: Final = 3
"""From here on a request names the member, and clients know that a member may be fenced."""
ABORTABLE_VERSION: Final = 5
TURN_WAIT_S: Final = 2.0
"""Time that a request waits for its turn before the client is answered to ask again. Well below
the time-outs of requests and sessions, as other requests of the connection stand behind it."""
TURN_PAUSE_S: Final = 0.002
TURN_PAUSE_S_MAX: Final = 0.05
"""Pauses between questions whether the broker still has a pending offset, of which there is no
event: the first is about a round trip, the last 20 questions a second."""
EPOCH_WAIT_S: Final = 1.0
"""Time in which the answer to a heartbeat comes that the broker has answered already."""
EPOCH_PAUSE_S: Final = 0.02
OWN_PAUSE_S: Final = 0.02
"""Before 4.0 a broker's coordinator forgets a transaction some time after its markers are there."""


async def handle_add_partitions(request: Request, context: Context) -> Buffers:
    """Add physical partitions, each once; answer per lane."""
    wanted = request.decode()
    asked = wanted.v3_and_below_topics
    check_partitions(asked)
    views = await find_views(asked, context)
    if not any(views):
        return await relay(request, context)
    entries = [
        resolve(number, int(index), view)
        for number, (topic, view) in enumerate(zip(asked, views, strict=True))
        for index in topic.partitions
    ]
    names = [
        str(topic.name) if v is None else v.topic for topic, v in zip(asked, views, strict=True)
    ]
    physical: dict[str, dict[int, None]] = {name: {} for name in names}
    for entry in entries:
        if entry.error is None:
            name, partition = entry.place or (names[entry.topic_number], entry.index)
            physical[name][partition] = None
    topics = wished_topics(asked, {name: found for name, found in physical.items() if found})
    answer = None
    if topics:
        pending = context.send((request.with_entity(replace(wanted, v3_and_below_topics=topics)),))
        context.release()
        answer = request.decode_answer(await pending)
    codes: dict[Place, ErrorCode] = {
        (str(topic.name), int(entry.partition_index)): entry.partition_error_code
        for topic in (answer.results_by_topic_v3_and_below if answer is not None else ())
        for entry in topic.results_by_partition
    }

    def code_of_added(entry: Entry, topic: Any) -> ErrorCode:
        place = entry.place or (str(topic.name), entry.index)
        return entry.error or codes.get(place, UNKNOWN_PARTITION)

    return answer_codes(request, answer, asked, entries, code_of_added)


def relays_end_txn(_request: Request, context: Context) -> bool:
    """Relay while no transaction holds lanes: its end means nothing here."""
    return context.groups.pushes.is_idle


async def handle_end_txn(request: Request, context: Context) -> Buffers:
    """Relay; note that this transaction is over before the client knows.

    Only by the broker's word: any client can send the producer id of another one.
    """
    wanted = request.decode()
    writer = TransactionWriter(int(wanted.producer_id), int(wanted.producer_epoch))
    context.groups.pushes.leave(writer)
    pending = context.send((request.frame,))
    context.release()
    frame = await pending
    if request.decode_answer(frame).error_code == NONE:
        context.groups.pushes.end(writer)
    return (frame,)


async def handle_txn_offset_commit(request: Request, wanted: Any, context: Context) -> Buffers:
    """Put stable positions, and lanes beside them, into the client's transaction."""
    check_partitions(wanted.topics)
    topics, views, ranged = await find_ranged(wanted.topics, context, request.header.client_id)
    if not any(views):
        return await relay(request, context)
    wanted = replace(wanted, topics=topics)
    group = str(wanted.group_id)
    await expect_right(group, Operation.READ, context)
    writer = TransactionWriter(int(wanted.producer_id), int(wanted.producer_epoch))
    entries = resolve_commits(wanted.topics, views)
    note_ranges(entries, ranged, is_strict=context.config.strict_offset_ranges)
    allowed, denied = await admit(group, entries, context)
    pushes = context.groups.pushes
    until_s, pause_s, code = context.clock() + TURN_WAIT_S, TURN_PAUSE_S, BUSY
    trusts_own, generation = context.groups.sees_ends, context.generations.newest(group)
    await context.caught_up()
    pushes.wait(writer)
    try:
        # Nothing else of the connection is sent meanwhile. The end of the transaction may come
        # over another one, when the client waits no longer.
        while pushes.is_waiting(writer):
            async with context.hold(group):
                if _is_overtaken(request.api_version, group, generation, context):
                    code = ErrorCode.group_authorization_failed
                    break
                drafts, refused = await open_drafts(
                    group, allowed, context, writer=writer, trusts_own=trusts_own
                )
                refused |= denied
                if UNSTABLE not in refused.values() and pushes.is_waiting(writer):
                    touched = apply_commits(entries, drafts, refused, context, reset=False)
                    refuse_shared(entries, wanted.topics, touched, by_id=False)
                    return await _commit(request, wanted, views, entries, touched, context)
                if context.clock() >= until_s:
                    code = _busy_code(request.api_version, group, refused, allowed, context)
                    break
            await context.pause(pause_s if trusts_own else OWN_PAUSE_S)
            pause_s, trusts_own = min(2 * pause_s, TURN_PAUSE_S_MAX), True
    finally:
        pushes.leave(writer)
    return answer_codes(request, None, wanted.topics, entries, lambda _entry, _topic: code)


def _is_overtaken(version: int, group: str, generation: int | None, context: Context) -> bool:
    """Say whether lanes of the group were assigned anew while the request waited for its turn.

    Later versions name the generation, and the broker refuses what is of an earlier one. Without,
    it would take offsets of lanes that are another member's by now, and only for the wait here.
    """
    if version >= MEMBER_VERSION:
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
    version: int,
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
    if version >= ABORTABLE_VERSION:
        return ErrorCode.transaction_abortable
    if version >= MEMBER_VERSION:
        return ErrorCode.illegal_generation
    # The only code of these versions that makes clients abort; others end the producer.
    return ErrorCode.group_authorization_failed


async def _commit(
    request: Request,
    wanted: Any,
    views: Sequence[View | None],
    entries: Sequence[Entry],
    touched: Sequence[Draft],
    context: Context,
) -> Buffers:
    """Send what comes of the drafts and answer; the group's lock is held."""
    pushes = context.groups.pushes
    writer = TransactionWriter(int(wanted.producer_id), int(wanted.producer_epoch))
    earlier = {draft.place: pushes.commits_of(draft.key, writer) for draft in touched}
    commits = {draft.place: merged(earlier[draft.place], draft.said) for draft in touched}
    notes = {draft.place: _note(draft, commits[draft.place], context) for draft in touched}
    topics = pushed_topics(wanted.topics, views, notes, touched, by_id=False)
    answer = None
    if topics:
        if touched:
            context.groups.check_ownership(str(wanted.group_id))
        until_s = context.clock() + UNANSWERED_S
        for draft in touched:
            pushes.note_push(draft.key, Push(writer, commits[draft.place], until_s))
        asked = replace(wanted, topics=tuple(topics))
        answer = await _ask(request, asked, entries, wanted.topics, context)
    codes = error_codes(answer)
    for draft in touched:
        draft.code = codes.get(draft_key(draft, by_id=False), UNKNOWN_PARTITION)
        is_taken = draft.code == NONE
        if is_taken:
            context.groups.note_used(draft.group, draft.view)
            note_transaction(draft, context)
        held = commits if is_taken else earlier
        pushes.settle_push(draft.key, Push(writer, held[draft.place]))
    return answer_codes(request, answer, wanted.topics, entries, partial(code_of, codes=codes))


async def _ask(
    request: Request, asked: Any, entries: Sequence[Entry], topics: Sequence[Any], context: Context
) -> Any:
    """Return the broker's answer; of a KIP-848 member under an epoch that the broker takes.

    The member's heartbeats go over another connection: an answer that moves the epoch may be on
    its way while the broker refuses the old one.
    """
    if request.api_version < MEMBER_VERSION:
        return await _sent(request, asked, context)
    of_member = str(asked.group_id), str(asked.member_id), int(asked.generation_id)
    until_s = context.clock() + EPOCH_WAIT_S
    while True:
        epoch = epoch_for(*of_member, entries, topics, context)
        answer = await _sent(request, replace(asked, generation_id=i32(epoch)), context)
        is_old = ErrorCode.illegal_generation in error_codes(answer).values()
        if not is_old or not context.consumer_groups.member(*of_member[:2]):
            return answer
        while epoch == epoch_for(*of_member, entries, topics, context):
            if context.clock() >= until_s:
                return answer
            await context.pause(EPOCH_PAUSE_S)


async def _sent(request: Request, asked: Any, context: Context) -> Any:
    pending = context.send((request.with_entity(asked),))
    # The next request may go behind this one now; this one's answer waits for the broker.
    context.release()
    return request.decode_answer(await pending)


def _note(draft: Draft, commits: tuple[LaneCommit, ...], context: Context) -> str:
    seen = context.groups.concluded_epoch(draft.key, draft.state)
    note = LaneNote(draft.state.stable_position, commits, seen)
    return write_note(draft.view.topic_id, note, draft.state.hash_tag)
