"""OffsetCommit v2 to v10: requests and responses, unknown tagged fields kept raw.

Source: OffsetCommitRequest.json, OffsetCommitResponse.json of Apache Kafka 4.3; KIP-320 (leader
epochs, v6), KIP-345 (static members, v7), KIP-516 (topic ids, v10).

Own codec, not kio's: it runs for every commit of every lane. Fields have kio's names, so what
serves other APIs' kio entities serves these. kio is its slow twin in the tests.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

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
"""An empty name, no partitions, no tagged fields, in either message."""

Code = ErrorCode | UnknownCode
Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class CommitPartition(NamedTuple):
    """One partition of a request. A named tuple, as `fetch.FetchPartition` is."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    """NO_LEADER_EPOCH before v6."""
    committed_metadata: str | None
    tags: bytes = NO_TAGS


class CommitAnswer(NamedTuple):
    """One partition of a response."""

    partition_index: int
    error_code: Code
    tags: bytes = NO_TAGS


class NamedTopic(NamedTuple, Generic[Item_co]):
    """A topic before v10."""

    name: str
    partitions: tuple[Item_co, ...]
    tags: bytes = NO_TAGS


class IdTopic(NamedTuple, Generic[Item_co]):
    """A topic from v10 on."""

    topic_id: uuid.UUID | None
    """None: the zero id, which is no topic's."""
    partitions: tuple[Item_co, ...]
    tags: bytes = NO_TAGS


CommitTopic = NamedTopic[Item] | IdTopic[Item]


class CommitRequest(NamedTuple):
    """A request; fields that its version lacks have Kafka's defaults."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    topics: tuple[CommitTopic[CommitPartition], ...]
    group_instance_id: str | None = None
    retention_ms: int = NO_RETENTION
    tags: bytes = NO_TAGS


class CommitResponse(NamedTuple):
    """A response."""

    topics: tuple[CommitTopic[CommitAnswer], ...]
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
    topics = _read_topics(reader, version, _read_partitions)
    request = CommitRequest(
        group_id, generation_id, member_id, topics, instance_id, retention_ms, reader.tags()
    )
    reader.end()
    return request


def _read_partitions(reader: Reader, version: int) -> tuple[CommitPartition, ...]:
    entry = ENTRY_WITH_EPOCH if version >= EPOCH_FROM else ENTRY
    partitions = []
    for _ in range(reader.count(entry.size + 1)):
        index, offset, *epoch = entry.unpack_from(reader.buffer, reader.advance(entry.size))
        leader_epoch = epoch[0] if epoch else NO_LEADER_EPOCH
        metadata = reader.nullable_string()
        partitions.append(CommitPartition(index, offset, leader_epoch, metadata, reader.tags()))
    return tuple(partitions)


def write_commit_request(request: CommitRequest, version: int) -> bytes:
    """Return the request body in a version; fields that it lacks are left out.

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
    _write_topics(writer, version, request.topics, _write_partitions)
    writer.tags(request.tags)
    return writer.to_bytes()


def _write_partitions(writer: Writer, version: int, partitions: Sequence[CommitPartition]) -> None:
    for index, offset, leader_epoch, metadata, tags in partitions:
        if version >= EPOCH_FROM:
            writer.raw(ENTRY_WITH_EPOCH.pack(index, offset, leader_epoch))
        else:
            writer.raw(ENTRY.pack(index, offset))
        writer.string(metadata)
        writer.tags(tags)


# -- response -----------------------------------------------------------------------------


def read_commit_response(body: Buffer, version: int) -> CommitResponse:
    """Read a response body; it must end where the bytes do.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    _check_version(version)
    reader = Reader(body, flexible=version >= FLEXIBLE_FROM)
    throttle_ms = reader.int32() if version >= THROTTLE_FROM else 0
    topics = _read_topics(reader, version, _read_answers)
    response = CommitResponse(topics, throttle_ms, reader.tags())
    reader.end()
    return response


def _read_answers(reader: Reader, _version: int) -> tuple[CommitAnswer, ...]:
    answers = []
    for _ in range(reader.count(ANSWER.size)):
        index, code = ANSWER.unpack_from(reader.buffer, reader.advance(ANSWER.size))
        known = KNOWN_CODES.get(code)
        answers.append(
            CommitAnswer(index, error_code(code) if known is None else known, reader.tags())
        )
    return tuple(answers)


def write_commit_response(response: CommitResponse, version: int) -> bytes:
    """Return the response body in a version.

    Raises:
        FrameInvalid: a version that keylane does not know.
    """
    _check_version(version)
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    if version >= THROTTLE_FROM:
        writer.int32(response.throttle_ms)
    _write_topics(writer, version, response.topics, _write_answers)
    writer.tags(response.tags)
    return writer.to_bytes()


def _write_answers(writer: Writer, _version: int, answers: Sequence[CommitAnswer]) -> None:
    for index, code, tags in answers:
        writer.raw(ANSWER.pack(index, code))
        writer.tags(tags)


# -- both ---------------------------------------------------------------------------------


def _check_version(version: int) -> None:
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise FrameInvalid(f"OffsetCommit v{version} is not known")


def _read_topics(
    reader: Reader, version: int, read_items: Callable[[Reader, int], tuple[Item, ...]]
) -> tuple[CommitTopic[Item], ...]:
    topics: list[CommitTopic[Item]] = []
    for _ in range(reader.count(TOPIC_BYTES_MIN)):
        if version >= TOPIC_ID_FROM:
            topic_id = topic_id_of(reader.uuid())
            topics.append(IdTopic(topic_id, read_items(reader, version), reader.tags()))
        else:
            name = reader.string()
            topics.append(NamedTopic(name, read_items(reader, version), reader.tags()))
    return tuple(topics)


def _write_topics(
    writer: Writer,
    version: int,
    topics: Sequence[CommitTopic[Item]],
    write_items: Callable[[Writer, int, Sequence[Item]], None],
) -> None:
    writer.count(len(topics))
    for topic in topics:
        if isinstance(topic, NamedTopic):
            writer.string(topic.name)
        else:
            writer.raw(topic_id_bytes(topic.topic_id))
        writer.count(len(topic.partitions))
        write_items(writer, version, topic.partitions)
        writer.tags(topic.tags)
