"""OffsetFetch v1-10: positions of each lane of a group.

Behaviour: keylane asks the broker for the physical partitions with the caller's principal, and
compares its offsets with the state (a group that went on direct, a reset, an expired offset). Then
each lane is answered its own position, -1 without a commit. "All topics" lists lane topics under
their own name, and under the lane names that the group has used since the start.
A lane index never reaches the broker, which would answer "no offset" for it. If a topic cannot be
resolved, or a partition's log start is not known, clients get an error and ask again.
A client id with key ranges is answered the lowest position of its ranges of a partition. A
partition that it was not given is refused with TOPIC_AUTHORIZATION_FAILED.
Kafka answers EndTxn before it writes the markers. Until then an OffsetFetch gives the offsets from
before the transaction, unless the client sets `require_stable` (v7). A client of an earlier version
would read the records of the transaction again. So the answer to it is that the coordinator is
loading, after which all clients ask again.
A topic with the tagged field of key ranges (v6+, docs/protocol-extensions.md) is answered with the
offset ranges that are done above each position, with the stable offset, and with what its lane
indexes stand for; a partition that the field names is answered for those keys of the broker's
partition.

Source: KIP-709 (many groups), KIP-447 (`require_stable`); docs/decisions/049.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i64

from keylane.errors import GroupDenied
from keylane.offsets.state import OffsetState
from keylane.proxy.apis.commits.entries import topic_key
from keylane.proxy.apis.commits.expired_offsets import ExpiredOffsets
from keylane.proxy.apis.commits.lane_offsets import (
    BUSY,
    NO_OFFSET,
    NONE,
    UNSTABLE,
    adopted_state,
    known_offset,
    pending_places,
)
from keylane.proxy.apis.commits.member_epochs import is_of_another, read_epoch_for
from keylane.proxy.apis.commits.ranged_answers import find_asked, with_meaning, with_ranges
from keylane.proxy.apis.commits.steps_back import note_answered
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.large import (
    ENTRIES_AT_ONCE,
    check_entries,
    check_partitions,
    count_partitions,
    read_answer,
    write_answer,
)
from keylane.proxy.apis.shared.refusals import GROUP_DENIED, with_stored_offsets
from keylane.proxy.apis.shared.relay import relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.apis.shared.views import find_views
from keylane.proxy.groups.group_names import Place
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.refused import refuse

MANY_GROUPS_VERSION: Final = 8
TOPIC_ID_VERSION: Final = 10
STABLE_VERSION: Final = 7
"""The first version of OffsetFetch with `require_stable`."""
STABLE_WAIT_S: Final = 2.0
"""Markers take milliseconds. Beyond that the client asks again: what it sends meanwhile waits."""
STABLE_PAUSE_S: Final = 0.01
STABLE_PAUSE_S_MAX: Final = 0.2
COORDINATOR_CODES: Final = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)
"""Of a group, for now; a heartbeat of the member is answered the same."""
FINAL_CODES: Final = (ErrorCode.topic_authorization_failed, ErrorCode.unknown_topic_id)
"""Of a topic: a missing right, and an id of no topic, stay as they are."""


@dataclass(frozen=True, slots=True)
class GroupQuestion:
    """One group of a request; `topics` is None for all topics that it has offsets of."""

    group: str
    entry: Any
    """The kio value that holds `topics`: a group entry, or before v8 the request itself."""
    topics: Sequence[tuple[Any, View | None]] | None
    """Topic entries of the request, each with what the client means by it."""
    version: int
    module: Any
    """kio's module of answers."""
    client_id: str | None
    """Of the request."""

    @property
    def has_views(self) -> bool:
        """True when any topic is not plain."""
        return any(view is not None for _, view in self.topics or ())

    @property
    def member_id(self) -> str | None:
        """The KIP-848 member that asks; None: an admin, or a member of another protocol."""
        return getattr(self.entry, "member_id", None) or None

    @property
    def by_id(self) -> bool:
        """True when topics have ids in this version."""
        return self.version >= TOPIC_ID_VERSION

    def key_of(self, view: View) -> Any:
        """The broker's name or id of a topic."""
        return view.topic_id if self.by_id else view.topic


async def handle_offset_fetch(request: Request, wanted: Any, context: Context) -> Buffers:
    """Ask the broker for physical partitions, answer lanes."""
    questions = await _questions(wanted, request, context)
    if all(each.topics is not None and not each.has_views for each in questions):
        return await relay(request, context)
    denied = await _denied_groups(request, wanted, questions, context)
    if len(denied) == len(questions):
        raise GroupDenied("the client may not describe the groups")
    names = {question.group for question in denied}
    allowed = [question for question in questions if question.group not in names]
    answer = await _answer_stable(request, wanted, allowed, context)
    if denied:
        # Brokers name no partitions in it.
        refused = (
            each.module.OffsetFetchResponseGroup(
                group_id=each.entry.group_id, topics=(), error_code=GROUP_DENIED
            )
            for each in denied
        )
        answer = replace(answer, groups=(*answer.groups, *refused))
    if context.is_librdkafka:
        answer = with_stored_offsets(request, answer)
    groups = answer.groups if request.api_version >= MANY_GROUPS_VERSION else (answer,)
    entries = sum(count_partitions(group.topics) for group in groups)
    return await write_answer(request, answer, entries, context)


async def _denied_groups(
    request: Request, wanted: Any, questions: list[GroupQuestion], context: Context
) -> list[GroupQuestion]:
    """Those of groups that the client may not describe: asked of all at once, for no topic."""
    if len(questions) == 1:
        group = questions[0].group
        return questions if await context.group_error(group, Operation.DESCRIBE) else []
    nothing = tuple(replace(question.entry, topics=()) for question in questions)
    asked = request.with_entity(replace(wanted, groups=nothing))
    answer = request.decode_answer(await context.send((asked,)))
    denied = {str(entry.group_id) for entry in answer.groups if entry.error_code == GROUP_DENIED}
    return [question for question in questions if question.group in denied]


async def _answer_stable(
    request: Request, wanted: Any, questions: list[GroupQuestion], context: Context
) -> Any:
    """The answer, once no transaction has offsets under way: clients before v7 wait here."""
    await context.caught_up()
    until_s, pause_s = context.clock() + STABLE_WAIT_S, STABLE_PAUSE_S
    while True:
        async with AsyncExitStack() as stack:
            # A commit that is under way moves Kafka's offset before ours: look between commits.
            for group in sorted({question.group for question in questions}):
                context.groups.note_asked(group)
                await stack.enter_async_context(context.hold(group))
            pending: frozenset[Place] = frozenset()
            if request.api_version < STABLE_VERSION:
                pending = await pending_places(questions[0].group, _places(questions[0]), context)
            if not pending or context.clock() >= until_s:
                return await _answer(request, wanted, questions, pending, context)
        context.stats.offsets_unstable_waits += 1
        await context.pause(pause_s)
        pause_s = min(2 * pause_s, STABLE_PAUSE_S_MAX)


async def _answer(
    request: Request,
    wanted: Any,
    questions: list[GroupQuestion],
    pending: frozenset[Place],
    context: Context,
) -> Any:
    """Ask the broker and put lanes in place; the groups' locks are held."""
    physical = tuple(_physical_question(question, context) for question in questions)
    has_many = request.api_version >= MANY_GROUPS_VERSION
    upstream = replace(wanted, groups=physical) if has_many else physical[0]
    answered = context.send((request.with_entity(upstream),))
    context.release()
    answer = await read_answer(request, await answered, context)
    if not has_many:
        return await _present(questions[0], _marked(answer, pending), context)
    asked = {question.group: question for question in questions}
    groups = [
        await _present(asked[str(entry.group_id)], entry, context)
        for entry in answer.groups
        if str(entry.group_id) in asked
    ]
    return replace(answer, groups=tuple(groups))


def _marked(answer: Any, pending: frozenset[Place]) -> Any:
    """The broker's answer, with "later" where a transaction is not over."""
    if not pending:
        return answer
    topics = []
    for topic in answer.topics:
        entries = (
            _without_offset(entry, BUSY)
            if (str(topic.name), int(entry.partition_index)) in pending
            else entry
            for entry in topic.partitions
        )
        topics.append(replace(topic, partitions=tuple(entries)))
    return replace(answer, topics=tuple(topics))


def _without_offset(entry: Any, code: int, **changes: Any) -> Any:
    """The broker's partition entry with an error in place of an offset."""
    return replace(entry, committed_offset=NO_OFFSET, error_code=ErrorCode(code), **changes)


async def _questions(wanted: Any, request: Request, context: Context) -> list[GroupQuestion]:
    client_id = request.header.client_id
    entries = wanted.groups if request.api_version >= MANY_GROUPS_VERSION else (wanted,)
    check_entries(len(entries))
    named = (topic for entry in entries for topic in entry.topics or ())
    check_partitions(named, "partition_indexes")
    questions = []
    for entry in entries:
        topics = None
        if entry.topics is not None:
            topics = await find_asked(entry.topics, client_id, context)
        group = str(entry.group_id)
        version, module = request.api_version, request.answer_module
        questions.append(GroupQuestion(group, entry, topics, version, module, client_id))
    return questions


def _places(question: GroupQuestion) -> dict[Place, View]:
    """Partitions behind the lanes that are asked for."""
    return {
        (view.topic, view.partition_of(index)): view
        for topic, view in question.topics or ()
        if view is not None
        for index in topic.partition_indexes
        if not view.error_of(index)
    }


def _physical_question(question: GroupQuestion, context: Context) -> Any:
    """The group's entry with physical partitions, each named once."""
    if not question.has_views:
        return question.entry
    entry = question.entry
    if question.member_id:
        epoch = read_epoch_for(question.group, question.member_id, int(entry.member_epoch), context)
        entry = replace(entry, member_epoch=i32(epoch))
    field = "topic_id" if question.by_id else "name"
    topics: dict[Any, Any] = {}
    wanted: dict[Any, dict[i32, None]] = {}
    for topic, view in question.topics or ():
        if view is not None and view.error_code:
            continue  # the broker would answer "no offset"
        indexes, key = topic.partition_indexes, topic_key(topic)
        if view is not None:
            key = question.key_of(view)
            indexes = [i32(view.partition_of(i)) for i in indexes if _is_asked(view, i)]
            topic = replace(topic, **{field: key})
        topics.setdefault(key, topic)
        wanted.setdefault(key, {}).update(dict.fromkeys(indexes))
    physical = (
        replace(topic, partition_indexes=tuple(wanted[key])) for key, topic in topics.items()
    )
    return replace(entry, topics=tuple(physical))


def _is_asked(view: View, index: int) -> bool:
    """Return whether the broker is asked for an index: not for lanes that do not exist."""
    return view.lanes is None or not view.error_of(index)


async def _present(question: GroupQuestion, answer: Any, context: Context) -> Any:
    """A group's answer with lanes in place of lane topics' partitions."""
    code = getattr(answer, "error_code", NONE)
    if code != NONE and not answer.topics:
        asked = question.entry.topics or ()
        if context.is_librdkafka and _may_ask_again(question, code):
            # With an error of the whole group it never asks again (docs/clients.md).
            later = tuple(_refused_topic(question, each, UNSTABLE) for each in asked)
            return replace(answer, topics=later, error_code=ErrorCode.none)
        if question.version >= MANY_GROUPS_VERSION:
            return answer
        # The coordinator has moved, for example: see there why each partition is named.
        refused = tuple(_refused_topic(question, each, code) for each in asked)
        return replace(answer, topics=refused)
    if question.topics is None:
        return replace(answer, topics=tuple(await _present_all(question, answer, context)))
    if not question.has_views:
        return answer
    found = {topic_key(topic): topic for topic in answer.topics}
    topics = []
    for topic, view in question.topics:
        if view is None:
            if (plain := found.get(topic_key(topic))) is not None:
                topics.append(_only(plain, topic.partition_indexes))
            continue
        physical = found.get(question.key_of(view))
        code = view.error_code
        if code or physical is None or _lacks(physical, view, topic.partition_indexes):
            refusal = refusal_code(question.version, code)
            topics.append(_refused_topic(question, topic, refusal))
            continue
        lanes = await _lanes(question, view, physical, topic.partition_indexes, context)
        note_answered(question.group, view, lanes, context)
        topics.append(_named(physical, view, lanes, by_id=question.by_id))
    return replace(answer, topics=tuple(topics))


def _may_ask_again(question: GroupQuestion, code: int) -> bool:
    """Return whether a refused group can be asked for again, partition by partition."""
    is_asked = question.topics is not None and question.version >= STABLE_VERSION
    return is_asked and code in COORDINATOR_CODES


def _lacks(physical: Any, view: View, indexes: Sequence[int]) -> bool:
    """Return whether the broker has left out a partition that it was asked for."""
    found = {int(entry.partition_index) for entry in physical.partitions}
    return any(view.partition_of(i) not in found for i in indexes if _is_asked(view, i))


def refusal_code(version: int, code: int = 0) -> ErrorCode:
    """Return the error of an offset that is not known now, so that clients ask again.

    Of a partition with any other error Java gives up, and librdkafka waits without end; a partition
    that is left out, or without an offset, they start by their reset policy.
    code: of the topic.
    """
    if code in FINAL_CODES:
        return ErrorCode(code)
    return UNSTABLE if version >= STABLE_VERSION else BUSY


def _refused_topic(question: GroupQuestion, topic: Any, code: ErrorCode) -> Any:
    """The answer entry of a topic entry of the request, refused for all that it names."""
    suffix = "s" if question.version >= MANY_GROUPS_VERSION else ""
    return refuse(getattr(question.module, f"OffsetFetchResponseTopic{suffix}"), topic, code)


def _only(topic: Any, indexes: Sequence[int]) -> Any:
    """A plain topic's answer, for the partitions that were asked under this name."""
    wanted = set(indexes)
    return replace(
        topic, partitions=tuple(e for e in topic.partitions if e.partition_index in wanted)
    )


async def _present_all(question: GroupQuestion, answer: Any, context: Context) -> list[Any]:
    """Return all topics with offsets: lanes where the topic's own name means lanes."""
    topics, registry, by_id = [], context.registry, question.by_id
    lane_names = [
        await context.find_view(name)
        for name in context.groups.lane_names_of(question.group)
        if not registry.is_refused(name)
    ]
    for physical in answer.topics:
        name = registry.name_of_id(physical.topic_id) if by_id else str(physical.name)
        if name is not None and registry.is_refused(name):
            continue  # its lanes are not served, and its partitions are not what the name means
        (own,) = await find_views((physical,), context, question.client_id)
        if own is not None and own.error_code:
            # Offsets of partitions, shown as they are, would pass for those of lanes.
            code = refusal_code(question.version, own.error_code)
            entries = (_without_offset(e, code, metadata="") for e in physical.partitions)
            topics.append(replace(physical, partitions=tuple(entries)))
            continue
        if own is None:
            topics.append(physical)
        topic_id = physical.topic_id if by_id else registry.id_of_name(str(physical.name))
        for view in (own, *lane_names):
            if view is None or view.topic_id != topic_id or not (view is own or view.is_renamed):
                continue
            lanes = await _lanes(question, view, physical, view.indexes, context)
            known = [each for each in lanes if each.committed_offset >= 0 or each.error_code]
            if known:
                topics.append(_named(physical, view, known, by_id=by_id))
    return topics


def _named(physical: Any, view: View, lanes: list[Any], *, by_id: bool) -> Any:
    key = {"topic_id": view.view_id} if by_id else {"name": view.name}
    named = replace(physical, partitions=tuple(lanes), **key)
    return with_meaning(named, view) if view.says_ranges and view.lanes is not None else named


async def _lanes(
    question: GroupQuestion, view: View, physical: Any, indexes: Collection[int], context: Context
) -> list[Any]:
    """Answer entries of the lanes `indexes`; the group's lock is held."""
    group = question.group
    by_partition = {int(entry.partition_index): entry for entry in physical.partitions}
    states: dict[int, OffsetState | None] = {}
    expired = ExpiredOffsets(group, context)
    lanes: list[Any] = []
    for index in indexes:
        if len(lanes) % ENTRIES_AT_ONCE == ENTRIES_AT_ONCE - 1:
            await context.pause(0.0)  # others go on meanwhile
        if not _is_asked(view, index):
            continue  # a broker leaves out what it does not know as well
        partition = view.partition_of(index)
        entry = by_partition.get(partition)
        if entry is None:
            continue
        code = view.error_of(index)
        if not code and is_of_another(group, question.member_id, view, index, context):
            code = UNSTABLE  # the client asks again, and its last holder commits meanwhile
        if code:
            lanes.append(replace(_without_offset(entry, code), partition_index=i32(index)))
            continue
        if entry.error_code == NONE and partition not in states:
            entry = by_partition[partition] = await _with_kept(entry, view, partition, expired)
        if entry.error_code == NONE and partition not in states:
            committed = known_offset(entry)
            if committed is None and context.groups.state_of(group, view, partition) is None:
                # No offset there, none here: the broker's own "no commit" fits every lane.
                lanes.append(replace(entry, partition_index=i32(index)))
                continue
            found = committed, entry.metadata
            place = view.topic, partition
            states[partition] = await adopted_state(group, place, view, found, context)
        if entry.error_code == NONE:
            state = states[partition]
            if state is None:
                entry = _without_offset(entry, refusal_code(question.version), metadata="")
            else:
                entry = _positioned(entry, state, view, index)
        lanes.append(replace(entry, partition_index=i32(index)))
    return lanes


async def _with_kept(entry: Any, view: View, partition: int, expired: ExpiredOffsets) -> Any:
    """The broker's entry, with the offset that it has expired under running members."""
    offset, code = await expired.offset_of(view, partition, known_offset(entry))
    if code != NONE:
        return replace(entry, error_code=code)
    return entry if offset is None else replace(entry, committed_offset=i64(offset))


def _positioned(entry: Any, state: OffsetState, view: View, index: int) -> Any:
    position = state.position_of(*view.key_ranges(index))
    changes: dict[str, Any] = {
        "committed_offset": i64(position.offset),
        "metadata": position.metadata,
    }
    if hasattr(entry, "committed_leader_epoch"):
        changes["committed_leader_epoch"] = i32(position.leader_epoch)
    found = replace(entry, **changes)
    return with_ranges(found, state, view, index) if view.says_ranges else found
