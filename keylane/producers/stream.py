"""One idempotent producer at one partition: the batches of its lanes in one row of numbers.

Source: KIP-98; ProducerStateEntry (5 batches remembered) and DefaultRecordBatch.incrementSequence
of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

SEQUENCE_MAX: Final = 2**31 - 1
BATCHES_REMEMBERED: Final = 5
"""Precedent: ProducerStateEntry.NUM_BATCHES_TO_RETAIN; clients keep 5 requests under way."""


class Assigned(NamedTuple):
    """The producer fields that a lane batch has on its partition."""

    base_sequence: int
    producer_epoch: int


def increment_sequence(sequence: int, count: int) -> int:
    """Return `sequence` + `count` on the circle 0 to 2^31-1, as DefaultRecordBatch does."""
    return (sequence + count) % (SEQUENCE_MAX + 1)


class BatchOutcome(Enum):
    """Fate of a numbered batch."""

    PENDING = "sent, and not answered or with an answer that leaves it open"
    WRITTEN = "the broker has it"
    REJECTED = "the broker does not have it"


@dataclass(slots=True, eq=False)
class NumberedBatch:
    """A batch as its lane numbered it, and the number that it has on the partition."""

    lane: StreamLane
    lane_epoch: int
    lane_base: int
    record_count: int
    epoch: int
    base: int
    is_transactional: bool
    outcome: BatchOutcome = BatchOutcome.PENDING
    is_doubtful: bool = False
    """Sent again while the outcome of an earlier attempt was open."""
    base_offset: int = -1
    log_append_time: int = -1


@dataclass(slots=True, eq=False)
class StreamLane:
    """One lane of the partition: its next number, and its last batches."""

    epoch: int
    next: int = 0
    batches: deque[NumberedBatch] = field(default_factory=deque)

    def give_back_before(self, epoch: int) -> None:
        """Forget rejected batches of older epochs: their retries are numbered anew.

        With the first one go those behind it, open or not: the broker took none of them, since
        it missed the number before.
        """
        for position, batch in enumerate(self.batches):
            if batch.outcome is BatchOutcome.REJECTED and batch.epoch != epoch:
                self.next = batch.lane_base
                while len(self.batches) > position:
                    self.batches.pop()
                return


@dataclass(slots=True, eq=False)
class ProducerStream:
    """One producer at one partition.

    `window` holds the batches of the current epoch from the oldest that is not known to be
    written to the newest; its numbers are consecutive and end before `next`.
    """

    epoch: int
    start: int
    """First number where the broker may have state that we do not know of."""
    next: int
    is_confirmed: bool = False
    """True: the broker took a batch of this epoch."""
    is_known: bool = False
    """True: it took a batch of any epoch, and so has state of the producer."""
    window: deque[NumberedBatch] = field(default_factory=deque)
    lanes: dict[int, StreamLane] = field(default_factory=dict)

    def restart(self, epoch: int, *, is_new: bool = False) -> None:
        """Move to a new epoch; batches known to be rejected are numbered anew when retried.

        `is_new`: the broker has seen no batch of this epoch, not even before our restart.
        """
        while self.window and self.window[-1].outcome is BatchOutcome.REJECTED:
            self.give_back()
        left, self.window = self.window, deque()
        self.epoch, self.is_confirmed = epoch, False
        self.next = 0 if is_new or self.is_known else self.start
        for batch in left:
            if batch.lane.epoch == batch.lane_epoch:
                batch.lane.give_back_before(epoch)

    @property
    def room(self) -> int:
        """Number of further batches that may be under way.

        Just one before the first is written: a broker without state takes any number, so if it
        refused the first batch and took the second, they would stand in the wrong order.
        """
        return (BATCHES_REMEMBERED if self.is_known else 1) - len(self.window)

    def number(
        self, lane: StreamLane, lane_base: int, record_count: int, *, is_transactional: bool
    ) -> Assigned:
        """Give the next number to a batch of a lane."""
        batch = NumberedBatch(
            lane, lane.epoch, lane_base, record_count, self.epoch, self.next, is_transactional
        )
        self.window.append(batch)
        self.next = increment_sequence(self.next, record_count)
        lane.batches.append(batch)
        if len(lane.batches) > BATCHES_REMEMBERED:
            lane.batches.popleft()
        lane.next = increment_sequence(lane_base, record_count)
        return Assigned(batch.base, self.epoch)

    def give_back(self) -> None:
        """Take the newest number back, in its lane too if that is still in the same epoch."""
        batch = self.window.pop()
        self.next = batch.base
        if batch.lane.epoch == batch.lane_epoch and batch in batch.lane.batches:
            batch.lane.batches.remove(batch)
            batch.lane.next = batch.lane_base

    def settle_window(self) -> None:
        """Give back what was rejected at the end, let go what was written at the start."""
        while self.window and self.window[-1].outcome is BatchOutcome.REJECTED:
            self.give_back()
        while self.window and self.window[0].outcome is BatchOutcome.WRITTEN:
            self.window.popleft()

    def must_wait(self, lane: StreamLane | None, epoch: int) -> bool:
        """Return whether a batch must not be numbered before an earlier one is settled.

        Two cases. Its lane has one without outcome in an older epoch: written later, that one would
        stand behind it. Or the epoch would move while we do not know yet what the broker expects.
        """
        if lane is not None and lane.epoch == epoch:
            return any(
                batch.outcome is not BatchOutcome.WRITTEN and batch.epoch != self.epoch
                for batch in lane.batches
            )
        return (
            epoch > self.epoch
            and not self.is_known
            and any(batch.lane is not lane for batch in self.window)
        )

    def has_open(self, lane: StreamLane) -> bool:
        """Return whether a batch of the lane is in the window that is not known to be written."""
        return any(b.lane is lane and b.outcome is not BatchOutcome.WRITTEN for b in self.window)
