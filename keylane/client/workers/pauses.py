"""Back-pressure: which partitions give no records for now, so that queues stay bounded.

A full queue pauses all. From half full on, a partition with more than its fair share is paused by
itself: a hot key fills its own partition's part, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from keylane.client.values import TopicPartition

UNKNOWN_RECORD_BYTES: Final = 1024 * 1024
"""Taken for a record's size before the first ones: brokers take records up to this by default."""


class QueueRoom(NamedTuple):
    """Bounds of what may wait, and what does."""

    queued_count: int
    queued_max: int
    held_bytes: int
    held_bytes_max: int
    record_bytes: float = UNKNOWN_RECORD_BYTES
    """Mean size of the records so far."""

    @property
    def is_full(self) -> bool:
        """No further record has room."""
        return self.queued_count >= self.queued_max or self.held_bytes >= self.held_bytes_max

    @property
    def is_half_full(self) -> bool:
        """More than a half is taken; below it, all is open again."""
        return 2 * self.queued_count > self.queued_max or 2 * self.held_bytes > self.held_bytes_max

    def share_of_one(self, partition_count: int) -> int:
        """Return the records that may wait of one partition, at least 1."""
        return max(1, self.queued_max // max(1, partition_count))

    def records_max(self) -> int:
        """Return how many further records have room, at least 1, if they are like those before."""
        by_bytes = int((self.held_bytes_max - self.held_bytes) / self.record_bytes)
        return max(1, min(self.queued_max - self.queued_count, by_bytes))


class PausePlan(NamedTuple):
    """A change of what is paused."""

    pause: frozenset[TopicPartition]
    resume: frozenset[TopicPartition]


def plan_pauses(
    room: QueueRoom,
    assigned: Collection[TopicPartition],
    paused: Collection[TopicPartition],
    waiting_count: Callable[[TopicPartition], int],
) -> PausePlan:
    """Return what to pause and to resume. `paused` are those that an earlier plan has paused."""
    before = frozenset(paused).intersection(assigned)
    if room.is_full:
        return PausePlan(frozenset(assigned) - before, frozenset())
    if not room.is_half_full:
        return PausePlan(frozenset(), before)
    share = room.share_of_one(len(assigned))
    counts = {place: waiting_count(place) for place in assigned}
    return PausePlan(
        frozenset(place for place, count in counts.items() if count > share) - before,
        frozenset(place for place in before if 2 * counts[place] <= share),
    )
