"""Entries of one request, resolved once: lanes with their partitions, and plain partitions.

A request becomes a flat list, in its order. Commits of lanes go into the drafts of
their partitions. The request to the broker and the answer are built from the list.
Source: docs/decisions/005, 027, 032.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kio.schema.errors import ErrorCode

from keylane.offsets.intervals import Range
from keylane.offsets.records.journal import StateKey
from keylane.offsets.txn_metadata import LaneCommit
from keylane.offsets.values import NO_LEADER_EPOCH, NO_OFFSET, CommitError
from keylane.proxy.apis.commits.lane_offsets import (
    BUSY,
    UNKNOWN_PARTITION,
    UNSTABLE,
    Draft,
)
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.refusals import expect_right, with_results
from keylane.proxy.apis.shared.relay import relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.groups.group_names import Place
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.refused import refuse, results_of

TopicKey = str | uuid.UUID | None
"""A topic as the broker names it in a version: its name, or its id."""
Codes = dict[tuple[TopicKey, int], ErrorCode]
"""The broker's answer to each partition."""


@dataclass(slots=True)
class Entry:
    """One partition of a request, as the client names it."""

    topic_number: int
    index: int
    view: View | None
    """None: the topic is plain."""
    offset: int = -1
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = None
    place: Place | None = None
    """Behind a lane; None: the topic is plain, or the view refuses the index."""
    error: ErrorCode | None = None
    """The answer, where it is not the broker's."""
    draft: Draft | None = None
    """The state that its commit went into."""
    is_ranged: bool = False
    """It has fields of keylane's own, and so has its answer."""
    ranges: tuple[Range, ...] = ()
    """Offsets that are done; none: all before `offset`."""
    draft_error: CommitError = CommitError.NONE
    """The KIP draft's error of a ranged entry."""
    duplicate_count: int = 0
    """Number of `ranges` that were committed before."""


def resolve(topic_number: int, index: int, view: View | None) -> Entry:
    """Return the entry of an index, with its partition, or with the error of the index."""
    entry = Entry(topic_number, index, view)
    if view is not None:
        if code := view.error_of(index):
            entry.error = ErrorCode(code)
        else:
            entry.place = view.topic, view.partition_of(index)
    return entry


def resolve_partitions(topics: Sequence[Any], views: Sequence[View | None]) -> list[Entry]:
    """Return the entries of topics whose partitions have a `partition_index`."""
    return [
        resolve(number, int(asked.partition_index), view)
        for number, (topic, view) in enumerate(zip(topics, views, strict=True))
        for asked in topic.partitions
    ]


def resolve_commits(topics: Sequence[Any], views: Sequence[View | None]) -> list[Entry]:
    """Return the entries of a commit, with their offsets."""
    entries = resolve_partitions(topics, views)
    for entry, asked in zip(entries, (p for t in topics for p in t.partitions), strict=True):
        entry.offset, entry.metadata = int(asked.committed_offset), asked.committed_metadata
        entry.leader_epoch = int(getattr(asked, "committed_leader_epoch", NO_LEADER_EPOCH))
    return entries


def by_topic(entries: Iterable[Entry], topic_count: int) -> list[list[Entry]]:
    """Entries of each topic of the request."""
    topics: list[list[Entry]] = [[] for _ in range(topic_count)]
    for entry in entries:
        topics[entry.topic_number].append(entry)
    return topics


def lane_places(entries: Iterable[Entry]) -> dict[Place, View]:
    """Partitions behind lanes, each with the first view that names it."""
    places: dict[Place, View] = {}
    for entry in entries:
        if entry.view is not None and entry.place is not None:
            places.setdefault(entry.place, entry.view)
    return places


async def admit(
    group: str, entries: Sequence[Entry], context: Context
) -> tuple[dict[Place, View], dict[Place, ErrorCode]]:
    """Return partitions behind lanes that the client may commit, and errors of the others.

    READ on the topic is looked at before anything of a group's state is answered or changed. The
    broker has the last word on the group too, and is asked only with what comes of the state.
    What other nodes are scanning of the lanes is waited for a moment.
    """
    allowed, denied = lane_places(entries), {}
    for topic, view in {view.topic: view for view in allowed.values()}.items():
        if code := await context.right_error(view, Operation.READ):
            for place in [place for place in allowed if place[0] == topic]:
                del allowed[place]
                denied[place] = ErrorCode(code)
    lanes = ((e.view, e.index, e.offset) for e in entries if e.view is not None and not e.ranges)
    await context.groups.wait_scanned(group, lanes)
    return allowed, denied


# -- whole partitions ---------------------------------------------------------------------


def moved_states(
    group: str, topics: Sequence[Any], views: Sequence[View | None], context: Context
) -> list[StateKey]:
    """Return states of the group whose partition the request names as a whole."""
    if all(views):
        return []
    keys: list[StateKey] = []
    for topic, view in zip(topics, views, strict=True):
        if view is not None:
            continue
        named = topic_key(topic)
        topic_id = context.registry.id_of_name(named) if isinstance(named, str) else named
        if topic_id is not None:
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


# -- commits to drafts --------------------------------------------------------------------


def apply_commits(
    entries: Sequence[Entry],
    drafts: dict[Place, Draft],
    refused: dict[Place, ErrorCode],
    context: Context,
    *,
    reset: bool,
) -> list[Draft]:
    """Commit every lane to its draft; return the drafts that took a commit."""
    failed: dict[tuple[int, int], ErrorCode] = {}
    for entry in entries:
        if entry.view is None or entry.place is None:
            continue
        if not context.switches.accepts_individual_commit:
            entry.draft_error = CommitError.NOT_ALLOWED
        if entry.draft_error is not CommitError.NONE:
            entry.error = ErrorCode(entry.draft_error.error_code)
        elif (draft := drafts.get(entry.place)) is None:
            code = refused.get(entry.place, UNKNOWN_PARTITION)
            entry.error = BUSY if code == UNSTABLE else code
        else:
            entry.draft = draft
            error = entry.draft_error = _commit_entry(
                entry, entry.view, draft, context, reset=reset
            )
            if error.error_code:
                failed[entry.topic_number, entry.index] = ErrorCode(error.error_code)
    for entry in entries if failed else ():
        # One error for a lane that the request names twice.
        entry.error = failed.get((entry.topic_number, entry.index), entry.error)
    for draft in drafts.values():
        draft.state.settle(context.groups.sure_scan(draft.key, draft.view))
    touched = {entry.place for entry in entries if entry.draft is not None and entry.error is None}
    return [draft for place, draft in drafts.items() if place in touched]


def _commit_entry(
    entry: Entry, view: View, draft: Draft, context: Context, *, reset: bool
) -> CommitError:
    if not entry.ranges:
        return _commit_lane(entry, view, draft, context, reset=reset)
    key_ranges = view.key_ranges(entry.index)
    outcome = draft.state.commit_ranges(entry.ranges, key_ranges)
    entry.duplicate_count = len(outcome.duplicates)
    if not outcome.error.error_code:
        for each in key_ranges:
            stands = draft.state.position_of(each).offset
            if stands == NO_OFFSET:  # of a first commit: the group begins at what is assumed
                stands = draft.state.stable_position
            draft.said.append(LaneCommit(each, stands, ranges=tuple(draft.state.ranges(each))))
    return outcome.error


def _commit_lane(
    entry: Entry, view: View, draft: Draft, context: Context, *, reset: bool
) -> CommitError:
    index, offset = entry.index, entry.offset
    key_ranges = view.key_ranges(index)
    if not reset and context.member_lanes.is_left_over(draft.group, (view.name, index), offset):
        stands = draft.state.position_of(*key_ranges).offset
        if offset < stands:
            draft.left_over.append((index, stands, offset))
            return CommitError.NONE
    outcome = draft.state.commit_keys(
        key_ranges,
        offset,
        entry.metadata,
        entry.leader_epoch,
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
        draft.said += [
            LaneCommit(each, offset, entry.leader_epoch, entry.metadata) for each in key_ranges
        ]
    return outcome.error


def refuse_shared(
    entries: Iterable[Entry], topics: Sequence[Any], touched: Sequence[Draft], *, by_id: bool
) -> None:
    """Refuse plain partitions that the same request commits as lanes."""
    taken = {draft_key(draft, by_id=by_id) for draft in touched}
    for entry in entries:
        if entry.view is None and (topic_key(topics[entry.topic_number]), entry.index) in taken:
            entry.error = ErrorCode.invalid_request


# -- what the broker is asked, and answers ------------------------------------------------


def topic_key(topic: Any) -> TopicKey:
    """A topic entry's id where its version has ids, else its name."""
    return topic.topic_id if hasattr(topic, "topic_id") else str(topic.name)


def draft_key(draft: Draft, *, by_id: bool) -> tuple[TopicKey, int]:
    """Topic and partition by which the broker is asked for a draft."""
    return draft.key.topic_id if by_id else draft.view.topic, draft.partition


def pushed_topics(
    topics: Sequence[Any],
    views: Sequence[View | None],
    notes: Mapping[Place, str],
    drafts: Sequence[Draft],
    *,
    by_id: bool,
) -> list[Any]:
    """Topic entries with plain topics, and the stable offset and the note of each draft.

    Each topic and partition stands once; a draft goes before a plain partition.
    """
    lanes: dict[TopicKey, list[Any]] = {}
    template: Any = next(
        (t for t, v in zip(topics, views, strict=True) if v and t.partitions), None
    )
    for draft in drafts:
        key, _ = draft_key(draft, by_id=by_id)
        entry = _pushed_entry(template.partitions[0], draft, notes[draft.place])
        lanes.setdefault(key, []).append(entry)
    pushed = []
    for topic, view in zip(topics, views, strict=True):
        if view is None:
            if of_lanes := lanes.pop(topic_key(topic), None):
                taken = {entry.partition_index for entry in of_lanes}
                rest = [each for each in topic.partitions if each.partition_index not in taken]
                topic = changed(topic, partitions=(*of_lanes, *rest))
            pushed.append(topic)
    field = "topic_id" if by_id else "name"
    for key, partitions in lanes.items():
        pushed.append(changed(template, partitions=tuple(partitions), **{field: key}))
    return pushed


def _pushed_entry(template: Any, draft: Draft, metadata: str) -> Any:
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


def error_codes(answer: Any) -> Codes:
    """The broker's answer to each physical partition; none where it was not asked."""
    return {
        (topic_key(topic), int(entry.partition_index)): entry.error_code
        for topic in (answer.topics if answer is not None else ())
        for entry in topic.partitions
    }


def code_of(entry: Entry, topic: Any, codes: Codes) -> ErrorCode:
    """The answer to an entry of a commit: its own error, that of its draft, or the broker's.

    A partition that the broker leaves out is no success.
    """
    if entry.error is not None:
        return entry.error
    if entry.draft is not None:
        return entry.draft.code
    return codes.get((topic_key(topic), entry.index), UNKNOWN_PARTITION)


def answer_codes(
    request: Request,
    answer: Any,
    topics: Sequence[Any],
    entries: Iterable[Entry],
    code_of: Callable[[Entry, Any], ErrorCode],
) -> Buffers:
    """Answer with a code for each entry, by entry and topic.

    answer: the broker's; None: it was not asked.
    """
    _, of_topic = results_of(request.answer_type)
    field, of_entry = results_of(of_topic)
    results = []
    for topic, own in zip(topics, by_topic(entries, len(topics)), strict=True):
        codes = tuple(refuse(of_entry, entry.index, code_of(entry, topic)) for entry in own)
        results.append(of_topic(name=topic.name, **{field: codes}))
    return request.answer_entity(with_results(request, answer, results))
