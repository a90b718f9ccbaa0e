"""Produce v3 to v13: requests and responses, records as views, unknown tagged fields kept raw.

Source: ProduceRequest.json, ProduceResponse.json of Apache Kafka 4.3; KIP-467 (record errors,
v8), KIP-482 (flexible, v9), KIP-951 (current leader, v10), KIP-516 (topic ids, v13).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.errors import FrameInvalid
from keylane.wire.parts import (
    KeyedTopic,
    merge_endpoint_tags,
    read_records,
    read_topics,
    write_records,
    write_topics,
)
from keylane.wire.primitives import NO_TAGS, Buffer, Reader, Writer

PRODUCE_VERSION_MIN: Final = 3
PRODUCE_VERSION_MAX: Final = 13
FLEXIBLE_FROM: Final = 9
LOG_START_FROM: Final = 5
RECORD_ERRORS_FROM: Final = 8

REQUEST_HEAD: Final = struct.Struct(">hi")  # acks, timeout
ANSWER_HEAD: Final = struct.Struct(">ihqqq")
ANSWER_HEAD_V3: Final = struct.Struct(">ihqq")
RECORD_ERROR_BYTES_MIN: Final = 6
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1


class ProducePartition(NamedTuple):
    """Records for one partition; a named tuple as `fetch.FetchPartition` is."""

    partition: int
    records: Sequence[Buffer] | None
    """One batch (Kafka refuses more), in any number of pieces; None for null."""
    tags: bytes = NO_TAGS


ProduceTopic = KeyedTopic[ProducePartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """A produce request."""

    version: int
    transactional_id: str | None
    acks: int
    """0: there is no answer at all; 1: the leader wrote it; -1: all in-sync replicas did."""
    timeout_ms: int
    topics: tuple[ProduceTopic, ...]
    tags: bytes = NO_TAGS


class RecordError(NamedTuple):
    """The record of a batch that made the broker drop the batch."""

    batch_index: int
    message: str | None
    tags: bytes = NO_TAGS


class ProduceAnswer(NamedTuple):
    """Result of the records for one partition; fields a version lacks have defaults."""

    partition: int
    error_code: int
    base_offset: int = NO_OFFSET
    log_append_time: int = NO_TIMESTAMP
    """Milliseconds; -1 unless the topic keeps append times."""
    log_start_offset: int = NO_OFFSET
    record_errors: tuple[RecordError, ...] = ()
    error_message: str | None = None
    tags: bytes = NO_TAGS
    """Raw: current leader (tag 0, v10)."""


NOT_ANSWERED: Final = ProduceAnswer(-1, ErrorCode.network_exception)


ProduceTopicAnswer = KeyedTopic[ProduceAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """A produce response."""

    topics: tuple[ProduceTopicAnswer, ...]
    throttle_ms: int = 0
    tags: bytes = NO_TAGS
    """Raw: node endpoints (tag 0, v10), and what keylane does not know."""


def _check_version(version: int) -> None:
    if not PRODUCE_VERSION_MIN <= version <= PRODUCE_VERSION_MAX:
        raise FrameInvalid(f"Produce v{version} is not known")


# -- request ------------------------------------------------------------------------------


def read_produce_request(frame: Buffer, position: int, version: int) -> ProduceRequest:
    """Read the request body at `position`; records are views into `frame`.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    _check_version(version)
    reader = Reader(frame, position, flexible=version >= FLEXIBLE_FROM)
    transactional_id = reader.nullable_string()
    acks, timeout_ms = REQUEST_HEAD.unpack_from(reader.buffer, reader.advance(REQUEST_HEAD.size))
    topics = read_topics(reader, version, _read_partitions)
    tags = reader.tags()
    reader.end()
    return ProduceRequest(
        version=version,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topics=topics,
        tags=tags,
    )


def _read_partitions(reader: Reader, _version: int) -> tuple[ProducePartition, ...]:
    count = reader.count(6 if reader.flexible else 8)
    return tuple(
        ProducePartition(reader.int32(), read_records(reader), reader.tags()) for _ in range(count)
    )


def write_produce_request(request: ProduceRequest) -> list[Buffer]:
    """Return the request body in `request.version` as buffers; large record pieces are not copied.

    Raises:
        FrameInvalid: a version that keylane does not know.
    """
    version = request.version
    _check_version(version)
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    writer.string(request.transactional_id)
    writer.raw(REQUEST_HEAD.pack(request.acks, request.timeout_ms))
    write_topics(writer, version, request.topics, _write_partitions)
    writer.tags(request.tags)
    return writer.to_buffers()


def _write_partitions(
    writer: Writer, _version: int, partitions: Sequence[ProducePartition]
) -> None:
    for partition, records, tags in partitions:
        writer.int32(partition)
        write_records(writer, records)
        writer.tags(tags)


# -- response -----------------------------------------------------------------------------


def read_produce_response(frame: Buffer, position: int, version: int) -> ProduceResponse:
    """Read the response body at `position`.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    _check_version(version)
    reader = Reader(frame, position, flexible=version >= FLEXIBLE_FROM)
    topics = read_topics(reader, version, _read_answers)
    throttle_ms = reader.int32()
    tags = reader.tags()
    reader.end()
    return ProduceResponse(topics=topics, throttle_ms=throttle_ms, tags=tags)


def _read_answers(reader: Reader, version: int) -> tuple[ProduceAnswer, ...]:
    head = ANSWER_HEAD if version >= LOG_START_FROM else ANSWER_HEAD_V3
    return tuple(_read_answer(reader, version, head) for _ in range(reader.count(head.size)))


def _read_answer(reader: Reader, version: int, head: struct.Struct) -> ProduceAnswer:
    fixed = head.unpack_from(reader.buffer, reader.advance(head.size))
    if version < LOG_START_FROM:
        fixed = (*fixed, NO_OFFSET)
    if version < RECORD_ERRORS_FROM:
        return ProduceAnswer(*fixed)
    errors = tuple(
        RecordError(reader.int32(), reader.nullable_string(), reader.tags())
        for _ in range(reader.count(RECORD_ERROR_BYTES_MIN))
    )
    return ProduceAnswer._make((*fixed, errors, reader.nullable_string(), reader.tags()))


def write_produce_response(response: ProduceResponse, version: int) -> list[Buffer]:
    """Return the response body in `version`; fields that the version lacks are left out.

    Raises:
        FrameInvalid: a version that keylane does not know.
    """
    _check_version(version)
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    write_topics(writer, version, response.topics, _write_answers)
    writer.int32(response.throttle_ms)
    writer.tags(response.tags)
    return writer.to_buffers()


def _write_answers(writer: Writer, version: int, answers: Sequence[ProduceAnswer]) -> None:
    for answer in answers:
        if version >= LOG_START_FROM:
            writer.raw(ANSWER_HEAD.pack(*answer[:5]))
        else:
            writer.raw(ANSWER_HEAD_V3.pack(*answer[:4]))
        if version >= RECORD_ERRORS_FROM:
            writer.count(len(answer.record_errors))
            for error in answer.record_errors:
                writer.int32(error.batch_index)
                writer.string(error.message)
                writer.tags(error.tags)
            writer.string(answer.error_message)
        writer.tags(answer.tags)


# -- lanes --------------------------------------------------------------------------------

Place = tuple[int, int]
"""Positions of the topic and of the partition in the client's request."""


_TopicKey = tuple[str | None, bytes | None]


class Target(NamedTuple):
    """Destination of the records of a lane: a partition as the broker knows it."""

    name: str | None
    topic_id: bytes | None
    partition: int
    records: Sequence[Buffer] | None
    """The lane's own, with another base sequence where the producer is idempotent."""


class Refusal(NamedTuple):
    """A lane that is answered without asking the broker (error code 0: known as written)."""

    error_code: int
    message: str | None = None
    log_start_offset: int = NO_OFFSET
    """With UNKNOWN_PRODUCER_ID see `producers.sequence.UNKNOWN_PRODUCER_LOG_START`."""
    base_offset: int = NO_OFFSET
    log_append_time: int = NO_TIMESTAMP


ToPhysical = Callable[[ProduceTopic, ProducePartition], Target | Refusal]


@dataclass(frozen=True, slots=True)
class ProduceRound:
    """One upstream request; it names each physical partition at most once."""

    request: ProduceRequest
    places: tuple[tuple[Place, ...], ...]
    """Origin of each: one place for each partition of each topic of `request`."""


@dataclass(frozen=True, slots=True)
class ProducePlan:
    """A client's request over lanes, taken apart."""

    rounds: tuple[ProduceRound, ...]
    """To be written in this order; none when every lane was refused."""
    refused: Mapping[Place, Refusal]


def split_by_partition(request: ProduceRequest, to_physical: ToPhysical) -> ProducePlan:
    """Take a request over lanes apart into requests over physical partitions.

    Kafka allows one batch per partition in a request (ProduceRequest.validateRecords), so the
    second lane of a partition goes into a second round, and so on. `to_physical` is called in
    the client's order, and a partition gets its lanes in that order over the rounds, so that
    sequences arrive in the order in which it assigned them. Rounds can be written one after
    the other without waiting; a broker answers a connection in order.
    """
    rounds: list[dict[_TopicKey, list[tuple[ProducePartition, Place]]]] = []
    depths: Counter[tuple[_TopicKey, int]] = Counter()
    topic_tags: dict[_TopicKey, bytes] = {}
    refused: dict[Place, Refusal] = {}
    for i, topic in enumerate(request.topics):
        for j, partition in enumerate(topic.partitions):
            target = to_physical(topic, partition)
            if isinstance(target, Refusal):
                refused[i, j] = target
                continue
            key = target.name, target.topic_id
            depth = depths[key, target.partition]
            depths[key, target.partition] += 1
            if depth == len(rounds):
                rounds.append({})
            topic_tags.setdefault(key, topic.tags)
            moved = ProducePartition(target.partition, target.records, partition.tags)
            rounds[depth].setdefault(key, []).append((moved, (i, j)))
    built = (_build_round(request, entries, topic_tags) for entries in rounds)
    return ProducePlan(tuple(built), refused)


def _build_round(
    request: ProduceRequest,
    entries: dict[_TopicKey, list[tuple[ProducePartition, Place]]],
    topic_tags: dict[_TopicKey, bytes],
) -> ProduceRound:
    topics = tuple(
        KeyedTopic(*key, tuple(partition for partition, _ in items), topic_tags[key])
        for key, items in entries.items()
    )
    places = tuple(tuple(place for _, place in items) for items in entries.values())
    return ProduceRound(replace(request, topics=topics), places)


def merge_answers(
    request: ProduceRequest,
    plan: ProducePlan,
    responses: Sequence[ProduceResponse],
    settle: Callable[[Place, ProduceAnswer], ProduceAnswer] = lambda _, answer: answer,
) -> ProduceResponse:
    """Return the answer to a client's request from those to its rounds, in the client's order.

    `settle` sees each broker answer, rounds in order, and may change it. A partition that the
    broker left out, or whose round has no response, is answered with NETWORK_EXCEPTION: the
    outcome is not known, and a producer may retry.
    """
    found: dict[Place, ProduceAnswer] = {
        place: ProduceAnswer(-1, no.error_code, no.base_offset, no.log_append_time,
                             no.log_start_offset, error_message=no.message)
        for place, no in plan.refused.items()
    }  # fmt: skip
    for one, response in zip(plan.rounds, responses, strict=False):
        answers = {
            (answered.name, answered.topic_id, answer.partition): answer
            for answered in response.topics
            for answer in answered.partitions
        }
        for asked, places in zip(one.request.topics, one.places, strict=True):
            for partition, place in zip(asked.partitions, places, strict=True):
                answer = answers.get(
                    (asked.name, asked.topic_id, partition.partition), NOT_ANSWERED
                )
                found[place] = settle(place, answer)
    topic_tags = {
        (answered.name, answered.topic_id): answered.tags
        for response in responses
        for answered in response.topics
    }
    topics = tuple(
        KeyedTopic(
            topic.name,
            topic.topic_id,
            tuple(
                found.get((i, j), NOT_ANSWERED)._replace(partition=partition.partition)
                for j, partition in enumerate(topic.partitions)
            ),
            topic_tags.get((topic.name, topic.topic_id), NO_TAGS),
        )
        for i, topic in enumerate(request.topics)
    )
    return ProduceResponse(
        topics=topics,
        throttle_ms=max((response.throttle_ms for response in responses), default=0),
        tags=merge_endpoint_tags(response.tags for response in responses),
    )
