"""Records that one node holds and gives to the next one with their locks: values, and bytes.

A lock is the member's at the broker, whichever connection it has, and keylane's member has one id
at all nodes. So the next owner can go on with the locks, if it learns what is locked.

Source: docs/decisions/048.

    note  = int16 version, int8 kind, int32 node number, group, topic, topic id, int32 partition,
            and of an offer (0): int32 leader epoch, int32 session epoch, int64 end offset,
                     int32 quiet ms, int32 ranges, and each: int64 first, int32 length,
                     int16 delivery count, int32 wait ms
                  a thank-you (1): nothing more

Integers are big-endian. The version is above those of scans, whose topic the notes go through: a
node that does not know them passes over them.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Final, NamedTuple

from keylane.errors import FrameInvalid, ScansInvalid
from keylane.share.dispatcher import Dispatcher
from keylane.share.states import GONE, HELD
from keylane.wire.primitives import Buffer, Reader, Writer

NOTE_VERSION: Final = 0x100
OFFER: Final = 0
THANKS: Final = 1
RANGE: Final = struct.Struct(">qihi")
NOTE_BYTES_MIN: Final = 2
RECORDS_MAX: Final = 1 << 17
"""Records of an offer: the largest window has 10,000, and what its last batches bring."""
RANGES_MAX: Final = 20_000
"""So that a note is below 512 KiB; brokers and clients take 1 MiB by default."""
WAIT_MS_MAX: Final = 3_600_000
OFFSET_MAX: Final = 2**63 - 1


class HeldRange(NamedTuple):
    """Offsets of held records, both ends included."""

    first: int
    last: int
    deliveries: int
    """Of each, the present one included."""
    wait_ms: int = 0
    """Time for which they are not to be handed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedPlace:
    """A partition of a share group, of which a node publishes something."""

    number: int
    """The node's."""
    group: str
    topic: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class Thanks:
    """The node has the locks that were offered: the former session may end."""

    at: NotedPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Locks of a node whose session at the broker is silent from now on."""

    at: NotedPlace
    leader_epoch: int
    """Of the broker that has the locks."""
    session_epoch: int
    """The next one of the session: the broker takes it only if nothing came after this note."""
    end_offset: int
    """Highest offset that was acquired."""
    quiet_ms: int
    """Time for which records that another process has had are not to be handed out."""
    ranges: tuple[HeldRange, ...]


def held_ranges(dispatcher: Dispatcher, now_s: float) -> tuple[HeldRange, ...] | None:
    """Return locked offsets, ascending; None: members have some of it, or outcomes are under way.

    A record whose dead letter is being written counts as held: the next owner writes it.
    """
    found: list[HeldRange] = []
    for offset, record in sorted(dispatcher.records.items()):
        if record.state == GONE:
            continue  # it comes again
        if not record.is_locked or not (record.state == HELD or record.is_copying):
            return None
        wait_ms = wait_ms_of(record.not_before_s - now_s)
        last = found[-1] if found else None
        if last and last[1:] == (offset - 1, record.count, wait_ms):
            found[-1] = last._replace(last=offset)
        else:
            found.append(HeldRange(offset, offset, record.count, wait_ms))
    return tuple(found) if len(found) <= RANGES_MAX else None


def wait_ms_of(seconds: float) -> int:
    """Return a wait in milliseconds, rounded up, within its bounds."""
    return min(WAIT_MS_MAX, max(0, -int(-1000 * seconds // 1)))


def write_note(note: HandOver | Thanks) -> bytes:
    """Encode."""
    writer = Writer(flexible=False)
    writer.int16(NOTE_VERSION)
    writer.int8(OFFER if isinstance(note, HandOver) else THANKS)
    writer.int32(note.at.number)
    writer.string(note.at.group)
    writer.string(note.at.topic)
    writer.raw(note.at.topic_id.bytes)
    writer.int32(note.at.partition)
    if isinstance(note, HandOver):
        writer.int32(note.leader_epoch)
        writer.int32(note.session_epoch)
        writer.int64(note.end_offset)
        writer.int32(note.quiet_ms)
        writer.count(len(note.ranges))
        for first, last, count, wait_ms in note.ranges:
            writer.raw(RANGE.pack(first, last - first + 1, count, wait_ms))
    return writer.to_bytes()


def is_note(data: Buffer) -> bool:
    """Return whether a record of the scans' topic is a note of this version."""
    return bytes(data[:NOTE_BYTES_MIN]) == NOTE_VERSION.to_bytes(NOTE_BYTES_MIN, "big")


def read_head(data: Buffer) -> tuple[int, NotedPlace]:
    """Decode kind and place of a record that `is_note`. Raises: ScansInvalid.

    All nodes read all offers, and one of them needs the ranges.
    """
    try:
        return _read_head(Reader(data, NOTE_BYTES_MIN, flexible=False))
    except FrameInvalid as error:
        raise ScansInvalid(str(error)) from None


def read_note(data: Buffer) -> HandOver | Thanks:
    """Decode a record that `is_note`. Raises: ScansInvalid."""
    try:
        reader = Reader(data, NOTE_BYTES_MIN, flexible=False)
        kind, at = _read_head(reader)
        note = Thanks(at) if kind == THANKS else _read_offer(reader, at)
        reader.end()
    except FrameInvalid as error:
        raise ScansInvalid(str(error)) from None
    return note


def _read_head(reader: Reader) -> tuple[int, NotedPlace]:
    kind = reader.int8()
    at = NotedPlace(
        number=reader.int32(),
        group=reader.string(),
        topic=reader.string(),
        topic_id=uuid.UUID(bytes=reader.uuid()),
        partition=reader.int32(),
    )
    _expect(f"note of kind {kind}", that=kind in (OFFER, THANKS) and at.partition >= 0)
    return kind, at


def _read_offer(reader: Reader, at: NotedPlace) -> HandOver:
    leader_epoch, session_epoch = reader.int32(), reader.int32()
    end_offset, quiet_ms = reader.int64(), reader.int32()
    _expect(f"epochs {leader_epoch}, {session_epoch}", that=session_epoch > 0)
    _expect(f"quiet for {quiet_ms} ms", that=0 <= quiet_ms <= WAIT_MS_MAX)
    _expect(f"end at {end_offset}", that=0 <= end_offset < OFFSET_MAX)
    ranges: list[HeldRange] = []
    behind = total = 0
    for _ in range(reader.count(RANGE.size)):
        first, length, count, wait_ms = RANGE.unpack_from(reader.buffer, reader.advance(RANGE.size))
        total += length
        is_fit = first >= behind and 1 <= length <= end_offset + 1 - first
        _expect(f"{length} offsets from {first}", that=is_fit and total <= RECORDS_MAX)
        _expect(f"{count} deliveries", that=count >= 1)
        _expect(f"wait of {wait_ms} ms", that=0 <= wait_ms <= WAIT_MS_MAX)
        behind = first + length
        ranges.append(HeldRange(first, behind - 1, count, wait_ms))
    return HandOver(
        at=at,
        leader_epoch=leader_epoch,
        session_epoch=session_epoch,
        end_offset=end_offset,
        quiet_ms=quiet_ms,
        ranges=tuple(ranges),
    )


def _expect(text: str, *, that: bool) -> None:
    if not that:
        raise ScansInvalid(text)
