"""Naive twin of the advice: loads of lanes key by key, and the best speed-up by trying all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from keylane.keyrange.space import split_even

Key = tuple[int, int]
"""Partition and hash."""


def lane_loads(
    records: Mapping[Key, float], keyless: Sequence[float], lane_count: int
) -> list[list[float]]:
    """Records of each lane, by partition and lane."""
    ranges = split_even(lane_count)
    return [
        [
            none / lane_count
            + sum(
                count
                for (place, point), count in records.items()
                if place == partition and ranges[lane].contains(point)
            )
            for lane in range(lane_count)
        ]
        for partition, none in enumerate(keyless)
    ]


def best_parallel(loads: Sequence[float], member_count: int) -> float:
    """The most that any assignment of few lanes reaches, in times one member's work."""
    total = sum(loads)
    least = min(
        max(
            sum(load for load, owner in zip(loads, owners, strict=True) if owner == member)
            for member in range(member_count)
        )
        for owners in product(range(member_count), repeat=len(loads))
    )
    return total / least if least else 1.0
