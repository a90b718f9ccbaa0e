"""Back-pressure: which partitions give no records for now, so that queues stay bounded.

A full queue pauses all. From half full on, a partition with more than its fair share is paused by
itself: a hot key fills its own partition's part, and the others go on. The last quarter is for
partitions that run low, so that a hot one is not idle while those that are slower have plenty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from keylane.client.values import TopicPartition

UNKNOWN_RECORD_BYTES: Final = 1024 * 1024
"""Taken for a record's size before the first ones: brokers take records up to this by default."""
POLL_SHARE_MIN: Final = 16
"""Of many partitions a poll takes as much of each, for small lists cost more. More would leave
others without: a lane has few keys, and many side by side keep workers busy to the end."""


class QueueRoom(NamedTuple):
    """Bounds of what may wait, and what does."""

    queued_count: int
    queued_max: int
    held_bytes: int
    held_bytes_max: int
    record_bytes: float = UNKNOWN_RECORD_BYTES
    """Mean size of the records so far."""
    partition_count: int = 1
    """Assigned."""

    @property
    def is_full(self) -> bool:
        """No further record has room."""
        return self.queued_count >= self.queued_max or self.held_bytes >= self.held_bytes_max

    @property
    def is_half_full(self) -> bool:
        """More than a half is taken; below it, all is open again."""
        return 2 * self.queued_count > self.queued_max or 2 * self.held_bytes > self.held_bytes_max

    @property
    def is_scarce(self) -> bool:
        """The room that is left is for partitions that run low."""
        if self.partition_count <= 1:
            return self.is_full
        by_bytes = 4 * self.held_bytes >= 3 * self.held_bytes_max
        return by_bytes or self.queued_count >= self._common_max

    @property
    def has_spare(self) -> bool:
        """Partitions that run low may go on where all were paused."""
        if self.partition_count <= 1:
            return not self.is_half_full
        by_count = 8 * self.queued_count <= 7 * self.queued_max
        return by_count and 8 * self.held_bytes <= 7 * self.held_bytes_max

    @property
    def share_of_one(self) -> int:
        """Records that may wait of one partition, at least 1."""
        return max(1, self.queued_max // max(1, self.partition_count))

    @property
    def low_count(self) -> int:
        """With so many records left that wait, a partition goes on."""
        return self.share_of_one // 8

    def records_max(self) -> int:
        """Return how many further records have room, at least 1, if they are like those before."""
        by_bytes = int((self.held_bytes_max - self.held_bytes) / self.record_bytes)
        count_max = self.queued_max if self.is_scarce else self._common_max
        return max(1, min(count_max - self.queued_count, by_bytes))

    def records_max_of_one(self) -> int:
        """Return how many records a poll may bring of one partition."""
        if self.partition_count <= 1:
            return self.queued_max
        return max(POLL_SHARE_MIN, self.share_of_one // 4)

    @property
    def _common_max(self) -> int:
        return self.queued_max if self.partition_count <= 1 else max(1, 3 * self.queued_max // 4)


def pressures_of(lags: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, float]:
    """Return how much a record that waits of each counts: the square of its lag to the mean lag.

    At least 1, for what has been polled is not in the lag. Those without a known lag are left out.

    What the queue holds of a partition has a bound, so it does not say how much more there is. The
    square, since with less a hot lane would first have to fall far behind the others.
    """
    known = {place: lag for place, lag in lags.items() if lag is not None}
    mean = sum(known.values()) / max(1, len(known))
    return {place: max(1.0, (lag / mean) ** 2) for place, lag in known.items()} if mean else {}


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
    share = room.share_of_one
    counts = {place: waiting_count(place) for place in assigned}
    if room.is_scarce:
        low = frozenset(place for place, count in counts.items() if 4 * count <= share)
        return PausePlan(frozenset(assigned) - low - before, low & before)
    return PausePlan(
        frozenset(place for place, count in counts.items() if count > share) - before,
        frozenset(place for place in before if 2 * counts[place] <= share),
    )
