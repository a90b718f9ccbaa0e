"""States whose log was cut under them: what members said stays, what was concluded does not."""

from __future__ import annotations

import numpy as np

from keylane.keyrange.key_split import even_split
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.values import NOT_COMMITTED

FOUR = even_split(4)
LANES = [FOUR.key_range(lane) for lane in range(4)]


def concluded_state(scan: ScanIndex) -> OffsetState:
    """Lanes 0 to 2 are done up to 25,000; lane 3 said 101, and a scan found nothing behind."""
    state = OffsetState(committed=None, base=0)
    scan.add(0, 25_000, np.array([24_997, 24_998, 24_999, 100], np.int64))
    for lane, offset in enumerate((25_000, 25_000, 25_000, 101)):
        state.commit_keys((LANES[lane],), offset, scan=scan)
    return state


def offsets_of(state: OffsetState) -> list[int]:
    return [state.position_of(lane).offset for lane in LANES]


def test_a_lane_that_was_scanned_ahead_goes_back_to_the_cut() -> None:
    """Its next owner gets the new log's unread records; and commits below count."""
    scan = ScanIndex(FOUR)
    state = concluded_state(scan)
    assert offsets_of(state) == [25_000] * 4

    scan.truncate(15_000)
    assert state.cut(15_000)
    scan.add(15_000, 20_000, np.array([19_997, 19_998, 19_999, 19_990], np.int64))
    cut = offsets_of(state)
    state.commit_keys((LANES[3],), 15_010, scan=scan)

    state.check()
    assert cut == [25_000, 25_000, 25_000, 15_000], "what members said is theirs"
    assert offsets_of(state)[3] == 15_010
    assert state.stable_position == 15_010


def test_a_cut_drops_ranges_beyond_it() -> None:
    """They are of records that are gone."""
    state = OffsetState(committed=0)
    state.commit_ranges([(10, 20), (40, 50)])

    assert state.cut(15)

    state.check()
    assert state.ranges() == [(10, 14)]
    assert not state.cut(15)


def test_an_assumed_base_goes_back_with_the_log() -> None:
    """A lane that never committed has nothing done of a log that begins anew at 0."""
    state = OffsetState(committed=None, base=5_000)

    state.cut(0)
    state.commit_keys((LANES[0],), 17)

    assert [position.counted for _, _, position in state.positions()] == [17, 0]
    assert state.position_of(LANES[1]) == NOT_COMMITTED
    assert state.stable_position == 0


def test_a_log_that_ends_behind_all_conclusions_moves_nothing() -> None:
    """Nor the base of a lane that never committed: a first commit behind it goes on counting."""
    state = OffsetState(committed=None, base=0)
    scan = ScanIndex(FOUR)
    scan.add(0, 50, np.array([49, 49, 49, -1], np.int64))
    for lane in LANES[:3]:
        state.commit_keys((lane,), 50, scan=scan)
    state.settle(scan)
    before = state.copy()

    assert not state.cut(50)
    assert state == before
    state.commit_keys((LANES[3],), 20)
    assert state.stable_position == 50


def test_a_log_that_has_all_leaves_lanes_that_never_committed() -> None:
    """A scan had led them on; where they are assumed to start is no word of a member."""
    scan = ScanIndex(FOUR)
    scan.add(0, 9, np.array([-1, -1, -1, 8], np.int64))
    state = OffsetState(committed=None, base=0)
    state.commit_keys((LANES[3],), 9)
    state.settle(scan)
    assert state.stable_position == 9

    assert not state.cut(9)
    state.commit_keys((LANES[0],), 3)

    assert state.stable_position == 9
    assert state.cut(5)
    assert [position.counted for _, _, position in state.positions()] == [5, 5, 9]
    state.check()


def test_the_furthest_conclusion_is_known() -> None:
    """Only what no member named needs a leader epoch beside it."""
    state = concluded_state(ScanIndex(FOUR))
    plain = OffsetState(committed=None)
    plain.commit_keys((LANES[0],), 500)

    assert (state.concluded_end, plain.concluded_end) == (25_000, 0)
    plain.commit_ranges([(600, 610)])
    assert plain.concluded_end == 611
