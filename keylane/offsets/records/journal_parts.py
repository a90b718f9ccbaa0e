"""Parts of values of journal records: versions, offsets, intervals of the hash space."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import wraps
from typing import Final, TypeVar

from keylane.errors import FrameInvalid, JournalInvalid
from keylane.offsets.values import NO_LEADER_EPOCH, NO_OFFSET, Position
from keylane.wire.primitives import Buffer, Reader, Writer

VALUE_VERSION: Final = 0
COMMITTED_FLAG: Final = 1
INTERVAL: Final = struct.Struct(">qbqqi")
"""Last hash, flags, offset, counted, leader epoch; the metadata follows."""
INTERVAL_BYTES_MIN: Final = INTERVAL.size + 2
VALUE_BYTES_MAX: Final = 1024**2
"""aiokafka's `max_request_size`, so keylane has written none that is larger."""

T = TypeVar("T")


def all_of(
    what: str, bytes_max: int = VALUE_BYTES_MAX
) -> Callable[[Callable[[Reader], T]], Callable[[Buffer], T]]:
    """Make a function that reads parts into one that reads all of a key or value.

    It raises JournalInvalid where the other raises FrameInvalid, and when something is left over;
    nothing is where the other gives None, for what this keylane does not know.
    """

    def decorate(read: Callable[[Reader], T]) -> Callable[[Buffer], T]:
        @wraps(read)
        def read_all(data: Buffer) -> T:
            place = f"journal {what}"
            if len(data) > bytes_max:
                raise JournalInvalid(f"{place}: {len(data)} bytes, at most {bytes_max} are read")
            reader = Reader(data, flexible=False)
            try:
                value = read(reader)
                if value is not None:
                    reader.end()
            except FrameInvalid as error:
                raise JournalInvalid(f"{place}: {error}") from None
            return value

        return read_all

    return decorate


def read_head(reader: Reader) -> int:
    """The time of a value of version 0. Raises: FrameInvalid."""
    version = reader.int16()
    expect(f"value version {version}, know {VALUE_VERSION}", that=version == VALUE_VERSION)
    return reader.int64()


def number_of(offset: int | None) -> int:
    """An offset as records have it; -1: none."""
    return NO_OFFSET if offset is None else offset


def read_offset(reader: Reader) -> int | None:
    """An offset, None for -1. Raises: FrameInvalid."""
    offset = reader.int64()
    expect(f"pushed offset {offset}", that=offset >= NO_OFFSET)
    return None if offset == NO_OFFSET else offset


def write_interval(writer: Writer, last_hash: int, position: Position) -> None:
    """Encode an interval of the hash space and the position there, but for its first hash."""
    offset, counted, committed, metadata, leader_epoch = position
    flags = COMMITTED_FLAG if committed else 0
    writer.raw(INTERVAL.pack(last_hash, flags, offset, counted, leader_epoch))
    writer.string(metadata)


def read_interval(reader: Reader) -> tuple[int, Position]:
    """The last hash of an interval, and the position there. Raises: FrameInvalid."""
    last_hash, flags = reader.int64(), reader.int8()
    offset, counted, leader_epoch = reader.int64(), reader.int64(), reader.int32()
    expect(f"flags {flags}", that=flags in (0, COMMITTED_FLAG))
    expect(f"offset {offset}, counted {counted}", that=0 <= offset <= counted)
    expect(f"leader epoch {leader_epoch}", that=leader_epoch >= NO_LEADER_EPOCH)
    position = Position(
        offset=offset,
        counted=counted,
        committed=bool(flags),
        metadata=reader.nullable_string(),
        leader_epoch=leader_epoch,
    )
    return last_hash, position


def expect(otherwise: str, *, that: bool) -> None:
    """Refuse what makes no sense. Raises: FrameInvalid."""
    if not that:
        raise FrameInvalid(otherwise)
