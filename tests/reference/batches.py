"""Record batches written the slow and obvious way, for tests that need some.

Shares no code with keylane: struct, xxhash and the reference CRC library only.
Source: Kafka documentation, "Record Batch" and "Record".
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field, replace

import cramjam
import google_crc32c
import lz4.frame
import zstandard

HEADER = struct.Struct(">qiibIhiqqqhii")
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_FORMS = {
    "none": NONE,
    "gzip": GZIP,
    "snappy": SNAPPY,
    "snappy-xerial": SNAPPY,
    "lz4": LZ4,
    "lz4-sized": LZ4,
    "zstd": ZSTD,
    "zstd-sized": ZSTD,
}
"""Every way a client of ours compresses: the name of the form, the codec id it is sent with."""

Header = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Record:
    """One record; `offset_delta` and `timestamp_delta` are relative to its batch."""

    offset_delta: int
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[Header, ...] = ()
    timestamp_delta: int = 0


@dataclass(frozen=True)
class Batch:
    """One batch; the fields that are not given have Kafka's defaults."""

    base_offset: int
    records: tuple[Record, ...]
    last_offset_delta: int | None = None
    """None: that of the last record."""
    form: str = "none"
    leader_epoch: int = 5
    flags: int = 0
    """Attribute bits above the codec."""
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int = 1_700_000_000_999
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int | None = None
    """None: the truth."""
    payload: bytes | None = field(default=None, repr=False)
    """Compressed records as they are to be sent; None: write them."""

    @property
    def last_delta(self) -> int:
        """Last offset delta of the header."""
        if self.last_offset_delta is not None:
            return self.last_offset_delta
        return self.records[-1].offset_delta if self.records else 0

    @property
    def next_offset(self) -> int:
        """First offset that a following batch may have."""
        return self.base_offset + self.last_delta + 1

    def with_flags(self, flags: int) -> Batch:
        """Return the same batch with other attribute bits."""
        return replace(self, flags=flags)


def write_varint(value: int) -> bytes:
    """Write a zigzag varint of any size."""
    raw = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def write_bytes(data: bytes | None) -> bytes:
    """Write a nullable field: its length, then itself."""
    return write_varint(-1) if data is None else write_varint(len(data)) + data


def write_record(record: Record) -> bytes:
    """Write one record with its length."""
    body = b"\0" + write_varint(record.timestamp_delta) + write_varint(record.offset_delta)
    body += write_bytes(record.key) + write_bytes(record.value) + write_varint(len(record.headers))
    for key, value in record.headers:
        body += write_bytes(key) + write_bytes(value)
    return write_varint(len(body)) + body


def compress(form: str, data: bytes) -> bytes:
    """Compress records in one of `CODEC_FORMS`."""
    if form == "gzip":
        return gzip.compress(data, 1)
    if form == "snappy":
        return bytes(cramjam.snappy.compress_raw(data))
    if form == "snappy-xerial":
        return _compress_xerial(data)
    if form in ("lz4", "lz4-sized"):
        size = lz4.frame.BLOCKSIZE_MAX64KB
        sized = form == "lz4-sized"
        return lz4.frame.compress(data, block_size=size, block_linked=False, store_size=sized)
    if form == "zstd-sized":
        return zstandard.ZstdCompressor(3).compress(data)
    if form == "zstd":  # a stream does not know its size, as with the Java producer
        stream = zstandard.ZstdCompressor(3).compressobj()
        return stream.compress(data) + stream.flush()
    assert form == "none", form
    return data


def _compress_xerial(data: bytes) -> bytes:
    out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for position in range(0, len(data), 32 * 1024):
        block = bytes(cramjam.snappy.compress_raw(data[position : position + 32 * 1024]))
        out += struct.pack(">i", len(block)) + block
    return out


def seal(batch: bytes) -> bytes:
    """Return the batch with the CRC its bytes call for."""
    return batch[:17] + struct.pack(">I", google_crc32c.value(batch[21:])) + batch[21:]


def write_batch(batch: Batch) -> bytes:
    """Write one batch."""
    payload = batch.payload
    if payload is None:
        payload = b"".join(write_record(record) for record in batch.records)
        payload = compress(batch.form, payload) if batch.records else b""
    count = len(batch.records) if batch.record_count is None else batch.record_count
    codec = CODEC_FORMS[batch.form] if payload else NONE
    fields = (
        batch.base_offset,
        len(payload) + HEADER.size - 12,
        batch.leader_epoch,
        2,
        0,
        codec | batch.flags,
        batch.last_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        count,
    )
    return seal(HEADER.pack(*fields) + payload)


def control_batch(base_offset: int, producer_id: int, *, commit: bool, epoch: int = 0) -> Batch:
    """Make a transaction marker: one record whose key is its version and type."""
    key = struct.pack(">hh", 0, int(commit))
    record = Record(0, key, struct.pack(">hi", 0, epoch))
    return Batch(base_offset, (record,), flags=0x30, producer_id=producer_id, producer_epoch=epoch)
