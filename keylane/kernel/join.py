"""Join small batches that follow one another into one, before their records are dealt to lanes.

Every address is compared with the end of its buffer before it is read or written.
Source: DefaultRecord.writeTo (Apache Kafka 4.3); KIP-98 (sequence numbers); KIP-534.

A producer with linger 0 writes a batch per record: 61 bytes of header each, and as many between
the records of a lane, for batches that went to other lanes. Batches are joined when a producer
with a longer linger could have written them as one: the same producer state with sequence numbers
that follow on, the same leader epoch and attributes, no control batch between, no offset without
a record. Records keep all but their offset delta and timestamp delta, which are relative to the
batch, and with these their length.
"""

from __future__ import annotations

from typing import Any, Final

from keylane.kernel import status as s
from keylane.kernel.crc import crc32c_at
from keylane.kernel.jit import kernel, leaf
from keylane.kernel.memory import (
    copy_bytes,
    load_i32_be,
    load_i64_be,
    load_u8,
    store_i32_be,
    store_i64_be,
    store_u8,
)
from keylane.kernel.spans import read_varint
from keylane.wire.batch import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    CRC_START,
    DELETE_HORIZON_BIT,
    LENGTH_PREFIX_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

JOIN_BATCH_BYTES_MAX: Final = 8 * 1024
"""Records of a batch that is joined: half of a producer's default `batch.size`, so that what
filled its batch is left as it is."""
JOINED_BYTES_MAX: Final = 128 * 1024
"""Records of a joined batch: with 16 lanes each gets half of that `batch.size`."""
RECORD_GROWTH_BYTES_MAX: Final = 15
"""A timestamp delta may grow by 7 bytes, an offset delta by 3, and the length by some for these."""
_TIMESTAMP_MAX: Final = 2**47 - 1
"""Joined records lie between 0 and this, the year 6429, so that no delta wraps or is long."""
_VARLONG_BYTES: Final = 10


@kernel
def joined_bytes(table: Any) -> int:
    """Upper bound of what `join_batches` writes; 0 when there is nothing to join."""
    total = run_bytes = 0
    for batch in range(1, table.shape[0]):
        if not _follows(table[batch - 1], table[batch]):
            run_bytes = 0
            continue
        if run_bytes == 0 or run_bytes + table[batch, s.PAYLOAD_SIZE] > JOINED_BYTES_MAX:
            run_bytes = table[batch - 1, s.PAYLOAD_SIZE]
            total += BATCH_HEADER_BYTES + _grown(table[batch - 1])
        run_bytes += table[batch, s.PAYLOAD_SIZE]
        total += _grown(table[batch])
    return total


@leaf
def _grown(row: Any) -> int:
    return row[s.PAYLOAD_SIZE] + RECORD_GROWTH_BYTES_MAX * row[s.RECORD_COUNT_COLUMN]


@kernel
def join_batches(table: Any, joined: Any, address: int, size: int) -> int:
    """Fill `joined` with the rows of `table`, runs of small batches as one row each.

    table    (b, BATCH_COLUMNS) int64  in: good batches, decompressed
    joined   (b, BATCH_COLUMNS) int64  out: what an uncompressed source batch would have there
    address, size: of a buffer of `joined_bytes(table)` bytes for joined headers and records

    Returns the count of rows, or -1 when records of a batch are bad: then nothing is joined, and
    the walk over the batches themselves finds out what is wrong.
    """
    end, count, batch = address + size, 0, 0
    while batch < table.shape[0]:
        stop, total = batch + 1, table[batch, s.PAYLOAD_SIZE]
        while (
            stop < table.shape[0]
            and total + table[stop, s.PAYLOAD_SIZE] <= JOINED_BYTES_MAX
            and _follows(table[stop - 1], table[stop])
        ):
            total += table[stop, s.PAYLOAD_SIZE]
            stop += 1
        row = joined[count]
        if stop - batch == 1:
            _copy_row(row, table[batch])
        else:
            written = _join_run(table[batch:stop], row, address, end)
            if written == 0:
                return -1
            address += written
        batch = stop
        count += 1
    return count


@leaf
def _copy_row(row: Any, source: Any) -> None:
    # Not `row[:] = source`: for the message of its ValueError numba compiles string functions.
    for column in range(s.BATCH_COLUMNS):
        row[column] = source[column]


@leaf
def _follows(first: Any, second: Any) -> bool:
    """Return whether a producer could have written the two as one batch."""
    if not (_is_small(first) and _is_small(second)):
        return False
    if second[s.BASE_OFFSET] != first[s.LAST_OFFSET] + 1:
        return False
    at, to = first[s.ADDRESS], second[s.ADDRESS]
    if load_i32_be(at + 12) != load_i32_be(to + 12) or load_u8(at + 21) != load_u8(to + 21):
        return False
    attributes = first[s.ATTRIBUTES] & ~CODEC_MASK
    if attributes != second[s.ATTRIBUTES] & ~CODEC_MASK:
        return False
    # With the broker's append time the header's timestamp is that of every record.
    if attributes & TIMESTAMP_TYPE_BIT and load_i64_be(at + 35) != load_i64_be(to + 35):
        return False
    if first[s.PRODUCER_ID] != second[s.PRODUCER_ID]:
        return False
    if load_u8(at + 51) != load_u8(to + 51) or load_u8(at + 52) != load_u8(to + 52):
        return False
    expected = load_i32_be(at + 53)
    if first[s.PRODUCER_ID] >= 0:
        expected += first[s.RECORD_COUNT_COLUMN]
    elif attributes & TRANSACTIONAL_BIT:
        return False
    return expected == load_i32_be(to + 53)


@leaf
def _is_small(row: Any) -> bool:
    """Return whether the batch may be joined: few bytes, a record for each of its offsets."""
    if row[s.ATTRIBUTES] & (CONTROL_BIT | DELETE_HORIZON_BIT):
        return False
    if not 0 < row[s.PAYLOAD_SIZE] <= JOIN_BATCH_BYTES_MAX:
        return False
    if not 0 <= load_i64_be(row[s.ADDRESS] + 27) <= _TIMESTAMP_MAX:
        return False
    count = row[s.RECORD_COUNT_COLUMN]
    return count > 0 and count == row[s.LAST_OFFSET] - row[s.BASE_OFFSET] + 1


@leaf
def _join_run(run: Any, row: Any, address: int, end: int) -> int:
    """Write a header and the records of the run; return their bytes, 0 when a record is bad."""
    first = run[0, s.ADDRESS]
    base_offset, base_timestamp = run[0, s.BASE_OFFSET], load_i64_be(first + 27)
    max_timestamp, record_count = load_i64_be(first + 35), 0
    at = address + BATCH_HEADER_BYTES
    for batch in range(run.shape[0]):
        source = run[batch]
        at = _copy_records(source, base_offset, base_timestamp, at, end)
        if at == 0:
            return 0
        max_timestamp = max(max_timestamp, load_i64_be(source[s.ADDRESS] + 35))
        record_count += source[s.RECORD_COUNT_COLUMN]
    _copy_row(row, run[run.shape[0] - 1])
    row[s.ADDRESS] = address
    row[s.SIZE] = at - address
    row[s.PAYLOAD] = address + BATCH_HEADER_BYTES
    row[s.PAYLOAD_SIZE] = at - address - BATCH_HEADER_BYTES
    row[s.BASE_OFFSET] = base_offset
    row[s.ATTRIBUTES] = run[0, s.ATTRIBUTES] & ~CODEC_MASK
    row[s.RECORD_COUNT_COLUMN] = record_count
    copy_bytes(address, first, BATCH_HEADER_BYTES)
    store_i32_be(address + 8, row[s.SIZE] - LENGTH_PREFIX_BYTES)
    store_u8(address + 22, row[s.ATTRIBUTES])
    store_i32_be(address + 23, row[s.LAST_OFFSET] - base_offset)
    store_i64_be(address + 35, max_timestamp)
    store_i32_be(address + 57, record_count)
    store_i32_be(address + CRC_POSITION, crc32c_at(address + CRC_START, row[s.SIZE] - CRC_START))
    return at - address


@leaf
def _copy_records(source: Any, base_offset: int, base_timestamp: int, at: int, end: int) -> int:
    """Copy the records of one batch with new deltas; return where they end, 0 when one is bad."""
    read, stop = source[s.PAYLOAD], source[s.PAYLOAD] + source[s.PAYLOAD_SIZE]
    timestamp = load_i64_be(source[s.ADDRESS] + 27)
    offset_shift = source[s.BASE_OFFSET] - base_offset
    for index in range(source[s.RECORD_COUNT_COLUMN]):
        length, read = read_varint(read, stop)
        if read == 0 or length < 4 or length > stop - read:
            return 0
        record_end = read + length
        attributes = load_u8(read)
        timestamp_delta, read = _read_varlong(read + 1, record_end)
        if read == 0:
            return 0
        delta, read = read_varint(read, record_end)
        moved = timestamp + timestamp_delta
        if read == 0 or delta != index or not 0 <= moved <= _TIMESTAMP_MAX:
            return 0
        moved -= base_timestamp
        delta += offset_shift
        rest = record_end - read
        body = 1 + _varint_size(moved) + _varint_size(delta) + rest
        if body + _varint_size(body) > end - at:
            return 0
        at = _write_varint(at, body)
        store_u8(at, attributes)
        at = _write_varint(_write_varint(at + 1, moved), delta)
        copy_bytes(at, read, rest)
        at += rest
        read = record_end
    return at if read == stop else 0


@leaf
def _read_varlong(at: int, end: int) -> tuple[int, int]:
    """Read a zigzag integer of at most 63 bits; return it with the address after it, 0 if bad."""
    raw = shift = 0
    limit = min(end, at + _VARLONG_BYTES - 1)
    while at < limit:
        byte = load_u8(at)
        raw |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    return 0, 0


@leaf
def _varint_size(value: int) -> int:
    raw, size = (value << 1) ^ (value >> 63), 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


@leaf
def _write_varint(at: int, value: int) -> int:
    """Write a zigzag integer; return the address after it."""
    raw = (value << 1) ^ (value >> 63)
    while raw >= 0x80:
        store_u8(at, raw & 0x7F | 0x80)
        raw >>= 7
        at += 1
    store_u8(at, raw)
    return at + 1
