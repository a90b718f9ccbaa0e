"""How far a position counts, given what the reader has looked at."""

from __future__ import annotations

import numpy as np

from keylane.keyrange.key_split import even_split
from keylane.offsets.scan import HOLE_COUNT_MAX, REGION_COUNT_MAX, ScanIndex
from keylane.offsets.values import WHOLE

TWO = even_split(2)
LANES = TWO.key_ranges()


def index_of(*blocks: tuple[int, int, int, int]) -> ScanIndex:
    """An index of `(start, end, last record of lane 0, of lane 1)`."""
    scan = ScanIndex(TWO)
    for start, end, first_lane, second_lane in blocks:
        add(scan, start, end, first_lane, second_lane)
    return scan


def add(scan: ScanIndex, start: int, end: int, first_lane: int, second_lane: int) -> None:
    scan.add(start, end, np.array([first_lane, second_lane], np.int64))
    scan.check()


def test_position_behind_the_last_record_counts_to_the_regions_end() -> None:
    """Last record 14 in [10, 20): 14 stays, 15 and 19 count as 20, and so for each lane alone."""
    scan = index_of((10, 20, 14, -1))

    assert [scan.effective(LANES[0], at) for at in (9, 10, 14, 15, 19, 20)] == [
        9, 10, 14, 20, 20, 20,
    ]  # fmt: skip
    assert scan.effective(LANES[1], 10) == 20
    assert scan.effective(WHOLE, 12) == 12


def test_blocks_that_touch_are_one_region() -> None:
    """A position goes through [0, 10) and [10, 20) when neither holds a record for it."""
    scan = index_of((10, 20, 15, -1), (0, 10, 3, -1))

    assert scan.regions() == [(0, 20)]
    assert scan.effective(LANES[1], 0) == 20
    assert scan.effective(LANES[0], 4) == 4
    assert scan.effective(LANES[0], 16) == 20


def test_nothing_is_concluded_across_a_gap() -> None:
    """The gap between [0, 10) and [20, 30) was not scanned: a position stops at 10."""
    scan = index_of((0, 10, -1, -1), (20, 30, -1, -1))

    assert scan.effective(LANES[0], 5) == 10
    assert scan.effective(LANES[0], 20) == 30


def test_block_read_again_changes_nothing() -> None:
    """The tail path reads a block a second time, and an empty block says nothing."""
    scan = index_of((0, 10, 3, 8), (2, 6, 3, 5), (7, 7, -1, -1))

    assert scan.regions() == [(0, 10)]
    assert scan.effective(LANES[0], 4) == 10
    assert scan.effective(LANES[1], 6) == 6


def test_hole_lets_a_position_through_that_more_records_hold() -> None:
    """A control batch at 5 is passed, though the lane has a record at 8."""
    scan = ScanIndex(TWO)

    scan.add(0, 10, np.array([8, -1], np.int64), holes=[(5, 6)])

    assert [scan.effective(LANES[0], at) for at in (4, 5, 7)] == [4, 7, 7]
    assert scan.effective(LANES[0], 9) == 10


def test_truncation_can_only_hold_back() -> None:
    """After a cut at 15 nothing counts beyond; a region whose last record was cut is unknown."""
    scan = index_of((10, 20, 14, 12), (30, 40, -1, -1))
    unsure = index_of((0, 5, 3, 3), (10, 20, 18, 12))

    scan.truncate(15)
    unsure.truncate(15)

    scan.check()
    assert scan.regions() == [(10, 15)]
    assert [scan.effective(LANES[0], at) for at in (13, 14)] == [13, 14]
    assert scan.effective(LANES[1], 13) == 15
    add(scan, 15, 20, 17, -1)
    assert scan.effective(LANES[0], 15) == 15
    assert unsure.regions() == [(0, 5)]


def test_a_cut_region_that_is_scanned_anew_holds_no_lane_back() -> None:
    """A quiet lane whose last record is at 12 passes the cut, as it would in a log without."""
    scan = index_of((10, 20, 18, 12))
    scan.truncate(15)

    add(scan, 10, 16, 13, 12)

    assert [scan.effective(LANES[0], 14), scan.effective(LANES[1], 13)] == [16, 16]


def test_log_start_forgets_what_is_deleted() -> None:
    """What retention took is forgotten; the rest of its region stays."""
    scan = index_of((0, 10, 5, 5), (20, 40, 22, 35))

    scan.advance_log_start(30)

    scan.check()
    assert scan.regions() == [(30, 40)]
    assert scan.effective(LANES[0], 30) == 40
    assert scan.effective(LANES[1], 30) == 30


def test_memory_is_bounded() -> None:
    """Regions and holes beyond their bounds are forgotten, never the block just read."""
    scan = ScanIndex(TWO)
    none = np.array([-1, -1], np.int64)
    for number in range(REGION_COUNT_MAX + 10):
        start = number * 1_000
        scan.add(start, start + 900 - number, none)
    last = (REGION_COUNT_MAX + 9) * 1_000
    scan.add(0, last + 1_000, none, holes=[(n * 4, n * 4) for n in range(HOLE_COUNT_MAX + 10)])

    scan.check()
    assert scan.effective(LANES[0], last) == last + 1_000


def test_a_position_is_known_inside_of_a_region_and_at_its_end() -> None:
    """Everything before it was looked at; in front of a region and between two it was not."""
    scan = index_of((10, 20, 14, -1), (30, 40, -1, -1))

    assert [at for at in range(5, 45) if scan.knows(at)] == [*range(10, 21), *range(30, 41)]
    assert not index_of().knows(0)
