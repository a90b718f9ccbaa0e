"""Lanes: how the partitions and key ranges of a topic are numbered as one row of partitions.

Source: docs/decisions/001: lane index = lane * partition_count + partition; 044: key hashes.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from keylane.keyrange.hash import XXH64, HashName, KeyHash, murmur2_hash
from keylane.keyrange.key_split import KeySplit, LaneCuts, even_split
from keylane.keyrange.space import LANE_COUNT_MAX, KeyRange

HASH_FINGERPRINTS: Final[dict[HashName, bytes]] = {
    "xxh64": b"",
    "murmur2": hashlib.sha256(b"lanes of murmur2").digest(),
}
"""Fingerprints of lanes without cuts, by the hash of their keys."""


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """A topic of `partition_count` partitions seen as `partition_count * lane_count` lanes.

    `lane_index % partition_count` is the partition. So the default partitioner of a producer that
    sees the lanes picks the same partition as one that sees the topic: (h % PL) % P = h % P.
    """

    partition_count: int
    lane_count: int
    cuts: LaneCuts | None = None
    """Cuts of each partition; None: all of them into equal ranges."""
    hash: HashName = "xxh64"
    """Hash of keys. With `murmur2` a key's lane index is its partition in a topic of `index_count`
    partitions whose producers use Kafka's default partitioner."""

    def __post_init__(self) -> None:
        if self.partition_count < 1:
            raise ValueError(f"partition_count must be at least 1, got {self.partition_count}")
        if not 1 <= self.lane_count <= LANE_COUNT_MAX:
            raise ValueError(f"lane_count must be 1 to {LANE_COUNT_MAX}, got {self.lane_count}")
        if self.cuts is not None and self.hash != "xxh64":
            raise ValueError(f"lanes by {self.hash} have no cuts")
        if self.cuts is not None and self._cut_counts != (self.partition_count, self.lane_count):
            raise ValueError(f"cuts are of {self._cut_counts} partitions and lanes, not of {self}")

    @property
    def fingerprint(self) -> bytes:
        """Return a hash of the cuts or of the key hash, 32 bytes; none for equal ranges of XXH64.

        Partition count and lane count are not in it.
        """
        return HASH_FINGERPRINTS[self.hash] if self.cuts is None else self.cuts.fingerprint

    @property
    def key_hash(self) -> KeyHash:
        """Return the rule that gives keys their points."""
        return hash_of_lanes(self.hash, self.partition_count, self.lane_count)

    @property
    def index_count(self) -> int:
        """Number of lanes of the topic over all its partitions."""
        return self.partition_count * self.lane_count

    def lane_index(self, partition: int, lane: int) -> int:
        """Return the number under which a client sees this lane of this partition."""
        if not 0 <= partition < self.partition_count or not 0 <= lane < self.lane_count:
            raise ValueError(f"no lane {lane} of partition {partition} in {self}")
        return lane * self.partition_count + partition

    def partition_of(self, index: int) -> int:
        """Return the partition that a lane index belongs to."""
        return self._checked(index) % self.partition_count

    def lane_of(self, index: int) -> int:
        """Return the lane that a lane index stands for inside its partition."""
        return self._checked(index) // self.partition_count

    def key_range(self, partition: int, lane: int) -> KeyRange:
        """Return the key range of a lane of a partition."""
        split = self.key_split(partition)
        return split.key_range(lane if split.outputs is None else split.outputs.index(lane))

    def lane_with(self, partition: int, key_range: KeyRange) -> int | None:
        """Return the lane of a partition that has exactly these keys; None: no lane has."""
        split = self.key_split(partition)
        interval = bisect_right(split.lows, key_range.lo) - 1
        if split.key_range(interval) != key_range:
            return None
        return interval if split.outputs is None else split.outputs[interval]

    def key_split(self, partition: int) -> KeySplit:
        """Return how a partition is split: lane k is output k. Equal splits are one object."""
        if not 0 <= partition < self.partition_count:
            raise ValueError(f"no lane of partition {partition} in {self}")
        if self.cuts is not None:
            return self.cuts.splits[partition]
        if self.hash == "xxh64":  # asked for each lane of each fetch
            return even_split(self.lane_count)
        return _residue_split(self.partition_count, self.lane_count)

    @property
    def _cut_counts(self) -> tuple[int, int]:
        assert self.cuts is not None, "asked where there are cuts"
        return len(self.cuts.splits), self.cuts.lane_count

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.index_count:
            raise ValueError(f"no lane index {index} in {self}")
        return index


@lru_cache(maxsize=256)
def _residue_split(partition_count: int, lane_count: int) -> KeySplit:
    return even_split(lane_count, murmur2_hash(partition_count, lane_count))


@lru_cache(maxsize=256)
def hash_of_lanes(name: HashName, partition_count: int, lane_count: int) -> KeyHash:
    """Return the key hash of a topic's lanes."""
    return XXH64 if name == "xxh64" else murmur2_hash(partition_count, lane_count)
