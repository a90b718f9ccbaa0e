"""OffsetDelete v0, DeleteGroups v0-2: a group forgets lanes, or all.

Behaviour: the broker decides first (a group that still subscribes is refused), then the lanes
are forgotten. Deleting at the broker removes the whole partition's offset; where other lanes
of the partition keep their commits, the stable offset is committed again.
Not done: nothing.

In:    requests and answers.  Out: answers per lane.
Next:  `proxy.groups` keeps the states; `session` writes the answer.
Pure:  the outside world is the `Context` argument.
Source: KIP-496 (OffsetDelete), KIP-229 (DeleteGroups); REQUIREMENTS G-12.
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

from keylane.errors import NotCoordinator
from keylane.proxy.apis.context import Context, Request
from keylane.proxy.apis.lane_offsets import (
    NONE,
    UNKNOWN_PARTITION,
    Draft,
    Place,
    find_views,
    open_drafts,
)
from keylane.proxy.apis.list_offsets import absent_lanes, ask_rounds
from keylane.proxy.apis.offset_commit import committed_places, moved_states, relay_moving
from keylane.proxy.apis.physical import PhysicalRounds
from keylane.proxy.apis.refusals import refuse_groups
from keylane.proxy.connection import Buffers
from keylane.proxy.topics import View

log = logging.getLogger("keylane.offset_delete")

NO_MEMBER: dict[str, Any] = {
    "generation_id_or_member_epoch": i32(-1),
    "member_id": "",
    "group_instance_id": None,
}


async def handle_delete_groups(request: Request, context: Context) -> Buffers:
    """Relay, then forget the states of groups that are gone.

    Groups of another node are refused before the broker is asked, which would delete them.
    """
    wanted = request.decode()
    refused = await _of_other_nodes(wanted.groups_names, context)
    frame = request.frame
    if refused:
        served = tuple(name for name in wanted.groups_names if str(name) not in refused)
        frame = request.with_entity(replace(wanted, groups_names=served))
    answer_frame = await context.send((frame,))
    answer = request.decode_answer(answer_frame)
    for result in answer.results:
        if result.error_code == NONE:
            async with context.groups.lock(str(result.group_id)):
                await context.groups.drop_group(str(result.group_id))
    if not refused:
        return (answer_frame,)
    of_others = refuse_groups(request, refused)
    return request.answer_entity(replace(answer, results=(*answer.results, *of_others.results)))


async def _of_other_nodes(names: Iterable[Any], context: Context) -> set[str]:
    """Groups that this node does not serve, of those named."""
    refused: set[str] = set()
    for name in sorted({str(name) for name in names}):
        try:
            async with context.groups.lock(name):
                pass
        except NotCoordinator:
            refused.add(name)
    return refused


async def handle_offset_delete(request: Request, context: Context) -> Buffers:
    """Ask the broker for each partition once, forget the lanes that it agreed to."""
    wanted = request.decode()
    views = await find_views(wanted.topics, context)
    group = str(wanted.group_id)
    if not any(views):
        moved = moved_states(group, wanted, views, context, by_id=False)
        return await relay_moving(request, group, moved, context)
    rounds = PhysicalRounds()
    absent = [
        absent_lanes(view, [int(entry.partition_index) for entry in topic.partitions])
        for topic, view in zip(wanted.topics, views, strict=True)
    ]
    for topic, view, unknown in zip(wanted.topics, views, absent, strict=True):
        known = [entry for entry in topic.partitions if int(entry.partition_index) not in unknown]
        rounds.add_topic(topic, view, known)
    await context.caught_up()
    async with context.groups.lock(group):
        drafts, _ = await open_drafts(group, committed_places(wanted, views), context)
        context.groups.check_tenure(group)
        answered = await ask_rounds(request, wanted, rounds, context)
        entries = [entries for _, entries in rounds.answers(answered)]
        await _forget(group, drafts, list(zip(views, entries, strict=True)), context)
    return request.answer_entity(_build(wanted, entries, absent, answered))


async def _forget(
    group: str,
    drafts: dict[Place, Draft],
    answers: list[tuple[View | None, list[Any]]],
    context: Context,
) -> None:
    """Take the commits that the broker has deleted out of the states."""
    deleted: dict[Place, tuple[Draft, int]] = {}
    for view, entries in answers:
        for entry in entries if view is not None else ():
            if view is None or entry.error_code != NONE:
                continue
            index = int(entry.partition_index)
            draft = drafts.get((view.topic, view.partition_of(index)))
            if draft is None:
                continue
            if draft.place not in deleted:
                deleted[draft.place] = draft, await context.log_start(view, draft.partition)
                draft.state.pushed = None
            for key_range in view.key_ranges(index):
                draft.state.delete_lane(key_range, base=deleted[draft.place][1])
    await _put_back(group, [draft for draft, _ in deleted.values()], context)


async def _put_back(group: str, drafts: list[Draft], context: Context) -> None:
    """Commit the stable offsets of partitions where some lanes keep their commits; save all."""
    kept = [draft for draft in drafts if draft.state.committed]
    gone = [(draft.view, draft.partition) for draft in drafts if not draft.state.committed]
    for draft in kept:
        stable = draft.state.stable_position
        entry = OffsetCommitRequestPartition(
            partition_index=i32(draft.partition),
            committed_offset=i64(stable),
            committed_leader_epoch=i32(-1),
            committed_metadata="",
        )
        topic = OffsetCommitRequestTopic(name=TopicName(draft.view.topic), partitions=(entry,))
        context.groups.check_tenure(group)
        answer = await context.ask(
            OffsetCommitRequest(group_id=GroupId(group), topics=(topic,), **NO_MEMBER)
        )
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        if code == NONE:
            draft.state.mark_pushed(stable)
        else:
            # A group that is active on other topics takes commits of its members only. The
            # other lanes keep their commits all the same; their next one is pushed again.
            log.warning(
                "stable offset not committed again group=%s topic=%s partition=%d error_code=%s",
                group,
                draft.view.topic,
                draft.partition,
                code.name,
            )
    await context.groups.save(group, [(d.view, d.partition, d.state) for d in kept])
    await context.groups.drop(group, gone)


def _build(
    wanted: Any, entries: list[list[Any]], absent: list[list[int]], answered: list[Any]
) -> Any:
    if answered and answered[0].error_code != NONE:
        return answered[0]
    topics = tuple(
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=(
                *found,
                *(
                    OffsetDeleteResponsePartition(
                        partition_index=i32(index), error_code=UNKNOWN_PARTITION
                    )
                    for index in unknown
                ),
            ),
        )
        for topic, found, unknown in zip(wanted.topics, entries, absent, strict=True)
    )
    if answered:
        return replace(answered[0], topics=topics)
    return OffsetDeleteResponse(
        error_code=NONE, throttle_time=i32Timedelta.parse(timedelta(0)), topics=topics
    )
