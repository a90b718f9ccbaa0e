"""Members in JoinGroup and DescribeGroups: where their metadata stands, and bytes put in its place.

Source: JoinGroupRequest.json, JoinGroupResponse.json and DescribeGroupsResponse.json of Apache
Kafka (versions 0 to 9 and 0 to 6).

A group without lanes passes as it came, whatever its fields hold: so a body is walked, not decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from keylane.wire.primitives import INT32, Buffer, Reader, write_uvarint

JOIN_FLEXIBLE_VERSION: Final = 6
DESCRIBE_FLEXIBLE_VERSION: Final = 5
PROTOCOL_BYTES_MIN: Final = 2
MEMBER_BYTES_MIN: Final = 2
GROUP_BYTES_MIN: Final = 8
Edit = tuple[int, int, bytes]
"""(start, end, what stands there instead)."""


@dataclass(frozen=True, slots=True)
class Span:
    """A field of bytes: its place with the length before it, and what it holds."""

    start: int
    end: int
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """Request of a JoinGroup."""

    group_id: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, Span], ...]
    """Name and metadata, in order of preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEntry:
    """One member in an answer."""

    start: int
    end: int
    member_id: str
    instance_id: str | None
    metadata: Span
    assignment: Span | None
    """None: in JoinGroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """Answer of a coordinator to a JoinGroup."""

    error_code: int
    generation_id: int
    protocol_name: str | None
    leader: str
    member_id: str
    count: tuple[int, int]
    """Position of the count of members."""
    members: tuple[MemberEntry, ...]
    """Members of the whole generation for its leader; none for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """One group of a DescribeGroups answer."""

    group_id: str
    protocol_type: str
    members: tuple[MemberEntry, ...]


def read_join_request(body: Buffer, version: int) -> JoinRequest:
    """Walk a JoinGroup request. Raises: FrameInvalid."""
    reader = Reader(body, flexible=version >= JOIN_FLEXIBLE_VERSION)
    group_id = reader.string()
    reader.int32()  # session time-out
    if version >= 1:
        reader.int32()  # rebalance time-out
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 5 else None
    protocol_type = reader.string()
    protocols = []
    for _ in range(reader.count(PROTOCOL_BYTES_MIN)):
        protocols.append((reader.string(), _span(reader)))
        reader.tags()
    return JoinRequest(
        group_id=group_id,
        member_id=member_id,
        instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=tuple(protocols),
    )


def read_join_answer(body: Buffer, version: int) -> JoinAnswer:
    """Walk a JoinGroup answer. Raises: FrameInvalid."""
    reader = Reader(body, flexible=version >= JOIN_FLEXIBLE_VERSION)
    if version >= 2:
        reader.int32()  # throttle time
    error_code, generation_id = reader.int16(), reader.int32()
    if version >= 7:
        reader.nullable_string()  # protocol type
    protocol_name = reader.nullable_string()
    leader = reader.string()
    if version >= 9:
        reader.int8()  # whether the leader may leave the assignment as it is
    member_id = reader.string()
    start = reader.position
    count = reader.count(MEMBER_BYTES_MIN)
    end = reader.position
    members = [_read_member(reader, has_instance=version >= 5) for _ in range(count)]
    return JoinAnswer(
        error_code=error_code,
        generation_id=generation_id,
        protocol_name=protocol_name,
        leader=leader,
        member_id=member_id,
        count=(start, end),
        members=tuple(members),
    )


def read_described_groups(body: Buffer, version: int) -> list[DescribedGroup]:
    """Walk a DescribeGroups answer. Raises: FrameInvalid."""
    reader = Reader(body, flexible=version >= DESCRIBE_FLEXIBLE_VERSION)
    if version >= 1:
        reader.int32()  # throttle time
    groups = []
    for _ in range(reader.count(GROUP_BYTES_MIN)):
        reader.int16()  # error
        if version >= 6:
            reader.nullable_string()  # its message
        group_id = reader.string()
        reader.string()  # state
        protocol_type = reader.string()
        reader.string()  # protocol
        members = [
            _read_member(reader, has_instance=version >= 4, is_described=True)
            for _ in range(reader.count(MEMBER_BYTES_MIN))
        ]
        if version >= 3:
            reader.int32()  # operations
        reader.tags()
        groups.append(
            DescribedGroup(group_id=group_id, protocol_type=protocol_type, members=tuple(members))
        )
    return groups


def replace_bytes(span: Span, data: bytes, *, flexible: bool) -> Edit:
    """Return the edit that puts other bytes into a field."""
    return span.start, span.end, _count(len(data), flexible=flexible) + data


def keep_members(
    answer: JoinAnswer, dropped: Sequence[MemberEntry], *, flexible: bool
) -> list[Edit]:
    """Return the edits that take members out of a JoinGroup answer; none for none."""
    if not dropped:
        return []
    count = _count(len(answer.members) - len(dropped), flexible=flexible)
    return [(*answer.count, count), *((one.start, one.end, b"") for one in dropped)]


def splice(body: Buffer, edits: Iterable[Edit]) -> bytes:
    """Return the body with all edits made; they must not overlap."""
    view, position = memoryview(body), 0
    parts: list[Buffer] = []
    for start, end, data in sorted(edits):
        assert start >= position, "edits do not overlap"
        parts += view[position:start], data
        position = end
    return b"".join((*parts, view[position:]))


def _count(count: int, *, flexible: bool) -> bytes:
    return write_uvarint(count + 1) if flexible else INT32.pack(count)


def _span(reader: Reader) -> Span:
    """Read a field of bytes; null, which is not allowed there, counts as empty."""
    start = reader.position
    data = reader.nullable_bytes()
    return Span(start, reader.position, memoryview(b"") if data is None else data)


def _read_member(reader: Reader, *, has_instance: bool, is_described: bool = False) -> MemberEntry:
    start, member_id = reader.position, reader.string()
    instance_id = reader.nullable_string() if has_instance else None
    if is_described:
        reader.string()  # client id
        reader.string()  # host
    metadata = _span(reader)
    assignment = _span(reader) if is_described else None
    reader.tags()
    return MemberEntry(
        start=start,
        end=reader.position,
        member_id=member_id,
        instance_id=instance_id,
        metadata=metadata,
        assignment=assignment,
    )
