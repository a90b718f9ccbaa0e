"""Fetch v4 to v18: requests and responses, records as views, unknown tagged fields kept raw.

Source: FetchRequest.json, FetchResponse.json of Apache Kafka 4.3; KIP-227 (sessions), KIP-516
(topic ids, v13), KIP-903 (replica state, v15), KIP-951 (node endpoints, v16).

Own codec, not kio's: it must keep tagged fields it does not know, and it runs for every poll.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from keylane.errors import FrameInvalid
from keylane.wire.parts import (
    TOPIC_ID_FROM,
    KeyedTopic,
    read_records,
    read_topics,
    write_records,
    write_topics,
)
from keylane.wire.primitives import (
    NO_TAGS,
    UUID_BYTES,
    Buffer,
    Reader,
    Writer,
    read_uvarint,
    skip_tags,
    write_uvarint,
)

FETCH_VERSION_MIN: Final = 4
FETCH_VERSION_MAX: Final = 18
FLEXIBLE_FROM: Final = 12

REQUEST_HEAD: Final = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
SESSION: Final = struct.Struct(">ii")
ANSWER_HEAD: Final = struct.Struct(">ihqqq")
ANSWER_HEAD_V4: Final = struct.Struct(">ihqq")
ANSWER_UNABORTED: Final = struct.Struct(">ihqqqBi")
"""`ANSWER_HEAD`, the count of aborted transactions in one byte, the preferred replica."""
ABORTED: Final = struct.Struct(">qq")
INT32: Final = struct.Struct(">i")


class FetchPartition(NamedTuple):
    """One partition to fetch.

    A named tuple, not a dataclass: it is made from what `struct` unpacks as it is, which is
    four times as fast, and a poll names up to hundreds. Change a copy with `_replace`.
    """

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    tags: bytes = NO_TAGS


FetchTopic = KeyedTopic[FetchPartition]
ForgottenTopic = KeyedTopic[int]
"""Partitions that leave a fetch session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A fetch request; fields that its version lacks have Kafka's defaults."""

    version: int
    replica_id: int = -1
    """-1 from v15 on, where it is part of tag 1."""
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int = 0
    session_epoch: int = -1
    topics: tuple[FetchTopic, ...]
    forgotten: tuple[ForgottenTopic, ...] = ()
    rack_id: str = ""
    tags: bytes = NO_TAGS
    """Raw: cluster id (tag 0), replica state (tag 1), and what keylane does not know."""
    is_tagged: bool = field(default=False, compare=False, repr=False)
    """As read: there are tagged fields, here or in a topic or a partition. Few requests have any,
    and so a relay need not look through all partitions."""


class FetchAnswer(NamedTuple):
    """Answer of a fetch for one partition; a named tuple like `FetchPartition`."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int] | tuple[int, int, bytes], ...] | None
    """(producer id, first offset) of aborted transactions, and raw tagged fields where there are
    any; None for null."""
    preferred_read_replica: int
    records: Sequence[Buffer] | None
    """Batches in order, in any number of pieces; None for null."""
    tags: bytes = NO_TAGS
    """Raw: diverging epoch (tag 0), current leader (tag 1), snapshot id (tag 2)."""


FetchTopicAnswer = KeyedTopic[FetchAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """A fetch response; error code and session id exist from v7 on."""

    throttle_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    topics: tuple[FetchTopicAnswer, ...]
    tags: bytes = NO_TAGS
    """Raw: node endpoints (tag 0, v16), and what keylane does not know."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The fixed part of a request's partition in one range of versions."""

    fixed: struct.Struct
    to_fields: Callable[..., tuple[Any, ...]]
    """Fields as they stand on the wire -> fields of `FetchPartition`."""
    to_wire: Callable[[FetchPartition], tuple[Any, ...]]


_LAYOUT_V4: Final = _Layout(
    struct.Struct(">iqi"), lambda p, o, m: (p, -1, o, -1, -1, m, NO_TAGS), itemgetter(0, 2, 5)
)
_LAYOUT_V5: Final = _Layout(
    struct.Struct(">iqqi"),
    lambda p, o, s, m: (p, -1, o, -1, s, m, NO_TAGS),
    itemgetter(0, 2, 4, 5),
)
_LAYOUT_V9: Final = _Layout(
    struct.Struct(">iiqqi"),
    lambda p, e, o, s, m: (p, e, o, -1, s, m, NO_TAGS),
    itemgetter(0, 1, 2, 4, 5),
)
PARTITION: Final = struct.Struct(">iiqiqi")  # from v12 on
PARTITION_TAGLESS: Final = struct.Struct(">iiqiqi1s")  # and its tags when there are none


def _legacy_layout(version: int) -> _Layout:
    if version >= 9:
        return _LAYOUT_V9
    return _LAYOUT_V5 if version >= 5 else _LAYOUT_V4


def _check_version(version: int) -> None:
    if not FETCH_VERSION_MIN <= version <= FETCH_VERSION_MAX:
        raise FrameInvalid(f"Fetch v{version} is not known")


# -- request ------------------------------------------------------------------------------


def read_fetch_request(frame: Buffer, position: int, version: int) -> FetchRequest:
    """Read the request body at `position`; it must end where the frame ends.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    _check_version(version)
    reader = Reader(frame, position, flexible=version >= FLEXIBLE_FROM)
    replica_id = reader.int32() if version < 15 else -1
    head = REQUEST_HEAD.unpack_from(reader.buffer, reader.advance(REQUEST_HEAD.size))
    session = (0, -1)
    if version >= 7:
        session = SESSION.unpack_from(reader.buffer, reader.advance(SESSION.size))
    tagged: list[bool] = []
    topics = read_topics(reader, version, partial(_read_partitions, tagged))
    forgotten = read_topics(reader, version, _read_forgotten) if version >= 7 else ()
    rack_id = reader.string() if version >= 11 else ""
    tags = reader.tags()
    reader.end()
    tagged += (section != NO_TAGS for section in _outer_tags(topics, forgotten, tags))
    return FetchRequest(
        version=version,
        replica_id=replica_id,
        max_wait_ms=head[0],
        min_bytes=head[1],
        max_bytes=head[2],
        isolation_level=head[3],
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten=forgotten,
        rack_id=rack_id,
        tags=tags,
        is_tagged=any(tagged),
    )


def _outer_tags(
    topics: Sequence[FetchTopic], forgotten: Sequence[ForgottenTopic], tags: bytes
) -> Iterator[bytes]:
    """Return all tagged fields sections but those of partitions."""
    yield tags
    for topic in (*topics, *forgotten):
        yield topic.tags


def _read_partitions(
    tagged: list[bool], reader: Reader, version: int
) -> tuple[FetchPartition, ...]:
    """Read the partitions of a topic; `tagged` gets an entry if one has tagged fields."""
    if version < FLEXIBLE_FROM:
        layout = _legacy_layout(version)
        rows = _read_rows(reader, layout.fixed)
        return tuple(FetchPartition._make(layout.to_fields(*row)) for row in rows)
    stride = PARTITION_TAGLESS.size
    count = reader.count(stride)
    start, size = reader.position, count * stride
    block = reader.buffer[start : start + size]
    if not any(block[stride - 1 :: stride]):  # no partition has a tag: the rule
        reader.position = start + size
        return tuple(map(FetchPartition._make, PARTITION_TAGLESS.iter_unpack(block)))
    tagged.append(True)
    partitions = []
    for _ in range(count):
        fixed = PARTITION.unpack_from(reader.buffer, reader.advance(PARTITION.size))
        partitions.append(FetchPartition._make((*fixed, reader.tags())))
    return tuple(partitions)


def _read_forgotten(reader: Reader, _version: int) -> tuple[int, ...]:
    return tuple(row[0] for row in _read_rows(reader, INT32))


def _read_rows(reader: Reader, row: struct.Struct) -> Iterator[tuple[Any, ...]]:
    size = reader.count(row.size) * row.size
    start = reader.advance(size)
    return row.iter_unpack(reader.buffer[start : start + size])


def write_fetch_request(request: FetchRequest) -> bytes:
    """Return the request body in `request.version`; fields that the version lacks are left out.

    Raises:
        FrameInvalid: a version that keylane does not know.
    """
    version = request.version
    _check_version(version)
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    if version < 15:
        writer.int32(request.replica_id)
    head = request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level
    writer.raw(REQUEST_HEAD.pack(*head))
    if version >= 7:
        writer.raw(SESSION.pack(request.session_id, request.session_epoch))
    write_topics(writer, version, request.topics, _write_partitions)
    if version >= 7:
        write_topics(writer, version, request.forgotten, _write_forgotten)
    if version >= 11:
        writer.string(request.rack_id)
    writer.tags(request.tags)
    return writer.to_bytes()


def _write_partitions(writer: Writer, version: int, partitions: Sequence[FetchPartition]) -> None:
    if version < FLEXIBLE_FROM:
        layout = _legacy_layout(version)
        rows = [layout.fixed.pack(*layout.to_wire(item)) for item in partitions]
    else:
        tagless, pack = PARTITION_TAGLESS.pack, PARTITION.pack
        rows = [
            tagless(*item) if item[6] == NO_TAGS else pack(*item[:6]) + item[6]
            for item in partitions
        ]
    writer.raw(b"".join(rows))


def _write_forgotten(writer: Writer, _version: int, partitions: Sequence[int]) -> None:
    writer.raw(struct.pack(f">{len(partitions)}i", *partitions))


# -- response -----------------------------------------------------------------------------


def read_fetch_response(frame: Buffer, position: int, version: int) -> FetchResponse:
    """Read the response body at `position`; records are views into `frame`.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    _check_version(version)
    reader = Reader(frame, position, flexible=version >= FLEXIBLE_FROM)
    throttle_ms = reader.int32()
    error_code = reader.int16() if version >= 7 else 0
    session_id = reader.int32() if version >= 7 else 0
    topics = read_topics(reader, version, _read_answers)
    tags = reader.tags()
    reader.end()
    return FetchResponse(
        throttle_ms=throttle_ms,
        error_code=error_code,
        session_id=session_id,
        topics=topics,
        tags=tags,
    )


def _read_answers(reader: Reader, version: int) -> tuple[FetchAnswer, ...]:
    head = ANSWER_HEAD if version >= 5 else ANSWER_HEAD_V4
    count = reader.count(head.size + 3)
    return tuple(_read_answer(reader, version, head) for _ in range(count))


def _read_answer(reader: Reader, version: int, head: struct.Struct) -> FetchAnswer:
    fixed = head.unpack_from(reader.buffer, reader.advance(head.size))
    if version < 5:
        fixed = (*fixed, -1)
    aborted = _read_aborted(reader)
    preferred = reader.int32() if version >= 11 else -1
    return FetchAnswer._make((*fixed, aborted, preferred, read_records(reader), reader.tags()))


def _read_aborted(reader: Reader) -> tuple[Any, ...] | None:
    count = reader.nullable_count(ABORTED.size)
    if not count:
        return None if count is None else ()
    aborted = []
    for _ in range(count):
        fields = ABORTED.unpack_from(reader.buffer, reader.advance(ABORTED.size))
        tags = reader.tags()
        aborted.append(fields if tags == NO_TAGS else (*fields, tags))
    return tuple(aborted)


def write_fetch_response(response: FetchResponse, version: int) -> list[Buffer]:
    """Return the response body as buffers for `writelines`; large record pieces are not copied.

    Raises:
        FrameInvalid: a version that keylane does not know.
    """
    _check_version(version)
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    writer.int32(response.throttle_ms)
    if version >= 7:
        writer.int16(response.error_code)
        writer.int32(response.session_id)
    write_topics(writer, version, response.topics, _write_answers)
    writer.tags(response.tags)
    return writer.to_buffers()


def _write_answers(writer: Writer, version: int, answers: Sequence[FetchAnswer]) -> None:
    for answer in answers:
        _write_answer(writer, answer, version)


def _write_answer(writer: Writer, answer: FetchAnswer, version: int) -> None:
    aborted, records = answer.aborted, answer.records
    if version >= FLEXIBLE_FROM and not aborted:  # the rule, and a poll of lanes has hundreds
        count = 0 if aborted is None else 1
        head = ANSWER_UNABORTED.pack(*answer[:5], count, answer.preferred_read_replica)
        if not records:
            writer.raw(head + (b"\x00" if records is None else b"\x01") + answer.tags)
            return
        size = sum(map(len, records))
        writer.raw(head + write_uvarint(size + 1))
        for piece in records:
            writer.raw(piece)
        writer.raw(answer.tags)
        return
    if version >= 5:
        writer.raw(ANSWER_HEAD.pack(*answer[:5]))
    else:
        writer.raw(ANSWER_HEAD_V4.pack(*answer[:4]))
    writer.count(None if aborted is None else len(aborted))
    for producer_id, first_offset, *tags in aborted or ():
        writer.raw(ABORTED.pack(producer_id, first_offset))
        writer.tags(tags[0] if tags else NO_TAGS)
    if version >= 11:
        writer.int32(answer.preferred_read_replica)
    write_records(writer, records)
    writer.tags(answer.tags)


def fetch_response_tail(frame: Buffer, position: int, version: int) -> int:
    """Return the position of the top-level tagged fields; the frame's end without any.

    A relay asks this for every response, so it steps over everything else; one byte 0 at the
    tail means that there is nothing to rewrite.

    Raises:
        FrameInvalid: a length or count passes the end.
    """
    _check_version(version)
    if version < FLEXIBLE_FROM:
        return len(frame)
    try:
        tail = _walk_response(frame, position + 10, version)  # throttle, error code, session
    except IndexError:
        raise FrameInvalid("fetch response ends inside a partition") from None
    if tail >= len(frame):
        raise FrameInvalid("fetch response ends before its tagged fields")
    return tail


def _walk_response(frame: Buffer, position: int, version: int) -> int:
    limit = len(frame)
    topics, position = read_uvarint(frame, position, limit)
    for _ in range(topics - 1):
        size = UUID_BYTES
        if version < TOPIC_ID_FROM:
            length, position = read_uvarint(frame, position, limit)
            size = length - 1 if length else 0
        partitions, position = read_uvarint(frame, position + size, limit)
        for _ in range(partitions - 1):
            position += ANSWER_HEAD.size
            if frame[position] < 2:  # no aborted transactions: null or empty
                position += 1
            else:
                position = _skip_aborted(frame, position, limit)
            size, position = read_uvarint(frame, position + 4, limit)
            position += size - 1 if size else 0
            position = position + 1 if frame[position] == 0 else skip_tags(frame, position, limit)
        position = skip_tags(frame, position, limit)
    return position


def _skip_aborted(frame: Buffer, position: int, limit: int) -> int:
    count, position = read_uvarint(frame, position, limit)
    for _ in range(count - 1):
        position = skip_tags(frame, position + ABORTED.size, limit)
    return position
