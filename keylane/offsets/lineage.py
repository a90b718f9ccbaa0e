"""Leaders that wrote what was seen of a partition's log, and where another log parts from it.

Source: KIP-101 and KIP-279 (leader epochs), KIP-320 (consumers), LeaderEpochFileCache.endOffsetFor.

Theory. A leader numbers its time by an epoch that is in every batch it appends, and within one
epoch a log only grows. Two logs that have the same epoch at an offset are equal up to there. A
leader is asked for the end of the last epoch that was seen here; it answers with the largest that
it has and that is not above, and where that ends in its log. If it is the same one, the logs are
equal up to the nearer of both ends. If it is a lower one, they are equal up to no further than
where that one ends here, and the question is asked again for what was seen here below.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Generator, Iterable
from typing import Final, NamedTuple

from keylane.bounded import BoundedDict

NO_EPOCH: Final = -1
EPOCHS_MAX: Final = 64
"""Epochs of one log that are kept, 16 bytes each; a log has a few new ones a month."""
PLACES_MAX: Final = 100_000
"""Partitions that are kept, some 300 bytes each; the longest unseen are forgotten first."""
FRESH_S: Final = 5.0
"""After an answer of the leader what was read counts as its log for this time, for requests that
ask for it. A read at the log's end has one each half a second."""

PartitionKey = tuple[uuid.UUID, int]
"""Topic id, partition."""


class EpochEnd(NamedTuple):
    """A leader's answer: the largest epoch of its log that is not above the one asked for."""

    epoch: int
    """NO_EPOCH: it cannot say."""
    end: int
    """Offset behind the last batch of it."""


class EpochStart(NamedTuple):
    """A leader epoch, and the offset of the first batch that was seen of it."""

    epoch: int
    start: int


class Lineage:
    """Epochs seen of one partition's log, by this process or by what the journal says.

    Invariants: epochs ascend; every start is below `end`; there are EPOCHS_MAX at most.
    """

    __slots__ = ("_epochs", "_starts", "elected_epoch", "end", "known_s", "leader_epoch")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.end = -1
        """Offset behind the furthest that was seen with its epoch; -1: nothing was."""
        self.leader_epoch = NO_EPOCH
        """The latest leader whose log was compared; what an earlier one sends counts no more."""
        self.elected_epoch = NO_EPOCH
        """The latest leader that metadata has named to readers."""
        self.known_s = float("-inf")
        """Time of a leader's last answer to a reader."""

    @property
    def is_doubtful(self) -> bool:
        """True: what was read may be of another log, as the leader of now was not compared."""
        return self.leader_epoch < self.elected_epoch

    @property
    def newest(self) -> int:
        """The latest epoch of what was seen; NO_EPOCH: nothing was."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def note(self, end: int, starts: Iterable[tuple[int, int]]) -> None:
        """Take in that the log was seen up to `end`, and from where on with which epochs."""
        for epoch, start in starts:
            if epoch < 0 or start >= end:
                continue
            index = bisect_left(self._epochs, epoch)
            if index < len(self._epochs) and self._epochs[index] == epoch:
                self._starts[index] = min(start, self._starts[index])
            else:
                self._epochs.insert(index, epoch)
                self._starts.insert(index, start)
            self.end = max(self.end, end)
        excess = len(self._epochs) - EPOCHS_MAX
        if excess > 0:
            del self._epochs[:excess], self._starts[:excess]

    def before(self, offset: int) -> EpochStart | None:
        """The epoch of what stands before `offset`; None: that was not seen."""
        if offset > self.end:
            return None
        seen = [i for i in range(len(self._starts)) if self._starts[i] < offset]
        return EpochStart(self._epochs[seen[-1]], self._starts[seen[-1]]) if seen else None

    def compare(self, leader_epoch: int) -> Generator[int, EpochEnd, int | None]:
        """Yield epochs to ask a leader for, take its answers, return where its log is another one.

        None: it has all that was seen here. Another connection may read on between question and
        answer; where it meets another epoch, the leader is asked anew.
        """
        while True:
            newest = self.newest
            cut = yield from self._compare_once(leader_epoch)
            if self.newest == newest:
                return cut

    def _compare_once(self, leader_epoch: int) -> Generator[int, EpochEnd, int | None]:
        """Compare, where nothing of another epoch is met meanwhile."""
        newest, seen_end, equal_end = self.newest, self.end, 2**63
        asked = newest
        while asked >= 0:
            found = yield asked
            if found.epoch == newest == leader_epoch and found.end >= seen_end:
                return None  # in its own epoch a log only grows, and is read on meanwhile
            equal_end = min(equal_end, found.end, self._end_of(found.epoch))
            lower = self._floor(found.epoch)
            asked = lower if found.epoch < asked and lower < found.epoch else NO_EPOCH
        return max(0, equal_end) if equal_end < self.end else None

    def truncate(self, end: int) -> None:
        """Forget everything at or after `end`: another log goes on there."""
        kept = [i for i, start in enumerate(self._starts) if start < end]
        self._epochs = [self._epochs[i] for i in kept]
        self._starts = [self._starts[i] for i in kept]
        self.end = min(self.end, end) if kept else -1

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        assert self._epochs == sorted(set(self._epochs)) and len(self._epochs) <= EPOCHS_MAX
        assert all(start < self.end for start in self._starts)
        assert bool(self._epochs) == (self.end >= 0)

    def _end_of(self, epoch: int) -> int:
        """Return the end here of what is of `epoch` and before."""
        above = self._starts[bisect_right(self._epochs, epoch) :]
        return min(above, default=self.end)

    def _floor(self, epoch: int) -> int:
        index = bisect_right(self._epochs, epoch) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH


class Lineages:
    """The lineage of each partition that this process has to do with; its event loop's alone."""

    def __init__(self) -> None:
        self._lineages: BoundedDict[PartitionKey, Lineage] = BoundedDict(PLACES_MAX)

    def of(self, place: PartitionKey) -> Lineage:
        """The lineage of a partition; an empty one where nothing was seen yet."""
        lineage = self._lineages.use(place)
        if lineage is None:
            lineage = self._lineages[place] = Lineage()
        return lineage

    def topic_ids(self) -> set[uuid.UUID]:
        """Topics of which something is known."""
        return {topic_id for topic_id, _ in self._lineages}

    def forget_topics(self, topic_ids: Collection[uuid.UUID]) -> None:
        """These topics are gone."""
        for place in [place for place in self._lineages if place[0] in topic_ids]:
            del self._lineages[place]

    def find(self, place: PartitionKey) -> Lineage | None:
        """The lineage of a partition; None where nothing was seen yet."""
        return self._lineages.get(place)
