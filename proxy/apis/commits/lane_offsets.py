"""Common parts of the offset calls: views of topics, copies of a group's states, own commits."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest, OffsetFetchRequestTopic
from kio.schema.types import GroupId, TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i32, i64

from keylane.errors import UpstreamLost
from keylane.offsets.pushes import TransactionWriter
from keylane.offsets.records.journal import StateKey, state_key
from keylane.offsets.state import OffsetState
from keylane.offsets.txn_metadata import LaneCommit, apply_commit
from keylane.offsets.values import NO_LEADER_EPOCH
from keylane.proxy.apis.commits.expired_offsets import ExpiredOffsets
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.groups.group_names import Place
from keylane.proxy.topics.view import View
from keylane.wire.header import ApiKey

log = logging.getLogger("keylane.offsets")

NONE: Final = ErrorCode.none
UNKNOWN_PARTITION: Final = ErrorCode.unknown_topic_or_partition
UNSTABLE: Final = ErrorCode.unstable_offset_commit
"""A transaction that is not over has an offset there; an answer to OffsetFetch only."""
BUSY: Final = ErrorCode.coordinator_load_in_progress
"""The error that clients get for it: all of them retry, and look for no other coordinator."""
NO_OFFSET: Final = -1
"""In an answer of OffsetFetch."""
TOO_MANY_GROUPS: Final = ErrorCode.policy_violation
CLASSIC_COMMIT: Final = 8
MEMBER_COMMIT: Final = 9
"""The first version in which KIP-848 members may commit."""

Committed = dict[Place, tuple[int | None, str | None]]
"""Kafka's own offsets of a group (None: none), with metadata."""


@dataclass(slots=True)
class Draft:
    """A state that is being changed; it replaces the old one when Kafka agrees."""

    view: View
    """One of the views that the request named; states are the same under all of them."""
    partition: int
    state: OffsetState

    group: str
    begun: OffsetState | None = field(default=None, compare=False)
    """The state as it was, where the group has none yet: it is kept with the first push."""
    steps_back: list[tuple[int, int, int]] = field(default_factory=list, compare=False)
    """Lanes that a member commits lower than they stand: index, from, to."""
    left_over: list[tuple[int, int, int]] = field(default_factory=list, compare=False)
    """The same of an earlier turn of the member, which its lanes do not follow."""
    said: list[LaneCommit] = field(default_factory=list, compare=False)
    """Commits of this request that were taken into the state."""
    code: ErrorCode = field(default=UNKNOWN_PARTITION, compare=False)
    """The answer to the lanes that were committed to it."""
    key: StateKey = field(init=False, compare=False)
    """The key of the state."""
    place: Place = field(init=False, compare=False)
    """The broker's topic and partition."""

    def __post_init__(self) -> None:
        self.key = state_key(self.group, self.view.topic_id, self.partition)
        self.place = self.view.topic, self.partition


async def open_drafts(
    group: str,
    views: Mapping[Place, View],
    context: Context,
    *,
    writer: TransactionWriter | None = None,
    trusts_own: bool = True,
) -> tuple[dict[Place, Draft], dict[Place, ErrorCode]]:
    """Return a copy of the group's state per partition, and errors of partitions without one.

    Where the state is new, or a transaction may have moved Kafka's own offset, Kafka is asked
    first. UNSTABLE: the transaction of another writer than `writer` is under way there.
    trusts_own: what is pending where `writer` had a transaction is of that one; without, it is
    UNSTABLE as well.
    TOO_MANY_GROUPS: the group has no offsets of lanes, and its client may begin no more.
    BUSY: the log start of the partition is needed, and its leader cannot be asked.
    """
    drafts: dict[Place, Draft] = {}
    unsure: list[Place] = []
    is_known = False
    for place, view in views.items():
        key = state_key(group, view.topic_id, place[1])
        state = context.groups.state_of(group, view, place[1])
        is_known |= state is not None
        # A transaction is applied to what the journal has: an offset that was moved at Kafka,
        # and that an OffsetFetch has found, must stand there first.
        is_lacking = state is not None and writer is not None and bool(state.unsaved())
        if state is None or is_lacking or not context.groups.pushes.is_sure(key):
            unsure.append(place)
        else:
            drafts[place] = Draft(view, place[1], state.copy(), group)
    if not unsure:
        return drafts, {}
    if not is_known and not context.may_begin_group(group):
        return {}, dict.fromkeys(views, TOO_MANY_GROUPS)
    committed, errors = await fetch_committed(group, unsure, context)
    await _keep_expired(group, views, committed, errors, context)
    adopted = await _adopt_all(group, views, committed, errors, context)
    await _save_before_push(group, views, adopted, context, is_transaction=writer is not None)
    context.groups.check_ownership(group)  # else nothing may be noted of what Kafka has said
    for place, state in adopted.items():
        kept = context.groups.state_of(group, views[place], place[1])
        begun = state if kept is None else None
        draft = Draft(views[place], place[1], state.copy(), group, begun)
        is_late = context.groups.pushes.may_still_come(draft.key, writer, context.clock())
        if writer is not None and not is_late:
            # This push would take the transaction's note out of Kafka's metadata.
            is_late = context.groups.may_come_late(draft.key)
        if is_late:
            errors[place] = UNSTABLE
            continue
        context.groups.pushes.note_sure(draft.key)
        drafts[place] = draft
    for place in [place for place, code in errors.items() if code == UNSTABLE]:
        own = _own_draft(group, views[place], place[1], writer if trusts_own else None, context)
        if own is not None:
            del errors[place]
            drafts[place] = own
    return drafts, errors


async def _adopt_all(
    group: str,
    views: Mapping[Place, View],
    committed: Committed,
    errors: dict[Place, ErrorCode],
    context: Context,
) -> dict[Place, OffsetState]:
    """States in line with Kafka's own offsets; BUSY among `errors` where that cannot be known."""
    adopted: dict[Place, OffsetState] = {}
    for place, (offset, metadata) in committed.items():
        try:
            adopted[place] = await context.groups.adopt(
                group, views[place], place[1], offset, metadata
            )
        except UpstreamLost as error:
            note_unknown_start(group, place, error)
            errors[place] = BUSY
    # A scan may be of a later epoch than a note that is news: the note's is compared first.
    await context.groups.repair(group)
    for place, state in adopted.items():
        adopted[place] = context.groups.state_of(group, views[place], place[1]) or state
    return adopted


async def adopted_state(
    group: str, place: Place, view: View, found: tuple[int | None, str | None], context: Context
) -> OffsetState | None:
    """Return the state in line with Kafka's own offset; None: it is not known now (no leader).

    found: the offset (None: none) and its metadata.
    """
    partition = place[1]
    before = context.groups.state_of(group, view, partition)
    try:
        state = await context.groups.adopt(group, view, partition, *found)
    except UpstreamLost as error:
        note_unknown_start(group, place, error)
        return None
    if before is not None and state.unsaved():
        # Kafka's offset was moved. The next move is judged beside this one, also by a node that
        # takes over: what lanes are answered has to outlive this process.
        state = state.copy()
        try:
            await context.groups.save(group, [(view, partition, state)])
        except UpstreamLost:
            return None  # the journal logs the reason; the client asks again
    if context.groups.is_unsure(group, view, partition):
        state = state.copy()
        state.cut(0)
    return state


def note_unknown_start(group: str, place: Place, error: UpstreamLost) -> None:
    """Log that lanes wait, since the leader of their partition does not answer."""
    log.warning(
        "lanes wait for the leader of their partition group=%s topic=%s partition=%d reason=%s",
        group, *place, error,
    )  # fmt: skip


async def _keep_expired(
    group: str,
    views: Mapping[Place, View],
    committed: Committed,
    errors: dict[Place, ErrorCode],
    context: Context,
) -> None:
    """Put back what a broker has expired under the group's running members."""
    expired = ExpiredOffsets(group, context)
    for place, (found, _) in list(committed.items()):
        offset, code = await expired.offset_of(views[place], place[1], found)
        if code != NONE:
            del committed[place]
            errors[place] = code
        elif offset != found:
            committed[place] = offset, None


async def _save_before_push(
    group: str,
    views: Mapping[Place, View],
    adopted: Mapping[Place, OffsetState],
    context: Context,
    *,
    is_transaction: bool,
) -> None:
    """Put into the journal what the next push takes out of Kafka's metadata.

    A transaction's push leaves the journal as it is until it is over. What is not there by then
    could not be kept apart from what the transaction brings.
    """
    unsaved = context.groups.pushes.unsaved
    lacking = [
        (views[place], place[1], state)
        for place, state in adopted.items()
        if is_transaction or StateKey(group, views[place].topic_id, place[1]) in unsaved
    ]
    if lacking:
        await context.groups.save(group, lacking)


def _own_draft(
    group: str, view: View, partition: int, writer: TransactionWriter | None, context: Context
) -> Draft | None:
    """The state as it is, with what `writer`'s open transaction has committed on top."""
    pushes = context.groups.pushes
    state = context.groups.state_of(group, view, partition)
    key = StateKey(group, view.topic_id, partition)
    if writer is None or state is None or not pushes.is_own(key, writer):
        return None
    draft = Draft(view, partition, state.copy(), group)
    for commit in pushes.commits_of(key, writer):
        apply_commit(draft.state, commit, context.groups.sure_scan(key, view))
    return draft


async def fetch_committed(
    group: str, places: Sequence[Place], context: Context
) -> tuple[Committed, dict[Place, ErrorCode]]:
    """Kafka's own stable offsets of the group (None: none) with metadata; errors, by place."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    answer = await context.ask(
        OffsetFetchRequest(
            group_id=GroupId(group),
            topics=tuple(
                OffsetFetchRequestTopic(
                    name=TopicName(topic), partition_indexes=tuple(map(i32, partitions))
                )
                for topic, partitions in by_topic.items()
            ),
            require_stable=True,
        )
    )
    committed: Committed = {}
    missing = answer.error_code if answer.error_code != NONE else UNKNOWN_PARTITION
    errors = dict.fromkeys(places, missing)
    for topic in answer.topics:
        for entry in topic.partitions:
            place = (str(topic.name), int(entry.partition_index))
            if place not in errors and place not in committed:
                continue  # it was not asked for
            if entry.error_code != NONE:
                errors[place] = entry.error_code
            elif answer.error_code == NONE:
                errors.pop(place, None)
                committed[place] = known_offset(entry), entry.metadata
    return committed, errors


async def pending_places(
    group: str, places: Mapping[Place, View], context: Context
) -> frozenset[Place]:
    """Return places where a transaction that is not over has an offset of the group."""
    unsure = [
        place for place, view in places.items() if _may_be_pending(group, place, view, context)
    ]
    if not unsure:
        return frozenset()
    _, errors = await fetch_committed(group, unsure, context)
    return frozenset(place for place in unsure if errors.get(place) == UNSTABLE)


def _may_be_pending(group: str, place: Place, view: View, context: Context) -> bool:
    """Return True when a push was seen here, or may have come before this proxy was started."""
    key = StateKey(group, view.topic_id, place[1])
    pushes = context.groups.pushes
    has_state = context.groups.state_of(group, view, place[1]) is not None
    return pushes.is_known(key) or (has_state and not pushes.is_sure(key))


def known_offset(entry: Any) -> int | None:
    """Return the committed offset of a kio OffsetFetch entry; None for "no commit"."""
    offset = int(entry.committed_offset)
    return None if offset == NO_OFFSET else offset


def own_commit(member: Beat, offsets: Iterable[tuple[Place, int, str]], context: Context) -> Any:
    """Return keylane's own OffsetCommit in a member's name: places, offsets and metadata.

    Of a KIP-848 member brokers take version 9 and the newest epoch only.
    """
    known = context.consumer_groups.member(member.group, member.member_id)
    epoch = member.generation_id if known is None else known.epoch
    version = CLASSIC_COMMIT if known is None else MEMBER_COMMIT
    make: Any = load_payload_module(ApiKey.OFFSET_COMMIT, version, EntityType.request)
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), offset, metadata in offsets:
        entry = make.OffsetCommitRequestPartition(
            partition_index=i32(partition),
            committed_offset=i64(offset),
            committed_leader_epoch=i32(NO_LEADER_EPOCH),
            committed_metadata=metadata,
        )
        by_topic.setdefault(topic, []).append(entry)
    return make.OffsetCommitRequest(
        group_id=GroupId(member.group),
        generation_id_or_member_epoch=i32(epoch),
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=tuple(
            make.OffsetCommitRequestTopic(name=TopicName(name), partitions=tuple(entries))
            for name, entries in by_topic.items()
        ),
    )
