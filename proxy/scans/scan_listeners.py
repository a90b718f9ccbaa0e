"""Parts of a node that receive what readers of partitions have scanned, block by block."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from keylane.proxy.lanes.split_io import ScannedBlock


@dataclass(frozen=True, slots=True)
class ScanListeners:
    """Functions to call, in order."""

    scanned: tuple[Callable[[ScannedBlock], None], ...]
    truncated: tuple[Callable[[uuid.UUID, int, int], None], ...]

    def on_scanned(self, block: ScannedBlock) -> None:
        """A reader has looked at a block of a partition."""
        for receive in self.scanned:
            receive(block)

    def on_truncated(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """A partition's log was cut at `end` by a new leader."""
        for receive in self.truncated:
            receive(topic_id, partition, end)
