"""Values and small steps for readers of partitions: the upstream side and the shared parts.

Source: protocol guide, Fetch; KIP-98 (aborted transactions, last stable offset).
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from keylane.cache.lane_log import MARKER_LATER
from keylane.cache.lane_values import Aborted
from keylane.cache.slice_cache import SliceCache
from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.lineage import NO_EPOCH, EpochEnd, Lineages
from keylane.proxy.lanes.misplaced import MisplacedRecords
from keylane.proxy.lanes.read_memory import Gates, ReadRoom
from keylane.proxy.lanes.refused_batches import RefusedBatches
from keylane.proxy.runtime.memory_plan import BLOCK_BYTES
from keylane.proxy.runtime.stats import ProxyStats
from keylane.wire.batch import BATCH_HEADER_BYTES, read_batch_header

READ_COMMITTED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFetch:
    """A broker's answer for the partition."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset)."""
    records: memoryview
    leader_epoch: int
    """Epoch of the leader that answered, -1 when not known."""
    diverging: EpochEnd | None = None
    """The last epoch that both logs may share, and its end there; None: no difference was found."""


class PartitionSource(Protocol):
    """A connection to the partition's leader; one fetch at a time."""

    @property
    def leader_epoch(self) -> int:
        """Return the epoch of the leader that the connection was opened to, -1 when not known."""

    async def fetch(
        self,
        offset: int,
        *,
        max_wait_ms: int,
        max_bytes: int,
        isolation_level: int,
        room: ReadRoom,
        last_epoch: int = NO_EPOCH,
    ) -> RawFetch:
        """Fetch from `offset`; `last_epoch` is that of the batch before it.

        A large answer stays at the broker until there is `room` for it.
        A broker that is not the leader of `leader_epoch` refuses.
        Raises: UpstreamLost, AnswerTooLarge.
        """

    async def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return where an epoch ends in the leader's log. Raises: UpstreamLost."""

    def close(self) -> None:
        """Drop the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedBlock:
    """A block of which all offsets in `[start, end)` were looked at."""

    topic: str
    at: PartitionSplit
    start: int
    end: int
    last_record_offsets: NDArray[np.int64]
    """(outputs,) last record of each lane, -1 for none."""
    outputs: tuple[Any, ...]
    """(outputs,) the slices, None for none. Not to be kept: they hold the records."""
    holes: tuple[tuple[int, int], ...]
    """Inclusive ranges without a record of any lane."""
    log_start_offset: int
    leader_epoch: int = -1
    """Leader epoch of the last batch, -1 when not known."""
    epochs: tuple[tuple[int, int], ...] = ()
    """(leader epoch, offset of its first batch in the block), ascending; none when not known."""


SplitFunction = Callable[..., Any]
OpenSource = Callable[[str, uuid.UUID, int], Awaitable[PartitionSource]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSeams:
    """Functions to which readers publish, and their knowledge of the scans of others."""

    on_scanned: Callable[[ScannedBlock], None]
    on_truncated: Callable[[uuid.UUID, int, int], None] = lambda *_: None
    """(topic id, partition, new log end)."""
    remote_scanned_end: Callable[[uuid.UUID, int], int] = lambda *_: -1
    """Topic id and partition -> how far others have read it; -1: not at all."""
    lineages: Lineages = field(default_factory=Lineages)
    """Epochs of logs, as seen here and by other nodes."""


class ReaderKey(NamedTuple):
    """The differences between two readers."""

    at: PartitionSplit
    isolation_level: int
    codec: int
    """Codec id with which batches are compressed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderKit:
    """The parts that all readers of a process share."""

    open_source: OpenSource
    split: SplitFunction
    """`kernel.split.split_block`."""
    pool: Executor
    gates: Gates
    refused: RefusedBatches
    misplaced: MisplacedRecords
    cache: SliceCache
    clock: Callable[[], float]
    stats: ProxyStats
    scans: ScanSeams
    read_bytes_max: int
    batch_bytes_max: int

    @property
    def plain_bytes_max(self) -> int:
        """Return the plain bytes of one block: several readers fit in the gate side by side.

        Large enough that what Python does per block and lane (about 0.3 ms with 16 lanes) is
        little beside splitting it, small enough to serve the first lanes early.
        """
        share = max(1, self.gates.filtering.bytes_max // 4)
        return min(BLOCK_BYTES, share, self.batch_bytes_max)

    def bound_of(self, error: BatchUnsupported, wire_bytes: int) -> int:
        """Return the bound for a batch that is larger than a block; 0: it is too large.

        wire_bytes: of it and what follows, since incompressible data is larger on the wire.
        """
        if not error.plain_bytes:
            return self.batch_bytes_max
        declared = error.plain_bytes + BATCH_HEADER_BYTES
        bound = max(declared, min(wire_bytes, self.batch_bytes_max))
        return bound if bound <= self.batch_bytes_max else 0

    def publish(self) -> None:
        """Bring the gauges up to date."""
        self.stats.cache_bytes = self.cache.bytes_used
        self.stats.cache_evictions = self.cache.eviction_count
        self.stats.cache_hits = self.cache.hit_count
        self.stats.cache_sent = self.cache.sent_count
        self.stats.filtering_bytes = self.gates.bytes_used


def last_offset_at(records: memoryview, position: int, offset: int) -> int:
    """Return the last offset of the batch there; `offset` where its header is of no use."""
    try:
        found = read_batch_header(records, position)
    except BatchCorrupt:
        return offset
    return offset if found is None else max(offset, found[0].last_offset)


def close_aborted(
    aborted: tuple[tuple[int, int], ...], markers: tuple[tuple[int, int], ...]
) -> tuple[Aborted, ...]:
    """Give each aborted transaction its marker: the producer's first one behind its start.

    An answer may only name transactions whose marker comes with it. Else a client takes the
    producer's next transaction for the aborted one, and drops committed records.
    """
    return tuple(
        Aborted(
            producer_id,
            first_offset,
            min(
                (at for pid, at in markers if pid == producer_id and at >= first_offset),
                default=MARKER_LATER,
            ),
        )
        for producer_id, first_offset in aborted
    )


def stable_bytes(records: memoryview, position: int, last_stable_offset: int) -> int:
    """Return the position at which the batches before `last_stable_offset` end."""
    while (found := read_batch_header(records, position)) is not None:
        header, size_bytes = found
        if header.last_offset >= last_stable_offset:
            break
        position += size_bytes
    return position
