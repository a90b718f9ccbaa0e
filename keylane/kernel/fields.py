"""Find the fields of every record of a fetch answer, for the client that reads it.

Every address that is read is compared with the end of its buffer before.
Source: Kafka documentation, "Record Batch" and "Record"; KIP-98 and Fetcher of Apache Kafka 4.3
(CompletedFetch) for the batches of aborted transactions, which a read_committed consumer skips.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from keylane.kernel import status as s
from keylane.kernel.jit import kernel, leaf
from keylane.kernel.memory import load_i32_be, load_i64_be, load_u8
from keylane.kernel.spans import read_control, read_varint, skip_headers
from keylane.wire.batch import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    LENGTH_PREFIX_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

_I64_VARINT_BYTES: Final = 10
_I64_MASK: Final = 2**63 - 1
_CODEC: Final = 22
_BASE_TIMESTAMP: Final = 27
_MAX_TIMESTAMP: Final = 35
_RECORD_COUNT: Final = 57
"""Positions in the header of a batch."""


@kernel
def list_fields(
    table: Any,
    bases: Any,
    from_offset: int,
    aborted: Any,
    active: Any,
    longs: Any,
    places: Any,
    ends: Any,
    progress: Any,
) -> None:
    """Fill the columns of the data records from `from_offset` on.

    table    (b, BATCH_COLUMNS) int64   in: from `spans.scan_batches`, decompressed
    bases    (b,) int64                 in: address of the buffer that places of a batch count from
    aborted  (k, 2) int64               in: producer id and first offset of each aborted
                                        transaction, ascending by offset
    active   (k,) int64                 scratch
    longs    (FIELD_LONG_ROWS, n) int64 out
    places   (FIELD_PLACE_ROWS, n) int32 out
    ends     (b,) int64                 out: records up to the end of each batch
    progress (PROGRESS_SIZE,) int64     out; stops at the first bad batch, all before is complete
    """
    progress[s.STATUS], progress[s.BAD_RECORD] = s.OK, -1
    batch = record = taken = live = 0
    while batch < table.shape[0]:
        row = table[batch]
        while taken < aborted.shape[0] and aborted[taken, 1] <= row[s.LAST_OFFSET]:
            active[live] = aborted[taken, 0]
            live += 1
            taken += 1
        if row[s.ATTRIBUTES] & CONTROL_BIT:
            status, is_abort = _walk_marker(row)
            if is_abort:
                live = _drop(active, live, row[s.PRODUCER_ID])
        elif row[s.ATTRIBUTES] & TRANSACTIONAL_BIT and _has(active, live, row[s.PRODUCER_ID]):
            status = s.OK
        else:
            status, record = _list_batch(
                row, bases[batch], from_offset, longs, places, record, progress
            )
        if status != s.OK:
            progress[s.STATUS] = status
            break
        ends[batch] = record
        batch += 1
    progress[s.DONE_BATCHES] = batch
    progress[s.DONE_RECORDS] = record


@kernel
def survey_batches(address: int, size: int, found: Any) -> int:
    """Return the position of the last whole batch in the buffer, by the headers alone; or -1.

    found: gets what is to be read, see `kernel.status`.
    """
    position = 0
    last = -1
    found[:] = 0
    while size - position >= BATCH_HEADER_BYTES:
        batch_size = LENGTH_PREFIX_BYTES + load_i32_be(address + position + 8)
        if batch_size < BATCH_HEADER_BYTES or batch_size > size - position:
            break
        if load_u8(address + position + _CODEC) & CODEC_MASK:
            found[s.FOUND_COMPRESSED_BYTES] += batch_size
        found[s.FOUND_BATCHES] += 1
        found[s.FOUND_RECORDS] += max(0, load_i32_be(address + position + _RECORD_COUNT))
        last = position
        position += batch_size
    return last


@leaf
def _has(active: Any, live: int, producer_id: int) -> bool:
    for index in range(live):  # noqa: SIM110 -- numba knows no generator
        if active[index] == producer_id:
            return True
    return False


@leaf
def _drop(active: Any, live: int, producer_id: int) -> int:
    kept = 0
    for index in range(live):
        if active[index] != producer_id:
            active[kept] = active[index]
            kept += 1
    return kept


@leaf
def _walk_marker(row: Any) -> tuple[int, bool]:
    """Check a control batch; return a status, and whether it ends a transaction by an abort."""
    at, end = row[s.PAYLOAD], row[s.PAYLOAD] + row[s.PAYLOAD_SIZE]
    last_delta, delta = row[s.LAST_OFFSET] - row[s.BASE_OFFSET], -1
    is_abort = False
    for _ in range(row[s.RECORD_COUNT_COLUMN]):
        status, at, delta, key = read_control(at, end, delta, last_delta)
        if status != s.OK:
            return status, False
        # Key: int16 version, int16 type (0 abort, 1 commit, others are not of transactions).
        is_abort = load_u8(key + 2) == 0 and load_u8(key + 3) == 0
    return (s.OK if at == end else s.RECORDS_REMAIN), is_abort


@leaf
def _list_batch(
    row: Any, base: int, from_offset: int, longs: Any, places: Any, first: int, progress: Any
) -> tuple[int, int]:
    """Fill the columns of a batch's records from `first` on; return a status and the next one."""
    at, end = row[s.PAYLOAD], row[s.PAYLOAD] + row[s.PAYLOAD_SIZE]
    base_offset, last_delta = row[s.BASE_OFFSET], row[s.LAST_OFFSET] - row[s.BASE_OFFSET]
    is_appended = row[s.ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    position = _MAX_TIMESTAMP if is_appended else _BASE_TIMESTAMP
    timestamp = np.int64(load_i64_be(row[s.ADDRESS] + position))
    previous, record = -1, first
    for index in range(row[s.RECORD_COUNT_COLUMN]):
        status, at, delta, since = _read_fields(at, end, base, places, record)
        if status == s.OK and (delta <= previous or delta > last_delta):
            status = s.OFFSET_DELTA
        if status != s.OK:
            progress[s.BAD_RECORD] = index
            return status, first
        previous = delta
        if base_offset + delta < from_offset:
            continue
        longs[s.FIELD_OFFSET, record] = base_offset + delta
        longs[s.FIELD_TIMESTAMP, record] = timestamp if is_appended else timestamp + since
        record += 1
    return (s.OK, record) if at == end else (s.RECORDS_REMAIN, first)


@leaf
def _read_fields(
    at: int, end: int, base: int, places: Any, record: int
) -> tuple[int, int, int, np.int64]:
    """Check one record, note its places; return status, end, offset delta, timestamp delta."""
    none = np.int64(0)
    length, at = read_varint(at, end)
    if at == 0:
        return s.VARINT, 0, 0, none
    if length < s.RECORD_BYTES_MIN - 1 or length > end - at:
        return s.RECORD_LENGTH, 0, 0, none
    end = at + length
    since, at = _read_varlong(at + 1, end)
    if at == 0:
        return s.VARINT, 0, 0, none
    delta, at = read_varint(at, end)
    if at == 0:
        return s.VARINT, 0, 0, none
    key_size, at = read_varint(at, end)
    if at == 0:
        return s.VARINT, 0, 0, none
    if key_size > end - at:
        return s.FIELD_LENGTH, 0, 0, none
    places[s.PLACE_KEY, record] = at - base
    places[s.PLACE_KEY_END, record] = at + key_size - base if key_size >= 0 else s.NO_FIELD
    value_size, at = read_varint(at + max(key_size, 0), end)
    if at == 0:
        return s.VARINT, 0, 0, none
    if value_size > end - at:
        return s.FIELD_LENGTH, 0, 0, none
    places[s.PLACE_VALUE, record] = at - base
    places[s.PLACE_VALUE_END, record] = at + value_size - base if value_size >= 0 else s.NO_FIELD
    at += max(value_size, 0)
    places[s.PLACE_HEADERS, record] = at - base
    places[s.PLACE_HEADERS_END, record] = end - base
    status, at = skip_headers(at, end)
    if status == s.OK and at != end:
        status = s.RECORD_LENGTH
    return status, end, delta, since


@leaf
def _read_varlong(at: int, end: int) -> tuple[np.int64, int]:
    """Read a zigzag int64; return it with the address after it, which is 0 if it is bad."""
    limit = min(end, at + _I64_VARINT_BYTES)
    raw = shift = 0
    while at < limit:
        byte = load_u8(at)
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return np.int64(((raw >> 1) & _I64_MASK) ^ -(raw & 1)), at
    return np.int64(0), 0
