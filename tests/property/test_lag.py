"""proxy/scans/lag.py: random logs, read in any order, against a twin that keeps every record."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.keyrange.key_split import PartitionSplit
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.lag import LaneTallies, PartitionTally
from keylane.proxy.topics.view import View
from tests.reference.lag import NaiveTally

TOPIC_ID = uuid.UUID(int=7)
LANES = 3
LAYOUT = LaneLayout(partition_count=1, lane_count=LANES)
VIEW = View(name="t", topic="t", view_id=TOPIC_ID, topic_id=TOPIC_ID, lanes=LAYOUT, reserve=True)


@dataclass(frozen=True)
class Batch:
    """A source batch: its offsets, and the lane of those that carry a record."""

    start: int
    end: int
    records: dict[int, int]


class Part:
    """A lane's slice of a block, as `kernel.split` gives it."""

    def __init__(self, lane: int, batches: list[Batch]) -> None:
        mine = [[at for at, of in batch.records.items() if of == lane] for batch in batches]
        self.base_offsets = np.array([batch.start for batch in batches], np.int64)
        self.record_counts = np.array([len(offsets) for offsets in mine], np.int64)
        self.last_record_offsets = np.array([max(at, default=-1) for at in mine], np.int64)
        self.record_count = int(self.record_counts.sum())


def join(batches: list[Batch], joined_max: int) -> Iterator[Batch]:
    """Runs of up to `joined_max` batches as one."""
    for place in range(0, len(batches), joined_max):
        run = batches[place : place + joined_max]
        records = {at: lane for batch in run for at, lane in batch.records.items()}
        yield Batch(run[0].start, run[-1].end, records)


def block_of(batches: list[Batch]) -> ScannedBlock:
    """Neighbouring batches as a reader publishes them."""
    lanes: tuple[Any, ...] = tuple(Part(lane, batches) for lane in range(LANES))
    return ScannedBlock(
        topic="t",
        at=PartitionSplit(TOPIC_ID, 0, LAYOUT.key_split(0)),
        start=batches[0].start,
        end=batches[-1].end,
        last_record_offsets=np.full(LANES, -1, np.int64),
        outputs=lanes,
        holes=(),
        log_start_offset=0,
    )


class Log(RuleBasedStateMachine):
    """A log that grows, is read in pieces, and is cut now and then."""

    @initialize()
    def start(self) -> None:
        """Nothing was read yet."""
        self.batches: list[Batch] = []
        self.tallies, self.twin = LaneTallies(), NaiveTally(LANES)

    @property
    def end(self) -> int:
        """The log's end."""
        return self.batches[-1].end if self.batches else 0

    @rule(
        sizes=st.lists(st.integers(1, 12), min_size=1, max_size=30),
        chooser=st.randoms(use_true_random=False),
        density=st.sampled_from([0.1, 0.7, 1.0]),
    )
    def append(self, sizes: list[int], chooser: Any, density: float) -> None:
        """Batches are written, some offsets without a record."""
        for size in sizes:
            start = self.end
            offsets = [at for at in range(start, start + size) if chooser.random() < density]
            records = {at: chooser.randrange(LANES) for at in offsets}
            self.batches.append(Batch(start, start + size, records))

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), joined_max=st.sampled_from([1, 3, 1000]))
    def read(self, data: st.DataObject, joined_max: int) -> None:
        """A block of neighbouring batches is scanned, maybe again, small ones joined."""
        first = data.draw(st.integers(0, len(self.batches) - 1))
        count = data.draw(st.integers(1, 40))
        chosen = self.batches[first : first + count]

        self.tallies.on_scanned(block_of(list(join(chosen, joined_max))))

        for batch in chosen:
            self.twin.add(batch.start, batch.end, batch.records)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """A new leader's log ends at an earlier batch."""
        kept = data.draw(st.integers(max(0, len(self.batches) - 5), len(self.batches)))
        del self.batches[kept:]

        self.tallies.on_truncated(TOPIC_ID, 0, self.end)

        self.twin.truncate(self.end)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        """Exact means exact; an estimate is off by no more than the cell that is cut."""
        start = data.draw(st.integers(0, self.end))
        lane = data.draw(st.integers(0, LANES - 1))
        tally = self.tally

        reported = self.tallies.remaining(VIEW, lane, start, self.end)

        count, is_known = self.twin.remaining(lane, start, self.end)
        assert 0 <= reported.count <= self.end - start
        if reported.is_exact:
            assert is_known
            assert reported.count == count
        elif is_known and tally.gaps(start, self.end) == []:
            largest = max(cell[2] for cell in tally._lanes[lane].items())
            assert abs(reported.count - count) < largest

    @property
    def tally(self) -> PartitionTally:
        """What is kept of the partition."""
        return next(iter(self.tallies._by_split.values()), PartitionTally(LANES))

    @invariant()
    def holds(self) -> None:
        """The invariants of the class; nothing is remembered that was never scanned."""
        self.tally.check()
        for start, end in zip(self.tally._starts, self.tally._ends, strict=True):
            assert self.twin.scanned >= set(range(start, end))


TestLog = Log.TestCase
"""Exact counts equal the twin's in every history of appends, reads, re-reads and cuts."""
