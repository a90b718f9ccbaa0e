"""Blocks of this node as scans for others, neighbours as one; scans of others as blocks.

Source: docs/decisions/021.

A scan that is dropped here is unknown to other nodes, whose stable offsets then come late. A cut
must not be dropped: their stable offsets would be wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.lineage import PartitionKey
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.records import Columns, Cut, News, Scan, is_published

COST_MAX: Final = 256 * 1024
"""Outputs and holes that wait, some 32 bytes each: 8 MiB, minutes of a busy node."""
AGE_S_MAX: Final = 10.0
"""Age at which a run is dropped. A process that was stopped must not publish a log that may have
been cut meanwhile."""


@dataclass(slots=True)
class _Run:
    scan: Scan
    noted_s: float
    cost: int


class ScanRuns:
    """Runs: neighbouring blocks of one partition and split.

    Invariants: `cost` is the sum over the runs, and at most COST_MAX; no run reaches beyond a cut
    of its partition that was noted after it.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[int, _Run] = OrderedDict()
        self._newest: dict[PartitionSplit, int] = {}
        self._cuts: dict[PartitionKey, Cut] = {}
        self._serial = 0
        self.cost = 0
        self.dropped = 0
        """Runs that were dropped since the start; other nodes do not get them."""

    def __len__(self) -> int:
        return len(self._runs) + len(self._cuts)

    def note(self, block: ScannedBlock, now_s: float) -> None:
        """Add a block that a reader has looked at. Cost: microseconds, and 0.2 per output."""
        key = block.at
        number = self._newest.get(key)
        run = self._runs[number] if number is not None else None
        if run is not None and run.scan.start <= block.start and block.end <= run.scan.end:
            return  # the reader of the other isolation level has been here
        is_same = run is not None and block.leader_epoch == run.scan.leader_epoch
        if run is not None and is_same and block.start == run.scan.end:
            self._extend(run, block)
        elif is_published(key.key_split):
            self._open(key, block, now_s)
        while self.cost > COST_MAX:
            self._remove(next(iter(self._runs)))

    def cut(self, cut: Cut) -> None:
        """Note a cut, and forget the waiting runs behind its end: they are of the old log."""
        place, end = cut.place, cut.end
        known = self._cuts.get(place)
        if known is not None:
            epoch = max(cut.leader_epoch, known.leader_epoch)
            cut = Cut(place, min(end, known.end), epoch)
        self._cuts[place] = cut
        for key in [key for key in self._newest if key.place == place]:
            del self._newest[key]
        for number, run in list(self._runs.items()):
            if run.scan.at.place == place and run.scan.end > end:
                self._remove(number)

    def take(self, now_s: float) -> list[News]:
        """Take everything that waits, cuts first, without what is too old."""
        news: list[News] = [*self._cuts.values()]
        fresh = [run.scan for run in self._runs.values() if now_s - run.noted_s <= AGE_S_MAX]
        self.dropped += len(self._runs) - len(fresh)
        self._runs.clear()
        self._newest.clear()
        self._cuts.clear()
        self.cost = 0
        return [*news, *fresh]

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert self.cost == sum(run.cost for run in self._runs.values()) <= COST_MAX
        for key, number in self._newest.items():
            assert self._runs[number].scan.at == key
        for run in self._runs.values():
            assert run.scan.start < run.scan.end

    def _open(self, key: PartitionSplit, block: ScannedBlock, now_s: float) -> None:
        scan = Scan(
            topic=block.topic,
            at=block.at,
            start=block.start,
            end=block.end,
            columns=_columns(block),
            holes=block.holes,
            log_start_offset=block.log_start_offset,
            leader_epoch=block.leader_epoch,
        )
        self._serial += 1
        cost = block.at.key_split.output_count + len(block.holes)
        self._runs[self._serial] = _Run(scan, now_s, cost)
        self._newest[key] = self._serial
        self.cost += cost

    def _extend(self, run: _Run, block: ScannedBlock) -> None:
        scan, added = run.scan, _columns(block)
        np.maximum(scan.columns[0], added[0], out=scan.columns[0])
        scan.columns[1:] += added[1:]
        scan.end = block.end
        scan.holes += block.holes
        scan.log_start_offset = max(scan.log_start_offset, block.log_start_offset)
        run.cost += len(block.holes)
        self.cost += len(block.holes)

    def _remove(self, number: int) -> None:
        run = self._runs.pop(number)
        self.cost -= run.cost
        self.dropped += 1
        if self._newest.get(run.scan.at) == number:
            del self._newest[run.scan.at]


@dataclass(slots=True, eq=False)
class PublishedLane:
    """The published part of one lane of a block, as one batch: its arrays are (1,) or (0,).

    Not to be changed; frozen, it would take five times as long to make, and there are thousands.
    """

    record_bytes: int
    record_count: int
    first: int
    """The first offset that may be a record's."""
    last: int

    @property
    def record_counts(self) -> NDArray[np.int64]:
        """Return the number of records."""
        return self._one(self.record_count)

    @property
    def base_offsets(self) -> NDArray[np.int64]:
        """Return the first offset that may be a record's."""
        return self._one(self.first)

    @property
    def last_record_offsets(self) -> NDArray[np.int64]:
        """Return the offset of the last record."""
        return self._one(self.last)

    def _one(self, value: int) -> NDArray[np.int64]:
        return np.array([value] if self.record_count else [], np.int64)


def published_block(scan: Scan) -> ScannedBlock:
    """Return the block in the form of a reader's."""
    lasts, counts, sizes = scan.columns
    rows = zip(sizes.tolist(), counts.tolist(), lasts.tolist(), strict=True)
    return ScannedBlock(
        topic=scan.topic,
        at=scan.at,
        start=scan.start,
        end=scan.end,
        last_record_offsets=lasts,
        outputs=tuple(
            PublishedLane(size, count, scan.start, last) if size or count else None
            for size, count, last in rows
        ),
        holes=scan.holes,
        log_start_offset=scan.log_start_offset,
        leader_epoch=scan.leader_epoch,
    )


def _columns(block: ScannedBlock) -> Columns:
    """Return (3, outputs), in the shape of `Scan`."""
    lasts = block.last_record_offsets.tolist()
    counts, sizes = [], []
    for last, part in zip(lasts, block.outputs, strict=True):
        sizes.append(0 if part is None else part.record_bytes)
        counts.append(max(1, part.record_count) if last >= 0 else 0)
    return np.array((lasts, counts, sizes), np.int64)
