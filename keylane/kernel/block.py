"""A block as it is split: the slice of each lane, and the room that slices are written in.

A slice that waits must not keep other lanes' bytes. A buffer per lane is an array and a view of it:
nothing beside a large slice, but several times a small one, of which a cache may hold 100,000. So
small ones stand in one buffer while they are written, and are copied out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from keylane.errors import BatchCorrupt
from keylane.kernel import status as s
from keylane.kernel.library import address_of
from keylane.wire.batch import BATCH_HEADER_BYTES

Int64Array = NDArray[np.int64]
SMALL_BYTES_MAX: Final = 2048
"""Size up to which bytes are copied: it takes less time than to make a buffer and a view."""


@dataclass(frozen=True, slots=True, eq=False)
class LaneSlice:
    """Slice of a block for one lane: uncompressed batches, one after the other.

    The batches cover every offset of the block that a client must move past: each begins above
    the last offset of the one before, and the last ends at the block's next_offset - 1.
    """

    data: bytes | memoryview
    """A separate buffer: it keeps no other lane's bytes alive."""
    meta: Int64Array
    """(META_ROWS, n), see `kernel.status`; a tail block has hundreds of slices and most are
    only passed on, so the rows become arrays when they are asked for."""
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Length of `data`."""
        return len(self.data)

    @property
    def record_bytes(self) -> int:
        """Bytes of `data` without the headers of its batches."""
        return len(self.data) - BATCH_HEADER_BYTES * int(self.meta.shape[1])

    @property
    def base_offsets(self) -> Int64Array:
        """(n,) of each batch in `data`."""
        return self.meta[s.META_BASE_OFFSET]

    @property
    def last_offsets(self) -> Int64Array:
        """(n,) base offset + last offset delta of each batch."""
        return self.meta[s.META_LAST_OFFSET]

    @property
    def ends(self) -> Int64Array:
        """(n,) exclusive end position of each batch in `data`."""
        return self.meta[s.META_END]

    @property
    def record_counts(self) -> Int64Array:
        """(n,) data records; 0 for empty headers and for control batches."""
        return self.meta[s.META_RECORDS]

    @property
    def last_record_offsets(self) -> Int64Array:
        """(n,) offset of the last data record that is present, -1 if there is none."""
        return self.meta[s.META_LAST_RECORD_OFFSET]


@dataclass(frozen=True, slots=True, eq=False)
class SplitBlock:
    """A run of whole source batches, split by lane."""

    base_offset: int
    next_offset: int
    """Offset after the last batch of the block."""
    leader_epoch: int
    """Epoch of the last batch."""
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, base offset) of the first batch and of each with another epoch than before."""
    outputs: tuple[LaneSlice | None, ...]
    """None: the block holds neither a record nor a control batch for this output."""
    abort_markers: tuple[tuple[int, int], ...]
    """(producer_id, offset) of each abort marker, ascending."""
    holes: tuple[tuple[int, int], ...]
    """Inclusive offset ranges before, between and after the batches' data records: control
    batches, empty batches, compacted edges. Gaps inside a batch are not listed."""
    record_count: int
    """Data records of all lanes, and those that are of none."""
    plain_bytes: int
    """Size of the source batches when decompressed, headers included."""
    wire_bytes: int
    """Bytes of the buffer that the block used."""
    error: BatchCorrupt | None
    """Error that ended the block early, if a bad batch follows it."""
    misplaced_offset: int = -1
    """Offset of the first record that Kafka's default partitioner puts into another partition, in
    a split by its hash; -1: there is none, or the split has another hash."""


class LaneRoom:
    """Room for the bytes of each lane: the kernel writes at `addresses`, then call `take` once."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """sizes: bytes by lane; 0 for lanes that get nothing."""
        self._sizes = sizes
        self._large: dict[int, NDArray[np.uint8]] = {}
        self._starts: dict[int, int] = {}
        """Start of each small one in their buffer."""
        total = 0
        for lane, size in enumerate(sizes):
            if size > SMALL_BYTES_MAX:
                self._large[lane] = np.empty(size + s.COPY_SLACK_BYTES, np.uint8)
            elif size:
                self._starts[lane] = total
                total += size + s.COPY_SLACK_BYTES
        self._small = np.empty(total, np.uint8)
        small = address_of(self._small) if total else 0
        self.addresses = [0] * len(sizes)
        """Addresses by lane, each of room for its bytes and COPY_SLACK_BYTES."""
        for lane, start in self._starts.items():
            self.addresses[lane] = small + start
        for lane, buffer in self._large.items():
            self.addresses[lane] = address_of(buffer)

    def take(self) -> list[bytes | memoryview | None]:
        """Return the bytes that were written, by lane; None for nothing."""
        found: list[bytes | memoryview | None] = [None] * len(self._sizes)
        small = self._small.tobytes()
        for lane, start in self._starts.items():
            found[lane] = small[start : start + self._sizes[lane]]
        for lane, buffer in self._large.items():
            found[lane] = buffer.data[: self._sizes[lane]]
        return found
