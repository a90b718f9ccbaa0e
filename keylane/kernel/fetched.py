"""The records of a fetch answer as columns: where each field is, nothing copied one by one.

Source: Kafka documentation, "Record Batch"; KIP-98 (aborted transactions of an answer).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keylane.errors import BatchCorrupt
from keylane.kernel import status as s
from keylane.kernel.block import Int64Array
from keylane.kernel.library import (
    address_of,
    as_bytes_array,
    list_fields,
    python_arithmetic,
    survey_batches,
)
from keylane.kernel.source import SourceBatches, read_source
from keylane.wire.batch import CODEC_MASK, CONTROL_BIT

Int32Array = NDArray[np.int32]
_BASE_OFFSET: Final = struct.Struct(">q")
_LAST_DELTA: Final = struct.Struct(">i")
FIELD_BYTES: Final = 8 * s.FIELD_LONG_ROWS + 4 * s.FIELD_PLACE_ROWS
"""Bytes of memory that the columns take for each record."""


class Piece(NamedTuple):
    """A buffer, and the records that are in it: from those of the piece before up to `stop`."""

    buffer: bytes
    stop: int


class Survey(NamedTuple):
    """Facts about the whole batches of a fetch answer, by their headers alone."""

    next_offset: int
    """Offset after the last of them."""
    compressed_bytes: int
    batch_count: int
    record_count: int


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRecords:
    """The data records of a run of whole batches from an offset on, ascending."""

    longs: Int64Array
    """(FIELD_LONG_ROWS, n), see `kernel.status`; so are the next."""
    places: Int32Array
    """(FIELD_PLACE_ROWS, n), each counted from the start of its piece's buffer."""
    pieces: tuple[Piece, ...]
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, base offset) of the first batch and of each with another epoch than before."""
    base_offset: int
    """Offset of the first batch of the run."""
    next_offset: int
    """Offset after the last batch of the run."""
    plain_bytes: int
    """Bytes of the buffers, and of the answer that the batches came in."""
    error: BatchCorrupt | None
    """Error that ended the run early, if a bad batch follows it."""

    def __len__(self) -> int:
        return int(self.longs.shape[1])

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that are kept."""
        return self.plain_bytes + FIELD_BYTES * len(self)

    @property
    def offsets(self) -> Int64Array:
        """(n,) int64, ascending."""
        return self.longs[s.FIELD_OFFSET]

    def where(self, mask: NDArray[np.bool_]) -> FetchedRecords:
        """Return the records that the mask (n,) has, in the same buffers."""
        kept = np.concatenate(([0], np.cumsum(mask)))
        return FetchedRecords(
            longs=self.longs[:, mask],
            places=self.places[:, mask],
            pieces=tuple(Piece(piece.buffer, int(kept[piece.stop])) for piece in self.pieces),
            epochs=self.epochs,
            base_offset=self.base_offset,
            next_offset=self.next_offset,
            plain_bytes=self.plain_bytes,
            error=self.error,
        )


def read_fetched(
    data: bytes | memoryview,
    *,
    from_offset: int,
    aborted: Sequence[tuple[int, int]] = (),
    plain_bytes_max: int,
    batch_bytes_max: int,
) -> FetchedRecords | None:
    """Find the data records from `from_offset` on, of as many batches as fit in `plain_bytes_max`.

    The first batch is taken however large, up to `batch_bytes_max`. Control batches have no record
    here, and with `aborted` (producer id, first offset) those of aborted transactions have none.
    None: no whole batch is there.
    A view of `bytes` is read where it is, and they are kept, unless most of them are not its own.
    Cost: one pass for CRC and walk, without the GIL; no copy of plain batches.

    Raises:
        BatchUnsupported: the first batch has magic 0 or 1, or is larger than `batch_bytes_max`.
        BatchCorrupt: the first batch is bad. Either names the position of the batch.
    """
    assert batch_bytes_max < 2**31, "places are int32"
    buffer, start = _buffer_of(data)
    source = read_source(data, plain_bytes_max, batch_bytes_max)
    if source is None:
        return None
    by_offset = sorted(aborted, key=lambda each: each[1])
    pairs = np.array(by_offset, np.int64).reshape(len(by_offset), 2)
    with python_arithmetic():
        longs, places, ends = _list(source, from_offset, pairs, source.address - start)
    pieces = _pieces(source, buffer, ends)
    rows = source.rows
    return FetchedRecords(
        longs=longs,
        places=places,
        pieces=pieces,
        epochs=source.epochs(),
        base_offset=int(rows[0, s.BASE_OFFSET]),
        next_offset=int(rows[-1, s.LAST_OFFSET]) + 1,
        plain_bytes=len(buffer) + sum(len(p.buffer) for p in pieces if p.buffer is not buffer),
        error=source.error,
    )


def survey(data: memoryview) -> Survey | None:
    """Look at the headers of the whole batches; None: there is none.

    What is fetched next can be asked for before these batches are read: they may prove bad then.
    """
    array = as_bytes_array(data)
    found = np.empty(s.FOUND_SIZE, np.int64)
    at = int(survey_batches(address_of(array), array.size, found))
    if at < 0:
        return None
    base, delta = _BASE_OFFSET.unpack_from(data, at), _LAST_DELTA.unpack_from(data, at + 23)
    return Survey(
        next_offset=int(base[0]) + int(delta[0]) + 1,
        compressed_bytes=int(found[s.FOUND_COMPRESSED_BYTES]),
        batch_count=int(found[s.FOUND_BATCHES]),
        record_count=int(found[s.FOUND_RECORDS]),
    )


def _buffer_of(data: bytes | memoryview) -> tuple[bytes, int]:
    """Return bytes that have the data, and the position of the data in them.

    Fields are slices of them. A view's own bytes are taken if they are less than twice the data:
    a small partition's records are not to keep a large answer.
    """
    if isinstance(data, bytes):
        return data, 0
    owner = data.obj
    if not isinstance(owner, bytes) or len(owner) >= 2 * len(data):
        return bytes(data), 0
    return owner, address_of(as_bytes_array(data)) - address_of(as_bytes_array(owner))


def _list(
    source: SourceBatches, from_offset: int, aborted: Int64Array, base: int
) -> tuple[Int64Array, Int32Array, Int64Array]:
    """Return the columns and the ends; base: what places of plain batches count from.

    Raises: BatchCorrupt, the first batch is bad.
    """
    rows = source.rows
    is_data = rows[:, s.ATTRIBUTES] & CONTROL_BIT == 0
    capacity = int(rows[is_data, s.RECORD_COUNT_COLUMN].sum())
    longs = np.empty((s.FIELD_LONG_ROWS, capacity), np.int64)
    places = np.empty((s.FIELD_PLACE_ROWS, capacity), np.int32)
    ends = np.zeros(len(rows), np.int64)
    is_plain = rows[:, s.ATTRIBUTES] & CODEC_MASK == 0
    bases = np.where(is_plain, base, rows[:, s.PAYLOAD])
    active = np.zeros(len(aborted), np.int64)
    list_fields(rows, bases, from_offset, aborted, active, longs, places, ends, source.progress)
    count = int(source.progress[s.DONE_RECORDS])
    if source.progress[s.STATUS] != s.OK:
        source.stop_at(int(source.progress[s.DONE_BATCHES]))
    if count < capacity:
        longs, places = longs[:, :count], places[:, :count]
    return longs, places, ends[: source.batch_count]


def _pieces(source: SourceBatches, buffer: bytes, ends: Int64Array) -> tuple[Piece, ...]:
    """Return the buffers with the records of each; runs of plain batches are one piece."""
    compressed = np.flatnonzero(source.rows[:, s.ATTRIBUTES] & CODEC_MASK).tolist()
    pieces: list[Piece] = []
    before = 0
    for number, batch in enumerate(compressed):
        start = int(ends[batch - 1]) if batch else 0
        if start > before:
            pieces.append(Piece(buffer, start))
        before = int(ends[batch])
        if before > start:
            payload = source.payloads[number]
            plain: Any = payload.base  # the bytes that it is a view of
            pieces.append(Piece(plain if isinstance(plain, bytes) else payload.tobytes(), before))
    count = int(ends[-1])
    if count > before:
        pieces.append(Piece(buffer, count))
    return tuple(pieces)
