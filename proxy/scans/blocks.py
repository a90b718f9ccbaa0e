"""Blocks that another node has published, in the form that readers give to listeners."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.records import Scan


@dataclass(slots=True, eq=False)
class PublishedLane:
    """The published part of one lane of a block; it counts as one batch.

    Not to be changed; frozen, it would take five times as long to make, and there are thousands.
    """

    record_bytes: int
    record_count: int
    first: int
    """The first offset that may be a record's."""
    last: int

    @property
    def record_counts(self) -> NDArray[np.int64]:
        """(1,) or none."""
        return self._one(self.record_count)

    @property
    def base_offsets(self) -> NDArray[np.int64]:
        """(1,) or none."""
        return self._one(self.first)

    @property
    def last_record_offsets(self) -> NDArray[np.int64]:
        """(1,) or none."""
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
