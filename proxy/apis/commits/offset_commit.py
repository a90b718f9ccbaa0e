"""OffsetCommit v2-10: a lane's commit becomes an individual commit and a stable offset.

Behaviour: a member that holds a lane and commits offset X has done all records of that lane before
X. keylane sends the stable offset of each physical partition to the broker, with the caller's own
member id and generation, so that the broker fences zombies and a group can leave keylane at any
time. Only if the broker accepts it, the journal is written (acks=all), and only then the client is
answered. A push that does not go forward is in the journal first, as an intent. Each push carries
a note as its metadata: its node, and, if it goes beyond members' commits of some lane, those
commits. An admin's commit for an inactive group works the same way, also backwards. Topics without
lanes pass unchanged in the same request; a request without lanes passes as bytes.
A client id with key ranges commits its ranges of a partition: an offset X means that all their
records before X are done. A commit of a whole partition by any other client passes unchanged, and
the group's state follows it at its next call.
If one request commits a partition both as lanes and as itself, the latter is refused: Kafka holds
one offset for both. While the switch `accept.individual.commit` is off, lanes are refused with
INVALID_REQUEST.
An entry with offset ranges in a tagged field (v8+, docs/protocol-extensions.md) says that the
records of its keys in them are done, out of order as they may be: of a lane's keys, of the key
ranges that another field names, or of the whole partition, which needs no lane rule. The answer has
the stable offset, and the KIP draft's number of an error beside the stock code. Kafka gets stable
offsets only.

Source: KIP-848 (v9), KIP-516 (v10); docs/decisions/005, 027, 032, 049.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import UpstreamLost
from keylane.proxy.apis.commits.entries import (
    Codes,
    Entry,
    TopicKey,
    admit,
    apply_commits,
    by_topic,
    code_of,
    draft_key,
    error_codes,
    moved_states,
    pushed_topics,
    refuse_shared,
    relay_moving,
    resolve_commits,
    topic_key,
)
from keylane.proxy.apis.commits.lane_offsets import (
    BUSY,
    NONE,
    UNKNOWN_PARTITION,
    Draft,
    open_drafts,
)
from keylane.proxy.apis.commits.late_offsets import note_late
from keylane.proxy.apis.commits.member_epochs import epoch_for
from keylane.proxy.apis.commits.pushes_sent import TOO_LONG, SentPushes
from keylane.proxy.apis.commits.ranged_commits import (
    answer_tags,
    find_ranged,
    log_duplicates,
    note_ranges,
)
from keylane.proxy.apis.commits.steps_back import note_steps_back
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.large import check_partitions
from keylane.proxy.apis.shared.refusals import expect_right
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.offset_commit import (
    TOPIC_ID_FROM,
    CommitAnswer,
    CommitRequest,
    CommitResponse,
    CommitTopic,
    IdTopic,
    NamedTopic,
    read_commit_response,
    write_commit_request,
    write_commit_response,
)

STALE: Final = ErrorCode.stale_member_epoch


async def handle_offset_commit(
    request: Request, wanted: CommitRequest, context: Context
) -> Buffers:
    """Apply lanes' commits to drafts, push stable offsets, save, answer."""
    check_partitions(wanted.topics)
    topics, views, ranged = await find_ranged(wanted.topics, context, request.header.client_id)
    wanted, group = wanted._replace(topics=topics), wanted.group_id
    by_id = request.api_version >= TOPIC_ID_FROM
    moved = moved_states(group, topics, views, context)
    if not any(views):
        return await relay_moving(request, group, Operation.READ, moved, context)
    await expect_right(group, Operation.READ, context)
    entries = resolve_commits(topics, views)
    note_ranges(entries, ranged, is_strict=context.config.strict_offset_ranges)
    allowed, denied = await admit(group, entries, context)
    await context.caught_up()
    async with context.hold(group):
        drafts, refused = await open_drafts(group, allowed, context)
        # Neither member nor generation: an admin's reset, or a consumer that is in no group.
        is_reset = not wanted.member_id and wanted.generation_id_or_member_epoch < 0
        touched = apply_commits(entries, drafts, refused | denied, context, reset=is_reset)
        refuse_shared(entries, topics, touched, by_id=by_id)
        sent = SentPushes(group, context)
        pushed = await sent.prepare(touched)
        answer = await _push(request, wanted, views, entries, pushed, sent, context)
        for key in moved:
            context.groups.pushes.note_moved(key)
        codes = error_codes(answer)
        taken = await _settle(pushed, codes, sent, by_id=by_id)
        log_duplicates(group, entries)
        saved = await _save(group, taken, context)
        for draft in taken:
            draft.code = saved
        if saved is NONE:
            note_late(_member_of(wanted), taken, context)
            note_steps_back(group, wanted.member_id, taken, context)
            _note_times(group, views, entries, taken, context)
    built = _build(wanted, views, entries, codes, answer)
    return request.answer((write_commit_response(built, request.api_version),))


async def _push(
    request: Request,
    wanted: CommitRequest,
    views: Sequence[View | None],
    entries: Sequence[Entry],
    drafts: Sequence[Draft],
    sent: SentPushes,
    context: Context,
) -> CommitResponse | None:
    """Commit stable offsets and plain topics at the broker; None: there is nothing to commit.

    A broker that has moved the member's epoch on meanwhile is asked once more.
    """
    version = request.api_version
    of_member = wanted.group_id, wanted.member_id, wanted.generation_id_or_member_epoch

    async def ask(topics: tuple[Any, ...], epoch: int) -> CommitResponse:
        asked = wanted._replace(topics=topics, generation_id_or_member_epoch=epoch)
        pending = context.send((request.with_body(write_commit_request(asked, version)),))
        # The next request may go behind this one now; this one's answer waits for the journal.
        context.release()
        return read_commit_response(request.answer_body(await pending), version)

    with sent.sending():
        notes = {draft.place: sent.note_of(draft) for draft in drafts}
        by_id = version >= TOPIC_ID_FROM
        topics = tuple(pushed_topics(wanted.topics, views, notes, drafts, by_id=by_id))
        if not topics:
            return None
        epoch = epoch_for(*of_member, entries, wanted.topics, context)
        answer = await ask(topics, epoch)
        # The answer to the heartbeat that moved the epoch came over this connection before.
        newer = epoch_for(*of_member, entries, wanted.topics, context)
        if newer != epoch and STALE in error_codes(answer).values():
            answer = await ask(topics, newer)
        return answer


async def _settle(
    pushed: Sequence[Draft], codes: Codes, sent: SentPushes, *, by_id: bool
) -> list[Draft]:
    """Note the broker's answer to each push; return drafts that it took."""
    found = [codes.get(draft_key(draft, by_id=by_id)) for draft in pushed]
    taken = await sent.settle(pushed, found)
    for draft, code in zip(pushed, found, strict=True):
        draft.code = UNKNOWN_PARTITION if code is None else code
        if code == TOO_LONG:
            draft.code = BUSY  # the client commits again, and the note is shorter then
    return taken


async def _save(group: str, taken: Sequence[Draft], context: Context) -> ErrorCode:
    """Write the journal; return the code for what Kafka has taken already."""
    if not taken:
        return NONE
    try:
        await context.groups.save(group, [(d.view, d.partition, d.state) for d in taken])
    except UpstreamLost:
        # The journal writer logs the reason. The client commits again, which is idempotent.
        return ErrorCode.coordinator_not_available
    return NONE


def _member_of(wanted: CommitRequest) -> Beat | None:
    """The member that commits; None: an admin, or a consumer that is in no group."""
    if not wanted.member_id:
        return None
    generation_id, instance_id = wanted.generation_id_or_member_epoch, wanted.group_instance_id
    return Beat(wanted.group_id, generation_id, wanted.member_id, instance_id)


def _note_times(
    group: str,
    views: Sequence[View | None],
    entries: Sequence[Entry],
    taken: Sequence[Draft],
    context: Context,
) -> None:
    """Note which lanes were committed, for views of the group."""
    places = {draft.place for draft in taken}
    for view, of_topic in zip(views, by_topic(entries, len(views)), strict=True):
        if view is not None and view.lanes is not None:
            done = [e.index for e in of_topic if e.error is None and e.place in places]
            context.groups.note_commits(group, view, done)


def _build(
    wanted: CommitRequest,
    views: Sequence[View | None],
    entries: Sequence[Entry],
    codes: Codes,
    answer: CommitResponse | None,
) -> CommitResponse:
    topics: dict[TopicKey, CommitTopic[CommitAnswer]] = {}
    of_topics = by_topic(entries, len(views))
    for topic, view, of_topic in zip(wanted.topics, views, of_topics, strict=True):
        if not of_topic and (view is None or not view.error_code):
            continue  # brokers leave out what is there and of which nothing is asked
        key = topic_key(topic)
        # A topic that stands twice is answered once, as by `OffsetCommitResponse.Builder`.
        earlier = topics[key].partitions if key in topics else ()
        own = (CommitAnswer(e.index, code_of(e, topic, codes), answer_tags(e)) for e in of_topic)
        both = (*earlier, *own)
        topics[key] = NamedTopic(key, both) if isinstance(key, str) else IdTopic(key, both)
    if answer is not None:
        return answer._replace(topics=tuple(topics.values()))
    return CommitResponse(tuple(topics.values()))
