"""A split as kernels take it: intervals, their outputs, a guide into them, the hash; see `hashes`.

Source: docs/decisions/015, 044.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from keylane.kernel import status as s
from keylane.keyrange.hash import XXH64, KeyHash
from keylane.keyrange.key_split import KeySplit

GUIDE_BITS: Final = 10
GUIDE_SHIFT: Final = np.uint64(63 - GUIDE_BITS)


@dataclass(frozen=True, slots=True)
class LaneTable:
    """Limits of all intervals, a guide into them, and their outputs; shared, never changed."""

    limits: NDArray[np.uint64]
    """(n,) exclusive upper bounds of the intervals, ascending, the last is 2**63."""
    guide: NDArray[np.int32]
    """(2**GUIDE_BITS + 1,) interval of the first hash of each slot; the last entry is n-1."""
    output_of: NDArray[np.int16]
    """(n,) output of each interval, -1 for none; empty where interval k is output k."""
    output_count: int
    """Number of outputs."""
    key_hash: KeyHash = XXH64
    """The rule that gives keys their points."""


@lru_cache(maxsize=256)
def lane_table(split: KeySplit) -> LaneTable:
    """Return the table of a split; built once and remembered.

    Raises:
        ValueError: no interval has an output, so no client would read what comes of it.
    """
    if split.output_count == 0:
        raise ValueError("a split for lanes needs an output, give an interval to one")
    limits, output_of = split.limits.copy(), split.output_of.copy()  # kernels want writable ones
    slot_starts = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << GUIDE_SHIFT
    guide = np.empty(slot_starts.size + 1, np.int32)
    guide[:-1] = np.searchsorted(limits, slot_starts, side="right")
    guide[-1] = limits.size - 1
    return LaneTable(limits, guide, output_of, split.output_count, split.key_hash)


@lru_cache(maxsize=4096)
def hashing_of(key_hash: KeyHash, partition: int) -> NDArray[np.uint64]:
    """Return the rule and the partition as kernels take them; no element for XXH64."""
    if key_hash.name == "xxh64":
        return np.empty(0, np.uint64)
    found = np.empty(s.HASHING_SIZE, np.uint64)
    found[s.HASHING_PARTITIONS] = key_hash.partition_count
    found[s.HASHING_ODD_LANES] = key_hash.odd_lanes
    found[s.HASHING_WIDTH : s.HASHING_REMAINDER + 1] = key_hash.widths
    found[s.HASHING_PARTITION] = max(partition, 0)
    return found
