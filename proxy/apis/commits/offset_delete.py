"""OffsetDelete v0, DeleteGroups v0-2: a group forgets lanes, or all.

Behaviour: the broker decides first (a group that still subscribes is refused), then the lanes
are forgotten. Deleting at the broker removes the whole partition's offset; where other lanes
of the partition keep their commits, the stable offset is committed again; both are in the journal
before they are sent, as intents.
Not done: nothing.

In:    requests and answers.  Out: answers per lane.
Source: KIP-496 (OffsetDelete), KIP-229 (DeleteGroups); docs/decisions/027.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from keylane.errors import NotCoordinator, UpstreamLost
from keylane.proxy.apis.commits.lane_offsets import (
    BUSY,
    NONE,
    UNKNOWN_PARTITION,
    UNSTABLE,
    Draft,
    Place,
    find_views,
    note_unknown_start,
    open_drafts,
)
from keylane.proxy.apis.commits.late_offsets import note_set
from keylane.proxy.apis.commits.offset_commit import committed_places, moved_states, relay_moving
from keylane.proxy.apis.commits.pushes_sent import SentPushes
from keylane.proxy.apis.shared.context import Context, Operation
from keylane.proxy.apis.shared.large import check_entries, check_partitions
from keylane.proxy.apis.shared.physical import PhysicalRounds
from keylane.proxy.apis.shared.refusals import expect_right, refuse_groups
from keylane.proxy.apis.shared.relay import absent_lanes, ask_rounds
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.node_values import GROUP as OWN_GROUP
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.offset_delete")

NO_MEMBER: dict[str, Any] = {
    "generation_id_or_member_epoch": i32(-1),
    "member_id": "",
    "group_instance_id": None,
}


async def handle_delete_groups(request: Request, context: Context) -> Buffers:
    """Relay, then forget the states of groups that are gone.

    Groups of another node are refused before the broker is asked, which would delete them; so is
    the nodes' own.
    """
    wanted = request.decode()
    check_entries(len(wanted.groups_names))
    own = {OWN_GROUP} & {str(name) for name in wanted.groups_names}
    refused = own | await _of_other_nodes(wanted.groups_names, context)
    frame = request.frame
    if refused:
        served = tuple(name for name in wanted.groups_names if str(name) not in refused)
        frame = request.with_entity(replace(wanted, groups_names=served))
    answer_frame = await context.send((frame,))
    answer = request.decode_answer(answer_frame)
    for result in answer.results:
        if result.error_code == NONE:
            # However long it takes: the broker has deleted the group.
            async with context.groups.lock(str(result.group_id), None):
                await context.groups.drop_group(str(result.group_id))
    if not refused:
        return (answer_frame,)
    of_others = refuse_groups(request, refused - own)
    of_nodes = refuse_groups(request, own, ErrorCode.group_authorization_failed)
    results = (*answer.results, *of_others.results, *of_nodes.results)
    return request.answer_entity(replace(answer, results=results))


async def _of_other_nodes(names: Iterable[Any], context: Context) -> set[str]:
    """Groups that this node does not serve, of those named."""
    refused: set[str] = set()
    for name in sorted({str(name) for name in names} - {OWN_GROUP}):
        try:
            async with context.groups.lock(name):
                pass
        except NotCoordinator:
            refused.add(name)
    return refused


async def handle_offset_delete(request: Request, context: Context) -> Buffers:
    """Ask the broker for each partition once, forget the lanes that it agreed to."""
    wanted = request.decode()
    check_partitions(wanted.topics)
    views = await find_views(wanted.topics, context)
    group = str(wanted.group_id)
    if not any(views):
        moved = moved_states(group, wanted, views, context, by_id=False)
        return await relay_moving(request, group, Operation.DELETE, moved, context)
    await expect_right(group, Operation.DELETE, context)
    absent = [
        absent_lanes(view, [int(entry.partition_index) for entry in topic.partitions])
        for topic, view in zip(wanted.topics, views, strict=True)
    ]
    await context.caught_up()
    async with context.hold(group):
        drafts, codes = await open_drafts(group, committed_places(wanted, views), context)
        held = {place: BUSY for place, code in codes.items() if code in (UNSTABLE, BUSY)}
        held |= await _forget(wanted, views, drafts, context)
        sent = SentPushes(group, context)
        held |= await sent.prepare([d for d in drafts.values() if d.place not in held], offset=None)
        rounds, refused = _rounds(wanted, views, absent, held)
        context.groups.check_tenure(group)
        try:
            # Whether the client may touch the group is for the broker to say, also of no lane.
            answered = await ask_rounds(request, wanted, rounds, context, is_judged_whole=True)
        except BaseException:
            sent.note_lost()
            raise
        entries = [entries for _, entries in rounds.answers(answered)]
        pushed = [draft for draft in drafts.values() if draft.place not in held]
        # With an error of the whole answer there is no entry.
        whole = answered[0].error_code if answered and answered[0].error_code != NONE else None
        found = _codes(views, entries)
        taken = await sent.settle(pushed, [found.get(draft.place, whole) for draft in pushed])
        await _put_back(group, taken, context)
    return request.answer_entity(_build(wanted, entries, refused, answered))


async def _forget(
    wanted: Any, views: list[View | None], drafts: dict[Place, Draft], context: Context
) -> dict[Place, ErrorCode]:
    """Take the commits out of the drafts; places where that cannot be done now."""
    bases: dict[Place, int] = {}
    held: dict[Place, ErrorCode] = {}
    for topic, view in zip(wanted.topics, views, strict=True):
        for entry in topic.partitions if view is not None else ():
            index = int(entry.partition_index)
            if view is None or view.error_of(index):
                continue
            place = view.topic, view.partition_of(index)
            draft = drafts.get(place)
            if draft is None or place in held:
                continue
            try:
                if place not in bases:
                    bases[place] = await context.log_start(view, draft.partition)
            except UpstreamLost as error:
                note_unknown_start(draft.group, place, error)
                held[place] = BUSY
                continue
            for key_range in view.key_ranges(index):
                draft.state.delete_lane(key_range, base=bases[place])
    return held


def _rounds(
    wanted: Any,
    views: list[View | None],
    absent: list[list[int]],
    held: dict[Place, ErrorCode],
) -> tuple[PhysicalRounds, list[dict[int, ErrorCode]]]:
    """What the broker is asked; by topic, what it is not asked, with codes."""
    rounds = PhysicalRounds()
    refused = []
    for topic, view, unknown in zip(wanted.topics, views, absent, strict=True):
        codes = dict.fromkeys(unknown, UNKNOWN_PARTITION)
        for entry in topic.partitions if view is not None and held else ():
            index = int(entry.partition_index)
            if view is not None and index not in codes:
                code = held.get((view.topic, view.partition_of(index)))
                codes |= {} if code is None else {index: code}
        asked = [entry for entry in topic.partitions if int(entry.partition_index) not in codes]
        rounds.add_topic(topic, view, asked)
        refused.append(codes)
    return rounds, refused


def _codes(views: list[View | None], entries: list[list[Any]]) -> dict[Place, ErrorCode]:
    """What the broker said of each partition."""
    codes: dict[Place, ErrorCode] = {}
    for view, of_topic in zip(views, entries, strict=True):
        for entry in of_topic if view is not None else ():
            if view is not None:
                index = int(entry.partition_index)
                codes[view.topic, view.partition_of(index)] = entry.error_code
    return codes


async def _put_back(group: str, taken: list[Draft], context: Context) -> None:
    """Kafka has deleted these offsets: commit those of lanes that keep their commits again."""
    kept = [draft for draft in taken if draft.state.committed]
    gone = [(draft.view, draft.partition) for draft in taken if not draft.state.committed]
    await context.groups.save(group, [(d.view, d.partition, d.state) for d in kept])
    await context.groups.drop(group, gone)
    if not kept:
        return
    kept = [replace(draft, state=draft.state.copy()) for draft in kept]
    sent = SentPushes(group, context)
    held = await sent.prepare(kept)
    kept = [draft for draft in kept if draft.place not in held]
    codes: list[ErrorCode | None] = []
    for draft in kept:
        context.groups.check_tenure(group)
        try:
            answer = await context.ask(_commit_of(group, draft))
        except BaseException:
            sent.note_lost()
            raise
        codes.append(answer.topics[0].partitions[0].error_code)
        if codes[-1] != NONE:
            # A group that is active on other topics takes commits of its members only. The
            # other lanes keep their commits all the same; their next one is pushed again.
            log.warning(
                "stable offset not committed again group=%s topic=%s partition=%d error_code=%s",
                group,
                draft.view.topic,
                draft.partition,
                answer.topics[0].partitions[0].error_code.name,
            )
    taken = await sent.settle(kept, codes)
    await context.groups.save(group, [(d.view, d.partition, d.state) for d in taken])
    note_set(taken, context)


def _commit_of(group: str, draft: Draft) -> OffsetCommitRequest:
    entry = OffsetCommitRequestPartition(
        partition_index=i32(draft.partition),
        committed_offset=i64(draft.state.stable_position),
        committed_leader_epoch=i32(-1),
        committed_metadata="",
    )
    topic = OffsetCommitRequestTopic(name=TopicName(draft.view.topic), partitions=(entry,))
    return OffsetCommitRequest(group_id=GroupId(group), topics=(topic,), **NO_MEMBER)


def _build(
    wanted: Any,
    entries: list[list[Any]],
    refused: list[dict[int, ErrorCode]],
    answered: list[Any],
) -> Any:
    if answered and answered[0].error_code != NONE:
        return answered[0]
    topics = tuple(
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=(
                *found,
                *(
                    OffsetDeleteResponsePartition(partition_index=i32(index), error_code=code)
                    for index, code in codes.items()
                ),
            ),
        )
        for topic, found, codes in zip(wanted.topics, entries, refused, strict=True)
    )
    if answered:
        return replace(answered[0], topics=topics)
    return OffsetDeleteResponse(
        error_code=NONE, throttle_time=i32Timedelta.parse(timedelta(0)), topics=topics
    )
