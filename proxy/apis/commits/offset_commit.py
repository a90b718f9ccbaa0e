"""OffsetCommit v2-10: a lane's commit becomes an individual commit and a stable offset.

Behaviour: a member that holds a lane and commits offset X means: all records of that lane
before X are done. The stable offset of each physical partition is forwarded with the
caller's own member id and generation, so the broker fences zombies and a group can leave
keylane at any time; only when the broker took it, the journal is written (acks=all), and only
then the client is answered. A push that does not go forward is in the journal first, as an
intent. Each carries a note as its metadata: which node made it, and where it is beyond what
members said of some lane, what they said with it. An
admin's commit for an inactive group works the same way, also backwards. Topics without lanes ride
along as they are; a request with none passes as bytes.
A client id with key ranges commits its ranges of a partition: an offset X means that all their
records before X are done. A commit of a whole partition by anybody else passes as it is, and
moves the group's state there as its next call.
A partition that one request commits both as lanes and as itself is refused for the latter:
Kafka holds one offset for both. While the switch `accept.individual.commit` is off, lanes are
refused with INVALID_REQUEST.
Not done: offset ranges of native consumers (tagged fields).

In:    requests and answers.  Out: answers per lane.
Source: KIP-848 (v9), KIP-516 (v10); docs/decisions/005, 027, 032.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import UpstreamLost
from keylane.offsets.records.journal import StateKey
from keylane.offsets.txn_metadata import LaneCommit
from keylane.offsets.values import NO_LEADER_EPOCH, CommitError
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
from keylane.proxy.apis.commits.late_offsets import note_late
from keylane.proxy.apis.commits.pushes_sent import TOO_LONG, SentPushes
from keylane.proxy.apis.commits.steps_back import note_steps_back
from keylane.proxy.apis.shared.context import Context, Operation
from keylane.proxy.apis.shared.large import check_partitions
from keylane.proxy.apis.shared.refusals import expect_right
from keylane.proxy.apis.shared.relay import relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.offset_commit import (
    TOPIC_ID_FROM,
    CommitResponse,
    NamedTopicAnswer,
    PartitionAnswer,
    TopicAnswer,
    read_commit_response,
    write_commit_request,
    write_commit_response,
)

COMMIT_NOT_ALLOWED: Final = ErrorCode.invalid_request
"""Of the KIP draft's INDIVIDUAL_COMMIT_NOT_ALLOWED the number means another error today."""

Errors = dict[tuple[int, int], ErrorCode]
"""(number of the topic in the request, its partition or lane) -> what is answered."""
BrokerKey = tuple[str | uuid.UUID, int]
"""Topic name, from v10 its id, and partition."""
Codes = dict[BrokerKey, ErrorCode]


async def handle_offset_commit(request: Request, context: Context) -> Buffers:
    """Apply lanes' commits to drafts, push stable offsets, save, answer."""
    wanted = request.decode()
    check_partitions(wanted.topics)
    views = await find_views(wanted.topics, context, request.header.client_id)
    group = str(wanted.group_id)
    by_id = request.api_version >= TOPIC_ID_FROM
    moved = moved_states(group, wanted, views, context, by_id=by_id)
    if not any(views):
        return await relay_moving(request, group, Operation.READ, moved, context)
    await expect_right(group, Operation.READ, context)
    places = committed_places(wanted, views)
    denied = await denied_places(places, context)
    allowed = {place: view for place, view in places.items() if place not in denied}
    await context.groups.wait_scanned(group, committed_lanes(wanted, views))
    await context.caught_up()
    async with context.hold(group):
        drafts, refused = await open_drafts(group, allowed, context)
        refused |= denied
        # Neither member nor generation: an admin's reset, or a consumer that is in no group.
        is_reset = not wanted.member_id and int(wanted.generation_id_or_member_epoch) < 0
        errors = apply_commits(wanted, views, drafts, refused, context, reset=is_reset)
        touched = touched_drafts(wanted.topics, views, drafts, errors)
        errors |= refuse_shared(wanted, views, touched, by_id=by_id)
        sent = SentPushes(group, context)
        held = await sent.prepare(touched)
        pushed = [draft for draft in touched if draft.place not in held]
        answer = await _push(request, wanted, views, pushed, sent, context)
        for key in moved:
            context.groups.pushes.note_moved(key)
        codes = error_codes(answer, by_id=by_id)
        found = [codes.get(_draft_key(draft, by_id=by_id)) for draft in pushed]
        taken = await sent.settle(pushed, found)
        # The note beside it was too long, and is left out when the client commits again.
        held |= {d.place: BUSY for d, code in zip(pushed, found, strict=True) if code == TOO_LONG}
        saved = await _save(group, taken, context)
        if saved is NONE:
            note_late(wanted, taken, context)
            note_steps_back(group, str(wanted.member_id), taken, context)
            _note_times(group, wanted.topics, views, errors, taken, context)
    codes |= {_draft_key(draft, by_id=by_id): saved for draft in taken}
    codes |= {_draft_key(d, by_id=by_id): held[d.place] for d in touched if d.place in held}
    built = _build(wanted, views, errors, codes, answer, by_id=by_id)
    return request.answer((write_commit_response(built, request.api_version),))


def moved_states(
    group: str, wanted: Any, views: Sequence[View | None], context: Context, *, by_id: bool
) -> list[StateKey]:
    """States of the group whose partition the request names as a whole."""
    if all(views):
        return []
    keys: list[StateKey] = []
    for topic, view in zip(wanted.topics, views, strict=True):
        topic_id = topic.topic_id if by_id else context.registry.id_of_name(str(topic.name))
        if view is None and topic_id is not None:
            places = [StateKey(group, topic_id, int(e.partition_index)) for e in topic.partitions]
            keys += [key for key in places if context.groups.has_state(key)]
    return keys


async def relay_moving(
    request: Request,
    group: str,
    operation: Operation,
    moved: Sequence[StateKey],
    context: Context,
) -> Buffers:
    """Pass what moves or deletes offsets of whole partitions; states follow at their next call.

    operation: what brokers want of the group for it.
    """
    if not moved:
        return await relay(request, context)
    await expect_right(group, operation, context)
    await context.caught_up()
    async with context.hold(group):
        answer = await relay(request, context)
        for key in moved:
            context.groups.pushes.note_moved(key)
    return answer


def committed_places(wanted: Any, views: Sequence[View | None]) -> dict[Place, View]:
    """The physical partitions that lanes of the request belong to."""
    places: dict[Place, View] = {}
    for topic, view in zip(wanted.topics, views, strict=True):
        for entry in topic.partitions if view is not None else ():
            index = int(entry.partition_index)
            if view is not None and not view.error_of(index):
                places.setdefault((view.topic, view.partition_of(index)), view)
    return places


def committed_lanes(wanted: Any, views: Sequence[View | None]) -> Iterator[tuple[View, int, int]]:
    """View, index and offset of all lanes of the request."""
    for topic, view in zip(wanted.topics, views, strict=True):
        for entry in topic.partitions if view is not None else ():
            if view is not None:
                yield view, int(entry.partition_index), int(entry.committed_offset)


def apply_commits(
    wanted: Any,
    views: Sequence[View | None],
    drafts: dict[Place, Draft],
    refused: dict[Place, ErrorCode],
    context: Context,
    *,
    reset: bool,
) -> Errors:
    """Commit every lane to its draft; return what went wrong, by topic number and lane."""
    errors: Errors = {}
    for number, (topic, view) in enumerate(zip(wanted.topics, views, strict=True)):
        if view is None:
            continue
        for entry in topic.partitions:
            index = int(entry.partition_index)
            if code := view.error_of(index):
                errors[number, index] = ErrorCode(code)
                continue
            if not context.switches.accepts_individual_commit:
                errors[number, index] = COMMIT_NOT_ALLOWED
                continue
            place = (view.topic, view.partition_of(index))
            if place not in drafts:
                code = refused.get(place, UNKNOWN_PARTITION)
                errors[number, index] = BUSY if code == UNSTABLE else code
                continue
            error = _commit_lane(entry, view, drafts[place], context, reset=reset)
            if error.error_code:
                errors[number, index] = ErrorCode(error.error_code)
    for draft in drafts.values():
        draft.state.settle(context.groups.sure_scan(draft.key, draft.view))
    return errors


def _commit_lane(
    entry: Any, view: View, draft: Draft, context: Context, *, reset: bool
) -> CommitError:
    index, offset = int(entry.partition_index), int(entry.committed_offset)
    key_ranges = view.key_ranges(index)
    lane = view.name, index
    if not reset and context.member_lanes.is_left_over(draft.group, lane, offset):
        stands = draft.state.position_of(*key_ranges).offset
        if offset < stands:
            draft.left_over.append((index, stands, offset))
            return CommitError.NONE
    leader_epoch = int(getattr(entry, "committed_leader_epoch", NO_LEADER_EPOCH))
    metadata = entry.committed_metadata
    outcome = draft.state.commit_keys(
        key_ranges,
        offset,
        metadata,
        leader_epoch,
        # No scan: it is applied to the whole state once, when all lanes are committed.
        # Of a client with ranges and no group every commit looks like an admin's.
        reset=reset and view.lanes is not None,
    )
    if outcome.back_from is not None and not reset:
        draft.state.settle(context.groups.sure_scan(draft.key, view))
        after = draft.state.position_of(*key_ranges).offset
        if after < outcome.back_from:
            draft.steps_back.append((index, outcome.back_from, after))
    if outcome.error is CommitError.NONE:
        draft.said += [LaneCommit(each, offset, leader_epoch, metadata) for each in key_ranges]
    return outcome.error


def touched_drafts(
    topics: Sequence[Any],
    views: Sequence[View | None],
    drafts: dict[Place, Draft],
    errors: Errors,
) -> list[Draft]:
    """Drafts that at least one commit was taken into."""
    places = set()
    for number, (topic, view) in enumerate(zip(topics, views, strict=True)):
        for entry in topic.partitions if view is not None else ():
            index = int(entry.partition_index)
            if view is not None and (number, index) not in errors:
                places.add((view.topic, view.partition_of(index)))
    return [draft for place, draft in drafts.items() if place in places]


def _draft_key(draft: Draft, *, by_id: bool) -> BrokerKey:
    return draft.view.topic_id if by_id else draft.view.topic, draft.partition


def refuse_shared(
    wanted: Any, views: Sequence[View | None], touched: list[Draft], *, by_id: bool
) -> Errors:
    """Errors of plain partitions that the same request commits as lanes."""
    if all(views):
        return {}
    taken = {_draft_key(draft, by_id=by_id) for draft in touched}
    return {
        (number, int(entry.partition_index)): ErrorCode.invalid_request
        for number, (topic, view) in enumerate(zip(wanted.topics, views, strict=True))
        if view is None
        for entry in topic.partitions
        if _broker_key(topic, int(entry.partition_index), None, by_id=by_id) in taken
    }


async def _push(
    request: Request,
    wanted: Any,
    views: Sequence[View | None],
    touched: list[Draft],
    sent: SentPushes,
    context: Context,
) -> Any:
    """Commit stable offsets and plain topics at the broker; None: there is nothing to commit."""
    by_id = request.api_version >= TOPIC_ID_FROM
    plain = [topic for topic, view in zip(wanted.topics, views, strict=True) if view is None]
    notes = {draft.place: sent.note_of(draft) for draft in touched}
    lanes = physical_topics(wanted, views, touched, by_id=by_id, notes=notes)
    topics = merge_topics(plain, lanes, by_id=by_id)
    if not topics:
        return None
    if touched:
        context.groups.check_tenure(str(wanted.group_id))
    try:
        body = write_commit_request(changed(wanted, topics=tuple(topics)), request.api_version)
        pending = context.send((request.with_body(body),))
        # The next request may go behind this one now; this one's answer waits for the journal.
        context.release()
        return read_commit_response(request.answer_body(await pending), request.api_version)
    except BaseException:
        sent.note_lost()
        raise


def physical_topics(
    wanted: Any,
    views: Sequence[View | None],
    drafts: list[Draft],
    *,
    by_id: bool,
    notes: Mapping[Place, str],
) -> list[Any]:
    """Topic entries that commit the stable offset of each draft, and a note beside it."""
    lanes = [topic for topic, view in zip(wanted.topics, views, strict=True) if view is not None]
    by_topic: dict[str, list[Draft]] = {}
    for draft in drafts:
        by_topic.setdefault(draft.view.topic, []).append(draft)
    entries = []
    for name, of_topic in by_topic.items():
        template = next(topic for topic in lanes if topic.partitions)
        partitions = tuple(
            _physical_entry(template.partitions[0], draft, notes[draft.place]) for draft in of_topic
        )
        key = {"topic_id": of_topic[0].view.topic_id} if by_id else {"name": name}
        entries.append(changed(template, partitions=partitions, **key))
    return entries


def merge_topics(plain: list[Any], lanes: list[Any], *, by_id: bool) -> list[Any]:
    """Plain topics and those of lanes, each topic and partition once; lanes go first."""
    merged = {topic.topic_id if by_id else str(topic.name): topic for topic in lanes}
    topics = []
    for topic in plain:
        of_lanes = merged.pop(topic.topic_id if by_id else str(topic.name), None)
        if of_lanes is not None:
            taken = {entry.partition_index for entry in of_lanes.partitions}
            rest = [entry for entry in topic.partitions if entry.partition_index not in taken]
            topic = changed(topic, partitions=(*of_lanes.partitions, *rest))
        topics.append(topic)
    return topics + list(merged.values())


def _physical_entry(template: Any, draft: Draft, metadata: str) -> Any:
    changes: dict[str, Any] = {
        "partition_index": draft.partition,
        "committed_offset": draft.state.stable_position,
        "committed_metadata": metadata,
    }
    if hasattr(template, "committed_leader_epoch"):
        # The epoch that a lane committed belongs to its own offset, not to this one.
        changes["committed_leader_epoch"] = NO_LEADER_EPOCH
    return changed(template, **changes)


def changed(entity: Any, **changes: Any) -> Any:
    """A kio entity, or a value of `wire.offset_commit`, with other values in some fields."""
    if hasattr(entity, "_replace"):
        return entity._replace(**changes)
    return replace(entity, **changes)


def error_codes(answer: Any, *, by_id: bool) -> Codes:
    """What the broker said to each physical partition."""
    return {
        (topic.topic_id if by_id else str(topic.name), int(entry.partition_index)): entry.error_code
        for topic in (answer.topics if answer is not None else ())
        for entry in topic.partitions
    }


async def _save(group: str, taken: list[Draft], context: Context) -> ErrorCode:
    """Write the journal; the code for what Kafka has taken already."""
    if not taken:
        return NONE
    try:
        await context.groups.save(group, [(d.view, d.partition, d.state) for d in taken])
    except UpstreamLost:
        # The journal writer logs the reason. The client commits again, which is idempotent.
        return ErrorCode.coordinator_not_available
    return NONE


def _note_times(
    group: str,
    topics: Sequence[Any],
    views: Sequence[View | None],
    errors: Errors,
    taken: list[Draft],
    context: Context,
) -> None:
    """Tell which lanes were committed, for who looks at the group."""
    places = {draft.place for draft in taken}
    for number, (topic, view) in enumerate(zip(topics, views, strict=True)):
        if view is None or view.lanes is None:
            continue
        indexes = [int(entry.partition_index) for entry in topic.partitions]
        done = [
            index
            for index in indexes
            if (number, index) not in errors and (view.topic, view.partition_of(index)) in places
        ]
        context.groups.note_commits(group, view, done)


def _build(
    wanted: Any,
    views: Sequence[View | None],
    errors: Errors,
    codes: Codes,
    answer: CommitResponse | None,
    *,
    by_id: bool,
) -> CommitResponse:
    topics: dict[Any, NamedTopicAnswer | TopicAnswer] = {}
    for number, (topic, view) in enumerate(zip(wanted.topics, views, strict=True)):
        if not topic.partitions and (view is None or not view.error_code):
            continue  # brokers leave out what is there and of which nothing is asked
        partitions = []
        for entry in topic.partitions:
            index = int(entry.partition_index)
            error = errors.get((number, index))
            if error is None:
                error = codes.get(_broker_key(topic, index, view, by_id=by_id), UNKNOWN_PARTITION)
            partitions.append(PartitionAnswer(index, error))
        key = topic.topic_id if by_id else topic.name
        # A topic that stands twice is answered once, as by `OffsetCommitResponse.Builder`.
        earlier = topics[key].partitions if key in topics else ()
        both = (*earlier, *partitions)
        topics[key] = TopicAnswer(key, both) if by_id else NamedTopicAnswer(key, both)
    if answer is not None:
        return answer._replace(topics=tuple(topics.values()))
    return CommitResponse(tuple(topics.values()))


def _broker_key(topic: Any, index: int, view: View | None, *, by_id: bool) -> BrokerKey:
    """Under which topic and partition the broker answers for a lane, or a plain partition."""
    if view is None:
        return topic.topic_id if by_id else str(topic.name), index
    return view.topic_id if by_id else view.topic, view.partition_of(index)
