"""Produce v3-13: records for lanes go to their physical partitions.

Behaviour: lane `lane * P + p` is written to partition p, to which a direct producer writes the
same key. A broker takes one batch per partition and request, so lanes of one partition go in
successive requests over the same connection. An idempotent producer numbers its batches per lane,
the broker per partition: sequences are translated (`wire.sequence`). The next request of its
connection waits until this one is answered, since a broker remembers 5 batches only. acks=0 has no
answer. Topics without lanes pass as bytes.
Not done: nothing.

Source: protocol guide, Produce; KIP-98, KIP-516, KIP-951.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import BatchCorrupt, FrameInvalid
from keylane.producers.resequence import resequence
from keylane.producers.sequence import UNKNOWN_PRODUCER_LOG_START, SequencedBatch
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.own_names import names_own, refused_topics
from keylane.proxy.apis.shared.places import show_endpoints, with_own_endpoints
from keylane.proxy.apis.shared.relay import Handler, forward
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.apis.shared.views import are_plain, find_view
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.batch import NO_PRODUCER_ID, BatchHeader, read_batch_header
from keylane.wire.produce import (
    Place,
    ProduceAnswer,
    ProducePartition,
    ProducePlan,
    ProduceRequest,
    ProduceResponse,
    ProduceRound,
    ProduceTopic,
    Refusal,
    Target,
    merge_answers,
    read_produce_request,
    read_produce_response,
    split_by_partition,
    write_produce_request,
    write_produce_response,
)

NO_ACKS: Final = 0

Views = Mapping[tuple[str | None, bytes | None], View]


@dataclass(slots=True)
class RoundsUnderWay:
    """The rounds that were sent, and the outcome of those that are answered."""

    sent: list[ProduceRound] = field(default_factory=list)
    refused: dict[Place, Refusal] = field(default_factory=dict)
    open: deque[tuple[Awaitable[Frame], dict[Place, SequencedBatch]]] = field(default_factory=deque)
    responses: list[ProduceResponse] = field(default_factory=list)
    error_codes: dict[Place, int] = field(default_factory=dict)


def look_produce(request: Request, context: Context) -> Handler | None:
    """Return whether to relay: it is answered, and no topic is known to have lanes."""
    wanted = read_produce_request(request.frame, request.body_position, request.api_version)
    is_own = names_own(wanted.topics, context.registry)
    if not is_own and wanted.acks != NO_ACKS and are_plain(wanted.topics, context.registry):
        return None
    return partial(handle_produce, wanted=wanted)


async def handle_produce(request: Request, context: Context, wanted: ProduceRequest) -> Buffers:
    """Take lanes apart into rounds, send them, put the answers together."""
    views = await find_views(wanted, context)
    own = await refused_topics(wanted.topics, context)
    if not views and not own:
        return await _relay(request, wanted, context)
    # Before sequence numbers are given out: a client without the right must not use up others'.
    denied = await _denied(views, context)

    def target(topic: ProduceTopic, entry: ProducePartition) -> Target | Refusal:
        if (topic.name, topic.topic_id) in own:
            return Refusal(ErrorCode.topic_authorization_failed)
        return to_physical(topic, entry, views, denied)

    plan = split_by_partition(wanted, target)
    under_way = RoundsUnderWay(refused=dict(plan.refused))
    has_sequences = False
    for one in plan.rounds:
        batches = idempotent_batches(wanted, one, views)
        has_sequences |= bool(batches)
        while under_way.open and not _has_room(batches, context):
            await _settle_oldest(request, under_way, context)
        one = renumber(one, batches, under_way.refused, context)
        if not one.request.topics:
            continue
        frame = request.with_buffers(write_produce_request(one.request))
        if wanted.acks == NO_ACKS:
            context.send_unanswered(frame)
            continue
        under_way.sent.append(one)
        under_way.open.append((context.send(frame), batches))
    if wanted.acks == NO_ACKS:
        if own:  # there is no answer for the error; a broker closes, too
            raise FrameInvalid("acks=0 for a topic of keylane itself")
        return ()
    if not has_sequences:
        context.release()
    while under_way.open:
        await _settle_oldest(request, under_way, context)
    return request.answer(_merge(request, wanted, under_way, context))


async def find_views(wanted: ProduceRequest, context: Context) -> Views:
    """Return the views of the request's lane topics, by the name or id that it uses."""
    views = {}
    for topic in wanted.topics:
        view = await find_view(topic, context)
        if view is not None:
            views[topic.name, topic.topic_id] = view
    return views


async def _denied(views: Views, context: Context) -> dict[str, int]:
    """Return Kafka's code by topic, for topics that the client may not write to."""
    topics = {view.topic: view for view in views.values()}
    codes = {
        name: await context.right_error(view, Operation.WRITE) for name, view in topics.items()
    }
    return {name: code for name, code in codes.items() if code}


def to_physical(
    topic: ProduceTopic, entry: ProducePartition, views: Views, denied: Mapping[str, int]
) -> Target | Refusal:
    """Return the target of a partition of the request."""
    view = views.get((topic.name, topic.topic_id))
    if view is None:
        return Target(topic.name, topic.topic_id, entry.partition, entry.records)
    if view.topic in denied:
        return Refusal(denied[view.topic])
    if not 0 <= entry.partition < view.layout.index_count:
        return Refusal(ErrorCode.unknown_topic_or_partition)
    partition = view.layout.partition_of(entry.partition)
    if topic.topic_id is not None:
        return Target(None, view.topic_id.bytes, partition, entry.records)
    return Target(view.topic, None, partition, entry.records)


def idempotent_batches(
    wanted: ProduceRequest, one: ProduceRound, views: Views
) -> dict[Place, SequencedBatch]:
    """Return the lane batches of a round that carry sequence numbers."""
    batches = {}
    for places in one.places:
        for place in places:
            topic = wanted.topics[place[0]]
            entry = topic.partitions[place[1]]
            view = views.get((topic.name, topic.topic_id))
            header = _header(entry) if view is not None else None
            if view is not None and header is not None and header.producer_id != NO_PRODUCER_ID:
                batches[place] = _sequenced(view, entry.partition, header)
    return batches


def renumber(
    one: ProduceRound,
    batches: Mapping[Place, SequencedBatch],
    refused: dict[Place, Refusal],
    context: Context,
) -> ProduceRound:
    """Return the round with the partitions' sequence numbers; other batches go to `refused`."""
    if not batches:
        return one
    topics, all_places = [], []
    for topic, places in zip(one.request.topics, one.places, strict=True):
        entries, kept = [], []
        for entry, place in zip(topic.partitions, places, strict=True):
            batch = batches.get(place)
            moved = entry if batch is None else _renumber_batch(entry, batch, context)
            if isinstance(moved, Refusal):
                refused[place] = moved
                continue
            entries.append(moved)
            kept.append(place)
        if entries:
            topics.append(topic._replace(partitions=tuple(entries)))
            all_places.append(tuple(kept))
    return ProduceRound(replace(one.request, topics=tuple(topics)), tuple(all_places))


def _renumber_batch(
    entry: ProducePartition, batch: SequencedBatch, context: Context
) -> ProducePartition | Refusal:
    assigned = context.sequences.assign(batch)
    if isinstance(assigned, Refusal):
        return assigned
    records = memoryview((entry.records or (b"",))[0])
    moved = resequence(records, assigned.base_sequence, assigned.producer_epoch)
    return entry._replace(records=tuple(moved))


def _has_room(batches: Mapping[Place, SequencedBatch], context: Context) -> bool:
    return all(
        context.sequences.room(batch.producer_id, batch.topic_id, batch.partition) > 0
        for batch in batches.values()
    )


def _sequenced(view: View, lane_index: int, header: BatchHeader) -> SequencedBatch:
    return SequencedBatch(
        header.producer_id,
        header.producer_epoch,
        view.topic_id,
        view.layout.partition_of(lane_index),
        lane_index,
        header.base_sequence,
        header.last_offset_delta + 1,
        header.is_transactional,
    )


async def _settle_oldest(request: Request, under_way: RoundsUnderWay, context: Context) -> None:
    """Wait for the first open round; note the broker's answers to its sequences."""
    pending, batches = under_way.open.popleft()
    frame = await pending
    response = read_produce_response(frame, request.answer_position(frame), request.api_version)
    one = under_way.sent[len(under_way.responses)]
    under_way.responses.append(response)
    answers = {
        (topic.name, topic.topic_id, answer.partition): answer
        for topic in response.topics
        for answer in topic.partitions
    }
    for topic, places in zip(one.request.topics, one.places, strict=True):
        for entry, place in zip(topic.partitions, places, strict=True):
            answer = answers.get((topic.name, topic.topic_id, entry.partition))
            if answer is not None and place in batches:
                under_way.error_codes[place] = _settle(batches[place], answer, context)


def _settle(batch: SequencedBatch, answer: ProduceAnswer, context: Context) -> int:
    return context.sequences.settle(
        batch,
        answer.error_code,
        base_offset=answer.base_offset,
        log_append_time=answer.log_append_time,
    )


def _merge(
    request: Request, wanted: ProduceRequest, under_way: RoundsUnderWay, context: Context
) -> Buffers:
    plan = ProducePlan(tuple(under_way.sent), under_way.refused)

    def settled(place: Place, answer: ProduceAnswer) -> ProduceAnswer:
        error_code = under_way.error_codes.get(place, answer.error_code)
        if error_code == ErrorCode.unknown_producer_id != answer.error_code:
            # An error of keylane: without a log start a Java producer retries without end.
            answer = answer._replace(log_start_offset=UNKNOWN_PRODUCER_LOG_START)
        return answer._replace(error_code=error_code)

    response = merge_answers(wanted, plan, under_way.responses, settled)
    body = b"".join(write_produce_response(response, request.api_version))
    moved = show_endpoints(request, body, context)
    return (body,) if moved is None else moved


def _header(entry: ProducePartition) -> BatchHeader | None:
    """Return the batch's header; None where the broker is to refuse the batch."""
    try:
        found = read_batch_header(memoryview((entry.records or (b"",))[0]), 0)
    except BatchCorrupt:
        return None
    return found[0] if found is not None else None


async def _relay(request: Request, wanted: ProduceRequest, context: Context) -> Buffers:
    if wanted.acks == NO_ACKS:
        context.send_unanswered((request.frame,))
        return ()
    return with_own_endpoints(request, await forward(request, context), context)
