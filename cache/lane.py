"""One lane of a partition: slices that wait for it, gaps, and claims of its readers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from keylane.cache.lane_values import Aborted, Claim
from keylane.cache.slice_cache import SliceCache
from keylane.kernel.block import LaneSlice
from keylane.wire.batch import BATCH_HEADER_BYTES

GAP_COUNT_MAX: Final = 64
"""Gaps remembered per lane, 100 bytes each; the lowest are forgotten, and merging keeps few."""
SLICE_OVERHEAD_BYTES: Final = 1024
"""Objects and array headers around a slice, so that many small ones are counted honestly."""
BATCH_OVERHEAD_BYTES: Final = 48
"""Six int64 per batch of a slice."""
UNCLAIMED_S: Final = 300.0
"""Time that slices wait for a lane without a connection: for the next tasks of a job that reads
lanes in turns, or a member that comes back. After that its readers are taken to read it elsewhere:
at another isolation level, for example, as libraries differ within a group."""
NO_CLAIMS: Final[dict[str, Claim]] = {}
"""Claims of each lane without a connection; never added to."""

_start_of: Final = attrgetter("start")


class Run:
    """Offsets `[start, end)` of one lane: held, or a gap when `slice` is None.

    `lane` is None once the run is forgotten.
    """

    __slots__ = ("aborted", "end", "is_cached", "lane", "leader_epoch", "slice", "start")

    def __init__(
        self,
        lane: Lane,
        start: int,
        end: int,
        leader_epoch: int,
        part: LaneSlice | None = None,
        aborted: tuple[Aborted, ...] = (),
    ) -> None:
        self.lane: Lane | None = lane
        self.start, self.end, self.leader_epoch = start, end, leader_epoch
        self.slice, self.aborted = part, aborted
        self.is_cached = False

    def evicted(self) -> None:
        """Give the slice up; the lane reads it again, should it still want it."""
        self.is_cached = False
        if self.lane is not None:
            self.lane.drop(self)

    def cost_bytes(self) -> int:
        """Return the bytes that keeping the slice costs."""
        assert self.slice is not None
        return (
            self.slice.size_bytes
            + SLICE_OVERHEAD_BYTES
            + BATCH_OVERHEAD_BYTES * len(self.slice.ends)
        )


class Lane:
    """The runs of one lane, and claims on them.

    Invariants: runs are not empty, ascending, apart; at most GAP_COUNT_MAX gaps, none next to
    another; every run's `lane` is this one; one that is abandoned has no claims.
    """

    __slots__ = ("_cache", "_gap_count", "_runs", "claims", "is_abandoned", "unclaimed_s")

    def __init__(self, cache: SliceCache) -> None:
        self._cache = cache
        self._runs: list[Run] = []
        self._gap_count = 0
        self.claims = NO_CLAIMS
        self.unclaimed_s: float | None = None
        """Time when the lane was first seen without claims."""
        self.is_abandoned = False

    @property
    def runs(self) -> Sequence[Run]:
        """Return all runs, ascending; not to be changed."""
        return self._runs

    def find(self, offset: int) -> Run | None:
        """Return the run that holds `offset`; None: unread."""
        runs = self._runs
        if not runs:
            return None
        run = runs[-1]  # of readers that keep up
        if offset < run.start:
            run = runs[0]  # of readers that catch up
            if offset < run.start:
                return None
            if offset >= run.end:
                run = runs[bisect_right(runs, offset, key=_start_of) - 1]
        return run if offset < run.end else None

    def twin(self) -> Lane:
        """Return another lane that knows the same gaps; it must hold no slices."""
        other = Lane(self._cache)
        other._runs = [Run(other, run.start, run.end, run.leader_epoch) for run in self._runs]
        other._gap_count = self._gap_count
        return other

    def extend_gap(self, start: int, end: int, leader_epoch: int) -> bool:
        """Note that `[start, end)` is empty, if a gap ends there and nothing is known behind it.

        The result is that of `put`, without a run: a lane of many has nothing in most blocks.
        """
        if not self._runs:
            return False
        last = self._runs[-1]
        if last.slice is not None or last.end != start or end <= start:
            return False
        last.end, last.leader_epoch = end, leader_epoch
        return True

    def put(self, run: Run) -> bool:
        """Take a run in, for its part that is not known yet; False: all of it is known.

        Older runs inside it are replaced, those across its edges stay and cut it short. So one run
        comes of it, and offsets that a client waits for are not forgotten for those that it passed.
        """
        runs = self._runs
        first = stop = len(runs)
        if runs and runs[-1].end > run.start:
            index = bisect_right(runs, run.start, key=_start_of) - 1
            if index >= 0 and runs[index].end > run.start:
                left = runs[index]
                if left.end >= run.end:
                    run.lane = None
                    return False
                if left.start < run.start:
                    run.start = left.end
            first = stop = bisect_left(runs, run.start, key=_start_of)
            while stop < len(runs) and runs[stop].end <= run.end:
                stop += 1
            if stop < len(runs):
                run.end = min(run.end, runs[stop].start)
        if run.start >= run.end:
            run.lane = None
            return False
        if run.slice is None:
            first, stop = self._join_gaps(run, first, stop)
        self._replace(first, stop, [run])
        self._bound_gaps()
        return True

    def drop(self, run: Run) -> None:
        """Forget a run: its offsets are unread."""
        index = bisect_left(self._runs, run.start, key=_start_of)
        assert self._runs[index] is run, "a run is where its start says"
        self._replace(index, index + 1, [])

    def sent(self, run: Run) -> None:
        """Forget a held run unless another claim still wants some of it.

        The empty header that ends a slice is kept as a gap: a client that goes on from its last
        record + 1 instead of the slice's end (librdkafka's committed position) needs no read.
        """
        for claim in self.claims.values():
            if claim.position < run.end:
                return
        index = bisect_left(self._runs, run.start, key=_start_of)
        self._cache.sent_count += run.is_cached
        gap_start = max(run.start, _trailing_header_start(run))
        if gap_start >= run.end:
            self._replace(index, index + 1, [])
            return
        gap = Run(self, gap_start, run.end, run.leader_epoch)
        first, stop = self._join_gaps(gap, index, index + 1)
        self._replace(first, stop, [gap])
        self._bound_gaps()

    def forget_passed(self) -> None:
        """Forget runs that all claims have passed; without claims, a reader may still come."""
        if self.claims:
            self.clear_below(min(claim.position for claim in self.claims.values()))

    def note_unclaimed(self, now_s: float) -> None:
        """Forget all runs of a lane that no connection has asked for in a long time."""
        if self.unclaimed_s is None:
            self.unclaimed_s = now_s
        elif not self.is_abandoned and now_s >= self.unclaimed_s + UNCLAIMED_S:
            self.is_abandoned = True
            self.clear()

    def clear_below(self, offset: int) -> None:
        """Forget all runs that end at or before `offset`."""
        stop = 0
        while stop < len(self._runs) and self._runs[stop].end <= offset:
            stop += 1
        self._replace(0, stop, [])

    def clear(self) -> None:
        """Forget all runs."""
        self._replace(0, len(self._runs), [])

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        assert self._gap_count == sum(run.slice is None for run in self._runs) <= GAP_COUNT_MAX
        end_before, was_gap = -1, False
        for run in self._runs:
            assert run.lane is self and end_before <= run.start < run.end
            assert not (was_gap and run.slice is None and end_before == run.start)
            end_before, was_gap = run.end, run.slice is None

    def _join_gaps(self, gap: Run, first: int, stop: int) -> tuple[int, int]:
        """Let a gap swallow gaps that touch it; return the runs that it replaces."""
        before = self._runs[first - 1] if first > 0 else None
        if before is not None and before.slice is None and before.end == gap.start:
            gap.start = before.start
            first -= 1
        after = self._runs[stop] if stop < len(self._runs) else None
        if after is not None and after.slice is None and after.start == gap.end:
            # A gap goes out under the epoch of its end: clients compare their position with it.
            gap.end, gap.leader_epoch = after.end, after.leader_epoch
            stop += 1
        return first, stop

    def _bound_gaps(self) -> None:
        if self._gap_count > GAP_COUNT_MAX:
            self.drop(next(run for run in self._runs if run.slice is None))

    def _replace(self, first: int, stop: int, runs: list[Run]) -> None:
        for old in self._runs[first:stop]:
            old.lane = None
            if old.is_cached:
                old.is_cached = False
                self._cache.remove(old)
            self._gap_count -= old.slice is None
        for new in runs:
            self._gap_count += new.slice is None
        self._runs[first:stop] = runs


def _trailing_header_start(run: Run) -> int:
    """Return the first offset of the empty header that ends the slice; the run's end for none."""
    assert run.slice is not None
    ends = run.slice.ends
    last_bytes = int(ends[-1]) - (int(ends[-2]) if len(ends) > 1 else 0)
    return int(run.slice.base_offsets[-1]) if last_bytes == BATCH_HEADER_BYTES else run.end
