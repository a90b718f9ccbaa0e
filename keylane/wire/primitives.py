"""Kafka's primitive types, read within bounds and written.

Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (compact types, tags).

Every length and count is compared with the bytes that remain before anything is taken, so a
lying one costs an exception and no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from keylane.errors import FrameInvalid

Buffer = bytes | bytearray | memoryview

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
STRING_BYTES_MAX: Final = 0x7FFF
"""Precedent: Kafka's own reader refuses longer compact strings as well."""
UVARINT_MAX: Final = 0x7FFF_FFFF
UUID_BYTES: Final = 16
SHORT_UVARINTS: Final = tuple(bytes((value,)) for value in range(0x80))
"""Those of one byte, as nearly all are."""
NO_TAGS: Final = b"\x00"
"""A tagged fields section without a field."""


def read_uvarint(buffer: Buffer, position: int, limit: int) -> tuple[int, int]:
    """Read an unsigned varint; return (value, position behind it).

    Raises:
        FrameInvalid: it passes `limit`, or does not fit in 31 bits.
    """
    value = 0
    for shift in range(0, 35, 7):
        if position >= limit:
            raise FrameInvalid(f"message ends inside a varint at byte {position}")
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UVARINT_MAX:
                break
            return value, position
    raise FrameInvalid(f"varint above 31 bits before byte {position}")


def skip_tags(buffer: Buffer, position: int, limit: int) -> int:
    """Return the position behind the tagged fields section at `position`.

    Raises:
        FrameInvalid: a count or size passes `limit`.
    """
    if position < limit and buffer[position] == 0:
        return position + 1
    count, position = read_uvarint(buffer, position, limit)
    if count > (limit - position) // 2:
        raise FrameInvalid(f"{count} tagged fields in {limit - position} bytes")
    for _ in range(count):
        _, position = read_uvarint(buffer, position, limit)
        size, position = read_uvarint(buffer, position, limit)
        position += size
        if position > limit:
            raise FrameInvalid(f"tagged field of {size} bytes passes the end at byte {limit}")
    return position


def read_tags(section: Buffer) -> dict[int, bytes]:
    """Fields of a tagged fields section, by tag, in the order they stand.

    Raises:
        FrameInvalid: the section is not well formed or bytes follow it.
    """
    limit = len(section)
    if skip_tags(section, 0, limit) != limit:
        raise FrameInvalid("bytes follow the tagged fields")
    count, position = read_uvarint(section, 0, limit)
    fields = {}
    for _ in range(count):
        tag, position = read_uvarint(section, position, limit)
        size, position = read_uvarint(section, position, limit)
        fields[tag] = bytes(section[position : position + size])
        position += size
    return fields


def write_tags(fields: Mapping[int, bytes]) -> bytes:
    """Return a tagged fields section, in ascending order of tags as KIP-482 asks."""
    parts = [write_uvarint(len(fields))]
    for tag in sorted(fields):
        parts += write_uvarint(tag), write_uvarint(len(fields[tag])), fields[tag]
    return b"".join(parts)


def write_uvarint(value: int) -> bytes:
    """Return the shortest form of an unsigned varint."""
    if 0 <= value < len(SHORT_UVARINTS):
        return SHORT_UVARINTS[value]
    if not 0 <= value <= UVARINT_MAX:
        raise ValueError(f"{value} does not fit in an unsigned varint of 31 bits")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Reader:
    """A position that moves through one message; compact lengths when `flexible`.

    Invariant: 0 <= position <= limit <= len(buffer).
    """

    __slots__ = ("buffer", "flexible", "limit", "position")

    def __init__(self, buffer: Buffer, position: int = 0, *, flexible: bool) -> None:
        self.buffer = memoryview(buffer)
        self.position, self.limit, self.flexible = position, len(self.buffer), flexible
        if not 0 <= position <= self.limit:
            raise FrameInvalid(f"message of {self.limit} bytes has no byte {position}")

    @property
    def remaining(self) -> int:
        """Bytes between the position and the end."""
        return self.limit - self.position

    def advance(self, size_bytes: int) -> int:
        """Step over `size_bytes`; return the position before."""
        start = self.position
        if not 0 <= size_bytes <= self.limit - start:
            left = self.limit - start
            raise FrameInvalid(f"{size_bytes} bytes at byte {start}, where {left} remain")
        self.position = start + size_bytes
        return start

    def int8(self) -> int:
        """A signed byte."""
        value: int = INT8.unpack_from(self.buffer, self.advance(1))[0]
        return value

    def int16(self) -> int:
        """A signed 16-bit integer."""
        value: int = INT16.unpack_from(self.buffer, self.advance(2))[0]
        return value

    def int32(self) -> int:
        """A signed 32-bit integer."""
        value: int = INT32.unpack_from(self.buffer, self.advance(4))[0]
        return value

    def int64(self) -> int:
        """A signed 64-bit integer."""
        value: int = INT64.unpack_from(self.buffer, self.advance(8))[0]
        return value

    def uuid(self) -> bytes:
        """A topic id: 16 bytes."""
        start = self.advance(UUID_BYTES)
        return bytes(self.buffer[start : start + UUID_BYTES])

    def uvarint(self) -> int:
        """An unsigned varint of at most 31 bits."""
        if self.position < self.limit and (byte := self.buffer[self.position]) < 0x80:
            self.position += 1
            return byte
        value, self.position = read_uvarint(self.buffer, self.position, self.limit)
        return value

    def count(self, item_bytes_min: int) -> int:
        """Item count of an array that may not be null."""
        count = self.nullable_count(item_bytes_min)
        if count is None:
            raise FrameInvalid(f"null array before byte {self.position}")
        return count

    def nullable_count(self, item_bytes_min: int) -> int | None:
        """Item count of an array, None for null; `item_bytes_min` bytes each must remain."""
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if count == -1:
            return None
        if count < 0 or count * item_bytes_min > self.limit - self.position:
            left = self.limit - self.position
            raise FrameInvalid(f"{count} items before byte {self.position}, {left} bytes remain")
        return count

    def string(self) -> str:
        """A string that may not be null."""
        value = self.nullable_string()
        if value is None:
            raise FrameInvalid(f"null string before byte {self.position}")
        return value

    def nullable_string(self) -> str | None:
        """A string, None for null."""
        size = self.uvarint() - 1 if self.flexible else self.int16()
        if size == -1:
            return None
        if size > STRING_BYTES_MAX:
            raise FrameInvalid(f"string of {size} bytes before byte {self.position}")
        start = self.position
        if not 0 <= size <= self.limit - start:
            self.advance(size)  # which says why not
        self.position = end = start + size
        try:
            return str(self.buffer[start:end], "utf-8")
        except UnicodeDecodeError:
            raise FrameInvalid(f"string at byte {start} is not UTF-8") from None

    def nullable_bytes(self) -> memoryview | None:
        """Bytes or records, as a view into the message; None for null."""
        size = self.uvarint() - 1 if self.flexible else self.int32()
        if size == -1:
            return None
        start = self.advance(size)
        return self.buffer[start : start + size]

    def tags(self) -> bytes:
        """The tagged fields section, raw; `NO_TAGS` when the version has none."""
        if not self.flexible:
            return NO_TAGS
        start = self.position
        if start < self.limit and self.buffer[start] == 0:  # there are none, the rule
            self.position = start + 1
            return NO_TAGS
        self.position = skip_tags(self.buffer, start, self.limit)
        return bytes(self.buffer[start : self.position])

    def end(self) -> None:
        """Check that the message was read whole: bytes that follow mean a misread one."""
        if self.position != self.limit:
            raise FrameInvalid(f"{self.remaining} bytes follow the message")


class Writer:
    """Builds one message; compact lengths when `flexible`."""

    __slots__ = ("_parts", "flexible")

    def __init__(self, *, flexible: bool) -> None:
        self.flexible = flexible
        self._parts: list[Buffer] = []

    def raw(self, data: Buffer) -> None:
        """Bytes as they are; large ones are kept by reference."""
        self._parts.append(data)

    def int8(self, value: int) -> None:
        """A signed byte."""
        self._parts.append(INT8.pack(value))

    def int16(self, value: int) -> None:
        """A signed 16-bit integer."""
        self._parts.append(INT16.pack(value))

    def int32(self, value: int) -> None:
        """A signed 32-bit integer."""
        self._parts.append(INT32.pack(value))

    def int64(self, value: int) -> None:
        """A signed 64-bit integer."""
        self._parts.append(INT64.pack(value))

    def count(self, count: int | None) -> None:
        """Item count of an array, or the size of bytes; None writes null."""
        length = -1 if count is None else count
        self._parts.append(write_uvarint(length + 1) if self.flexible else INT32.pack(length))

    def string(self, value: str | None) -> None:
        """A string; None writes null.

        Raises:
            ValueError: longer than Kafka allows.
        """
        data = b"" if value is None else value.encode()
        if len(data) > STRING_BYTES_MAX:
            raise ValueError(f"string of {len(data)} bytes: too long for Kafka")
        length = -1 if value is None else len(data)
        size = write_uvarint(length + 1) if self.flexible else INT16.pack(length)
        self._parts += size, data

    def tags(self, section: bytes) -> None:
        """A raw tagged fields section; nothing when the version has none."""
        if self.flexible:
            self._parts.append(section)

    def to_bytes(self) -> bytes:
        """The message in one piece."""
        return b"".join(self._parts)

    def to_buffers(self) -> list[Buffer]:
        """The message for `writelines`: small parts joined, large ones as they were given."""
        out: list[Buffer] = []
        small: list[Buffer] = []
        for part in self._parts:
            if len(part) < JOIN_BYTES_MAX:
                small.append(part)
                continue
            if small:
                out.append(b"".join(small))
                small = []
            out.append(part)
        if small:
            out.append(b"".join(small))
        return out


JOIN_BYTES_MAX: Final = 1024
"""Parts below this are copied together: a separate buffer costs more than the copy."""
