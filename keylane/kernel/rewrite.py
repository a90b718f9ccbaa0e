"""Rebuild one batch per source batch and lane; merge what a lane has nothing of into one header.

Writes only between a lane's address and the end that `plan_lanes` computed.
Source: DefaultRecordBatch.writeEmptyHeader (Apache Kafka 4.3).

A rebuilt batch keeps the header of its source; length, codec bits, record count and CRC are new.
Base offset and last offset delta stay, so a client moves past records that went to other lanes.
Both kernels run the same walk over lanes and batches: what the first counts the second writes.
"""

from __future__ import annotations

from typing import Any, Final

from keylane.kernel import status as s
from keylane.kernel.crc import crc32c_at
from keylane.kernel.jit import kernel, leaf
from keylane.kernel.memory import (
    copy_bytes,
    copy_fast,
    load_i32_be,
    load_u8,
    prefetch_write,
    store_i32_be,
    store_i64_be,
    store_u8,
)
from keylane.wire.batch import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    CRC_START,
    LENGTH_PREFIX_BYTES,
    OFFSET_DELTA_MAX,
)

COPY_FAST_BYTES_MAX: Final = 512
"""Size above which a call of memcpy is as fast; measured with bench/micro/kernel.py."""
PREFETCH_BYTES_MAX: Final = 2048
"""Lines of more bytes in each lane would drive one another out of the cache."""
_CACHE_LINE_BYTES: Final = 64


@kernel
def plan_lanes(table: Any, entries: Any, lane_rows: Any) -> None:
    """Compute how many bytes, batches and records every lane gets.

    table, entries: as `spans.walk_batches` left them; lane_rows (l, LANE_COLUMNS) int64, zeroed.
    A lane with neither records nor control batches keeps LANE_BATCHES 0: no output at all.
    """
    entry = 0
    for batch in range(table.shape[0]):
        if table[batch, s.ATTRIBUTES] & CONTROL_BIT and table[batch, s.RECORD_COUNT_COLUMN] > 0:
            for lane in range(lane_rows.shape[0]):
                _plan_batch(table, lane_rows[lane], batch, table[batch, s.SIZE], 0)
        while entry < table[batch, s.ENTRY_END]:
            size = BATCH_HEADER_BYTES + entries[entry, s.ENTRY_BYTES]
            row = lane_rows[entries[entry, s.ENTRY_LANE]]
            _plan_batch(table, row, batch, size, entries[entry, s.ENTRY_RECORDS])
            entry += 1
    for lane in range(lane_rows.shape[0]):
        if lane_rows[lane, s.LANE_BATCHES] > 0:
            _plan_gap(table, lane_rows[lane], table.shape[0])


@leaf
def _plan_batch(table: Any, row: Any, batch: int, size: int, record_count: int) -> None:
    _plan_gap(table, row, batch)
    row[s.LANE_NEXT_BATCH] = batch + 1
    row[s.LANE_BYTES] += size
    row[s.LANE_BATCHES] += 1
    row[s.LANE_RECORDS] += record_count


@leaf
def _plan_gap(table: Any, row: Any, stop: int) -> None:
    """Count the empty headers that cover the batches from the lane's next one up to `stop`."""
    first = row[s.LANE_NEXT_BATCH]
    while first < stop:
        first = _gap_end(table, first, stop)
        row[s.LANE_BYTES] += BATCH_HEADER_BYTES
        row[s.LANE_BATCHES] += 1
    row[s.LANE_NEXT_BATCH] = stop


@kernel
def _gap_end(table: Any, first: int, stop: int) -> int:
    """Return how far one empty header reaches: its last offset delta is an int32."""
    base_offset = table[first, s.BASE_OFFSET]
    if table[stop - 1, s.LAST_OFFSET] - base_offset <= OFFSET_DELTA_MAX:
        return stop
    end = first + 1
    while table[end, s.LAST_OFFSET] - base_offset <= OFFSET_DELTA_MAX:
        end += 1
    return end


@kernel
def write_lanes(
    table: Any,
    ends: Any,
    lanes: Any,
    entries: Any,
    lane_rows: Any,
    template: int,
    meta_start: Any,
    meta: Any,
) -> None:
    """Write the lane batches and their metadata.

    lane_rows  in: LANE_ADDRESS of each lane's bytes, which are LANE_BYTES + COPY_SLACK_BYTES
               long as planned; the other columns zeroed again. out: as planned
    template   address of a sealed empty batch of 61 bytes
    meta_start (l,) int64  first column of each lane in meta
    meta       (META_ROWS, m) int64  out
    """
    entry = record = 0
    for batch in range(table.shape[0]):
        source = table[batch]
        if source[s.ATTRIBUTES] & CONTROL_BIT and source[s.RECORD_COUNT_COLUMN] > 0:
            _copy_control(table, lane_rows, batch, template, meta_start, meta)
        first = entry
        while entry < source[s.ENTRY_END]:
            lane = entries[entry, s.ENTRY_LANE]
            _write_gap(table, lane_rows[lane], batch, template, meta_start[lane], meta)
            entry += 1
        count = source[s.RECORD_COUNT_COLUMN]
        if entry == first:
            if source[s.ATTRIBUTES] & CONTROL_BIT == 0:
                record += count  # all of them are dropped
            continue
        is_whole = entry - first == 1 and entries[first, s.ENTRY_RECORDS] == count
        if is_whole and source[s.ATTRIBUTES] & CODEC_MASK == 0:
            _copy_batch(source, lane_rows[lanes[record]])
        else:
            _write_headers(source, entries[first:entry], lane_rows)
            _copy_records(source, ends[record : record + count], lanes[record:], lane_rows)
            _seal_batches(entries[first:entry], lane_rows)
        for at in range(first, entry):
            lane = entries[at, s.ENTRY_LANE]
            lane_rows[lane, s.LANE_RECORDS] += entries[at, s.ENTRY_RECORDS]
            _end_batch(
                source,
                lane_rows[lane],
                batch,
                entries[at, s.ENTRY_RECORDS],
                entries[at, s.ENTRY_LAST_OFFSET],
                meta_start[lane],
                meta,
            )
        record += count
    for lane in range(lane_rows.shape[0]):
        if lane_rows[lane, s.LANE_BATCHES] > 0:
            row = lane_rows[lane]
            _write_gap(table, row, table.shape[0], template, meta_start[lane], meta)


@leaf
def _copy_control(
    table: Any, lane_rows: Any, batch: int, template: int, meta_start: Any, meta: Any
) -> None:
    """A control batch goes to every lane."""
    for lane in range(lane_rows.shape[0]):
        row = lane_rows[lane]
        _write_gap(table, row, batch, template, meta_start[lane], meta)
        _copy_batch(table[batch], row)
        _end_batch(table[batch], row, batch, 0, -1, meta_start[lane], meta)


@leaf
def _copy_batch(source: Any, row: Any) -> None:
    """Copy a batch as it is: its CRC still holds."""
    copy_bytes(row[s.LANE_ADDRESS] + row[s.LANE_BYTES], source[s.ADDRESS], source[s.SIZE])
    row[s.LANE_BYTES] += source[s.SIZE]


@leaf
def _write_headers(source: Any, entries: Any, lane_rows: Any) -> None:
    """Write the header of every lane's part; the CRC follows when the records are there."""
    for entry in range(entries.shape[0]):
        row = lane_rows[entries[entry, s.ENTRY_LANE]]
        at = row[s.LANE_ADDRESS] + row[s.LANE_BYTES]
        size = BATCH_HEADER_BYTES + entries[entry, s.ENTRY_BYTES]
        copy_bytes(at, source[s.ADDRESS], BATCH_HEADER_BYTES)
        store_i32_be(at + 8, size - LENGTH_PREFIX_BYTES)
        store_u8(at + 22, load_u8(at + 22) & ~CODEC_MASK)
        store_i32_be(at + 57, entries[entry, s.ENTRY_RECORDS])
        row[s.LANE_BYTES] += BATCH_HEADER_BYTES


@leaf
def _copy_records(source: Any, ends: Any, lanes: Any, lane_rows: Any) -> None:
    """Copy each record to its lane's write position; neighbours of one lane go together."""
    payload, payload_size = source[s.PAYLOAD], source[s.PAYLOAD_SIZE]
    start = index = 0
    while index < ends.size:
        lane = lanes[index]
        index += 1
        while index < ends.size and lanes[index] == lane:
            index += 1
        end = ends[index - 1]
        if lane < 0:
            start = end
            continue
        row = lane_rows[lane]
        at = row[s.LANE_ADDRESS] + row[s.LANE_BYTES]
        if end - start <= COPY_FAST_BYTES_MAX and end + s.COPY_SLACK_BYTES <= payload_size:
            copy_fast(at, payload + start, end - start)
        else:
            copy_bytes(at, payload + start, end - start)
            _expect_writes(at + (end - start), min(end - start, PREFETCH_BYTES_MAX))
        row[s.LANE_BYTES] += end - start
        start = end


@leaf
def _expect_writes(at: int, size: int) -> None:
    """Have the cache lines of a lane's next record fetched while other lanes are written.

    A guess of its size by the last one's; what lies past the buffer is only a hint, too.
    """
    end = at + size
    while at < end:
        prefetch_write(at)
        at += _CACHE_LINE_BYTES


@leaf
def _seal_batches(entries: Any, lane_rows: Any) -> None:
    for entry in range(entries.shape[0]):
        row = lane_rows[entries[entry, s.ENTRY_LANE]]
        size = BATCH_HEADER_BYTES + entries[entry, s.ENTRY_BYTES]
        seal(row[s.LANE_ADDRESS] + row[s.LANE_BYTES] - size, size)


@leaf
def seal(at: int, size: int) -> None:
    """Write the CRC of the batch of `size` bytes at an address."""
    store_i32_be(at + CRC_POSITION, crc32c_at(at + CRC_START, size - CRC_START))


@leaf
def _end_batch(
    source: Any,
    row: Any,
    batch: int,
    record_count: int,
    last_record_offset: int,
    meta_start: int,
    meta: Any,
) -> None:
    """Note the metadata of the batch just written and move the lane past its source."""
    row[s.LANE_NEXT_BATCH] = batch + 1
    column = meta_start + row[s.LANE_BATCHES]
    meta[s.META_BASE_OFFSET, column] = source[s.BASE_OFFSET]
    meta[s.META_LAST_OFFSET, column] = source[s.LAST_OFFSET]
    meta[s.META_END, column] = row[s.LANE_BYTES]
    meta[s.META_RECORDS, column] = record_count
    meta[s.META_LAST_RECORD_OFFSET, column] = last_record_offset
    meta[s.META_PRODUCER_ID, column] = source[s.PRODUCER_ID]
    row[s.LANE_BATCHES] += 1


@kernel
def _write_gap(table: Any, row: Any, stop: int, template: int, meta_start: int, meta: Any) -> None:
    """Write the empty headers that `_plan_gap` counted."""
    first = row[s.LANE_NEXT_BATCH]
    while first < stop:
        end = _gap_end(table, first, stop)
        base_offset, last_offset = table[first, s.BASE_OFFSET], table[end - 1, s.LAST_OFFSET]
        at = row[s.LANE_ADDRESS] + row[s.LANE_BYTES]
        copy_bytes(at, template, BATCH_HEADER_BYTES)
        store_i64_be(at, base_offset)
        store_i32_be(at + 12, load_i32_be(table[end - 1, s.ADDRESS] + 12))
        store_i32_be(at + 23, last_offset - base_offset)
        seal(at, BATCH_HEADER_BYTES)
        row[s.LANE_BYTES] += BATCH_HEADER_BYTES
        column = meta_start + row[s.LANE_BATCHES]
        meta[s.META_BASE_OFFSET, column] = base_offset
        meta[s.META_LAST_OFFSET, column] = last_offset
        meta[s.META_END, column] = row[s.LANE_BYTES]
        meta[s.META_RECORDS, column] = 0
        meta[s.META_LAST_RECORD_OFFSET, column] = -1
        meta[s.META_PRODUCER_ID, column] = -1
        row[s.LANE_BATCHES] += 1
        first = end
    row[s.LANE_NEXT_BATCH] = stop
