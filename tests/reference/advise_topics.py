"""Topics for tests of the advice: keys by their number of records, samples of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from keylane.advise.facts import GroupFacts, TopicFacts
from keylane.advise.keys import PartitionKeys, TopicKeys
from keylane.advise.sample import SampledPartition, SamplePiece, TopicSample
from keylane.keyrange.hash import key_hash

TOPIC_FACTS: Final = TopicFacts(
    topic="orders",
    partition_count=2,
    replication=3,
    out_of_sync=0,
    is_compacted=False,
    offsets_kept=10_000,
    produced_per_s=1_000.0,
    produced_mean_per_s=900.0,
    looked_s=6.0,
)
GROUP_FACTS: Final = GroupFacts(
    name="billing",
    member_count=2,
    lag=0,
    consumed_per_s=1_000.0,
    behind_count=0,
    behind_per_s=0.0,
    committed_count=2,
)
"""A group that keeps up."""


def keys_of(
    *partitions: Mapping[int, int], keyless: Sequence[int] = (), size: int = 100
) -> TopicKeys:
    """Return a topic whose partitions have these records, by the hash of their key."""
    parts = []
    for number, records in enumerate(partitions):
        points = sorted(records)
        counts = np.array([records[point] for point in points], np.float64)
        none = float(keyless[number]) if keyless else 0.0
        parts.append(
            PartitionKeys(
                points=np.array(points, np.uint64),
                records=counts,
                size_bytes=counts * size,
                is_key=np.ones(len(points), np.bool_),
                keyless_records=none,
                keyless_bytes=none * size,
            )
        )
    return TopicKeys("orders", tuple(parts))


def even_keys(partition_count: int, count: int = 500, records: int = 10) -> TopicKeys:
    """Return a topic of as many equal keys in each partition."""
    return keys_of(
        *(
            {key_hash(f"{part}-{number}".encode()): records for number in range(count)}
            for part in range(partition_count)
        )
    )


def sample_of(*partitions: Sequence[int | None], scale: int = 1) -> TopicSample:
    """Return a sample with the hash of each record's key; each stands for `scale` records."""
    parts = []
    for hashes in partitions:
        count = len(hashes)
        piece = SamplePiece(
            start=0,
            end=count,
            hashes=np.array([found or 0 for found in hashes], np.uint64),
            has_key=np.array([found is not None for found in hashes], np.bool_),
            size_bytes=np.full(count, 100, np.int64),
            timestamps_ms=np.arange(count, dtype=np.int64) * 10,
            wire_bytes=40 * count,
        )
        parts.append(SampledPartition(0, count * scale, (piece,)))
    return TopicSample("orders", parts)
