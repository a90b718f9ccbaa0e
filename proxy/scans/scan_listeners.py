"""Parts of a node that receive the blocks that readers have scanned."""

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
        """Pass on a block that a reader has looked at."""
        for receive in self.scanned:
            receive(block)

    def on_truncated(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """Pass on that a partition's log was cut at `end` by a new leader."""
        for receive in self.truncated:
            receive(topic_id, partition, end)
