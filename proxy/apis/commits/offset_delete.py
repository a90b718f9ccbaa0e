"""OffsetDelete v0, DeleteGroups v0-2: a group forgets lanes, or all.

Behaviour: the broker decides first (it refuses a group that still subscribes), then keylane
forgets the lanes. A deletion at the broker removes the offset of the whole partition. If other
lanes of the partition keep their commits, keylane commits the stable offset again; both are in the
journal before they are sent, as intents.
Not done: nothing.

Source: KIP-496 (OffsetDelete), KIP-229 (DeleteGroups); docs/decisions/027.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kio.static.primitive import i32

from keylane.errors import NotCoordinator, UpstreamLost
from keylane.proxy.apis.commits.entries import (
    Entry,
    by_topic,
    lane_places,
    moved_states,
    relay_moving,
    resolve_partitions,
)
from keylane.proxy.apis.commits.lane_offsets import (
    BUSY,
    NONE,
    UNKNOWN_PARTITION,
    UNSTABLE,
    Draft,
    note_unknown_start,
    open_drafts,
    own_commit,
)
from keylane.proxy.apis.commits.late_offsets import note_set
from keylane.proxy.apis.commits.pushes_sent import SentPushes
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.large import check_entries, check_partitions
from keylane.proxy.apis.shared.refusals import expect_right, with_results
from keylane.proxy.apis.shared.relay import PhysicalRounds, ask_rounds
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.apis.shared.views import find_views
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.groups.group_names import Place
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.node_values import GROUP as OWN_GROUP
from keylane.proxy.topics.view import View
from keylane.wire.refused import refuse, results_of

log = logging.getLogger("keylane.offset_delete")


async def handle_delete_groups(request: Request, wanted: Any, context: Context) -> Buffers:
    """Relay, then forget the states of groups that are gone.

    Groups of another node are refused before the broker is asked, which would delete them; so is
    the nodes' own.
    """
    check_entries(len(wanted.groups_names))
    own = {OWN_GROUP} & {str(name) for name in wanted.groups_names}
    refused = own | await _of_other_nodes(wanted.groups_names, context)
    frame = request.frame
    if refused:
        served = tuple(name for name in wanted.groups_names if str(name) not in refused)
        frame = request.with_entity(replace(wanted, groups_names=served))
    for name in wanted.groups_names:
        await context.ordered.close_idle(str(name))
    answer_frame = await context.send((frame,))
    answer = request.decode_answer(answer_frame)
    for result in answer.results:
        if result.error_code == NONE:
            # However long it takes: the broker has deleted the group.
            async with context.groups.lock(str(result.group_id), None):
                context.consumer_groups.forget(str(result.group_id))
                await context.groups.drop_group(str(result.group_id))
    if not refused:
        return (answer_frame,)
    codes = [
        (refused - own, ErrorCode.not_coordinator),
        (own, ErrorCode.group_authorization_failed),
    ]
    _, of_group = results_of(request.answer_type)
    errors = [
        refuse(of_group, name, code)
        for names, code in codes
        for name in wanted.groups_names
        if str(name) in names
    ]
    return request.answer_entity(replace(answer, results=(*answer.results, *errors)))


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


async def handle_offset_delete(request: Request, wanted: Any, context: Context) -> Buffers:
    """Ask the broker for each partition once, forget the lanes that it agreed to."""
    check_partitions(wanted.topics)
    views = await find_views(wanted.topics, context)
    group = str(wanted.group_id)
    if not any(views):
        moved = moved_states(group, wanted.topics, views, context)
        return await relay_moving(request, group, Operation.DELETE, moved, context)
    await expect_right(group, Operation.DELETE, context)
    lanes = resolve_partitions(wanted.topics, views)
    await context.caught_up()
    async with context.hold(group):
        drafts, codes = await open_drafts(group, lane_places(lanes), context)
        held = {place: BUSY for place, code in codes.items() if code in (UNSTABLE, BUSY)}
        held |= await _forget(lanes, drafts, context)
        sent = SentPushes(group, context)
        wished = {place: draft for place, draft in drafts.items() if place not in held}
        pushed = await sent.prepare(list(wished.values()), offset=None)
        for draft in pushed:
            del wished[draft.place]
        held |= {place: draft.code for place, draft in wished.items()}
        rounds = _rounds(wanted.topics, views, lanes, held)
        with sent.sending():
            context.groups.check_ownership(group)  # also where nothing is pushed
            # The broker judges the right to the group, also where no lane is left to ask about.
            answered = await ask_rounds(request, wanted, rounds, context, is_judged_whole=True)
        entries = rounds.answers(answered)
        # With an error of the whole answer there is no entry.
        whole = answered[0].error_code if answered and answered[0].error_code != NONE else None
        found = _codes(views, entries)
        taken = await sent.settle(pushed, [found.get(draft.place, whole) for draft in pushed])
        await _put_back(group, taken, context)
    if whole is not None:
        return request.answer_entity(answered[0])
    topics = _build(wanted.topics, lanes, entries)
    return request.answer_entity(with_results(request, next(iter(answered), None), topics))


async def _forget(
    lanes: Iterable[Entry], drafts: Mapping[Place, Draft], context: Context
) -> dict[Place, ErrorCode]:
    """Take the commits out of the drafts; return places where that cannot be done now."""
    bases: dict[Place, int] = {}
    held: dict[Place, ErrorCode] = {}
    for lane in lanes:
        draft = drafts.get(lane.place) if lane.place is not None else None
        if draft is None or lane.view is None or draft.place in held:
            continue
        try:
            if draft.place not in bases:
                bases[draft.place] = await context.groups.log_start(lane.view, draft.partition)
        except UpstreamLost as error:
            note_unknown_start(draft.group, draft.place, error)
            held[draft.place] = BUSY
            continue
        for key_range in lane.view.key_ranges(lane.index):
            draft.state.delete_lane(key_range, base=bases[draft.place])
    return held


def _rounds(
    topics: Sequence[Any],
    views: Sequence[View | None],
    lanes: Sequence[Entry],
    held: Mapping[Place, ErrorCode],
) -> PhysicalRounds:
    """Collect what the broker is asked, and set the error of each lane that it is not."""
    rounds = PhysicalRounds()
    for topic, view, of_topic in zip(topics, views, by_topic(lanes, len(topics)), strict=True):
        asked = []
        for lane, entry in zip(of_topic, topic.partitions, strict=True):
            if lane.error is not None:
                lane.error = UNKNOWN_PARTITION
            elif lane.place is not None and lane.place in held:
                lane.error = held[lane.place]
            else:
                asked.append(entry)
        rounds.add_topic(topic, view, asked)
    return rounds


def _codes(views: Sequence[View | None], entries: list[list[Any]]) -> dict[Place, ErrorCode]:
    """The broker's answer to each partition behind lanes."""
    return {
        (view.topic, view.partition_of(int(entry.partition_index))): entry.error_code
        for view, of_topic in zip(views, entries, strict=True)
        if view is not None
        for entry in of_topic
    }


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
    kept = await sent.prepare(kept)
    codes: list[ErrorCode | None] = []
    admin = Beat(group, -1, "", None)
    for draft in kept:
        with sent.sending():
            offset = (draft.place, draft.state.stable_position, "")
            answer = await context.ask(own_commit(admin, [offset], context))
        codes.append(answer.topics[0].partitions[0].error_code)
        if codes[-1] != NONE:
            # A group that is active on other topics takes commits of its members only. The
            # other lanes keep their commits all the same; their next one is pushed again.
            log.warning(
                "stable offset not committed again group=%s topic=%s partition=%d error_code=%s",
                group, *draft.place, answer.topics[0].partitions[0].error_code.name,
            )  # fmt: skip
    taken = await sent.settle(kept, codes)
    await context.groups.save(group, [(d.view, d.partition, d.state) for d in taken])
    note_set(taken, context)


def _build(
    asked: Sequence[Any], lanes: Sequence[Entry], entries: list[list[Any]]
) -> list[OffsetDeleteResponseTopic]:
    topics = []
    for topic, of_topic, found in zip(asked, by_topic(lanes, len(asked)), entries, strict=True):
        refused = {lane.index: lane.error for lane in of_topic if lane.error is not None}
        errors = (
            OffsetDeleteResponsePartition(partition_index=i32(index), error_code=code)
            for index, code in refused.items()
        )
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=(*found, *errors)))
    return topics
