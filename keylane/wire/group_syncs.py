"""SyncGroup requests and answers: the assignments in them, and where they stand.

Source: SyncGroupRequest.json and SyncGroupResponse.json of Apache Kafka (versions 0 to 5).

A group without lanes passes as it came, whatever its fields hold: so a body is walked, not decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keylane.wire.group_members import Span
from keylane.wire.primitives import Buffer, Reader

SYNC_FLEXIBLE_VERSION: Final = 4
PROTOCOL_VERSION: Final = 5
"""First version that names the protocol (KIP-559)."""
ASSIGNMENT_BYTES_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup of a member."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None
    protocol_name: str | None
    """None: the version does not name it, or the member has not."""
    assignments: tuple[memoryview, ...]
    """The leader's plan, one assignment per member; none from other members."""


def read_sync_request(body: Buffer, version: int) -> SyncRequest:
    """Walk a SyncGroup request. Raises: FrameInvalid."""
    reader = Reader(body, flexible=version >= SYNC_FLEXIBLE_VERSION)
    group_id, generation_id, member_id = reader.string(), reader.int32(), reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    protocol_name = None
    if version >= PROTOCOL_VERSION:
        reader.nullable_string()  # protocol type
        protocol_name = reader.nullable_string()
    assignments = []
    for _ in range(reader.count(ASSIGNMENT_BYTES_MIN)):
        reader.string()  # member id
        assignments.append(_read_bytes(reader))
        reader.tags()
    return SyncRequest(
        group_id=group_id,
        generation_id=generation_id,
        member_id=member_id,
        instance_id=instance_id,
        protocol_name=protocol_name,
        assignments=tuple(assignments),
    )


def read_sync_answer(body: Buffer, version: int) -> memoryview:
    """Return the assignment in a SyncGroup answer; empty with an error. Raises: FrameInvalid."""
    span = find_given(body, version)
    return memoryview(b"") if span is None else span.data


def find_given(body: Buffer, version: int) -> Span | None:
    """Return the assignment in a SyncGroup answer, and its place; None with an error.

    Raises: FrameInvalid.
    """
    reader = Reader(body, flexible=version >= SYNC_FLEXIBLE_VERSION)
    if version >= 1:
        reader.int32()  # throttle time
    error_code = reader.int16()
    if version >= PROTOCOL_VERSION:
        reader.nullable_string()  # protocol type
        reader.nullable_string()  # protocol name
    start = reader.position
    data = _read_bytes(reader)
    return Span(start, reader.position, data) if error_code == 0 else None


def _read_bytes(reader: Reader) -> memoryview:
    """Read a field of bytes; null, which is not allowed there, counts as empty."""
    data = reader.nullable_bytes()
    return memoryview(b"") if data is None else data
