"""From hash to lane: the guide table and the search agree with a plain search."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.kernel.hashes import interval_of_hash
from keylane.kernel.lane_table import lane_table
from keylane.keyrange.key_split import NO_OUTPUT, KeySplit
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX


def interval_of(point: int, split: KeySplit) -> int:
    """Ask the kernel."""
    table = lane_table(split)
    return int(interval_of_hash(np.uint64(point), table.limits, table.guide))


@pytest.mark.parametrize("lanes", [1, 2, 3, 16, 17, 1_000, 1_024])
def test_both_ends_of_every_even_lane_are_its_own(lanes: int) -> None:
    """Bounds are inclusive, exact to the last hash."""
    layout = LaneLayout(1, lanes)

    for lane in range(lanes):
        part = layout.key_range(0, lane)
        assert interval_of(part.lo, layout.key_split(0)) == lane
        assert interval_of(part.hi, layout.key_split(0)) == lane


@given(
    cuts=st.sets(st.one_of(st.integers(1, HASH_MAX), st.integers(2**60, 2**60 + 99)), max_size=40),
    point=st.one_of(st.integers(0, HASH_MAX), st.integers(2**60 - 2, 2**60 + 99)),
)
def test_uneven_cuts_agree_with_a_plain_search(cuts: set[int], point: int) -> None:
    """The cuts of a plan, crowded ones too."""
    split = KeySplit(sorted(cuts))

    assert interval_of(point, split) == bisect_right(split.limits.tolist(), point)


def test_a_table_is_built_once() -> None:
    """Equal limits share it."""
    table = lane_table(LaneLayout(1, 6).key_split(0))

    assert lane_table(KeySplit(LaneLayout(3, 6).key_split(0).cuts)) is table
    assert table.output_count == 6


def test_several_intervals_may_be_one_lane() -> None:
    """The lane count is that of the lanes, not of the intervals."""
    table = lane_table(KeySplit((5, 9), (1, NO_OUTPUT, 0)))

    assert (table.output_count, table.output_of.tolist()) == (2, [1, -1, 0])
    assert table is not lane_table(KeySplit((5, 9)))


def test_a_split_without_an_output_is_refused() -> None:
    """No client would read what comes of it."""
    with pytest.raises(ValueError, match="needs an output"):
        lane_table(KeySplit((5,), (NO_OUTPUT, NO_OUTPUT)))
