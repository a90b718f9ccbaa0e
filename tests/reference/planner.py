"""The best contiguous cut by trying every one: a naive twin of `keylane.assignor.cut_planner`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise


def least_maximum(rows: Sequence[Sequence[int]], lane_count: int) -> int:
    """Over all ways to cut at bucket edges, the least heaviest run of any row."""
    count = len(rows[0])
    return min(
        max(sum(row[low:high]) for low, high in pairwise([0, *edges, count]) for row in rows)
        for edges in combinations(range(1, count), lane_count - 1)
    )


def lane_of_bucket(edges: Sequence[int], bucket: int) -> int:
    """Lane of a bucket, by the first buckets of lanes 1, 2, ..."""
    return sum(1 for edge in edges if edge <= bucket)


def moved(row: Sequence[int], before: Sequence[int], after: Sequence[int]) -> int:
    """Load of the buckets whose lane differs."""
    return sum(
        load
        for bucket, load in enumerate(row)
        if lane_of_bucket(before, bucket) != lane_of_bucket(after, bucket)
    )
