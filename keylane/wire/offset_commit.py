"""OffsetCommit v2 to v10: requests and responses, unknown tagged fields kept raw.

Source: OffsetCommitRequest.json, OffsetCommitResponse.json of Apache Kafka 4.3; KIP-320 (leader
epochs, v6), KIP-345 (static members, v7), KIP-516 (topic ids, v10).

Own codec, not kio's: it runs for every commit of every lane. Fields have kio's names, so what
serves other APIs' kio entities serves these. kio is its slow twin in the tests.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.errors import FrameInvalid
from keylane.wire.entities import UnknownCode, error_code, topic_id_bytes, topic_id_of
from keylane.wire.primitives import NO_TAGS, Buffer, Reader, Writer

VERSION_MIN: Final = 2
VERSION_MAX: Final = 10
THROTTLE_FROM: Final = 3
RETENTION_BEFORE: Final = 5
EPOCH_FROM: Final = 6
INSTANCE_FROM: Final = 7
FLEXIBLE_FROM: Final = 8
TOPIC_ID_FROM: Final = 10

ENTRY: Final = struct.Struct(">iq")
ENTRY_WITH_EPOCH: Final = struct.Struct(">iqi")
ANSWER: Final = struct.Struct(">ih")
NO_LEADER_EPOCH: Final = -1
NO_RETENTION: Final = -1
TOPIC_BYTES_MIN: Final = 3
"""Of either message: an empty name, no partitions, no tagged fields."""

Code = ErrorCode | UnknownCode


class CommitPartition(NamedTuple):
    """One partition of a request. A named tuple, as `fetch.FetchPartition` is."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    """NO_LEADER_EPOCH before v6."""
    committed_metadata: str | None
    tags: bytes = NO_TAGS


class NamedCommitTopic(NamedTuple):
    """A topic of a request before v10."""

    name: str
    partitions: tuple[CommitPartition, ...]
    tags: bytes = NO_TAGS


class CommitTopic(NamedTuple):
    """A topic of a request from v10 on."""

    topic_id: uuid.UUID | None
    """None: the zero id, which is no topic's."""
    partitions: tuple[CommitPartition, ...]
    tags: bytes = NO_TAGS


class CommitRequest(NamedTuple):
    """A request; fields that its version lacks have Kafka's defaults."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    topics: tuple[NamedCommitTopic | CommitTopic, ...]
    group_instance_id: str | None = None
    retention_ms: int = NO_RETENTION
    tags: bytes = NO_TAGS


class CommitAnswer(NamedTuple):
    """One partition of a response."""

    partition_index: int
    error_code: Code
    tags: bytes = NO_TAGS


class NamedTopicAnswer(NamedTuple):
    """A topic of a response before v10."""

    name: str
    partitions: tuple[CommitAnswer, ...]
    tags: bytes = NO_TAGS


class TopicAnswer(NamedTuple):
    """A topic of a response from v10 on."""

    topic_id: uuid.UUID | None
    partitions: tuple[CommitAnswer, ...]
    tags: bytes = NO_TAGS


class CommitResponse(NamedTuple):
    """A response."""

    topics: tuple[NamedTopicAnswer | TopicAnswer, ...]
    throttle_ms: int = 0
    tags: bytes = NO_TAGS


KNOWN_CODES: Final[Mapping[int, ErrorCode]] = {int(code): code for code in ErrorCode}


# -- request ------------------------------------------------------------------------------


def read_commit_request(body: Buffer, version: int) -> CommitRequest:
    """Read a request body; it must end where the bytes do.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    _check_version(version)
    reader = Reader(body, flexible=version >= FLEXIBLE_FROM)
    group_id, generation_id, member_id = reader.string(), reader.int32(), reader.string()
    instance_id = reader.nullable_string() if version >= INSTANCE_FROM else None
    retention_ms = reader.int64() if version < RETENTION_BEFORE else NO_RETENTION
    topics = [_read_topic(reader, version) for _ in range(reader.count(TOPIC_BYTES_MIN))]
    request = CommitRequest(
        group_id, generation_id, member_id, tuple(topics), instance_id, retention_ms, reader.tags()
    )
    reader.end()
    return request


def _read_topic(reader: Reader, version: int) -> NamedCommitTopic | CommitTopic:
    entry = ENTRY_WITH_EPOCH if version >= EPOCH_FROM else ENTRY
    if version >= TOPIC_ID_FROM:
        topic_id = topic_id_of(reader.uuid())
        return CommitTopic(topic_id, _read_partitions(reader, entry), reader.tags())
    return NamedCommitTopic(reader.string(), _read_partitions(reader, entry), reader.tags())


def _read_partitions(reader: Reader, entry: struct.Struct) -> tuple[CommitPartition, ...]:
    partitions = []
    for _ in range(reader.count(entry.size + 1)):
        index, offset, *epoch = entry.unpack_from(reader.buffer, reader.advance(entry.size))
        leader_epoch = epoch[0] if epoch else NO_LEADER_EPOCH
        metadata = reader.nullable_string()
        partitions.append(CommitPartition(index, offset, leader_epoch, metadata, reader.tags()))
    return tuple(partitions)


def write_commit_request(request: CommitRequest, version: int) -> bytes:
    """The request body in a version; fields that it lacks are left out.

    Raises:
        FrameInvalid: a version that keylane does not know.
        ValueError: a string is longer than Kafka allows.
    """
    _check_version(version)
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    writer.string(request.group_id)
    writer.int32(request.generation_id_or_member_epoch)
    writer.string(request.member_id)
    if version >= INSTANCE_FROM:
        writer.string(request.group_instance_id)
    if version < RETENTION_BEFORE:
        writer.int64(request.retention_ms)
    writer.count(len(request.topics))
    for topic in request.topics:
        _write_key(writer, topic)
        writer.count(len(topic.partitions))
        for index, offset, leader_epoch, metadata, tags in topic.partitions:
            if version >= EPOCH_FROM:
                writer.raw(ENTRY_WITH_EPOCH.pack(index, offset, leader_epoch))
            else:
                writer.raw(ENTRY.pack(index, offset))
            writer.string(metadata)
            writer.tags(tags)
        writer.tags(topic.tags)
    writer.tags(request.tags)
    return writer.to_bytes()


# -- response -----------------------------------------------------------------------------


def read_commit_response(body: Buffer, version: int) -> CommitResponse:
    """Read a response body; it must end where the bytes do.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    _check_version(version)
    reader = Reader(body, flexible=version >= FLEXIBLE_FROM)
    throttle_ms = reader.int32() if version >= THROTTLE_FROM else 0
    topics = [_read_topic_answer(reader, version) for _ in range(reader.count(TOPIC_BYTES_MIN))]
    response = CommitResponse(tuple(topics), throttle_ms, reader.tags())
    reader.end()
    return response


def _read_topic_answer(reader: Reader, version: int) -> NamedTopicAnswer | TopicAnswer:
    if version >= TOPIC_ID_FROM:
        topic_id = topic_id_of(reader.uuid())
        return TopicAnswer(topic_id, _read_answers(reader), reader.tags())
    return NamedTopicAnswer(reader.string(), _read_answers(reader), reader.tags())


def _read_answers(reader: Reader) -> tuple[CommitAnswer, ...]:
    answers = []
    for _ in range(reader.count(ANSWER.size)):
        index, code = ANSWER.unpack_from(reader.buffer, reader.advance(ANSWER.size))
        known = KNOWN_CODES.get(code)
        answers.append(
            CommitAnswer(index, error_code(code) if known is None else known, reader.tags())
        )
    return tuple(answers)


def write_commit_response(response: CommitResponse, version: int) -> bytes:
    """The response body in a version.

    Raises:
        FrameInvalid: a version that keylane does not know.
    """
    _check_version(version)
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    if version >= THROTTLE_FROM:
        writer.int32(response.throttle_ms)
    writer.count(len(response.topics))
    for topic in response.topics:
        _write_key(writer, topic)
        writer.count(len(topic.partitions))
        for index, code, tags in topic.partitions:
            writer.raw(ANSWER.pack(index, code))
            writer.tags(tags)
        writer.tags(topic.tags)
    writer.tags(response.tags)
    return writer.to_bytes()


# -- both ---------------------------------------------------------------------------------


def _check_version(version: int) -> None:
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise FrameInvalid(f"OffsetCommit v{version} is not known")


def _write_key(
    writer: Writer, topic: NamedCommitTopic | CommitTopic | NamedTopicAnswer | TopicAnswer
) -> None:
    match topic:
        case NamedCommitTopic() | NamedTopicAnswer():
            writer.string(topic.name)
        case _:
            writer.raw(topic_id_bytes(topic.topic_id))
