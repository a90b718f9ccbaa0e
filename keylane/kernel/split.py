"""Split a block of record batches into lanes: the one pass over the bytes of a partition.

Source: docs/decisions/015.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.kernel import status as s
from keylane.kernel.block import Int64Array, LaneRoom, LaneSlice, SplitBlock
from keylane.kernel.lane_table import LaneTable, hashing_of, lane_table
from keylane.kernel.library import (
    JIT,
    address_of,
    as_bytes_array,
    count_batches,
    crc32c_at,
    join_batches,
    joined_bytes,
    plan_lanes,
    scan_batches,
    walk_batches,
    write_lanes,
)
from keylane.kernel.single import SingleRecord, read_single
from keylane.kernel.status import NO_PARTITION, NONE_MISPLACED
from keylane.keyrange.key_split import KeySplit
from keylane.wire.batch import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    CRC_START,
    EPOCH_POSITION,
    write_empty_batch,
)
from keylane.wire.compression import decompress

_TEMPLATE: Final = as_bytes_array(write_empty_batch(0, 0, 0))
"""Kept alive here: `write_lanes` is given its address."""


def split_block(
    buffer: bytes | bytearray | memoryview,
    key_split: KeySplit,
    *,
    plain_bytes_max: int,
    batch_bytes_max: int,
    partition: int = NO_PARTITION,
) -> SplitBlock | None:
    """Split as many whole batches from the start of `buffer` as fit in `plain_bytes_max`.

    The first batch is taken however large, up to `batch_bytes_max`. None: no whole batch is there.
    partition: the one whose log it is; without it `misplaced_offset` is -1.
    Cost: one pass for CRC and walk, one copy; memory: the plain bytes of compressed batches, the
    lane batches, and 6 bytes per record.

    Raises:
        BatchUnsupported: the first batch has magic 0 or 1, or is larger than `batch_bytes_max`.
        BatchCorrupt: the first batch is bad. Either names the position of the batch.
    """
    lanes = lane_table(key_split)
    single = read_single(buffer, lanes, batch_bytes_max, partition)
    if single is not None:
        return _block_of(single, lanes.output_count)
    with _python_arithmetic():
        return _split(buffer, lanes, plain_bytes_max, batch_bytes_max, partition)


def _block_of(single: SingleRecord, output_count: int) -> SplitBlock:
    """Return the block of one record. The first batch is taken however large, so it fits."""
    batch, lane, offset, leader_epoch, producer_id, wire_bytes, is_misplaced = single
    lanes: list[LaneSlice | None] = [None] * output_count
    if lane >= 0:
        column = [[0]] * s.META_ROWS
        column[s.META_BASE_OFFSET] = column[s.META_LAST_OFFSET] = [offset]
        column[s.META_END], column[s.META_RECORDS] = [len(batch)], [1]
        column[s.META_LAST_RECORD_OFFSET], column[s.META_PRODUCER_ID] = [offset], [producer_id]
        lanes[lane] = LaneSlice(batch, np.array(column, np.int64), 1)
    return SplitBlock(
        base_offset=offset,
        next_offset=offset + 1,
        leader_epoch=leader_epoch,
        epochs=((leader_epoch, offset),),
        outputs=tuple(lanes),
        abort_markers=(),
        holes=(),
        record_count=1,
        plain_bytes=len(batch),
        wire_bytes=wire_bytes,
        error=None,
        misplaced_offset=offset if is_misplaced else NONE_MISPLACED,
    )


def _python_arithmetic() -> AbstractContextManager[object]:
    """Silence NumPy without compilation: it would warn that the hash wraps, as it must."""
    return nullcontext() if JIT else np.errstate(over="ignore")


def _split(
    buffer: bytes | bytearray | memoryview,
    lanes: LaneTable,
    plain_bytes_max: int,
    batch_bytes_max: int,
    partition: int,
) -> SplitBlock | None:
    source = _Source(buffer)
    source.scan(plain_bytes_max, batch_bytes_max)
    source.decompress_all(plain_bytes_max, batch_bytes_max)
    if source.batch_count == 0:
        if source.error is not None:
            raise source.error
        return None
    walk = _walk(source, lanes, partition)
    if source.batch_count == 0:
        assert source.error is not None, "a walk ends early only at a bad batch"
        raise source.error
    slices = walk.build_slices(lanes.output_count)
    table = source.table
    first, last = table[0].tolist(), table[source.batch_count - 1].tolist()
    next_offset = last[s.LAST_OFFSET] + 1
    header = last[s.ADDRESS] - source.address
    epochs = source.epochs()
    return SplitBlock(
        base_offset=first[s.BASE_OFFSET],
        next_offset=next_offset,
        leader_epoch=epochs[-1][0],
        epochs=epochs,
        outputs=slices,
        abort_markers=walk.abort_markers(next_offset),
        holes=walk.holes_until(next_offset),
        record_count=walk.record_count,
        plain_bytes=int(table[: source.batch_count, s.PAYLOAD_SIZE].sum())
        + BATCH_HEADER_BYTES * source.batch_count,
        wire_bytes=header + last[s.SIZE],
        error=source.error,
        misplaced_offset=walk.misplaced_before(next_offset),
    )


def _walk(source: _Source, lanes: LaneTable, partition: int) -> _Walk:
    """Walk the block with its small batches joined, up to its first bad batch."""
    while True:
        table = source.joined()
        walk = _Walk(source, source.rows if table is None else table, lanes, partition)
        if not walk.is_whole and table is not None:
            walk = _Walk(source, source.rows, lanes, partition)  # which of the joined ones is it?
        if walk.is_whole:
            return walk
        source.stop(walk.bad_batch, int(source.table[walk.bad_batch, s.ADDRESS]) - source.address)
        if source.batch_count == 0:
            return walk


class _Source:
    """The source batches of one block; owns every buffer that the table has addresses of.

    Rows of `table` before `batch_count` are good as far as was checked; `error` says what is
    wrong with the batch after them, None if it is only cut or does not fit.
    """

    def __init__(self, buffer: bytes | bytearray | memoryview) -> None:
        self.view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
        self.bytes = as_bytes_array(self.view) if len(buffer) else np.empty(0, np.uint8)
        self.address = address_of(self.bytes)
        self.table: Int64Array = np.empty((0, s.BATCH_COLUMNS), np.int64)
        self.batch_count = 0
        self.error: BatchCorrupt | None = None
        self.progress = np.zeros(s.PROGRESS_SIZE, np.int64)
        self.payloads: list[NDArray[np.uint8]] = []

    @property
    def rows(self) -> Int64Array:
        """The rows of `table` that are good."""
        return self.table[: self.batch_count]

    def epochs(self) -> tuple[tuple[int, int], ...]:
        """Return `SplitBlock.epochs`."""
        rows = self.rows
        at = rows[:, s.ADDRESS] - self.address + EPOCH_POSITION
        found = self.bytes[at[:, None] + np.arange(4)].view(">i4").ravel()
        firsts = np.flatnonzero(np.append(True, found[1:] != found[:-1]))
        bases = rows[firsts, s.BASE_OFFSET].tolist()
        return tuple(zip(found[firsts].tolist(), bases, strict=True))

    def scan(self, plain_bytes_max: int, batch_bytes_max: int) -> None:
        """Find the batches and check their headers and the CRC of the uncompressed ones."""
        size = self.bytes.size
        capacity = int(count_batches(self.address, size))
        self.table = np.empty((capacity, s.BATCH_COLUMNS), np.int64)
        scan_batches(
            self.address, size, plain_bytes_max, batch_bytes_max, self.table, self.progress
        )
        self.batch_count = int(self.progress[s.DONE_BATCHES])
        if self.progress[s.STATUS] != s.OK:
            self.stop(self.batch_count, int(self.progress[s.BAD_POSITION]))

    def joined(self) -> Int64Array | None:
        """Return the batch table with each run of small batches as one row; None: there is none."""
        size = int(joined_bytes(self.rows))
        if size == 0:
            return None
        buffer = np.empty(size, np.uint8)
        self.payloads.append(buffer)
        joined = np.empty_like(self.rows)
        count = int(join_batches(self.rows, joined, address_of(buffer), size))
        return joined[:count] if count > 0 else None

    def decompress_all(self, plain_bytes_max: int, batch_bytes_max: int) -> None:
        """Decompress the compressed batches; end the block where it would grow too large."""
        table = self.table[: self.batch_count]
        compressed = np.flatnonzero(table[:, s.ATTRIBUTES] & CODEC_MASK)
        if compressed.size == 0:
            return
        plain_before = np.zeros(self.batch_count + 1, np.int64)
        is_plain = table[:, s.ATTRIBUTES] & CODEC_MASK == 0
        np.cumsum(np.where(is_plain, table[:, s.SIZE], BATCH_HEADER_BYTES), out=plain_before[1:])
        payload_bytes = 0
        for batch in compressed.tolist():
            room = plain_bytes_max - payload_bytes - int(plain_before[batch + 1])
            bytes_max = batch_bytes_max - BATCH_HEADER_BYTES
            if not self._decompress(batch, min(room, bytes_max) if batch else bytes_max, bytes_max):
                break
            payload_bytes += int(table[batch, s.PAYLOAD_SIZE])
        self._trim(plain_before, payload_bytes, plain_bytes_max)

    def _trim(self, plain_before: Int64Array, payload_bytes: int, plain_bytes_max: int) -> None:
        """Drop uncompressed batches that follow the last compressed one and do not fit."""
        while self.batch_count > 1:
            last = self.batch_count - 1
            if payload_bytes + int(plain_before[last + 1]) <= plain_bytes_max:
                return
            if self.table[last, s.ATTRIBUTES] & CODEC_MASK:
                return  # it was let in because it fits
            self.stop(last)

    def _decompress(self, batch: int, room: int, bytes_max: int) -> bool:
        """Decompress one batch; False when the block ends before it."""
        row: list[int] = self.table[batch].tolist()
        position = row[s.ADDRESS] - self.address
        if room < 0:
            return self.stop(batch)
        body = row[s.ADDRESS] + CRC_START
        stored = int.from_bytes(self.view[position + CRC_POSITION : position + CRC_START], "big")
        if crc32c_at(body, row[s.SIZE] - CRC_START) != stored:
            return self.stop(batch, position, s.CRC_MISMATCH)
        data = self.view[position + BATCH_HEADER_BYTES : position + row[s.SIZE]]
        count = row[s.RECORD_COUNT_COLUMN]
        try:
            codec = row[s.ATTRIBUTES] & CODEC_MASK
            plain = (
                decompress(codec, data, bytes_max=room, position=position) if len(data) else data
            )
        except BatchUnsupported as error:
            # Larger than what is left of the block: the next block begins with it.
            return self.stop(batch) if room < bytes_max else self.stop(batch, error=error)
        except BatchCorrupt as error:
            return self.stop(batch, error=error)
        if count > len(plain) // s.RECORD_BYTES_MIN:
            return self.stop(batch, position, s.RECORD_COUNT)
        payload = as_bytes_array(plain) if len(plain) else np.empty(0, np.uint8)
        self.payloads.append(payload)
        self.table[batch, s.PAYLOAD] = address_of(payload)
        self.table[batch, s.PAYLOAD_SIZE] = payload.size
        return True

    def stop(
        self, batch: int, position: int = 0, status: int = s.OK, error: BatchCorrupt | None = None
    ) -> bool:
        """End the block before this batch, with the error of a status or a given one."""
        self.batch_count = batch
        self.error = error
        status = status or int(self.progress[s.STATUS])
        if error is None and status != s.OK:
            reason = s.REASONS[status]
            if self.progress[s.BAD_RECORD] >= 0:
                reason += f" (record {self.progress[s.BAD_RECORD]} of the batch)"
            error_class = BatchUnsupported if status in s.UNSUPPORTED else BatchCorrupt
            self.error = error_class(reason, position=position)
        self.progress[s.STATUS], self.progress[s.BAD_RECORD] = s.OK, -1
        return False


class _Walk:
    """The records of one block: where each ends, which lane it belongs to."""

    def __init__(
        self, source: _Source, table: Int64Array, lanes: LaneTable, partition: int
    ) -> None:
        count, control_count, entry_count = _count_records(table, lanes.output_count)
        capacity = count - control_count
        self.ends = np.empty(capacity, np.int32)
        self.lanes = np.empty(capacity, np.int16)
        self.entries = np.empty((entry_count, s.ENTRY_COLUMNS), np.int64)
        self.holes = np.empty((len(table) + 1, 2), np.int64)
        self.markers = np.empty((control_count, 2), np.int64)
        progress = source.progress
        entry_of = np.full(lanes.output_count, -1, np.int64)
        cursor = np.zeros(s.CURSOR_SIZE, np.int64)
        cursor[-1] = s.NOT_PLACED if partition == NO_PARTITION else NONE_MISPLACED
        walk_batches(
            table,
            lanes.limits,
            lanes.guide,
            lanes.output_of,
            hashing_of(lanes.key_hash, partition),
            self.ends,
            self.lanes,
            self.entries,
            entry_of,
            self.holes,
            self.markers,
            progress,
            cursor,
        )
        self.bad_batch = int(progress[s.DONE_BATCHES])
        self.is_whole = progress[s.STATUS] == s.OK
        self.table = table[: self.bad_batch]
        self.record_count = int(progress[s.DONE_RECORDS])
        self.covered_offset = int(progress[s.COVERED_OFFSET])
        self.hole_count = int(progress[s.DONE_HOLES])
        self.marker_count = int(progress[s.DONE_MARKERS])
        self._misplaced_offset = int(progress[s.MISPLACED_OFFSET])

    def build_slices(self, output_count: int) -> tuple[LaneSlice | None, ...]:
        """Write the lane batches, so that those of each lane can be freed alone."""
        rows = np.zeros((output_count, s.LANE_COLUMNS), np.int64)
        plan_lanes(self.table, self.entries, rows)
        planned: list[list[int]] = rows.tolist()
        room = LaneRoom([row[s.LANE_BYTES] for row in planned])
        rows[:] = 0
        rows[:, s.LANE_ADDRESS] = room.addresses
        *first_of, batch_count = accumulate((row[s.LANE_BATCHES] for row in planned), initial=0)
        meta = np.empty((s.META_ROWS, batch_count), np.int64)
        starts = np.array(first_of, np.int64)
        write_lanes(
            self.table,
            self.ends,
            self.lanes,
            self.entries,
            rows,
            address_of(_TEMPLATE),
            starts,
            meta,
        )
        assert rows[:, : s.LANE_ADDRESS].tolist() == [row[: s.LANE_ADDRESS] for row in planned]
        return _wrap_slices(planned, room.take(), first_of, meta)

    def abort_markers(self, next_offset: int) -> tuple[tuple[int, int], ...]:
        """Return the abort markers of the block; a bad batch after it may have added more."""
        markers = self.markers[: self.marker_count].tolist()
        return tuple((pid, offset) for pid, offset in markers if offset < next_offset)

    def misplaced_before(self, next_offset: int) -> int:
        """Return the first misplaced record of the block; a bad batch after it may have one."""
        found = self._misplaced_offset
        return found if 0 <= found < next_offset else NONE_MISPLACED

    def holes_until(self, next_offset: int) -> tuple[tuple[int, int], ...]:
        """Return the holes, with the one that reaches the end of the block."""
        holes = [(first, last) for first, last in self.holes[: self.hole_count].tolist()]
        if self.covered_offset < next_offset:
            holes.append((self.covered_offset, next_offset - 1))
        return tuple(holes)


def _count_records(table: Int64Array, output_count: int) -> tuple[int, int, int]:
    """Count all records, those of control batches among them, and the entries they may take."""
    if len(table) == 1:  # at a low rate; reductions over one row take longer than its walk
        count, attributes = table[0, s.RECORD_COUNT_COLUMN].item(), table[0, s.ATTRIBUTES].item()
        return count, count if attributes & CONTROL_BIT else 0, min(count, output_count)
    counts = table[:, s.RECORD_COUNT_COLUMN]
    is_control = table[:, s.ATTRIBUTES] & CONTROL_BIT != 0
    control_count = int(counts[is_control].sum()) if is_control.any() else 0
    return int(counts.sum()), control_count, int(np.minimum(counts, output_count).sum())


def _wrap_slices(
    planned: list[list[int]],
    parts: Sequence[bytes | memoryview | None],
    starts: list[int],
    meta: Any,
) -> tuple[LaneSlice | None, ...]:
    slices: list[LaneSlice | None] = []
    for row, data, start in zip(planned, parts, starts, strict=True):
        if data is None:
            slices.append(None)
            continue
        # A copy, so that a slice that waits long does not keep the other lanes' metadata.
        lane_meta = meta[:, start : start + row[s.LANE_BATCHES]].copy()
        slices.append(LaneSlice(data, lane_meta, row[s.LANE_RECORDS]))
    return tuple(slices)
