"""Replicas of one partition that lead in turn, and a reader: KRaft's rules, the slow way.

In:    elections, appends, followers that copy.  Out: the batches of each replica, ends of epochs.
Shares no code with keylane.
Source: KIP-101, KIP-279; ReplicaFetcherThread.truncate, LeaderEpochFileCache.endOffsetFor.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Replica:
    """One log: the leader epoch of the record at each offset, from `log_start` on."""

    epochs: list[int] = field(default_factory=list)
    log_start: int = 0
    assigned: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, offset at which this replica began to lead), of epochs that are in no record yet."""

    @property
    def end(self) -> int:
        """Log end offset."""
        return len(self.epochs)

    def starts(self) -> dict[int, int]:
        """Epoch -> its first offset, as the epoch file has them."""
        starts: dict[int, int] = {}
        for offset in range(self.log_start, self.end):
            starts.setdefault(self.epochs[offset], offset)
        for epoch, offset in self.assigned:
            if offset <= self.end:
                starts.setdefault(epoch, max(offset, self.log_start))
        return starts

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch."""
        starts = self.starts()
        if epoch == max(starts, default=-1):
            return epoch, self.end
        above = [known for known in starts if known > epoch]
        below = [known for known in starts if known <= epoch]
        if not above:
            return -1, -1
        return max(below, default=epoch), starts[min(above)]

    def copy_from(self, leader: Replica, count: int) -> None:
        """Cut what the leader does not have, then take up to `count` records of it."""
        same = 0
        while same < min(self.end, leader.end) and self.epochs[same] == leader.epochs[same]:
            same += 1
        del self.epochs[same:]
        self.log_start = min(self.log_start, same)
        self.epochs += leader.epochs[same : same + count]
        self.assigned = [(epoch, offset) for epoch, offset in leader.assigned if offset <= self.end]

    def lose(self) -> None:
        """The disk is gone, or replaced."""
        self.epochs, self.assigned, self.log_start = [], [], 0


@dataclass
class Replicas:
    """All replicas of the partition."""

    replicas: list[Replica]
    leader: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        self.elect(self.leader)

    @property
    def log(self) -> Replica:
        """The leader's."""
        return self.replicas[self.leader]

    def elect(self, number: int) -> None:
        """A new leader, clean or not."""
        self.leader, self.epoch = number, self.epoch + 1
        self.log.assigned.append((self.epoch, self.log.end))

    def append(self, count: int) -> None:
        """The leader takes records."""
        self.log.epochs += [self.epoch] * count
