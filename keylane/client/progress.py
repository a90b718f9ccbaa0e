"""Progress of a consumer in one partition: what it has read and done, the offsets to commit.

Pure. An offset without a record for this member (a gap: keys of others, control records, what was
compacted) counts as done with the record before it, so that ranges join.
Source: KIP draft "Cooperative consumer processing semantic", "Offset Commit" and "Fetch" (ranges of
offsets, the stable offset, gaps amended between committed ranges).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from keylane.offsets.intervals import Range, RangeSet, merge_sorted

NO_STABLE_OFFSET: Final = -1
NOT_COMMITTED: Final = -1


class _Run:
    """Records that were given at once: their offsets, and the end of the gap behind the last."""

    __slots__ = ("end", "offsets", "open")

    def __init__(self, offsets: Sequence[int], end: int) -> None:
        self.offsets, self.end, self.open = offsets, end, len(offsets)

    def finish(self, offsets: Sequence[int]) -> list[Range]:
        """Count records that are done; return what is done with each: the gap behind it as well.

        offsets: ascending, below `end`; those without a record here are left out.
        """
        own = self.offsets
        if isinstance(own, range):  # no gap between them
            found = [(offset, offset) for offset in offsets if offset in own]
            if found and found[-1][0] == own[-1]:
                found[-1] = (own[-1], self.end - 1)
        else:
            found = []
            index = 0
            for offset in offsets:
                index = bisect_left(own, offset, index)
                if index < len(own) and own[index] == offset:
                    last = own[index + 1] if index + 1 < len(own) else self.end
                    found.append((offset, last - 1))
        self.open -= len(found)
        return found


def _end_of(run: _Run) -> int:
    return run.end


class PartitionProgress:
    """Offsets of one partition.

    Invariants: what is below `plain_offset()` is done. An offset below `next_offset` is done, or
    is of a record that was given and is open, or is a gap behind such a record.
    """

    def __init__(
        self, position: int, done: Iterable[Range] = (), *, is_committed: bool = True
    ) -> None:
        """position: all below it is done; done: ranges above it, committed before.

        is_committed: the group knows the position; else it begins here, and commits that first.
        """
        self._plain = position
        self._done = RangeSet(done)
        self._fresh = RangeSet()
        """Offsets that are done and not committed yet."""
        self._runs: list[_Run] = []
        self._next = position
        self._last_given: int | None = None
        self._committed_plain = position if is_committed else NOT_COMMITTED
        self.start: int | None = None if is_committed else position
        """Position that is to be committed before any range; None: the group knows it."""
        self._done.remove_below(position)
        self._settle()

    @property
    def next_offset(self) -> int:
        """All below it was given, skipped, or done before."""
        return self._next

    @property
    def open_count(self) -> int:
        """Records that were given and are not done."""
        return sum(run.open for run in self._runs)

    @property
    def range_count(self) -> int:
        """Ranges that are done and not committed."""
        return len(self._fresh)

    def wanted(self, first: int, last: int) -> list[Range]:
        """Return what of these fetched offsets was neither given nor is done, ascending."""
        first = max(first, self._next, self._plain)
        return self._done.gaps(first, last) if first <= last else []

    # -- reading --------------------------------------------------------------------------

    def given(self, offsets: Sequence[int], end: int) -> None:
        """Note records that the application gets, ascending, none of them done.

        end: below it there is no further record for this member.
        """
        if len(offsets) == 0:
            self.skip(self._next, end - 1)
            return
        assert offsets[0] >= self._next and end > offsets[-1], "records are given once, in order"
        self._extend(offsets[0])
        self._runs.append(_Run(offsets, end))
        self._last_given = offsets[-1]
        self._next = end

    def skip(self, first: int, last: int) -> None:
        """Note that no record for this member is in `[first, last]`, nor before it."""
        if last >= max(first, self._next):
            self._extend(last + 1)

    def _extend(self, end: int) -> None:
        """Let the gap from `next_offset` up to `end`, exclusive, go with the record before."""
        start, self._next = self._next, max(self._next, end)
        if end <= start:
            return
        is_open = self._last_given is not None and not self._is_done(self._last_given)
        if is_open:
            self._runs[-1].end = end
        else:
            self._add(start, end - 1)
            self._settle()

    # -- done -----------------------------------------------------------------------------

    def done(self, offsets: Iterable[int]) -> None:
        """Mark records as done; those that were not given, or are done already, change nothing."""
        self._finish(sorted(set(offsets)))
        self._settle()

    def done_all(self) -> None:
        """Mark every record that was given as done."""
        for run in self._runs:
            if run.open:
                run.open = 0
                self._add(run.offsets[0], run.end - 1)
        self._settle()

    def _finish(self, offsets: Sequence[int]) -> None:
        """Mark records; the offsets ascend. All ranges are joined at once: 1 us a record."""
        covers: list[Range] = []
        start = at = 0
        while start < len(offsets):
            at = bisect_right(self._runs, offsets[start], at, key=_end_of)
            if at == len(self._runs):
                break
            run = self._runs[at]
            stop = bisect_left(offsets, run.end, start)
            is_done = self._is_done
            covers += run.finish([each for each in offsets[start:stop] if not is_done(each)])
            start = stop
        joined = merge_sorted(covers)
        gaps = self._done.gaps
        self._fresh.add_sorted([gap for cover in joined for gap in gaps(*cover)])
        self._done.add_sorted(joined)

    def _is_done(self, offset: int) -> bool:
        return offset < self._plain or self._done.covers(offset, offset)

    def _add(self, first: int, last: int) -> None:
        """Add what of `[first, last]` was not done."""
        first = max(first, self._plain)
        if first > last:
            return
        for gap in self._done.gaps(first, last):
            self._fresh.add(*gap)
        self._done.add(first, last)

    def _settle(self) -> None:
        """Move the plain offset on, and drop what lies below it."""
        plain = self._done.skip(self._plain)
        if plain != self._plain:
            self._plain = plain
            self._done.remove_below(plain)
        kept = 0
        while kept < len(self._runs) and not self._runs[kept].open:
            kept += 1
        del self._runs[:kept]

    # -- commits --------------------------------------------------------------------------

    def plain_offset(self) -> int:
        """Return the lowest offset that is not done: what a commit to plain Kafka says."""
        return self._plain

    @property
    def has_plain_news(self) -> bool:
        """Return whether the plain offset moved since it was committed."""
        return self._plain != self._committed_plain

    def plain_committed(self, offset: int) -> None:
        """Note that the group's offset is this one."""
        self._committed_plain = offset
        self._fresh.remove_below(offset)
        if offset == self.start:
            self.start = None

    def ranges_to_commit(self, count_max: int) -> list[Range]:
        """Return the lowest ranges that are done and not committed, up to so many."""
        return list(islice(self._fresh, count_max))

    def committed(self, ranges: Sequence[Range], stable_offset: int = NO_STABLE_OFFSET) -> None:
        """Note that these ranges are committed, and the stable offset of the answer."""
        sent = RangeSet(ranges)
        # A range may have grown since it was sent.
        rest = [gap for first, last in self._fresh for gap in sent.gaps(first, last)]
        self._fresh = RangeSet(rest)
        if stable_offset >= self._plain:
            self._pass(stable_offset)

    def _pass(self, stable_offset: int) -> None:
        """All up to the stable offset is done by all members."""
        end = stable_offset + 1
        runs = self._runs
        self._finish([offset for each in runs for offset in each.offsets if offset < end])
        self._done.remove_below(end)
        self._fresh.remove_below(end)
        self._plain = end
        self._next = max(self._next, end)
        self._settle()

    def check(self) -> None:
        """Fail where an invariant does not hold; for tests."""
        self._done.check()
        self._fresh.check()
        assert self._done.skip(self._plain) == self._plain
        for run in self._runs:
            is_open = [not self._is_done(offset) for offset in run.offsets]
            assert sum(is_open) == run.open
