"""The source batches of one block: found, checked, decompressed within its bounds.

Source: docs/decisions/015.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.kernel import status as s
from keylane.kernel.block import Int64Array
from keylane.kernel.library import (
    address_of,
    as_bytes_array,
    count_batches,
    crc32c_at,
    join_batches,
    joined_bytes,
    scan_batches,
)
from keylane.wire.batch import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CRC_POSITION,
    CRC_START,
    EPOCH_POSITION,
)
from keylane.wire.compression import decompress


def read_source(
    buffer: bytes | bytearray | memoryview, plain_bytes_max: int, batch_bytes_max: int
) -> SourceBatches | None:
    """Return the batches at the start of `buffer` as far as they are good, None for no whole one.

    As many as fit in `plain_bytes_max`, the first however large, up to `batch_bytes_max`. Their
    records are not walked yet.

    Raises:
        BatchUnsupported: the first batch has magic 0 or 1, or is larger than `batch_bytes_max`.
        BatchCorrupt: the first batch is bad. Either names the position of the batch.
    """
    source = SourceBatches(buffer)
    source.scan(plain_bytes_max, batch_bytes_max)
    source.decompress_all(plain_bytes_max, batch_bytes_max)
    if source.batch_count > 0:
        return source
    if source.error is not None:
        raise source.take_error()
    return None


class SourceBatches:
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

    @property
    def wire_bytes(self) -> int:
        """Bytes of the buffer up to the end of the last good batch, of which there is one."""
        last = self.batch_count - 1
        return int(self.table[last, s.ADDRESS] + self.table[last, s.SIZE]) - self.address

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last good batch, of which there is one."""
        at = int(self.table[self.batch_count - 1, s.ADDRESS]) - self.address + EPOCH_POSITION
        return int.from_bytes(self.view[at : at + 4], "big", signed=True)

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
            if room < bytes_max:
                return self.stop(batch)  # larger than what is left: the next block begins with it
            return self.stop(batch, error=_without_frames(error))
        except BatchCorrupt as error:
            return self.stop(batch, error=_without_frames(error))
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

    def stop_at(self, batch: int) -> None:
        """End the block before a batch whose records are bad, as `progress` says.

        Raises: BatchCorrupt, it is the first batch.
        """
        self.stop(batch, int(self.table[batch, s.ADDRESS]) - self.address)
        assert self.error is not None, "a walk ends early only at a bad batch"
        if batch == 0:
            raise self.take_error()

    def take_error(self) -> BatchCorrupt:
        """Return the error, to be raised, and forget it.

        An error has the frames through which it was raised, and these have this object: the one
        would keep the other, and the buffer, until the garbage collector came.
        """
        assert self.error is not None, "an error is taken once"
        try:
            return self.error
        finally:
            self.error = None


def _without_frames(error: BatchCorrupt) -> BatchCorrupt:
    """Take the frames from an error: a block keeps it for long, and they have the buffer."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
