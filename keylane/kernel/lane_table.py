"""A split as kernels take it: the intervals, their outputs, and a guide into them, see `hashes`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from keylane.keyrange.space import HASH_MAX

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


def lane_table(limits: NDArray[np.uint64], output_of: NDArray[np.int16] | None = None) -> LaneTable:
    """Return the table of these intervals; built once and remembered.

    Raises:
        ValueError: the limits do not ascend to 2**63, or `output_of` does not fit.
    """
    lane_bytes = b"" if output_of is None else np.ascontiguousarray(output_of, np.int16).tobytes()
    return _build_lane_table(np.ascontiguousarray(limits, np.uint64).tobytes(), lane_bytes)


@lru_cache(maxsize=256)
def _build_lane_table(limit_bytes: bytes, lane_bytes: bytes) -> LaneTable:
    limits = np.frombuffer(limit_bytes, np.uint64).copy()
    output_of = np.frombuffer(lane_bytes, np.int16).copy()
    if output_of.size not in (0, limits.size) or (
        output_of.size and (output_of.min() < -1 or output_of.max() < 0)
    ):
        raise ValueError("lane limits need a lane each, or -1, and one lane at least")
    if limits.size == 0 or int(limits[-1]) != HASH_MAX + 1 or int(limits[0]) == 0:
        raise ValueError("lane limits must end at 2**63 and hold no empty lane")
    if np.any(limits[1:] <= limits[:-1]):
        raise ValueError("lane limits must be ascending")
    slot_starts = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << GUIDE_SHIFT
    guide = np.empty(slot_starts.size + 1, np.int32)
    guide[:-1] = np.searchsorted(limits, slot_starts, side="right")
    guide[-1] = limits.size - 1
    output_count = int(output_of.max()) + 1 if output_of.size else limits.size
    return LaneTable(limits, guide, output_of, output_count)
