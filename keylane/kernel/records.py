"""Hold the records of a block one by one, and write chosen ones into batches again.

Every address that is read in a source batch is compared with the end of its buffer before.
Source: Kafka documentation, "Record Batch" and "Record"; KIP-932, whose records are acquired and
acknowledged one by one.

What is held of a block is one buffer: of each batch with data records its header, as it was on the
wire, then its records, plain. Records keep their deltas, so a batch that is written from it keeps
the base offset and the base timestamp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keylane.kernel import status as s
from keylane.kernel.hashes import hash_key
from keylane.kernel.jit import kernel, leaf
from keylane.kernel.memory import (
    copy_bytes,
    copy_fast,
    load_u8,
    store_i32_be,
    store_u8,
)
from keylane.kernel.rewrite import COPY_FAST_BYTES_MAX, seal
from keylane.kernel.spans import check_control, read_record
from keylane.wire.batch import BATCH_HEADER_BYTES, CODEC_MASK, CONTROL_BIT, LENGTH_PREFIX_BYTES


@kernel
def hold_batches(
    table: Any, target: int, batches: Any, records: Any, spans: Any, progress: Any
) -> None:
    """Walk the records of every batch of the table, and copy those of data batches.

    table    (b, BATCH_COLUMNS) int64  in: from `spans.scan_batches`, decompressed
    target   address of room for the headers and records of all data batches that have records
    batches  (HELD_BATCH_ROWS, h) int64   out: of each such batch
    records  (HELD_RECORD_ROWS, n) int64  out: of each of their records
    spans    (SPAN_ROWS, n) int32         out: of the same
    progress (PROGRESS_SIZE,) int64  out; stops at the first bad batch, all before it is complete
    """
    progress[s.STATUS], progress[s.BAD_RECORD] = s.OK, -1
    batch = held = record = position = 0
    while batch < table.shape[0]:
        row = table[batch]
        if row[s.ATTRIBUTES] & CONTROL_BIT:
            status = check_control(row)
        else:
            status = _index_batch(row, held, record, records, spans, progress)
        if status != s.OK:
            progress[s.STATUS] = status
            break
        batch += 1
        if row[s.ATTRIBUTES] & CONTROL_BIT or row[s.RECORD_COUNT_COLUMN] == 0:
            continue
        copy_bytes(target + position, row[s.ADDRESS], BATCH_HEADER_BYTES)
        copy_bytes(target + position + BATCH_HEADER_BYTES, row[s.PAYLOAD], row[s.PAYLOAD_SIZE])
        batches[s.HELD_POSITION, held] = position
        batches[s.HELD_BASE_OFFSET, held] = row[s.BASE_OFFSET]
        position += BATCH_HEADER_BYTES + row[s.PAYLOAD_SIZE]
        record += row[s.RECORD_COUNT_COLUMN]
        held += 1
    progress[s.DONE_BATCHES] = batch
    progress[s.DONE_RECORDS] = record


@leaf
def _index_batch(row: Any, held: int, record: int, records: Any, spans: Any, progress: Any) -> int:
    """Fill the columns of the batch's records, from `record` on; return a status."""
    payload = row[s.PAYLOAD]
    at, end = payload, payload + row[s.PAYLOAD_SIZE]
    base_offset, last_delta = row[s.BASE_OFFSET], row[s.LAST_OFFSET] - row[s.BASE_OFFSET]
    previous = -1
    for index in range(row[s.RECORD_COUNT_COLUMN]):
        start = at
        status, at, delta, key, key_size = read_record(at, end)
        if status == s.OK and (delta <= previous or delta > last_delta):
            status = s.OFFSET_DELTA
        if status != s.OK:
            progress[s.BAD_RECORD] = index
            return status
        previous = delta
        column = record + index
        records[s.HELD_OFFSET, column] = base_offset + delta
        point = np.int64(hash_key(key, key_size)) if key_size >= 0 else np.int64(s.NO_POINT)
        records[s.HELD_POINT, column] = point
        spans[s.SPAN_END, column] = at - payload
        spans[s.SPAN_SIZE, column] = at - start
        spans[s.SPAN_BATCH, column] = held
    return s.OK if at == end else s.RECORDS_REMAIN


@kernel
def pick_records(data: int, batches: Any, spans: Any, rows: Any, target: int, room: int) -> int:
    """Write batches of the chosen records, one per batch that has any of them.

    data     address of what `hold_batches` wrote, with COPY_SLACK_BYTES behind it
    batches, spans: as `hold_batches` left them
    rows     (k,) int64  columns of the records, ascending
    target   address of `room` bytes, with COPY_SLACK_BYTES behind them

    Returns the bytes of the batches; more than `room`: nothing is written. -1: `rows` do not
    ascend, or are not all of the block.
    """
    total = _picked_bytes(spans, rows)
    if total > room:
        return total
    first, at = 0, target
    while first < rows.size and total > 0:
        batch = spans[s.SPAN_BATCH, rows[first]]
        stop = first + 1
        while stop < rows.size and spans[s.SPAN_BATCH, rows[stop]] == batch:
            stop += 1
        at = _write_batch(data + batches[s.HELD_POSITION, batch], spans, rows, first, stop, at)
        first = stop
    return total


@leaf
def _picked_bytes(spans: Any, rows: Any) -> int:
    """Add up the sizes of headers and records; -1 where a row is not above the one before."""
    total, previous, batch = np.int64(0), np.int64(-1), np.int64(-1)
    for index in range(rows.size):
        row = rows[index]
        if row <= previous or row >= spans.shape[1]:
            return -1
        if spans[s.SPAN_BATCH, row] != batch:
            batch = np.int64(spans[s.SPAN_BATCH, row])
            total += BATCH_HEADER_BYTES
        total += spans[s.SPAN_SIZE, row]
        previous = row
    return total


@leaf
def _write_batch(header: int, spans: Any, rows: Any, first: int, stop: int, target: int) -> int:
    """Write the batch of rows[first:stop], whose source begins at `header`; return its end."""
    copy_fast(target, header, BATCH_HEADER_BYTES)
    payload = header + BATCH_HEADER_BYTES
    at, index, last = target + BATCH_HEADER_BYTES, first, rows[stop - 1]
    last_end = payload + spans[s.SPAN_END, last]
    while index < stop:
        row = rows[index]
        start = spans[s.SPAN_END, row] - spans[s.SPAN_SIZE, row]
        index += 1
        while index < stop and rows[index] == row + 1:  # neighbours go together
            row += 1
            index += 1
        size: Any = np.int64(spans[s.SPAN_END, row] - start)  # an address cannot grow by an int32
        if size <= COPY_FAST_BYTES_MAX:
            copy_fast(at, payload + start, size)
        else:
            copy_bytes(at, payload + start, size)
        at += size
    _, _, last_delta, _, _ = read_record(last_end - spans[s.SPAN_SIZE, last], last_end)
    store_i32_be(target + 8, at - target - LENGTH_PREFIX_BYTES)
    store_u8(target + 22, load_u8(target + 22) & ~CODEC_MASK)
    store_i32_be(target + 23, last_delta)
    store_i32_be(target + 57, stop - first)
    seal(target, at - target)
    return at
