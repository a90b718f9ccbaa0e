"""A block of one batch with one record, without arrays: what a topic brings at a low rate.

Source: Kafka documentation, "Record Batch" and "Record".

The kernels' work on one record is two microseconds. What stands around them, tables for any
number of batches and records, is a tenth of a millisecond, more when the processor's caches have
gone cold since the record before.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
from google_crc32c import value as crc32c

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.kernel.lane_table import LaneTable
from keylane.kernel.status import NO_PARTITION, OFFSET_LIMIT
from keylane.keyrange.hash import KeyHash, key_hash, offset_hash, positive_murmur2
from keylane.wire.batch import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CODEC_NONE,
    CONTROL_BIT,
    CRC_START,
    LENGTH_PREFIX_BYTES,
    MAGIC,
)
from keylane.wire.compression import decompress

SINGLE_BYTES_MAX: Final = 16 * 1024
"""Size on the wire and decompressed. Beyond it the kernels are the faster way."""
MURMUR2_BYTES_MAX: Final = 256
"""Size of a key by murmur2: Python hashes four bytes of it in 0.3 us, XXH64 is compiled."""
HEADERS_MAX: Final = 16
"""Headers of a record; more are the kernels' matter, too."""
BEFORE_CRC: Final = struct.Struct(">qiibI")
assert BEFORE_CRC.size == CRC_START
_VARINT_BYTES: Final = 5
_VARLONG_BYTES: Final = 10


class SingleRecord(NamedTuple):
    """The batch, uncompressed, and where it goes."""

    batch: bytes
    lane: int
    """-1: the interval has no output, the record is dropped."""
    offset: int
    leader_epoch: int
    producer_id: int
    wire_bytes: int
    is_misplaced: bool
    """The split is by murmur2, and the key belongs into another partition."""


class _Odd(Exception):
    """Not what a producer writes; never leaves this module."""


def read_single(
    buffer: bytes | bytearray | memoryview, lanes: LaneTable, batch_bytes_max: int, partition: int
) -> SingleRecord | None:
    """Read the block if it is one whole, good data batch of one record.

    None says nothing about what is there.
    """
    size = len(buffer)
    if not BATCH_HEADER_BYTES < size <= min(batch_bytes_max, SINGLE_BYTES_MAX):
        return None
    header = BATCH_HEADER.unpack_from(buffer)
    offset, length, leader_epoch, magic, crc, attributes, last_delta, *_, count = header
    if magic != MAGIC or count != 1 or last_delta != 0 or length + LENGTH_PREFIX_BYTES != size:
        return None
    if attributes & CONTROL_BIT or not 0 <= offset < OFFSET_LIMIT:
        return None
    batch = bytes(buffer)  # slices wait for long, and what they are cut from should not
    if crc32c(batch[CRC_START:]) != crc:
        return None
    try:
        if attributes & CODEC_MASK != CODEC_NONE:
            batch = _decompressed(header, batch, batch_bytes_max)
        key = _key_of_only_record(batch)
    except (BatchCorrupt, BatchUnsupported, IndexError, _Odd):
        return None
    if key is not None and lanes.key_hash.name == "murmur2" and len(key) > MURMUR2_BYTES_MAX:
        return None
    point, is_misplaced = _point_of(key, offset, lanes.key_hash, partition)
    lane = _output_of(point, lanes)
    return SingleRecord(batch, lane, offset, leader_epoch, header[9], size, is_misplaced)


def _decompressed(header: tuple[int, ...], batch: bytes, batch_bytes_max: int) -> bytes:
    """Return the same batch without a codec. Raises: BatchCorrupt, BatchUnsupported."""
    offset, _, leader_epoch, magic, _, attributes, *_ = header
    plain = decompress(
        attributes & CODEC_MASK,
        memoryview(batch)[BATCH_HEADER_BYTES:],
        bytes_max=min(batch_bytes_max, SINGLE_BYTES_MAX) - BATCH_HEADER_BYTES,
    )
    fields = BATCH_HEADER.pack(*header[:5], attributes & ~CODEC_MASK, *header[6:])
    body = fields[CRC_START:] + plain
    length = len(body) + CRC_START - LENGTH_PREFIX_BYTES
    return BEFORE_CRC.pack(offset, length, leader_epoch, magic, crc32c(body)) + body


def _key_of_only_record(batch: bytes) -> bytes | None:
    """Return the key of the record that fills the batch; None: no key. Raises: IndexError, _Odd."""
    length, at = _read_varint(batch, BATCH_HEADER_BYTES)
    if at + length != len(batch):
        raise _Odd
    at = _skip_varlong(batch, at + 1)  # attributes; what the timestamp is does not matter
    delta, at = _read_varint(batch, at)
    key_size, key_at = _read_varint(batch, at)
    value_size, at = _read_varint(batch, key_at + max(key_size, 0))
    header_count, at = _read_varint(batch, at + max(value_size, 0))
    if delta != 0 or not 0 <= header_count <= HEADERS_MAX:
        raise _Odd
    for _ in range(header_count):
        name_size, at = _read_varint(batch, at)
        if name_size < 0:
            raise _Odd
        value_size, at = _read_varint(batch, at + name_size)
        at += max(value_size, 0)
    if at != len(batch):
        raise _Odd
    return batch[key_at : key_at + key_size] if key_size >= 0 else None


def _read_varint(batch: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag int32 and where it ends. Raises: IndexError, _Odd."""
    raw = 0
    for index in range(_VARINT_BYTES):
        byte = batch[at + index]
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80 and raw < 2**32:
            return (raw >> 1) ^ -(raw & 1), at + index + 1
    raise _Odd


def _skip_varlong(batch: bytes, at: int) -> int:
    """Return the end of a zigzag int64. Raises: IndexError, _Odd."""
    for index in range(at, at + _VARLONG_BYTES):
        if batch[index] < 0x80:
            return index + 1
    raise _Odd


def _point_of(key: bytes | None, offset: int, rule: KeyHash, partition: int) -> tuple[int, bool]:
    """Return the point of the record, and whether its key belongs into another partition."""
    if key is None:
        return offset_hash(offset), False
    if rule.name == "xxh64":
        return key_hash(key), False
    positive = positive_murmur2(key)
    is_misplaced = partition != NO_PARTITION and positive % rule.partition_count != partition
    return rule.point_of(positive), is_misplaced


def _output_of(hashed: int, lanes: LaneTable) -> int:
    interval = int(lanes.limits.searchsorted(np.uint64(hashed), side="right"))
    return int(lanes.output_of[interval]) if lanes.output_of.size else interval
