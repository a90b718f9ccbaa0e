"""Load of each lane, measured where partitions are split: bytes and records per second.

Source: docs/decisions/013; an exponentially decaying sum, as Kafka's own assignors have none.

Counted at the reader and not at the answers: a lane whose member is slow or gone would look
light, and be given more. Each offset counts once, so that another group that reads the past
does not make the lane look busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from keylane.keyrange.key_split import PartitionSplit
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.split_table import SplitTable
from keylane.proxy.topics.view import View

MEMORY_S: Final = 300.0
"""Time constant: Kafka's quotas look back over 11 s, but lanes should not move for a burst."""
START_S: Final = 1.0
"""A rate is taken over this at least: a first block says little about time."""
AGE_S_MAX: Final = 10 * MEMORY_S
"""Age beyond which a rate sinks no more: lanes of an idle topic keep their proportions."""
LANES_MAX: Final = 1_000_000
"""Lanes that are counted, 16 bytes each; the longest unread partitions are forgotten first."""


@dataclass(slots=True)
class _PartitionLoad:
    started_s: float
    at_s: float
    """Time of the last update of the sums."""
    sums: NDArray[np.float64]
    """(2, lane_count) decaying bytes and records."""
    end: int = 0
    """Offsets before it are counted already."""

    def truncate(self, end: int) -> None:
        """Note that records from `end` on are new."""
        self.end = min(self.end, end)

    def decayed(self, now_s: float) -> NDArray[np.float64]:
        """Return the sums at `now_s`."""
        faded: NDArray[np.float64] = self.sums * math.exp(-max(0.0, now_s - self.at_s) / MEMORY_S)
        return faded

    def rates(self, now_s: float) -> NDArray[np.float64]:
        """Return (2, lane_count) bytes and records per second."""
        now_s = min(now_s, self.at_s + AGE_S_MAX)
        # The sum that a steady flow of 1/s would have reached since the start.
        elapsed_s = max(START_S, now_s - self.started_s)
        window_s = MEMORY_S * -math.expm1(-elapsed_s / MEMORY_S)
        rates: NDArray[np.float64] = self.decayed(now_s) / window_s
        return rates


class LaneLoads(SplitTable[_PartitionLoad]):
    """Decaying rates of all lanes that this process reads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(LANES_MAX)
        self._clock = clock

    def on_scanned(self, block: ScannedBlock) -> None:
        """Count a block that a reader has split. Cost: a few microseconds, and 0.2 per lane."""
        load = self.of(block.at)
        if block.start < load.end:
            return  # read again: for another group, for a lane that was late
        now_s = self._clock()
        load.end = block.end
        load.sums = load.decayed(now_s) + _sizes(block.outputs)
        load.at_s = now_s

    def bytes_per_s(self, view: View) -> dict[int, float]:
        """Return rates by lane index, without lanes of partitions that were not read yet."""
        return self._rates(view, 0)

    def records_per_s(self, view: View) -> dict[int, float]:
        """Return rates by lane index, without lanes of partitions that were not read yet."""
        return self._rates(view, 1)

    def record_count(self, view: View) -> float:
        """Return the records that the present rates were measured by, older ones in part."""
        now_s, count = self._clock(), 0.0
        for partition in range(view.layout.partition_count):
            load = self._by_split.get(view.partition_split(partition))
            if load is not None:
                count += float(load.decayed(now_s)[1].sum())
        return count

    def _rates(self, view: View, row: int) -> dict[int, float]:
        now_s = self._clock()
        rates: dict[int, float] = {}
        for partition in range(view.layout.partition_count):
            load = self._by_split.get(view.partition_split(partition))
            if load is not None:
                for lane, rate in enumerate(load.rates(now_s)[row].tolist()):
                    rates[view.layout.lane_index(partition, lane)] = rate
        return rates

    def _make(self, key: PartitionSplit) -> _PartitionLoad:
        now_s = self._clock()
        return _PartitionLoad(now_s, now_s, np.zeros((2, key.key_split.output_count)))


def _sizes(lanes: tuple[Any, ...]) -> NDArray[np.float64]:
    """Return (2, lane_count) bytes of records and records of each slice, 0 for no slice.

    Headers of batches are left out: lanes with few records of a block would weigh by them.
    """
    sizes = [0 if part is None else part.record_bytes for part in lanes]
    counts = [0 if part is None else part.record_count for part in lanes]
    return np.array((sizes, counts), np.float64)
