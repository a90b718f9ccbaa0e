"""proxy/scans/lag.py: records that remain behind a position, exact or said to be an estimate."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from keylane.keyrange.key_split import PartitionSplit
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans import lag as lag_module
from keylane.proxy.scans.lag import (
    BLOCK_CELLS,
    CELLS_MAX,
    NO_CELLS,
    REGIONS_MAX,
    LaneTallies,
    Remaining,
)
from keylane.proxy.topics.view import View

TOPIC_ID = uuid.UUID(int=7)
LAYOUT = LaneLayout(partition_count=2, lane_count=2)
PARTITION = 1
LANE_1 = LAYOUT.lane_index(PARTITION, 1)
Batch = tuple[int, Sequence[int]]
"""Base offset, and the offsets of lane 1's records; lane 0 has none."""


class Part:
    """A slice of batches, as `kernel.split` gives it."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.base_offsets = np.array([base for base, _ in batches], np.int64)
        self.record_counts = np.array([len(offsets) for _, offsets in batches], np.int64)
        self.last_record_offsets = np.array(
            [max(offsets, default=-1) for _, offsets in batches], np.int64
        )
        self.record_count = int(self.record_counts.sum())


def view_of(layout: LaneLayout = LAYOUT) -> View:
    return View(
        name="t", topic="t", view_id=TOPIC_ID, topic_id=TOPIC_ID, lanes=layout, reserve=True
    )


def scan(
    tallies: LaneTallies,
    start: int,
    end: int,
    *batches: Batch,
    partition: int = PARTITION,
    log_start_offset: int = 0,
) -> None:
    """A reader has looked at `[start, end)`."""
    lanes: tuple[Any, ...] = (None, Part(batches) if batches else None)
    tallies.on_scanned(
        ScannedBlock(
            topic="t",
            at=PartitionSplit(TOPIC_ID, partition, LAYOUT.key_split(0)),
            start=start,
            end=end,
            last_record_offsets=np.full(2, -1, np.int64),
            outputs=lanes,
            holes=(),
            log_start_offset=log_start_offset,
        )
    )


def left(tallies: LaneTallies, start: int, end: int, index: int = LANE_1) -> Remaining:
    return tallies.remaining(view_of(), index, start, end)


def test_a_count_is_exact_between_batches() -> None:
    """Two batches with 3 and 2 records of the lane among 20 offsets: 5, 2 and 0 remain."""
    tallies = LaneTallies()

    scan(tallies, 0, 20, (0, [1, 4, 7]), (10, [12, 18]))

    assert left(tallies, 0, 20) == Remaining(5, is_exact=True)
    assert left(tallies, 8, 20) == Remaining(2, is_exact=True)
    assert left(tallies, 10, 20) == Remaining(2, is_exact=True)
    assert left(tallies, 19, 20) == Remaining(0, is_exact=True)
    assert left(tallies, 0, 20, LAYOUT.lane_index(PARTITION, 0)) == Remaining(0, is_exact=True)


def test_the_first_record_behind_a_position() -> None:
    """Gaps of the lane are passed where they were scanned, and not where they were not."""
    tallies, view = LaneTallies(), view_of()
    scan(tallies, 0, 20, (0, [1, 4]), (10, [12, 18]))
    scan(tallies, 30, 40, (35, [36]))

    found = [tallies.first_open(view, LANE_1, at) for at in (2, 5, 12, 19, 25, 30, 37)]

    assert found == [2, 10, 12, 19, 25, 35, 40]
    assert tallies.first_open(view, LAYOUT.lane_index(0, 1), 5) == 5
    assert [tallies.has_records(view, LANE_1, at) for at in (0, 36, 37)] == [True, True, False]
    assert not tallies.has_records(view, LAYOUT.lane_index(0, 1), 0)


def test_a_position_inside_a_batch_is_an_estimate() -> None:
    """Half-way through 50 records of a batch about half of them remain, and it says so."""
    tallies = LaneTallies()

    scan(tallies, 0, 100, (0, range(0, 100, 2)))

    reported = left(tallies, 50, 100)
    assert not reported.is_exact
    assert 24 <= reported.count <= 26


def test_a_batch_of_one_lane_alone_is_exact_anywhere() -> None:
    """Every offset carries a record: nothing to estimate. The same for a batch of one record."""
    tallies = LaneTallies()

    scan(tallies, 0, 120, (0, range(100)), (100, [110]))

    assert left(tallies, 37, 120) == Remaining(64, is_exact=True)
    assert left(tallies, 105, 120) == Remaining(1, is_exact=True)


def test_what_was_not_scanned_is_as_dense_as_the_rest() -> None:
    """10 records in 100 offsets; 50 more offsets wait: 5 more, an estimate."""
    tallies = LaneTallies()

    scan(tallies, 0, 100, *((base, [base + 3]) for base in range(0, 100, 10)))

    assert left(tallies, 90, 150) == Remaining(6, is_exact=False)


def test_before_anything_was_scanned_lanes_count_alike() -> None:
    """1,000 offsets of a partition with two lanes: 500 for each."""
    assert left(LaneTallies(), 0, 1000) == Remaining(500, is_exact=False)


def test_a_split_that_is_forgotten_gives_its_room_back() -> None:
    """Twice is as once."""
    tallies = LaneTallies()
    scan(tallies, 0, 20, (0, [1, 4, 7]))
    (key,) = tallies._by_split

    tallies.forget(key)
    tallies.forget(key)

    assert tallies.output_count == 0 and not tallies._by_split


def test_lanes_without_a_record_have_no_cells_of_their_own() -> None:
    """Neither before nor after a cut; a name that a client chose may have 1,024 such lanes."""
    tallies = LaneTallies()
    scan(tallies, 0, 20, (0, [1, 4, 7]))
    (tally,) = tallies._by_split.values()
    empty, counted = tally._lanes

    tally.truncate(0)

    assert empty is NO_CELLS and len(counted) == 1
    assert tally._lanes == [NO_CELLS, NO_CELLS]
    tally.check()


def test_a_block_counts_once() -> None:
    """Read again whole, in part and around: still each record once."""
    tallies = LaneTallies()
    scan(tallies, 10, 20, (10, [12]))

    scan(tallies, 10, 20, (10, [12]))
    scan(tallies, 0, 30, (0, [1, 2]), (10, [12]), (20, [25]))

    assert left(tallies, 0, 30) == Remaining(4, is_exact=True)


def test_a_batch_that_was_joined_otherwise_before_counts_once() -> None:
    """Known to 20; read again with what follows, in one batch from 10 to 40: 3 new records."""
    tallies = LaneTallies()
    scan(tallies, 0, 20, (0, [1, 2]), (10, [12, 13]))

    scan(tallies, 0, 40, (0, [1, 2]), (10, [12, 13, 25, 26, 38]))

    assert left(tallies, 0, 40) == Remaining(7, is_exact=True)
    assert left(tallies, 20, 40) == Remaining(3, is_exact=True)


def test_a_batch_that_reaches_into_what_is_known_counts_once() -> None:
    """Known from 20 on; one batch from 0 to 30 brings the 2 records before it."""
    tallies = LaneTallies()
    scan(tallies, 20, 40, (20, [25]), (30, [33]))

    scan(tallies, 0, 30, (0, [1, 2, 25]))

    assert left(tallies, 0, 40) == Remaining(4, is_exact=True)
    assert left(tallies, 30, 40) == Remaining(1, is_exact=True)


def test_batches_that_cut_each_other_leave_a_gap() -> None:
    """Known from 20 in a batch to 50; another one from 10 to 30: its records are not reported."""
    tallies = LaneTallies()
    scan(tallies, 20, 50, (20, [25, 45]))

    scan(tallies, 0, 30, (0, [1]), (10, [12, 25]))

    (tally,) = tallies._by_split.values()
    assert tally.gaps(0, 50) == [(10, 20)]
    assert not left(tallies, 0, 50).is_exact


def test_what_a_new_leader_has_cut_is_unknown_again() -> None:
    """Cut at 15: the batch that was cut is forgotten as a whole, what follows counts anew."""
    tallies = LaneTallies()
    scan(tallies, 0, 30, (0, [1, 2]), (10, [11, 18]), (20, [25]))

    tallies.on_truncated(TOPIC_ID, PARTITION, 15)

    assert tallies.scanned_end(view_of(), PARTITION) == 10
    scan(tallies, 10, 40, (10, [11]), (15, range(15, 40)))
    assert left(tallies, 0, 40) == Remaining(28, is_exact=True)


def test_what_retention_has_deleted_is_forgotten() -> None:
    """The region before the log start goes; what is behind it stays exact."""
    tallies = LaneTallies()
    scan(tallies, 0, 10, (0, [1]))
    scan(tallies, 20, 30, (20, [25]))

    scan(tallies, 30, 40, (30, [35]), log_start_offset=20)

    (tally,) = tallies._by_split.values()
    assert tally.gaps(0, 40) == [(0, 20)]
    assert left(tallies, 20, 40) == Remaining(2, is_exact=True)


def test_a_long_log_takes_no_more_memory_and_stays_near_the_truth() -> None:
    """100,000 batches in 64 cells: from anywhere within a tenth of the truth."""
    chooser = random.Random(3)
    tallies, offsets = LaneTallies(), []
    for base in range(0, 1_000_000, 100):
        batches = []
        for start in range(base, base + 100, 10):
            mine = [at for at in range(start, start + 10) if chooser.random() < 0.3]
            batches.append((start, mine))
            offsets += mine
        scan(tallies, base, base + 100, *batches)

    (tally,) = tallies._by_split.values()
    tally.check()
    assert BLOCK_CELLS < len(tally._lanes[1]) <= CELLS_MAX
    for start in range(0, 1_000_000, 9_973):
        true_count = len(offsets) - int(np.searchsorted(offsets, start))
        assert left(tallies, start, 1_000_000).count == pytest.approx(true_count, rel=0.1, abs=2)
    assert left(tallies, 0, 1_000_000) == Remaining(len(offsets), is_exact=True)


def test_scattered_reads_are_bounded() -> None:
    """Regions beyond the bound are forgotten with their counts, the shortest first."""
    tallies = LaneTallies()

    for number in range(REGIONS_MAX + 5):
        scan(tallies, number * 100, number * 100 + 10 + number, (number * 100, [number * 100]))

    (tally,) = tallies._by_split.values()
    tally.check()
    end = (REGIONS_MAX + 4) * 100
    assert tally.gaps(0, end)[0] == (0, 500)
    assert len(tally._lanes[1]) == REGIONS_MAX


def test_partitions_are_bounded(monkeypatch) -> None:
    """Beyond the bound of lanes the partition that was not read for longest is forgotten."""
    monkeypatch.setattr(lag_module, "LANES_MAX", 4)
    tallies = LaneTallies()

    for number, partition in enumerate((0, 1, 0, 2)):
        scan(tallies, number * 10, number * 10 + 10, (number * 10, []), partition=partition)

    assert tallies.output_count == 4
    assert {key[1] for key in tallies._by_split} == {0, 2}
