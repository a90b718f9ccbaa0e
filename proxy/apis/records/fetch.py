"""Fetch v4-17: lanes from keylane's reader and cache, all else from the broker.

Behaviour: a request without lanes passes as bytes, and so does its answer but for broker addresses
(v16+). With lanes, fetch sessions (KIP-227) end here: the answer has session id 0, so that the
client names everything in each request. Lanes that join a broker's session are answered with
FETCH_SESSION_ID_NOT_FOUND, so that the client starts over.
A client gets lanes only after its own principal was seen to have READ, and while the switch
`accept.range.fetch` of the topic is on: TOPIC_AUTHORIZATION_FAILED otherwise.
An empty batch moves the client past other lanes' records; errors stay per partition. For
librdkafka it is an empty control batch: from any other it concludes that its fetch size was too
small, and at the tenth it reports MSG_SIZE_TOO_LARGE to its application
(`rd_kafka_msgset_reader_run`). Other clients get no control batch: Sarama and aiokafka
(read_committed) take an empty one for damage. kafka-go 0.4 goes back to offset 1 at an empty batch,
so it gets none: its position moves by a batch that begins before the offset that it asked for. It
is recognized by its requests (`gap_forms`).
A client id with key ranges of a topic fetches its physical partitions, and gets its own keys of
them. A partition that it was not given is refused with TOPIC_AUTHORIZATION_FAILED, and logged
once. Such clients get no fetch sessions. If ranges change while a request waits, the answer is
NOT_LEADER_OR_FOLLOWER, so that the client asks again.
A request of v12+ may name key ranges itself, in a tagged field of a partition, or of the request
for all of them. Its index is the broker's partition then, also where the topic's name means lanes,
and whatever ranges the client id was given. No range is the whole partition, which the broker
answers.
The topic's switch refuses ranges with TOPIC_AUTHORIZATION_FAILED and the draft's error 89 in a
tagged field; ranges that are not well formed are an INVALID_REQUEST, too many of them
NOT_LEADER_OR_FOLLOWER. Such requests get no fetch sessions. When other ranges come, the fetches
that wait go on. keylane's tagged fields never reach a broker.
A request that names lanes and plain topics is answered as soon as either has data.
A fetch of lanes that waits for new data is answered when another request than a Fetch waits behind
it on its connection. A broker lets that one wait for `max_wait_ms`: Spark asks for the log's end
behind each poll, so each task that ends at the log's end would take half a second longer.
A client that knows another leader of the partition than the reader gets no records: see
`pending_fetch`.
Not done: follower fetch of lanes (KIP-392).

Source: protocol guide, Fetch; KIP-227, KIP-516, KIP-951.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.cache.lane_values import GapForm
from keylane.proxy.apis.records.fetch_ranges import PartedFetch, part_fetch, plan_ranges, refuse
from keylane.proxy.apis.records.gap_forms import PASSED_BYTES_MAX, gap_form_of, wait_for_passed
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.places import with_own_endpoints
from keylane.proxy.apis.shared.relay import Handler, forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.apis.shared.views import are_plain, find_shared, unresolved_lanes
from keylane.proxy.lanes.fetch_request import LaneAnswer, LaneFetch, LaneFetchRequest
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.batch import CODEC_NONE, CODEC_ZSTD
from keylane.wire.endpoints import show_fetch_ids
from keylane.wire.fetch import (
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicAnswer,
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from keylane.wire.parts import tag_with_endpoints
from keylane.wire.primitives import NO_TAGS

ZSTD_VERSION: Final = 10
"""First version with zstd: clients that ask in an earlier one do not know it (KIP-110)."""
SESSIONLESS_EPOCH: Final = -1
MIXED_WAIT_MS_MAX: Final = 100
"""Turns in which a request waits for lanes and for plain topics."""


@dataclass(slots=True)
class FetchPlan:
    """The parts of a fetch request."""

    plain: list[FetchTopic] = field(default_factory=list)
    """Topics that the broker answers."""
    lanes: list[LaneFetch] = field(default_factory=list)
    answered: list[tuple[FetchTopic, View, list[FetchAnswer | int]]] = field(default_factory=list)
    """Lane topics: per partition its answer if it is known, else its place in `lanes`."""


def look_fetch(request: Request, context: Context) -> Handler | None:
    """Return whether to relay: no topic is known to have lanes."""
    wanted = read_fetch_request(request.frame, request.body_position, request.api_version)
    parted = part_fetch(wanted) if wanted.is_tagged else None
    if parted is not None:
        return partial(handle_fetch, wanted=parted.rest, parted=parted)
    has_ranges = context.range_views.has_ranges(request.header.client_id)
    if not has_ranges and are_plain(wanted.topics, context.registry):
        return None
    return partial(handle_fetch, wanted=wanted)


async def handle_fetch(
    request: Request, context: Context, wanted: FetchRequest, parted: PartedFetch | None = None
) -> Buffers:
    """Plan, fetch lanes and plain topics, build one answer.

    parted: what was taken out of a request with fields of keylane's own.
    """
    client_id = request.header.client_id
    reads_zstd = request.api_version >= ZSTD_VERSION
    plan = await plan_fetch(wanted, context, client_id, reads_zstd=reads_zstd)
    _note_fetched(plan, client_id or "", context)
    if parted is not None and parted.ranged:
        await _add_ranges(plan, parted, context)
    # In a session a request need not name what it fetches, and so a broker would go on with whole
    # partitions of which the client has since been given ranges.
    is_sessionless = context.range_views.has_ranges(client_id)
    is_sessionless |= parted is not None and parted.names_ranges
    if not plan.answered and not is_sessionless:
        frame = None if parted is None else request.with_body(write_fetch_request(wanted))
        return with_own_endpoints(request, await forward(request, context, frame=frame), context)
    if wanted.session_id != 0:
        refusal = FetchResponse(error_code=ErrorCode.fetch_session_id_not_found, topics=())
        return request.answer(write_fetch_response(refusal, request.api_version))
    if not plan.answered:
        frame = _plain_frame(request, wanted, plan, wanted.max_wait_ms)
        return with_own_endpoints(request, await forward(request, context, frame=frame), context)
    if not plan.plain:
        lanes = await _fetch_lanes(wanted, plan, context, wanted.max_wait_ms)
        await _refuse_revoked(plan, context)
        response = FetchResponse(topics=build_lane_topics(plan, lanes))
        return request.answer(write_fetch_response(response, request.api_version))
    return await _fetch_mixed(request, wanted, plan, context)


async def plan_fetch(
    wanted: FetchRequest,
    context: Context,
    client_id: str | None = None,
    *,
    reads_zstd: bool = True,
) -> FetchPlan:
    """Part lanes and key ranges from plain topics; refuse what is not there or not allowed."""
    plan = FetchPlan()
    for topic in wanted.topics:
        topic_id = None if topic.topic_id is None else uuid.UUID(bytes=topic.topic_id)
        view = await find_shared(client_id, topic.name, topic_id, context)
        hidden = unresolved_lanes(topic.name, context) if view is None else None
        if hidden is not None:
            # Relayed to a broker that learns of the topic now, it would bring whole partitions.
            refused = [refuse(e.partition, hidden.error_code) for e in topic.partitions]
            plan.answered.append((topic, hidden, list(refused)))
            continue
        if view is None:
            plan.plain.append(topic)
            continue
        is_lane_view = view.lanes is not None
        if context.switches.accepts_range_fetch(view.topic, is_lane_view=is_lane_view):
            read_error = await context.fetch_error(view)
        else:
            read_error = ErrorCode.topic_authorization_failed
        codec = CODEC_NONE if view.codec == CODEC_ZSTD and not reads_zstd else view.codec
        chosen_name, places = view.chosen_name, list[FetchAnswer | int]()
        for entry in topic.partitions:
            if read_error:
                places.append(refuse(entry.partition, read_error))
            elif error_code := view.error_of(entry.partition):
                if view.lanes is None:
                    context.range_views.log_refusal(view, entry.partition)
                places.append(refuse(entry.partition, error_code))
            else:
                places.append(len(plan.lanes))
                plan.lanes.append(_lane_fetch(entry, view, codec, chosen_name))
        plan.answered.append((topic, view, places))
    return plan


async def _add_ranges(plan: FetchPlan, parted: PartedFetch, context: Context) -> None:
    """Add entries that name key ranges to the plan."""
    whole, planned = await plan_ranges(parted, context)
    plan.plain += whole
    for topic, view, outcomes in planned:
        places = list[FetchAnswer | int]()
        for outcome in outcomes:
            if isinstance(outcome, LaneFetch):
                places.append(len(plan.lanes))
                plan.lanes.append(outcome)
            else:
                places.append(outcome)
        plan.answered.append((topic, view, places))


def _note_fetched(plan: FetchPlan, client_id: str, context: Context) -> None:
    """Note the positions of a client that was given lanes just now (see `steps_back`)."""
    if client_id not in context.gained_lanes.by_client:
        return
    for topic, view, _ in plan.answered:
        positions = ((entry.partition, entry.fetch_offset) for entry in topic.partitions)
        context.gained_lanes.note_fetched(client_id, view.name, positions)


def lane_request(
    wanted: FetchRequest, plan: FetchPlan, context: Context, max_wait_ms: int
) -> LaneFetchRequest:
    """Return the request for lanes; its answer is bounded whatever the client allows."""
    gap_form = gap_form_of(wanted, is_librdkafka=context.is_librdkafka)
    max_bytes = min(wanted.max_bytes, context.config.fetch_answer_bytes_max)
    if context.is_followed:
        max_wait_ms = 0
    if gap_form is GapForm.PASSED:
        max_wait_ms = wait_for_passed(max_wait_ms)
        max_bytes = min(max_bytes, PASSED_BYTES_MAX)
    return LaneFetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=wanted.min_bytes,
        max_bytes=max_bytes,
        isolation_level=wanted.isolation_level,
        lanes=tuple(plan.lanes),
        cursor_id=context.session_id,
        user=context.user,
        gap_form=gap_form,
    )


def build_lane_topics(plan: FetchPlan, lanes: Sequence[LaneAnswer]) -> tuple[FetchTopicAnswer, ...]:
    """Return the answers of lane topics, in the order of the request."""
    return tuple(
        FetchTopicAnswer(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                _lane_answer(entry.partition, lanes[place]) if isinstance(place, int) else place
                for entry, place in zip(topic.partitions, places, strict=True)
            ),
        )
        for topic, _, places in plan.answered
    )


async def _fetch_lanes(
    wanted: FetchRequest, plan: FetchPlan, context: Context, max_wait_ms: int
) -> list[LaneAnswer]:
    if not plan.lanes:
        return []  # all were refused: nothing to wait for
    return await context.fetch_lanes(lane_request(wanted, plan, context, max_wait_ms))


async def _refuse_revoked(plan: FetchPlan, context: Context) -> None:
    """Withhold records from a client that lost the right to read during a long wait.

    A client that was given other ranges meanwhile asks again, for those.
    """
    for number, (topic, view, places) in enumerate(plan.answered):
        if not any(isinstance(place, int) for place in places):
            continue  # it has no records
        error_code = await context.fetch_error(view)
        if view.client_id and not context.range_views.is_current(view):
            error_code = ErrorCode.not_leader_or_follower
        if error_code:
            refused = [refuse(entry.partition, error_code) for entry in topic.partitions]
            plan.answered[number] = topic, view, list(refused)


async def _fetch_mixed(
    request: Request, wanted: FetchRequest, plan: FetchPlan, context: Context
) -> Buffers:
    """Ask for both in turns until one has data: neither side can wake the other's long poll."""
    version = request.api_version
    deadline_s = context.clock() + wanted.max_wait_ms / 1000
    while True:
        left_ms = max(0, int((deadline_s - context.clock()) * 1000))
        if context.is_followed:
            left_ms = 0
        wait_ms = min(left_ms, MIXED_WAIT_MS_MAX)
        frame = await context.send((_plain_frame(request, wanted, plan, wait_ms),))
        plain = read_fetch_response(frame, request.answer_position(frame), version)
        has_plain = plain.error_code != 0 or any(map(_has_news, plain.topics))
        lane_wait_ms = 0 if has_plain else wait_ms
        lanes = await _fetch_lanes(wanted, plan, context, lane_wait_ms)
        has_lanes = any(lane.error_code or lane.size_bytes for lane in lanes)
        if has_plain or has_lanes or left_ms == 0:
            await _refuse_revoked(plan, context)
            if not context.placement.is_alone:
                plain = show_fetch_ids(plain, context.placement.own_id)
            topics = plain.topics + build_lane_topics(plan, lanes)
            # The broker's addresses among the tags would lead the client around keylane.
            tags = tag_with_endpoints(plain.tags, ())
            merged = replace(plain, session_id=0, topics=topics, tags=tags)
            return request.answer(write_fetch_response(merged, version))


def _plain_frame(request: Request, wanted: FetchRequest, plan: FetchPlan, wait_ms: int) -> bytes:
    upstream = replace(
        wanted,
        max_wait_ms=wait_ms,
        session_id=0,
        session_epoch=SESSIONLESS_EPOCH,
        topics=tuple(plan.plain),
        forgotten=(),
    )
    return request.with_body(write_fetch_request(upstream))


def _has_news(topic: FetchTopicAnswer) -> bool:
    # Tags name a diverging epoch, a new leader or a preferred replica: clients would leave keylane.
    return any(
        answer.error_code
        or answer.preferred_read_replica >= 0
        or answer.tags != NO_TAGS
        or any(map(len, answer.records or ()))
        for answer in topic.partitions
    )


def _lane_fetch(entry: FetchPartition, view: View, codec: int, chosen_name: str) -> LaneFetch:
    index = entry.partition
    partition = view.partition_of(index)
    # By position: names cost as much again as the tuple.
    return LaneFetch(
        view.topic,
        view.topic_id,
        partition,
        view.output_of(index),
        view.key_split(partition),
        entry.fetch_offset,
        entry.partition_max_bytes,
        view.reserve,
        codec,
        chosen_name,
        entry.current_leader_epoch,
    )


def _lane_answer(index: int, lane: LaneAnswer) -> FetchAnswer:
    error_code, high_watermark, last_stable_offset, log_start_offset, aborted, records, _ = lane
    offsets = high_watermark, last_stable_offset, log_start_offset
    return FetchAnswer(index, error_code, *offsets, aborted, -1, records)
