"""Split a block of record batches into lanes: the one pass over the bytes of a partition.

Source: docs/decisions/015.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from keylane.kernel import status as s
from keylane.kernel.block import Int64Array, LaneRoom, LaneSlice, SplitBlock
from keylane.kernel.lane_table import LaneTable, hashing_of, lane_table
from keylane.kernel.library import (
    address_of,
    as_bytes_array,
    plan_lanes,
    python_arithmetic,
    walk_batches,
    write_lanes,
)
from keylane.kernel.single import SingleRecord, read_single
from keylane.kernel.source import SourceBatches, read_source
from keylane.kernel.status import NO_PARTITION, NONE_MISPLACED
from keylane.keyrange.key_split import KeySplit
from keylane.wire.batch import BATCH_HEADER_BYTES, CONTROL_BIT, write_empty_batch

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
    with python_arithmetic():
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


def _split(
    buffer: bytes | bytearray | memoryview,
    lanes: LaneTable,
    plain_bytes_max: int,
    batch_bytes_max: int,
    partition: int,
) -> SplitBlock | None:
    source = read_source(buffer, plain_bytes_max, batch_bytes_max)
    if source is None:
        return None
    walk = _walk(source, lanes, partition)
    slices = walk.build_slices(lanes.output_count)
    table = source.table
    first, last = table[0].tolist(), table[source.batch_count - 1].tolist()
    next_offset = last[s.LAST_OFFSET] + 1
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
        wire_bytes=source.wire_bytes,
        error=source.error,
        misplaced_offset=walk.misplaced_before(next_offset),
    )


def _walk(source: SourceBatches, lanes: LaneTable, partition: int) -> _Walk:
    """Walk the block with its small batches joined, up to its first bad batch.

    Raises: BatchCorrupt, the first batch is the bad one.
    """
    while True:
        table = source.joined()
        walk = _Walk(source, source.rows if table is None else table, lanes, partition)
        if not walk.is_whole and table is not None:
            walk = _Walk(source, source.rows, lanes, partition)  # which of the joined ones is it?
        if walk.is_whole:
            return walk
        source.stop_at(walk.bad_batch)


class _Walk:
    """The records of one block: where each ends, which lane it belongs to."""

    def __init__(
        self, source: SourceBatches, table: Int64Array, lanes: LaneTable, partition: int
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
