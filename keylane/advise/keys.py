"""The load of a topic by key: of a sample of its records, or of a profile.

A key is its hash alone. What the model needs of it: what a lane has, and the heaviest key in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keylane.assignor.profile import HASH_BITS, HeavyKey, LoadProfile, PartitionLoad
from keylane.keyrange.key_split import even_split

Floats = NDArray[np.float64]
Points = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PartitionKeys:
    """Load of one partition. Entry i is a key, or a part of the hash space seen as one point."""

    points: Points
    """(n,) hash of each entry, ascending."""
    records: Floats
    """(n,) records of each, of the whole range of offsets that is looked at."""
    size_bytes: Floats
    """(n,) bytes of keys, values and headers."""
    is_key: NDArray[np.bool_]
    """(n,) True: the entry is one key."""
    keyless_records: float = 0.0
    keyless_bytes: float = 0.0
    """Of records without a key, which lanes share evenly."""

    @property
    def record_count(self) -> float:
        """Records, with a key or without."""
        return float(self.records.sum()) + self.keyless_records

    @property
    def byte_count(self) -> float:
        """Bytes, of records with a key or without."""
        return float(self.size_bytes.sum()) + self.keyless_bytes


class KeyShare(NamedTuple):
    """A key that has a large share of the topic."""

    partition: int
    key_hash: int
    share: float
    """Of all records."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledLanes:
    """Loads of the lanes of a topic; rows are partitions, columns are lanes."""

    records: Floats
    size_bytes: Floats
    hottest: Floats
    """Records of the heaviest key in each lane."""

    @property
    def total(self) -> float:
        """Records of all lanes."""
        return float(self.records.sum())


@dataclass(frozen=True, slots=True, eq=False)
class TopicKeys:
    """Load of a topic over its partitions."""

    topic: str
    partitions: tuple[PartitionKeys, ...]
    knows_keys: bool = True
    """False: keys were not counted one by one, so that the hottest is not known."""

    @property
    def record_count(self) -> float:
        """Records of all partitions."""
        return sum(part.record_count for part in self.partitions)

    @property
    def record_bytes(self) -> float:
        """Mean bytes of a record; 0 without any."""
        count = self.record_count
        return sum(part.byte_count for part in self.partitions) / count if count else 0.0

    @property
    def keyless_share(self) -> float:
        """Part of the records that have no key."""
        count = self.record_count
        return sum(part.keyless_records for part in self.partitions) / count if count else 0.0

    @property
    def partition_shares(self) -> tuple[float, ...]:
        """Part of all records that each partition has."""
        count = self.record_count
        return tuple(part.record_count / count if count else 0.0 for part in self.partitions)

    def hot_keys(self, count_max: int) -> list[KeyShare]:
        """Return the keys with most records, heaviest first."""
        total = self.record_count
        found = [
            KeyShare(number, int(part.points[place]), float(part.records[place]) / total)
            for number, part in enumerate(self.partitions)
            for place in _largest(np.where(part.is_key, part.records, 0.0), count_max)
            if part.is_key[place]
        ]
        return sorted(found, key=lambda key: (-key.share, key.partition, key.key_hash))[:count_max]

    @property
    def hottest_share(self) -> float:
        """Part of all records that the heaviest key has; 0 where no key is known."""
        hot = self.hot_keys(1)
        return hot[0].share if hot else 0.0

    def lanes(self, lane_count: int) -> SampledLanes:
        """Return the loads of lanes as keylane cuts them: equal parts of the hash space.

        Records without a key are hashed by their offset, so that each lane has an equal part.
        Cost: O(entries log lanes).
        """
        limits = even_split(lane_count).limits
        shape = len(self.partitions), lane_count
        records, size_bytes, hottest = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for row, part in enumerate(self.partitions):
            lanes = np.searchsorted(limits, part.points, side="right")
            records[row] = np.bincount(lanes, part.records, lane_count)
            size_bytes[row] = np.bincount(lanes, part.size_bytes, lane_count)
            np.maximum.at(hottest[row], lanes[part.is_key], part.records[part.is_key])
            records[row] += part.keyless_records / lane_count
            size_bytes[row] += part.keyless_bytes / lane_count
        return SampledLanes(records, size_bytes, hottest)


PARTS: Final = 256
"""Points of a partition of which nothing was read: its load is taken for even."""


def unseen_partition(records: float, record_bytes: float) -> PartitionKeys:
    """Return the load of a partition that no record was read of."""
    step = 2**HASH_BITS // PARTS
    each = np.full(PARTS, records / PARTS)
    return PartitionKeys(
        points=np.arange(PARTS, dtype=np.uint64) * np.uint64(step) + np.uint64(step // 2),
        records=each,
        size_bytes=each * record_bytes,
        is_key=np.zeros(PARTS, np.bool_),
    )


def keys_of_profile(profile: LoadProfile) -> TopicKeys:
    """Return the load that a Spark profile has: its heavy keys, and its buckets without them.

    A bucket is taken for a point in its middle. Bytes are those that the profile counted.
    """
    heavy: dict[int, list[HeavyKey]] = {}
    for key in profile.heavy:
        heavy.setdefault(key.partition, []).append(key)
    return TopicKeys(
        profile.topic,
        tuple(
            _profiled(load, heavy.get(number, ()), profile.bits)
            for number, load in enumerate(profile.partitions)
        ),
        knows_keys=profile.knows_heavy,
    )


def _profiled(load: PartitionLoad, heavy: Iterable[HeavyKey], bits: int) -> PartitionKeys:
    width = 1 << (HASH_BITS - bits)
    count = 1 << bits
    keys = list(heavy)
    records, sizes = np.array(load.records, np.float64), np.array(load.size_bytes, np.float64)
    # Records without a key are in the buckets of their offsets, an equal part in each.
    records = np.maximum(records - load.keyless_records / count, 0.0)
    sizes = np.maximum(sizes - load.keyless_bytes / count, 0.0)
    for key in keys:
        bucket = key.key_hash // width
        records[bucket] = max(0.0, records[bucket] - key.records)
        sizes[bucket] = max(0.0, sizes[bucket] - key.size_bytes)
    middles = np.arange(count, dtype=np.uint64) * np.uint64(width) + np.uint64(width // 2)
    points = np.concatenate([middles, np.array([key.key_hash for key in keys], np.uint64)])
    order = np.argsort(points, kind="stable")
    return PartitionKeys(
        points=points[order],
        records=np.concatenate([records, [float(key.records) for key in keys]])[order],
        size_bytes=np.concatenate([sizes, [float(key.size_bytes) for key in keys]])[order],
        is_key=np.concatenate([np.zeros(count, np.bool_), np.ones(len(keys), np.bool_)])[order],
        keyless_records=float(load.keyless_records),
        keyless_bytes=float(load.keyless_bytes),
    )


def _largest(values: Floats, count: int) -> list[int]:
    places = np.argsort(-values, kind="stable")[:count]
    return [int(place) for place in places if values[place] > 0]
