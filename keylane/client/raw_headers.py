"""Headers of a record: between their bytes in a batch and a list.

Source: Kafka protocol guide, "Record Batch": a varint count, then for each a varint length and the
key's bytes, a varint length (-1: null) and the value's.
"""

from __future__ import annotations

from collections.abc import Sequence

from keylane.client.values import ConsumerRecord

Headers = Sequence[tuple[str, bytes | None]]


def headers(record: ConsumerRecord) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers of a record, decoded.

    Raises: UnicodeDecodeError, a name is not UTF-8.
    """
    return tuple((name.decode(), value) for name, value in raw_pairs(record.raw_headers))


def read_headers(raw: bytes) -> list[tuple[str, bytes | None]]:
    """Return the headers in `ConsumerRecord.raw_headers`, names with replacements if need be."""
    return [(name.decode(errors="replace"), value) for name, value in raw_pairs(raw)]


def raw_pairs(raw: bytes) -> tuple[tuple[bytes, bytes | None], ...]:
    """Return the names and values of headers as they stand in a batch, which a kernel has checked.

    Raises: IndexError where they are cut off.
    """
    if not raw:
        return ()
    found: list[tuple[bytes, bytes | None]] = []
    count, position = _read_varint(raw, 0)
    for _ in range(count):
        size_bytes, position = _read_varint(raw, position)
        name = raw[position : position + size_bytes]
        size_bytes, position = _read_varint(raw, position + size_bytes)
        found.append((name, None if size_bytes < 0 else raw[position : position + size_bytes]))
        position += max(size_bytes, 0)
    return tuple(found)


def write_headers(pairs: Headers) -> bytes:
    """Return headers as they stand in a batch."""
    parts = bytearray(_varint(len(pairs)))
    for name, value in pairs:
        encoded = name.encode()
        parts += _varint(len(encoded)) + encoded
        parts += _varint(-1) if value is None else _varint(len(value)) + value
    return bytes(parts)


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position  # zigzag
        shift += 7


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
