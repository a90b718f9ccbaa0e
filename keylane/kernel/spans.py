"""Find the batches of a block and the spans of their records, believing no length in them.

Every address is compared with the end of its buffer before it is read.
Source: Kafka documentation, "Record Batch" and "Record"; DefaultRecord.readFrom and
DefaultRecordBatch.RecordIterator (Apache Kafka 4.3) for what the Java consumer accepts: a
negative length of a key, value or header value is null, a batch must hold no byte too many.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from keylane.kernel import status as s
from keylane.kernel.crc import crc32c_at
from keylane.kernel.hashes import hash_key, hash_offset, hash_placed, interval_of_hash
from keylane.kernel.jit import kernel, leaf
from keylane.kernel.memory import load_i32_be, load_i64_be, load_u8, load_u32_be
from keylane.wire.batch import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CODEC_NONE,
    CODEC_ZSTD,
    CONTROL_BIT,
    CRC_POSITION,
    CRC_START,
    LENGTH_PREFIX_BYTES,
    MAGIC,
)

_I32_VARINT_BYTES: Final = 5
_I64_VARINT_BYTES: Final = 10
_CONTROL_KEY_BYTES: Final = 4
_ABORT: Final = 0


@kernel
def count_batches(address: int, size: int) -> int:
    """Upper bound of the whole batches in the buffer, by their lengths alone."""
    end, count = address + size, 0
    while end - address >= BATCH_HEADER_BYTES:
        batch_size = LENGTH_PREFIX_BYTES + load_i32_be(address + 8)
        if batch_size < BATCH_HEADER_BYTES or batch_size > end - address:
            break
        count += 1
        address += batch_size
    return count


@kernel
def scan_batches(
    address: int, size: int, plain_bytes_max: int, batch_bytes_max: int, table: Any, progress: Any
) -> None:
    """Fill the batch table from the start of the buffer, as far as the batches are good.

    Stops before a batch that is cut, that is bad (then STATUS says why), or that cannot fit in
    `plain_bytes_max` any more. Uncompressed batches have their CRC checked; that of a compressed
    one is checked when it is decompressed, which may be in a later block.
    """
    position = plain_bytes = 0
    last_offset = -1
    progress[s.STATUS] = s.OK
    progress[s.BAD_RECORD] = -1
    progress[s.DONE_BATCHES] = 0
    while size - position >= BATCH_HEADER_BYTES:
        at = address + position
        batch_size = LENGTH_PREFIX_BYTES + load_i32_be(at + 8)
        status = _check_header(at, batch_size, batch_bytes_max, last_offset)
        if status == s.OK and batch_size > size - position:
            break
        if status == s.OK:
            is_plain = load_u8(at + 22) & CODEC_MASK == CODEC_NONE
            plain_bytes += batch_size if is_plain else BATCH_HEADER_BYTES
            if plain_bytes > plain_bytes_max and position > 0:
                break
            status = _check_body(at, batch_size, is_plain)
        if status != s.OK:
            progress[s.STATUS] = status
            progress[s.BAD_POSITION] = position
            break
        row = table[progress[s.DONE_BATCHES]]
        _fill_row(row, at, batch_size)
        last_offset = row[s.LAST_OFFSET]
        position += batch_size
        progress[s.DONE_BATCHES] += 1
    progress[s.WIRE_BYTES] = position


@leaf
def _check_header(at: int, batch_size: int, batch_bytes_max: int, last_offset: int) -> int:
    magic = load_u8(at + 16)
    if magic != MAGIC:
        return s.MAGIC_OLD if magic < MAGIC else s.MAGIC_UNKNOWN
    if batch_size < BATCH_HEADER_BYTES:
        return s.BATCH_LENGTH
    if batch_size > batch_bytes_max:
        return s.BATCH_TOO_LARGE
    base_offset = load_i64_be(at)
    if base_offset <= last_offset or base_offset >= s.OFFSET_LIMIT or load_i32_be(at + 23) < 0:
        return s.OFFSETS_INVALID
    if load_u8(at + 22) & CODEC_MASK > CODEC_ZSTD:
        return s.CODEC_UNKNOWN
    return s.OK


@leaf
def _check_body(at: int, batch_size: int, is_plain: bool) -> int:
    record_count = load_i32_be(at + 57)
    if record_count < 0:
        return s.RECORD_COUNT
    if not is_plain:
        return s.OK
    if crc32c_at(at + CRC_START, batch_size - CRC_START) != load_u32_be(at + CRC_POSITION):
        return s.CRC_MISMATCH
    if record_count > (batch_size - BATCH_HEADER_BYTES) // s.RECORD_BYTES_MIN:
        return s.RECORD_COUNT
    return s.OK


@leaf
def _fill_row(row: Any, at: int, batch_size: int) -> None:
    row[s.ADDRESS] = at
    row[s.SIZE] = batch_size
    row[s.PAYLOAD] = at + BATCH_HEADER_BYTES
    row[s.PAYLOAD_SIZE] = batch_size - BATCH_HEADER_BYTES
    row[s.BASE_OFFSET] = load_i64_be(at)
    row[s.LAST_OFFSET] = row[s.BASE_OFFSET] + load_i32_be(at + 23)
    row[s.ATTRIBUTES] = load_u8(at + 22)
    row[s.RECORD_COUNT_COLUMN] = load_i32_be(at + 57)
    row[s.PRODUCER_ID] = load_i64_be(at + 43)


@leaf
def read_varint(at: int, end: int) -> tuple[int, int]:
    """Read a zigzag int32; return it with the address after it, which is 0 if it is bad."""
    if end - at >= 3:
        first = load_u8(at)
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), at + 1
        second = load_u8(at + 1)
        if second < 0x80:
            raw = (first & 0x7F) | (second << 7)
            return (raw >> 1) ^ -(raw & 1), at + 2
        third = load_u8(at + 2)
        if third < 0x80:
            raw = (first & 0x7F) | ((second & 0x7F) << 7) | (third << 14)
            return (raw >> 1) ^ -(raw & 1), at + 3
    return _read_long_varint(at, end)


@kernel
def _read_long_varint(at: int, end: int) -> tuple[int, int]:
    raw = 0
    for index in range(_I32_VARINT_BYTES):
        if at + index >= end:
            return 0, 0
        byte = load_u8(at + index)
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return ((raw >> 1) ^ -(raw & 1), at + index + 1) if raw < 2**32 else (0, 0)
    return 0, 0


@leaf
def _skip_varlong(at: int, end: int) -> int:
    """Return the address after a zigzag int64, or 0 if it is cut off or too long."""
    limit = min(end, at + _I64_VARINT_BYTES)
    while at < limit:
        if load_u8(at) < 0x80:
            return at + 1
        at += 1
    return 0


@leaf
def skip_headers(at: int, end: int) -> tuple[int, int]:
    """Walk the headers of a record that ends at `end`; return a status and the address after."""
    header_count, at = read_varint(at, end)
    if at == 0:
        return s.VARINT, 0
    if header_count < 0 or header_count > end - at:
        return s.HEADER_COUNT, 0
    for _ in range(header_count):
        key_size, at = read_varint(at, end)
        if at == 0:
            return s.VARINT, 0
        if key_size < 0 or key_size > end - at:
            return s.FIELD_LENGTH, 0
        value_size, at = read_varint(at + key_size, end)
        if at == 0:
            return s.VARINT, 0
        if value_size > end - at:
            return s.FIELD_LENGTH, 0
        at += max(value_size, 0)
    return s.OK, at


@leaf
def read_record(at: int, end: int) -> tuple[int, int, int, int, int]:
    """Check one record; return status, its end, its offset delta, its key and the key's size."""
    length, at = read_varint(at, end)
    if at == 0:
        return s.VARINT, 0, 0, 0, 0
    if length < s.RECORD_BYTES_MIN - 1 or length > end - at:
        return s.RECORD_LENGTH, 0, 0, 0, 0
    end = at + length
    at = _skip_varlong(at + 1, end)
    if at == 0:
        return s.VARINT, 0, 0, 0, 0
    delta, at = read_varint(at, end)
    if at == 0:
        return s.VARINT, 0, 0, 0, 0
    key_size, key = read_varint(at, end)
    if key == 0:
        return s.VARINT, 0, 0, 0, 0
    if key_size > end - key:
        return s.FIELD_LENGTH, 0, 0, 0, 0
    value_size, at = read_varint(key + max(key_size, 0), end)
    if at == 0:
        return s.VARINT, 0, 0, 0, 0
    if value_size > end - at:
        return s.FIELD_LENGTH, 0, 0, 0, 0
    status, at = skip_headers(at + max(value_size, 0), end)
    if status == s.OK and at != end:
        status = s.RECORD_LENGTH
    return status, end, delta, key, key_size


@leaf
def _point_of(key: int, key_size: int, offset: int, hashing: Any, cursor: Any) -> np.uint64:
    if hashing is None:  # known when it is compiled: the loop for XXH64 has nothing of the other
        return hash_key(key, key_size) if key_size >= 0 else hash_offset(offset)
    if key_size < 0:
        return hash_offset(offset)
    return hash_placed(key, key_size, offset, hashing, cursor)


@leaf
def _walk_batch(
    row: Any,
    limits: Any,
    guide: Any,
    output_of: Any,
    hashing: Any,
    ends: Any,
    lanes: Any,
    entries: Any,
    entry_of: Any,
    cursor: Any,
) -> int:
    """Walk one batch of records; append spans and entries, or nothing if it is bad.

    Returns a status. cursor (CURSOR_SIZE,) int64: [0] records and [1] entries so far; out: offsets
    of the [2] first and [3] last record, or in [2] the index of the bad one; [4]: `hash_placed`.
    """
    payload = row[s.PAYLOAD]
    at, end = payload, payload + row[s.PAYLOAD_SIZE]
    base_offset, last_delta = row[s.BASE_OFFSET], row[s.LAST_OFFSET] - row[s.BASE_OFFSET]
    record, first_entry = cursor[0], cursor[1]
    entry_count, delta, previous = first_entry, -1, -1
    for index in range(row[s.RECORD_COUNT_COLUMN]):
        start = at
        status, at, delta, key, key_size = read_record(at, end)
        if status == s.OK and (delta <= previous or delta > last_delta):
            status = s.OFFSET_DELTA
        if status != s.OK:
            cursor[2] = index
            return status
        if index == 0:
            cursor[2] = base_offset + delta
        previous, lane = delta, np.int64(0)
        if limits.size > 1 or hashing is not None:
            point = _point_of(key, key_size, base_offset + delta, hashing, cursor)
            lane = interval_of_hash(point, limits, guide)
        if output_of.size > 0:
            lane = np.int64(output_of[lane])
        ends[record] = at - payload
        lanes[record] = lane
        record += 1
        if lane < 0:
            continue
        entry = np.int64(entry_of[lane])
        if entry < first_entry:
            entry = entry_count
            entry_of[lane] = entry
            entry_count += 1
            entries[entry, s.ENTRY_LANE] = lane
            entries[entry, s.ENTRY_RECORDS] = 0
            entries[entry, s.ENTRY_BYTES] = 0
        entries[entry, s.ENTRY_RECORDS] += 1
        entries[entry, s.ENTRY_BYTES] += at - start
        entries[entry, s.ENTRY_LAST_OFFSET] = base_offset + delta
    if at != end:
        return s.RECORDS_REMAIN
    cursor[0] = record
    cursor[1] = entry_count
    cursor[3] = base_offset + delta
    return s.OK


@leaf
def read_control(at: int, end: int, previous: int, last_delta: int) -> tuple[int, int, int, int]:
    """Check one record of a control batch; return status, its end, its offset delta, its key.

    previous: the delta of the record before; last_delta: that of the batch.
    """
    status, at, delta, key, key_size = read_record(at, end)
    if status == s.OK and (delta <= previous or delta > last_delta):
        status = s.OFFSET_DELTA
    if status == s.OK and key_size < _CONTROL_KEY_BYTES:
        status = s.CONTROL_KEY
    return status, at, delta, key


@leaf
def check_control(row: Any) -> int:
    """Check a control batch; row: of the batch table. Returns a status."""
    at, end = row[s.PAYLOAD], row[s.PAYLOAD] + row[s.PAYLOAD_SIZE]
    last_delta, delta = row[s.LAST_OFFSET] - row[s.BASE_OFFSET], -1
    for _ in range(row[s.RECORD_COUNT_COLUMN]):
        status, at, delta, _key = read_control(at, end, delta, last_delta)
        if status != s.OK:
            return status
    return s.OK if at == end else s.RECORDS_REMAIN


@leaf
def _walk_control(row: Any, markers: Any, progress: Any) -> int:
    """Check a control batch; note an abort marker. Returns a status."""
    at, end = row[s.PAYLOAD], row[s.PAYLOAD] + row[s.PAYLOAD_SIZE]
    last_delta, delta = row[s.LAST_OFFSET] - row[s.BASE_OFFSET], -1
    for _ in range(row[s.RECORD_COUNT_COLUMN]):
        status, at, delta, key = read_control(at, end, delta, last_delta)
        if status != s.OK:
            return status
        # Key: int16 version, int16 type (0 abort, 1 commit, others are not of transactions).
        if load_u8(key + 2) == 0 and load_u8(key + 3) == _ABORT:
            marker = progress[s.DONE_MARKERS]
            if marker < markers.shape[0]:
                markers[marker, 0] = row[s.PRODUCER_ID]
                markers[marker, 1] = row[s.BASE_OFFSET] + delta
                progress[s.DONE_MARKERS] = marker + 1
    return s.OK if at == end else s.RECORDS_REMAIN


@kernel
def walk_batches(
    table: Any,
    limits: Any,
    guide: Any,
    output_of: Any,
    hashing: Any,
    ends: Any,
    lanes: Any,
    entries: Any,
    entry_of: Any,
    holes: Any,
    markers: Any,
    progress: Any,
    cursor: Any,
) -> None:
    """Walk the records of every batch of the table, find each one's lane.

    table    (b, BATCH_COLUMNS) int64  in: from `scan_batches`; out: ENTRY_END
    limits   (i,)   uint64  in: exclusive upper bounds of the intervals of the hash space
    guide    (g+1,) int32   in: see `lane_table.LaneTable`
    output_of (i,)  int16   in: output of each interval, -1: its records are dropped; or empty
    hashing  (HASHING_SIZE,) uint64  in: of murmur2; empty for XXH64
    ends     (n,)   int32   out: end of each record, relative to its payload
    lanes    (n,)   int16   out: lane of each record, -1 for none
    entries  (e, ENTRY_COLUMNS) int64  out: per batch and lane with records, in batch order
    entry_of (l,)   int64   scratch, -1 at first
    holes    (b+1, 2) int64 out: inclusive offset ranges before, between and after the records
    markers  (c, 2) int64   out: producer id and offset of each abort marker
    progress (PROGRESS_SIZE,) int64  out; stops at the first bad batch, all before it is complete
    cursor   (CURSOR_SIZE,) int64  scratch, 0 at first, and [4] as `hash_placed` wants it
    """
    progress[s.STATUS], progress[s.DONE_HOLES], progress[s.DONE_MARKERS] = s.OK, 0, 0
    progress[s.COVERED_OFFSET] = table[0, s.BASE_OFFSET]
    batch = 0
    while batch < table.shape[0]:
        row = table[batch]
        is_control = row[s.ATTRIBUTES] & CONTROL_BIT != 0
        if is_control:
            status = _walk_control(row, markers, progress)
        elif hashing.size == 0:
            status = _walk_batch(
                row, limits, guide, output_of, None, ends, lanes, entries, entry_of, cursor
            )
        else:
            status = _walk_batch(
                row, limits, guide, output_of, hashing, ends, lanes, entries, entry_of, cursor
            )
        if status != s.OK:
            progress[s.STATUS] = status
            progress[s.BAD_RECORD] = -1 if is_control or status == s.RECORDS_REMAIN else cursor[2]
            break
        row[s.ENTRY_END] = cursor[1]
        if not is_control and row[s.RECORD_COUNT_COLUMN] > 0:
            if cursor[2] > progress[s.COVERED_OFFSET]:
                _add_hole(holes, progress, cursor[2] - 1)
            progress[s.COVERED_OFFSET] = cursor[3] + 1
        batch += 1
    progress[s.DONE_BATCHES] = batch
    progress[s.DONE_RECORDS] = cursor[0]
    progress[s.MISPLACED_OFFSET] = cursor[4]


@leaf
def _add_hole(holes: Any, progress: Any, last: int) -> None:
    holes[progress[s.DONE_HOLES], 0] = progress[s.COVERED_OFFSET]
    holes[progress[s.DONE_HOLES], 1] = last
    progress[s.DONE_HOLES] += 1
