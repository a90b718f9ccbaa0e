"""The records of a block, held one by one: any of them are handed out as record batches.

Source: KIP-932 (share groups): a broker's answer has whole batches of its log, of which records
are acquired, acknowledged and delivered again one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from keylane.errors import BatchCorrupt
from keylane.kernel import status as s
from keylane.kernel.block import Int64Array
from keylane.kernel.library import address_of, hold_batches, pick_records, python_arithmetic
from keylane.kernel.source import SourceBatches, read_source
from keylane.wire.batch import BATCH_HEADER_BYTES, CONTROL_BIT, EPOCH_POSITION

BLOCK_OVERHEAD_BYTES: Final = 1024
"""Objects of a block beside its arrays, measured with tracemalloc: 0.9 KB."""

Int32Array = NDArray[np.int32]
Rows = Int64Array | Sequence[int]
"""Indices of records in a block, ascending."""


def index_records(
    buffer: bytes | bytearray | memoryview, *, plain_bytes_max: int, batch_bytes_max: int
) -> RecordBlock | None:
    """Hold the data records of as many whole batches of `buffer` as fit in `plain_bytes_max`.

    The first batch is taken however large, up to `batch_bytes_max`. None: no whole batch is there.
    The block keeps nothing of `buffer`.
    Cost: one pass for CRC and walk, one copy. Memory: the plain bytes, and 28 bytes per record;
    until it returns, the plain bytes of compressed batches once more.

    Raises:
        BatchUnsupported: the first batch has magic 0 or 1, or is larger than `batch_bytes_max`.
        BatchCorrupt: the first batch is bad. Either names the position of the batch.
    """
    source = read_source(buffer, plain_bytes_max, batch_bytes_max)
    if source is None:
        return None
    with python_arithmetic():
        held = _hold(source)
    return RecordBlock(
        *held,
        next_offset=int(source.rows[-1, s.LAST_OFFSET]) + 1,
        leader_epoch=source.leader_epoch,
        wire_bytes=source.wire_bytes,
        error=source.error,
    )


@dataclass(frozen=True, slots=True, eq=False)
class RecordBlock:
    """The data records of a run of whole source batches, in the order of their offsets.

    A record is named by its index, 0 to n-1. Control batches, and batches without records, have
    no part in it but for `next_offset`.
    """

    data: NDArray[np.uint8]
    """Of each batch the header, as it was on the wire, then the records, plain; COPY_SLACK_BYTES
    stand behind the last one."""
    batches: Int64Array
    """(HELD_BATCH_ROWS, b), see `kernel.status`; so are the next two."""
    records: Int64Array
    """(HELD_RECORD_ROWS, n)"""
    spans: Int32Array
    """(SPAN_ROWS, n)"""
    next_offset: int
    """Offset after the last batch of the run."""
    leader_epoch: int
    """Epoch of the last batch of the run."""
    wire_bytes: int
    """Bytes of the buffer that the run used."""
    error: BatchCorrupt | None
    """Error that ended the run early, if a bad batch follows it."""

    @property
    def offsets(self) -> Int64Array:
        """(n,) int64, ascending."""
        return self.records[s.HELD_OFFSET]

    @property
    def points(self) -> Int64Array:
        """(n,) int64: XXH64 point of each key, as `keyrange.hash.key_hash`; -1 without a key."""
        return self.records[s.HELD_POINT]

    @property
    def sizes(self) -> Int32Array:
        """(n,) int32: bytes of each record, its length field among them."""
        return self.spans[s.SPAN_SIZE]

    @property
    def batch_of(self) -> Int32Array:
        """(n,) int32: index of each record's source batch in `base_offsets`."""
        return self.spans[s.SPAN_BATCH]

    @property
    def base_offsets(self) -> Int64Array:
        """(b,) int64: base offset of each source batch that has records here."""
        return self.batches[s.HELD_BASE_OFFSET]

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that the block keeps."""
        arrays = self.data.nbytes + self.batches.nbytes + self.records.nbytes + self.spans.nbytes
        return arrays + BLOCK_OVERHEAD_BYTES

    def epoch_of(self, row: int) -> int:
        """Return the leader epoch of a record's batch: a log that was cut has a later one there."""
        at = int(self.batches[s.HELD_POSITION, self.batch_of[row]]) + EPOCH_POSITION
        return int.from_bytes(self.data[at : at + 4].tobytes(), "big", signed=True)

    def pick(self, rows: Rows) -> bytes:
        """Return the chosen records as uncompressed batches, one per source batch of theirs.

        rows: (k,) int64, ascending. A batch has the header of its source but for length, codec
        bits, record count, CRC, and last offset delta, which is that of its last record here.

        Raises: ValueError, `rows` do not ascend or are not of this block.
        """
        buffer, size = self._write(np.array(rows, np.int64))
        return buffer[:size].tobytes()

    def compact(self, rows: Rows) -> RecordBlock:
        """Return a block of the chosen records alone, in less memory.

        It gives the same batches of them as this one. Their indices are 0 to k-1.

        Raises: ValueError, `rows` do not ascend or are not of this block.
        """
        chosen = np.array(rows, np.int64)
        buffer, size = self._write(chosen)
        spans = self.spans.take(chosen, axis=1)
        ends, batch_of = spans[s.SPAN_SIZE].cumsum(dtype=np.int64), spans[s.SPAN_BATCH]
        is_first = np.ones(chosen.size, np.bool_)
        is_first[1:] = batch_of[1:] != batch_of[:-1]
        firsts = np.flatnonzero(is_first)
        before = ends[firsts] - spans[s.SPAN_SIZE, firsts]
        batches = np.empty((s.HELD_BATCH_ROWS, firsts.size), np.int64)
        batches[s.HELD_POSITION] = before + BATCH_HEADER_BYTES * np.arange(firsts.size)
        batches[s.HELD_BASE_OFFSET] = self.base_offsets[batch_of[firsts]]
        spans[s.SPAN_BATCH] = is_first.cumsum() - 1
        spans[s.SPAN_END] = ends - before[spans[s.SPAN_BATCH]]
        return replace(
            self,
            data=buffer[: size + s.COPY_SLACK_BYTES].copy(),
            batches=batches,
            records=self.records.take(chosen, axis=1),
            spans=spans,
        )

    def _write(self, rows: Int64Array) -> tuple[NDArray[np.uint8], int]:
        """Return a buffer that begins with the batches, and their bytes."""
        # A guess, mostly large enough: records of average size, each in a batch for itself.
        average = self.data.size // max(1, self.spans.shape[1])
        size = rows.size * (BATCH_HEADER_BYTES + average)
        while True:
            room = size
            buffer = np.empty(room + s.COPY_SLACK_BYTES, np.uint8)
            size = pick_records(
                address_of(self.data),
                self.batches,
                self.spans,
                rows,
                address_of(buffer),
                room,
            )
            if size < 0:
                raise ValueError("rows must ascend, and be of the block")
            if size <= room:
                return buffer, size


def _hold(source: SourceBatches) -> tuple[NDArray[np.uint8], Int64Array, Int64Array, Int32Array]:
    """Return `data`, `batches`, `records` and `spans` of the source, up to its first bad batch.

    Raises: BatchCorrupt, the first batch is the bad one.
    """
    size, batch_count, count = _measure(source.rows)
    data = np.empty(size + s.COPY_SLACK_BYTES, np.uint8)
    batches = np.empty((s.HELD_BATCH_ROWS, batch_count), np.int64)
    records = np.empty((s.HELD_RECORD_ROWS, count), np.int64)
    spans = np.empty((s.SPAN_ROWS, count), np.int32)
    hold_batches(source.rows, address_of(data), batches, records, spans, source.progress)
    if source.progress[s.STATUS] == s.OK:
        return data, batches, records, spans
    source.stop_at(int(source.progress[s.DONE_BATCHES]))
    size, batch_count, count = _measure(source.rows)
    return (
        data[: size + s.COPY_SLACK_BYTES].copy(),
        batches[:, :batch_count].copy(),
        records[:, :count].copy(),
        spans[:, :count].copy(),
    )


def _measure(rows: Any) -> tuple[int, int, int]:
    """Return the bytes, batches and records to hold of these rows of a batch table."""
    counts = np.where(rows[:, s.ATTRIBUTES] & CONTROL_BIT, 0, rows[:, s.RECORD_COUNT_COLUMN])
    batch_count = int(np.count_nonzero(counts))
    payload_bytes = int(rows[counts > 0, s.PAYLOAD_SIZE].sum())
    return payload_bytes + BATCH_HEADER_BYTES * batch_count, batch_count, int(counts.sum())
