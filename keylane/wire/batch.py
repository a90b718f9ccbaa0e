"""Record batch v2: read and check the fixed header; never touch the records.

Source: Kafka documentation, "Record Batch" (61 bytes, big-endian); KIP-98, KIP-360 (control
batches), KIP-534 (delete horizon). The CRC starts at `attributes`, so rewriting
`partition_leader_epoch` needs no new checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google_crc32c import value as crc32c

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.wire.primitives import Buffer

BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
BATCH_HEADER_BYTES: Final = 61
assert BATCH_HEADER.size == BATCH_HEADER_BYTES
LENGTH_PREFIX_BYTES: Final = 12
"""base_offset and batch_length, which batch_length leaves out."""
EPOCH_POSITION: Final = 12
CRC_POSITION: Final = 17
CRC_START: Final = 21
"""First byte under the CRC: `attributes`."""
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
CODEC_NONE: Final = 0
CODEC_GZIP: Final = 1
CODEC_SNAPPY: Final = 2
CODEC_LZ4: Final = 3
CODEC_ZSTD: Final = 4
TIMESTAMP_TYPE_BIT: Final = 0x08
"""Set: `max_timestamp` is the broker's append time and holds for every record."""
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
"""Set: `base_timestamp` is when the tombstones of this batch may go (KIP-534)."""

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
OFFSET_DELTA_MAX: Final = 2**31 - 1
NULL_RECORD: Final = bytes((12, 0, 0, 0, 1, 1, 0))
"""Its length (6), attributes, both deltas, no key, no value, no headers."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The 13 header fields in wire order."""

    base_offset: int
    batch_length: int
    """Bytes after this field; the whole batch is 12 longer."""
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> int:
        """Compression codec of the records, one of `CODEC_*` (5 to 7 are undefined)."""
        return self.attributes & CODEC_MASK

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record, present or compacted away."""
        return self.base_offset + self.last_offset_delta

    @property
    def is_transactional(self) -> bool:
        """Return whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)


def read_batch_header(buffer: bytes | memoryview, position: int) -> tuple[BatchHeader, int] | None:
    """Read the header at `position`; return it with the whole batch's size in bytes.

    None: the buffer ends inside this batch. A broker may cut the last batch of a fetch at
    `partition_max_bytes` (protocol guide, Fetch), so this is a normal end, not an error.
    The CRC is not checked here: that reads the whole batch.

    Raises:
        BatchUnsupported: magic is 0 or 1.
        BatchCorrupt: magic is unknown, or batch_length is too small to hold a header.
    """
    if len(buffer) - position < BATCH_HEADER_BYTES:
        return None
    header = BatchHeader(*BATCH_HEADER.unpack_from(buffer, position))
    if header.magic in (0, 1):
        raise BatchUnsupported(f"magic {header.magic}, expected 2", position=position)
    if header.magic != MAGIC:
        raise BatchCorrupt(f"magic {header.magic}, expected 2", position=position)
    size_bytes = LENGTH_PREFIX_BYTES + header.batch_length
    if size_bytes < BATCH_HEADER_BYTES:
        raise BatchCorrupt(f"batch_length {header.batch_length}", position=position)
    return (header, size_bytes) if position + size_bytes <= len(buffer) else None


def write_empty_batch(
    base_offset: int, last_offset: int, leader_epoch: int, *, is_control: bool = False
) -> bytes:
    """Write a batch header without records that covers both offsets and all between them.

    It is what Kafka's own log cleaner leaves when every record of a batch is compacted away
    (DefaultRecordBatch.writeEmptyHeader), so every client moves its position past it. With
    `is_control` it is what the cleaner leaves of a transaction marker.

    Raises:
        ValueError: the span is negative or does not fit an int32 delta.
    """
    attributes = CONTROL_BIT if is_control else CODEC_NONE
    return _write_span(base_offset, last_offset, leader_epoch, attributes, b"")


def write_passed_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """Write a batch up to `last_offset` whose one record, null, is at `base_offset`.

    For a client that asks for the offset behind it: a batch may begin before the offset that was
    asked for, so every client leaves that record out, and moves past the batch. kafka-go 0.4 takes
    an empty batch wrongly: it moves to offset 1, or panics where two come before a record
    (its issues 874 and 1416; docs/clients.md).

    Raises:
        ValueError: the span is negative or does not fit an int32 delta.
    """
    return _write_span(base_offset, last_offset, leader_epoch, CODEC_NONE, NULL_RECORD)


def drop_empty_batches(data: Buffer) -> Iterator[Buffer]:
    """Give the parts of whole batches between those that are a header alone."""
    view = memoryview(data)
    begin = at = 0
    while at < len(view):
        size_bytes = LENGTH_PREFIX_BYTES + int.from_bytes(view[at + 8 : at + 12])
        assert size_bytes >= BATCH_HEADER_BYTES, "batches that keylane wrote are whole"
        if size_bytes == BATCH_HEADER_BYTES:
            if begin < at:
                yield view[begin:at]
            begin = at + size_bytes
        at += size_bytes
    if begin < at:
        yield view[begin:] if begin else data


def _write_span(
    base_offset: int, last_offset: int, leader_epoch: int, attributes: int, records: bytes
) -> bytes:
    """Write a batch over both offsets, with no record or one."""
    delta = last_offset - base_offset
    if not 0 <= delta <= OFFSET_DELTA_MAX:
        raise ValueError(f"an empty batch cannot span {base_offset} to {last_offset}")
    batch = bytearray(BATCH_HEADER_BYTES) + records
    BATCH_HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LENGTH_PREFIX_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        delta,
        NO_TIMESTAMP,
        NO_TIMESTAMP,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        1 if records else 0,
    )
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(bytes(batch[CRC_START:])))
    return bytes(batch)
