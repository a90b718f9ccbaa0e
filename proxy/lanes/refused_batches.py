"""Batches that are refused for good: remembered, so that none is read again at each poll.

Source: docs/decisions/035.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from keylane.bounded import BoundedDict

PER_PARTITION_MAX: Final = 64
PARTITIONS_MAX: Final = 1024
"""Beyond these bounds a batch is forgotten: of the partition that met one longest ago, or the one
with the lowest offset. It is then read and refused once more."""


class RefusedBatches:
    """Offsets `[first, last]` of refused batches, by topic id and partition.

    Invariants: at most PARTITIONS_MAX partitions with 1 to PER_PARTITION_MAX batches each.
    """

    def __init__(self) -> None:
        self._batches: BoundedDict[tuple[uuid.UUID, int], dict[int, int]]
        self._batches = BoundedDict(PARTITIONS_MAX)

    def __len__(self) -> int:
        return sum(map(len, self._batches.values()))

    def note(self, topic_id: uuid.UUID, partition: int, first: int, last: int) -> bool:
        """Remember a batch; False when it was known."""
        batches = self._batches.get((topic_id, partition), {})
        self._batches[topic_id, partition] = batches
        if batches.get(first) == last:
            return False
        if first not in batches and len(batches) >= PER_PARTITION_MAX:
            del batches[min(batches)]
        batches[first] = last
        return True

    def holds(self, topic_id: uuid.UUID, partition: int, offset: int) -> bool:
        """Return whether `offset` lies in a refused batch."""
        if not self._batches:
            return False
        batches = self._batches.get((topic_id, partition), {})
        return any(first <= offset <= last for first, last in batches.items())

    def forget_from(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """Forget batches from `end` on, where the log was cut."""
        self._keep(topic_id, partition, lambda _, last: last < end)

    def forget_below(self, topic_id: uuid.UUID, partition: int, start: int) -> None:
        """Forget batches below `start`, where the log begins now."""
        self._keep(topic_id, partition, lambda _, last: last >= start)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert len(self._batches) <= PARTITIONS_MAX
        assert all(1 <= len(each) <= PER_PARTITION_MAX for each in self._batches.values())

    def _keep(
        self, topic_id: uuid.UUID, partition: int, is_kept: Callable[[int, int], bool]
    ) -> None:
        batches = self._batches.get((topic_id, partition), {})
        for first, last in list(batches.items()):
            if not is_kept(first, last):
                del batches[first]
        if not batches:
            self._batches.pop((topic_id, partition), None)
