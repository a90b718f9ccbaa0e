"""A sample of a topic's records: hashes of keys and sizes, and what follows for the whole topic.

Source: Chao and Lin, "Nonparametric Lower Bounds for Species Richness and Shared Species Richness
under Sampling without Replacement" (Biometrics 68, 2012) for distinct keys; Kunsch, "The Jackknife
and the Bootstrap for General Stationary Observations" (1989) for the error: neighbouring records
are alike, so blocks of them are drawn anew and not single records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keylane.advise.keys import PartitionKeys, Points, TopicKeys, unseen_partition

Int64s = NDArray[np.int64]
BLOCKS: Final = 32
"""Runs of records of each partition that are drawn anew."""


class SamplePiece(NamedTuple):
    """Records of one answer, in the order of their offsets, and the offsets that it covers."""

    start: int
    end: int
    """The offset behind the last that was looked at."""
    hashes: Points
    """(n,) of keys; 0 where there is none."""
    has_key: NDArray[np.bool_]
    size_bytes: Int64s
    timestamps_ms: Int64s
    wire_bytes: int
    """Bytes of its share of the batches, as brokers store them."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledPartition:
    """Records of one partition that were read, and the range of offsets that they stand for."""

    start: int
    end: int
    pieces: tuple[SamplePiece, ...]
    """Ascending, none overlaps."""

    @property
    def record_count(self) -> int:
        """Records that were read."""
        return sum(len(piece.hashes) for piece in self.pieces)

    @property
    def density(self) -> float:
        """Records per offset: below 1 where records were compacted, aborted, or are markers."""
        offsets = sum(piece.end - piece.start for piece in self.pieces)
        return self.record_count / offsets if offsets else 1.0

    @property
    def records_in_range(self) -> float:
        """Records of the whole range, by the density of what was read."""
        return (self.end - self.start) * self.density


class Columns(NamedTuple):
    """The sampled records of a partition, joined, and their keys."""

    points: Points
    """(k,) hashes of the keys, ascending, each once."""
    key_of: Int64s
    """(n,) index in `points`; -1 for a record without a key."""
    size_bytes: Int64s
    block_of: Int64s
    """(n,) number of the run of records that it is drawn with."""
    block_count: int


class TopicSample:
    """The sample of a topic. `keys` is its best estimate; `redrawn` one that chance could give."""

    def __init__(self, topic: str, partitions: Sequence[SampledPartition]) -> None:
        self.topic, self.partitions = topic, tuple(partitions)
        self._columns = [_columns(part) for part in self.partitions]

    @property
    def record_count(self) -> int:
        """Records that were read."""
        return sum(part.record_count for part in self.partitions)

    @property
    def records_in_range(self) -> float:
        """Records of the range of offsets that the sample stands for."""
        return sum(part.records_in_range for part in self.partitions)

    @property
    def density(self) -> float:
        """Records per offset of all that was read."""
        offsets = sum(p.end - p.start for part in self.partitions for p in part.pieces)
        return self.record_count / offsets if offsets else 1.0

    @property
    def wire_bytes(self) -> float:
        """Mean bytes of a record as brokers store and send it."""
        count = self.record_count
        total = sum(piece.wire_bytes for part in self.partitions for piece in part.pieces)
        return total / count if count else 0.0

    @property
    def seconds(self) -> float:
        """Time between the oldest and the newest record that were read."""
        stamps = [
            edge
            for part in self.partitions
            for piece in part.pieces
            if len(piece.timestamps_ms)
            for edge in (int(piece.timestamps_ms.min()), int(piece.timestamps_ms.max()))
            if edge >= 0
        ]
        return (max(stamps) - min(stamps)) / 1000 if stamps else 0.0

    def keys(self) -> TopicKeys:
        """Return the load of each key, brought up to the whole range."""
        return self._weighted([np.ones(columns.block_count) for columns in self._columns])

    def redrawn(self, chance: np.random.Generator) -> TopicKeys:
        """Return the load that another sample of as many blocks would have given."""
        return self._weighted(
            [
                chance.multinomial(
                    columns.block_count, np.full(columns.block_count, 1 / columns.block_count)
                ).astype(np.float64)
                if columns.block_count
                else np.ones(0)
                for columns in self._columns
            ]
        )

    def distinct_keys(self) -> float:
        """Return how many keys the range has, at least about; exact where all of it was read.

        A key that is in two partitions counts once.
        """
        parts = [column.points[column.key_of[column.key_of >= 0]] for column in self._columns]
        hashes = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        _, counts = np.unique(hashes, return_counts=True)
        population = self.records_in_range
        read = self.record_count
        return estimate_distinct(counts, read / population if population else 1.0)

    def _weighted(self, weights: Sequence[NDArray[np.float64]]) -> TopicKeys:
        count = self.record_count
        mean = sum(int(column.size_bytes.sum()) for column in self._columns) / max(1, count)
        found = [
            _partition_keys(column, part.records_in_range, weight)
            if column.block_count
            else unseen_partition(part.records_in_range, mean)
            for column, part, weight in zip(self._columns, self.partitions, weights, strict=True)
        ]
        return TopicKeys(self.topic, tuple(found))


def estimate_distinct(counts: Int64s, read_share: float) -> float:
    """Estimate the number of distinct values from how often each was drawn, without replacement.

    counts: of each value that was drawn. read_share: part of all that was drawn; 1: nothing is
    left to estimate.
    """
    seen, drawn = len(counts), int(counts.sum())
    ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
    if read_share >= 1 or not ones or drawn < 2:
        return float(seen)
    repeat = drawn / (drawn - 1) * 2 * twos
    rest = read_share / (1 - read_share) * ones
    estimated = seen + ones * ones / (repeat + rest)
    return float(min(estimated, seen + (drawn / read_share - drawn)))


def _columns(part: SampledPartition) -> Columns:
    pieces = part.pieces
    if not part.record_count:
        empty = np.zeros(0, np.int64)
        return Columns(np.zeros(0, np.uint64), empty, empty, empty, 0)
    hashes = np.concatenate([piece.hashes for piece in pieces])
    has_key = np.concatenate([piece.has_key for piece in pieces])
    points, inverse = np.unique(hashes[has_key], return_inverse=True)
    key_of = np.full(len(hashes), -1, np.int64)
    key_of[has_key] = inverse
    blocks = min(BLOCKS, len(hashes))
    return Columns(
        points,
        key_of,
        np.concatenate([piece.size_bytes for piece in pieces]),
        np.arange(len(hashes)) * blocks // len(hashes),
        blocks,
    )


def _partition_keys(
    columns: Columns, records_in_range: float, block_weights: NDArray[np.float64]
) -> PartitionKeys:
    weights = block_weights[columns.block_of]
    weights = weights * (records_in_range / weights.sum())
    keyed = columns.key_of >= 0
    places, count = columns.key_of[keyed], len(columns.points)
    sizes = columns.size_bytes * weights
    return PartitionKeys(
        points=columns.points,
        records=np.bincount(places, weights[keyed], count).astype(np.float64),
        size_bytes=np.bincount(places, sizes[keyed], count).astype(np.float64),
        is_key=np.ones(count, np.bool_),
        keyless_records=float(weights[~keyed].sum()),
        keyless_bytes=float(sizes[~keyed].sum()),
    )
