"""A key range whose parts stand at different positions."""

from __future__ import annotations

import numpy as np

from keylane.keyrange.key_split import even_split
from keylane.keyrange.space import HASH_MAX, KeyRange, split_even
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState


def test_an_admins_reset_takes_back_every_part_of_the_range() -> None:
    """A reset of the whole to 0 takes back the half at 5 too, beside one at 0."""
    halves = split_even(2)
    state = OffsetState(committed=None)
    state.commit_keys((halves[0],), 5)

    state.commit_keys((KeyRange(lo=0, hi=HASH_MAX),), 0, reset=True)

    assert state.position_of(halves[0]).offset == 0
    assert state.stable_position == 0


def test_a_lane_without_a_record_is_settled_beside_one_that_has() -> None:
    """The lane without a record does not wait for the other one of its interval."""
    lanes = split_even(2)
    scan = ScanIndex(even_split(2))
    scan.add(0, 10, np.array([3, -1]))
    state = OffsetState(committed=0)

    state.settle(scan)

    assert state.position_of(lanes[0]).offset == 0
    assert state.position_of(lanes[1]).offset == 10
