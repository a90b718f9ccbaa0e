"""Lanes: how the partitions and key ranges of a topic are numbered as one row of partitions.

Source: docs/decisions/001: lane index = lane * partition_count + partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from keylane.keyrange.key_split import KeySplit, LaneCuts, even_split
from keylane.keyrange.space import LANE_COUNT_MAX, KeyRange


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

    def __post_init__(self) -> None:
        if self.partition_count < 1:
            raise ValueError(f"partition_count must be at least 1, got {self.partition_count}")
        if not 1 <= self.lane_count <= LANE_COUNT_MAX:
            raise ValueError(f"lane_count must be 1 to {LANE_COUNT_MAX}, got {self.lane_count}")
        if self.cuts is not None and self._cut_counts != (self.partition_count, self.lane_count):
            raise ValueError(f"cuts are of {self._cut_counts} partitions and lanes, not of {self}")

    @property
    def fingerprint(self) -> bytes:
        """Return a hash of the cuts, 32 bytes; none for equal ranges."""
        return b"" if self.cuts is None else self.cuts.fingerprint

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
        return self.key_split(partition).key_range(lane)

    def key_split(self, partition: int) -> KeySplit:
        """Return how a partition is split: lane k is output k. Equal splits are one object."""
        if not 0 <= partition < self.partition_count:
            raise ValueError(f"no lane of partition {partition} in {self}")
        return even_split(self.lane_count) if self.cuts is None else self.cuts.splits[partition]

    @property
    def _cut_counts(self) -> tuple[int, int]:
        assert self.cuts is not None, "asked where there are cuts"
        return len(self.cuts.splits), self.cuts.lane_count

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.index_count:
            raise ValueError(f"no lane index {index} in {self}")
        return index
