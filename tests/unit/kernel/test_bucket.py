"""From hash to lane: the guide table and the search agree with a plain search."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.kernel.hashes import interval_of_hash
from keylane.kernel.lane_table import lane_table
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX


def interval_of(point: int, limits: np.ndarray) -> int:
    """Ask the kernel."""
    table = lane_table(limits)
    return int(interval_of_hash(np.uint64(point), table.limits, table.guide))


@pytest.mark.parametrize("lanes", [1, 2, 3, 16, 17, 1_000, 1_024])
def test_both_ends_of_every_even_lane_are_its_own(lanes: int) -> None:
    """Bounds are inclusive, exact to the last hash."""
    layout = LaneLayout(1, lanes)

    for lane in range(lanes):
        part = layout.key_range(0, lane)
        assert interval_of(part.lo, layout.key_split(0).limits) == lane
        assert interval_of(part.hi, layout.key_split(0).limits) == lane


@given(
    cuts=st.sets(st.one_of(st.integers(1, HASH_MAX), st.integers(2**60, 2**60 + 99)), max_size=40),
    point=st.one_of(st.integers(0, HASH_MAX), st.integers(2**60 - 2, 2**60 + 99)),
)
def test_uneven_cuts_agree_with_a_plain_search(cuts: set[int], point: int) -> None:
    """The cuts of a plan, crowded ones too."""
    limits = [*sorted(cuts), HASH_MAX + 1]

    assert interval_of(point, np.array(limits, np.uint64)) == bisect_right(limits, point)


@pytest.mark.parametrize(
    "limits", [[], [5], [5, 5, HASH_MAX + 1], [9, 5, HASH_MAX + 1], [0, HASH_MAX + 1]]
)
def test_limits_with_a_gap_or_an_empty_lane_are_refused(limits: list[int]) -> None:
    """ValueError: a hash without a lane would lose its records."""
    with pytest.raises(ValueError, match="lane limits"):
        lane_table(np.array(limits, np.uint64))


def test_a_table_is_built_once() -> None:
    """Equal limits share it."""
    assert lane_table(LaneLayout(1, 6).key_split(0).limits) is lane_table(
        LaneLayout(3, 6).key_split(0).limits.copy()
    )
    assert lane_table(LaneLayout(1, 6).key_split(0).limits).output_count == 6


@pytest.mark.parametrize("lanes", [[0], [0, 1, 0], [-1, -1], [-2, 0]])
def test_lanes_that_do_not_fit_the_intervals_are_refused(lanes: list[int]) -> None:
    """One each, none below -1, and not all dropped: no client would read such a split."""
    limits = np.array([5, HASH_MAX + 1], np.uint64)

    with pytest.raises(ValueError, match="a lane each"):
        lane_table(limits, np.array(lanes, np.int16))


def test_several_intervals_may_be_one_lane() -> None:
    """The lane count is that of the lanes, not of the intervals."""
    limits = np.array([5, 9, HASH_MAX + 1], np.uint64)

    table = lane_table(limits, np.array([1, -1, 0], np.int16))

    assert (table.output_count, table.output_of.tolist()) == (2, [1, -1, 0])
    assert table is not lane_table(limits)
