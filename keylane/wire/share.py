"""ShareFetch and ShareAcknowledge v1 and v2: requests and responses, records as views.

Source: ShareFetchRequest.json, ShareFetchResponse.json, ShareAcknowledgeRequest.json and
ShareAcknowledgeResponse.json of Apache Kafka 4.3; KIP-932, KIP-1206 (acquire mode, v2), KIP-1222
(renewal, v2).

Own codec, not kio's: it runs for every poll of a member, in both directions. No version has a
tagged field; those that a peer sends are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from keylane.wire.parts import (
    TOPIC_ID_FROM,
    KeyedTopic,
    NodeEndpoint,
    read_endpoints_array,
    read_records,
    read_topics,
    write_records,
    write_topics,
)
from keylane.wire.primitives import NO_TAGS, Buffer, Reader, Writer, write_uvarint

RENEW_FROM: Final = 2
"""Version with renewal and the acquire mode."""

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""Types of acknowledgement."""
BATCH_OPTIMIZED: Final = 0
"""Acquire mode: whole batches. 1 is an exact limit of records."""
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
"""Epochs that open and close a share session."""

FETCH_HEAD: Final = struct.Struct(">iiiiii")
FETCH_HEAD_V2: Final = struct.Struct(">iiiiiibB")
ACQUIRED: Final = struct.Struct(">qqh")
ACQUIRED_WITHOUT_TAGS: Final = struct.Struct(">qqhB")
RANGE: Final = struct.Struct(">qq")
ONE_TYPE: Final = struct.Struct(">qqBBB")
"""A batch with one type: its range, the length 1, the type, no tags. Nearly all are."""
LENGTH_ONE: Final = 2
"""The length 1 of an array, as it is written."""
LEADER: Final = struct.Struct(">ii")
GOOD_HEAD: Final = struct.Struct(">ihBhBiiB")
"""A partition of an answer up to its records, without messages and tags."""
ACK_BATCH_BYTES_MIN: Final = 18
ACQUIRED_BYTES: Final = 19
TYPE_BYTES: Final = [bytes((kind,)) for kind in range(256)]


class AckBatch(NamedTuple):
    """Acknowledgements of the offsets `first` to `last`, both included."""

    first: int
    last: int
    types: bytes
    """A type for all of them, or one for each; as int8, so that a negative one is above 127."""


class SharePartition(NamedTuple):
    """A partition of a request; without acknowledgements it joins the share session."""

    partition: int
    acks: tuple[AckBatch, ...] = ()


ShareTopic = KeyedTopic[SharePartition]
"""By `KeyedTopic(None, topic_id, ...)`: a call of the alias takes as long again."""
ForgottenShareTopic = KeyedTopic[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchRequest:
    """A share fetch; what v1 lacks has Kafka's default."""

    group: str
    member_id: str
    epoch: int
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0x7FFF_FFFF
    max_records: int = 0
    batch_size: int = 0
    acquire_mode: int = BATCH_OPTIMIZED
    is_renewal: bool = False
    topics: tuple[ShareTopic, ...] = ()
    forgotten: tuple[ForgottenShareTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcknowledgeRequest:
    """Acknowledgements without a fetch."""

    group: str
    member_id: str
    epoch: int
    is_renewal: bool = False
    topics: tuple[ShareTopic, ...] = ()


class Acquired(NamedTuple):
    """Offsets that a member has acquired, both ends included, and their delivery count."""

    first: int
    last: int
    delivery_count: int


class ShareAnswer(NamedTuple):
    """Answer for one partition; a ShareAcknowledge has no records, and one error."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    ack_error_code: int = 0
    ack_error_message: str | None = None
    leader_id: int = 0
    leader_epoch: int = 0
    records: Sequence[Buffer] | None = None
    """Batches in order, in any number of pieces; None for null."""
    acquired: tuple[Acquired, ...] = ()


ShareTopicAnswer = KeyedTopic[ShareAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResponse:
    """Response of either API."""

    throttle_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    lock_ms: int = 0
    """Duration of the acquisition lock."""
    topics: tuple[ShareTopicAnswer, ...] = ()
    endpoints: tuple[NodeEndpoint, ...] = ()


# -- requests -----------------------------------------------------------------------------


def read_share_fetch_request(frame: Buffer, position: int, version: int) -> ShareFetchRequest:
    """Read the request body at `position`; it must end where the frame ends.

    Raises:
        FrameInvalid: a length or count that passes the end, bytes left over.
    """
    reader = Reader(frame, position, flexible=True)
    group, member_id, epoch = _read_names(reader)
    mode, is_renewal = BATCH_OPTIMIZED, 0
    if version >= RENEW_FROM:
        at = reader.advance(FETCH_HEAD_V2.size - 4)
        *head, mode, is_renewal = struct.unpack_from(">iiiiibB", reader.buffer, at)
    else:
        head = list(struct.unpack_from(">iiiii", reader.buffer, reader.advance(20)))
    topics = read_topics(reader, TOPIC_ID_FROM, _read_partitions)
    forgotten = read_topics(reader, TOPIC_ID_FROM, _read_forgotten)
    reader.tags()
    reader.end()
    return ShareFetchRequest(
        group=group,
        member_id=member_id,
        epoch=epoch,
        max_wait_ms=head[0],
        min_bytes=head[1],
        max_bytes=head[2],
        max_records=head[3],
        batch_size=head[4],
        acquire_mode=mode,
        is_renewal=bool(is_renewal),
        topics=topics,
        forgotten=forgotten,
    )


def _read_names(reader: Reader) -> tuple[str, str, int]:
    """Read group, member id and epoch; a null id, which brokers refuse, is an empty one."""
    return reader.nullable_string() or "", reader.nullable_string() or "", reader.int32()


def write_share_fetch_request(request: ShareFetchRequest, version: int) -> bytes:
    """Return the request body."""
    writer = Writer(flexible=True)
    writer.string(request.group)
    writer.string(request.member_id)
    head = (
        request.epoch,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.max_records,
        request.batch_size,
    )
    if version >= RENEW_FROM:
        writer.raw(FETCH_HEAD_V2.pack(*head, request.acquire_mode, request.is_renewal))
    else:
        writer.raw(FETCH_HEAD.pack(*head))
    write_topics(writer, TOPIC_ID_FROM, request.topics, _write_partitions)
    write_topics(writer, TOPIC_ID_FROM, request.forgotten, _write_forgotten)
    writer.tags(NO_TAGS)
    return writer.to_bytes()


def read_share_acknowledge_request(
    frame: Buffer, position: int, version: int
) -> ShareAcknowledgeRequest:
    """Read the request body at `position`. Raises: FrameInvalid, as for a share fetch."""
    reader = Reader(frame, position, flexible=True)
    group, member_id, epoch = _read_names(reader)
    is_renewal = version >= RENEW_FROM and bool(reader.int8())
    topics = read_topics(reader, TOPIC_ID_FROM, _read_partitions)
    reader.tags()
    reader.end()
    return ShareAcknowledgeRequest(
        group=group, member_id=member_id, epoch=epoch, is_renewal=is_renewal, topics=topics
    )


def write_share_acknowledge_request(request: ShareAcknowledgeRequest, version: int) -> bytes:
    """Return the request body."""
    writer = Writer(flexible=True)
    writer.string(request.group)
    writer.string(request.member_id)
    writer.int32(request.epoch)
    if version >= RENEW_FROM:
        writer.int8(request.is_renewal)
    write_topics(writer, TOPIC_ID_FROM, request.topics, _write_partitions)
    writer.tags(NO_TAGS)
    return writer.to_bytes()


def _read_partitions(reader: Reader, _version: int) -> tuple[SharePartition, ...]:
    found = []
    for _ in range(reader.count(6)):
        partition = reader.int32()
        acks = _read_batches(reader, reader.count(ACK_BATCH_BYTES_MIN))
        reader.tags()
        found.append(SharePartition(partition, acks))
    return tuple(found)


def _read_batches(reader: Reader, count: int) -> tuple[AckBatch, ...]:
    """Read batches; each that has one type and no tags in one step."""
    found = []
    buffer, size, unpack = reader.buffer, ONE_TYPE.size, ONE_TYPE.unpack_from
    position, last_start = reader.position, reader.limit - ONE_TYPE.size
    for _ in range(count):
        if position <= last_start:
            first, last, length, kind, tags = unpack(buffer, position)
            if length == LENGTH_ONE and not tags:
                found.append(AckBatch(first, last, TYPE_BYTES[kind]))
                position += size
                continue
        reader.position = position
        found.append(_read_batch(reader))
        position = reader.position
    reader.position = position
    return tuple(found)


def _read_batch(reader: Reader) -> AckBatch:
    first, last = RANGE.unpack_from(reader.buffer, reader.advance(RANGE.size))
    count = reader.count(1)
    start = reader.advance(count)
    reader.tags()
    return AckBatch(first, last, bytes(reader.buffer[start : start + count]))


def _write_partitions(writer: Writer, _version: int, entries: Sequence[SharePartition]) -> None:
    for partition, acks in entries:
        writer.int32(partition)
        writer.count(len(acks))
        writer.raw(b"".join([_batch_bytes(*batch) for batch in acks]))
        writer.tags(NO_TAGS)


def _batch_bytes(first: int, last: int, types: bytes) -> bytes:
    if len(types) == 1:
        return ONE_TYPE.pack(first, last, LENGTH_ONE, types[0], 0)
    return RANGE.pack(first, last) + write_uvarint(len(types) + 1) + types + NO_TAGS


def _read_forgotten(reader: Reader, _version: int) -> tuple[int, ...]:
    return tuple(reader.int32() for _ in range(reader.count(4)))


def _write_forgotten(writer: Writer, _version: int, partitions: Sequence[int]) -> None:
    for partition in partitions:
        writer.int32(partition)


# -- responses ----------------------------------------------------------------------------


def read_share_fetch_response(body: Buffer, position: int) -> ShareResponse:
    """Read the response body at `position`. Raises: FrameInvalid."""
    reader = Reader(body, position, flexible=True)
    throttle_ms, error_code, message = reader.int32(), reader.int16(), reader.nullable_string()
    lock_ms = reader.int32()
    topics = read_topics(reader, TOPIC_ID_FROM, _read_answers)
    endpoints = read_endpoints_array(reader)
    reader.tags()
    reader.end()
    return ShareResponse(
        throttle_ms=throttle_ms,
        error_code=error_code,
        error_message=message,
        lock_ms=lock_ms,
        topics=topics,
        endpoints=endpoints,
    )


def _read_answers(reader: Reader, _version: int) -> tuple[ShareAnswer, ...]:
    found = []
    for _ in range(reader.count(21)):
        partition, code, message = reader.int32(), reader.int16(), reader.nullable_string()
        ack_code, ack_message = reader.int16(), reader.nullable_string()
        leader_id, leader_epoch = reader.int32(), reader.int32()
        reader.tags()
        records = read_records(reader)
        count = reader.count(ACQUIRED_BYTES)
        acquired = []
        for _ in range(count):
            acquired.append(
                Acquired(*ACQUIRED.unpack_from(reader.buffer, reader.advance(ACQUIRED.size)))
            )
            reader.tags()
        reader.tags()
        found.append(
            ShareAnswer(
                partition,
                code,
                message,
                ack_code,
                ack_message,
                leader_id,
                leader_epoch,
                records,
                tuple(acquired),
            )
        )
    return tuple(found)


def write_share_fetch_response(response: ShareResponse) -> Sequence[Buffer]:
    """Return the response body; large records are kept by reference."""
    writer = Writer(flexible=True)
    writer.int32(response.throttle_ms)
    writer.int16(response.error_code)
    writer.string(response.error_message)
    writer.int32(response.lock_ms)
    write_topics(writer, TOPIC_ID_FROM, response.topics, _write_answers)
    _write_endpoints(writer, response.endpoints)
    writer.tags(NO_TAGS)
    return writer.to_buffers()


def _write_answers(writer: Writer, _version: int, answers: Sequence[ShareAnswer]) -> None:
    pack = ACQUIRED_WITHOUT_TAGS.pack
    for answer in answers:
        index, code, message, ack_code, ack_message, leader, epoch, records, acquired = answer
        if message is None and ack_message is None:
            writer.raw(GOOD_HEAD.pack(index, code, 0, ack_code, 0, leader, epoch, 0))
        else:
            writer.int32(index)
            writer.int16(code)
            writer.string(message)
            writer.int16(ack_code)
            writer.string(ack_message)
            writer.raw(LEADER.pack(leader, epoch))
            writer.tags(NO_TAGS)
        write_records(writer, records)
        writer.count(len(acquired))
        writer.raw(b"".join([pack(*each, 0) for each in acquired]))
        writer.tags(NO_TAGS)


def read_share_acknowledge_response(body: Buffer, position: int, version: int) -> ShareResponse:
    """Read the response body at `position`. Raises: FrameInvalid."""
    reader = Reader(body, position, flexible=True)
    throttle_ms, error_code, message = reader.int32(), reader.int16(), reader.nullable_string()
    lock_ms = reader.int32() if version >= RENEW_FROM else 0
    topics = read_topics(reader, TOPIC_ID_FROM, _read_acknowledged)
    endpoints = read_endpoints_array(reader)
    reader.tags()
    reader.end()
    return ShareResponse(
        throttle_ms=throttle_ms,
        error_code=error_code,
        error_message=message,
        lock_ms=lock_ms,
        topics=topics,
        endpoints=endpoints,
    )


def _read_acknowledged(reader: Reader, _version: int) -> tuple[ShareAnswer, ...]:
    found = []
    for _ in range(reader.count(17)):
        partition, code, message = reader.int32(), reader.int16(), reader.nullable_string()
        leader_id, leader_epoch = reader.int32(), reader.int32()
        reader.tags()
        reader.tags()
        found.append(
            ShareAnswer(partition, code, message, leader_id=leader_id, leader_epoch=leader_epoch)
        )
    return tuple(found)


def write_share_acknowledge_response(response: ShareResponse, version: int) -> Sequence[Buffer]:
    """Return the response body; each partition's error is its `error_code`."""
    writer = Writer(flexible=True)
    writer.int32(response.throttle_ms)
    writer.int16(response.error_code)
    writer.string(response.error_message)
    if version >= RENEW_FROM:
        writer.int32(response.lock_ms)
    write_topics(writer, TOPIC_ID_FROM, response.topics, _write_acknowledged)
    _write_endpoints(writer, response.endpoints)
    writer.tags(NO_TAGS)
    return writer.to_buffers()


def _write_acknowledged(writer: Writer, _version: int, answers: Sequence[ShareAnswer]) -> None:
    for answer in answers:
        writer.int32(answer.partition)
        writer.int16(answer.error_code)
        writer.string(answer.error_message)
        writer.raw(LEADER.pack(answer.leader_id, answer.leader_epoch))
        writer.tags(NO_TAGS)
        writer.tags(NO_TAGS)


def _write_endpoints(writer: Writer, endpoints: Sequence[NodeEndpoint]) -> None:
    writer.count(len(endpoints))
    for item in endpoints:
        writer.int32(item.node_id)
        writer.string(item.host)
        writer.int32(item.port)
        writer.string(item.rack)
        writer.tags(item.tags)
