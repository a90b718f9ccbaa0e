"""What a state says after commits: the worked examples of the KIP draft, and the stall."""

from __future__ import annotations

import json
import uuid
from typing import Any

import numpy as np
import pytest

from keylane.keyrange.key_split import even_split
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.keyed_ranges import KeyedRange
from keylane.offsets.records.journal import StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import (
    METADATA_BYTES_MAX,
    NOT_COMMITTED,
    POSITION_COUNT_MAX,
    RANGES_PER_COMMIT_MAX,
    WHOLE,
    CommitError,
    LanePosition,
    Reconciled,
)

FOUR = LaneLayout(partition_count=1, lane_count=4)
LANES = [FOUR.key_range(0, lane) for lane in range(4)]
TWO = [LaneLayout(partition_count=1, lane_count=2).key_range(0, lane) for lane in range(2)]

# Worked examples of a commit; the stable offset S is inclusive there.
COMMIT_CASES: list[dict[str, Any]] = json.loads("""[
  {"n":1,"commit":[[48,49]],"stable":42,"ic":[[45,50]],
   "tombstones":[[45,47],[50,50]],"puts":[[45,50]],"push":null},
  {"n":2,"commit":[[43,44]],"stable":47,"ic":[[50,50]],
   "tombstones":[[45,47]],"puts":[],"push":47,"kafka":48},
  {"n":3,"commit":[[48,49],[43,44]],"stable":50,"ic":[],"push":50,"kafka":51},
  {"n":4,"commit":[[44,44]],"stable":42,"ic":[[44,47],[50,50]],"push":null},
  {"n":5,"commit":[[10,12]],"stable":42,"ic":[[45,47],[50,50]],"error":"TOO_OLD","push":null},
  {"n":6,"commit":[[45,47]],"stable":42,"ic":[[45,47],[50,50]],"duplicates":[[45,47]],"push":null}
]""")


def pairs(items: list[list[int]]) -> list[tuple[int, int]]:
    return [(first, last) for first, last in items]


def state_at(stable: int, ranges: list[list[int]]) -> OffsetState:
    """A state whose journal is up to date; `stable` is inclusive."""
    state = OffsetState(committed=stable + 1)
    state.commit_ranges(pairs(ranges))
    state.unsaved()
    state.mark_saved()
    return state


def scan_of(*blocks: tuple[int, int, list[int]], lanes: list[KeyRange] = LANES) -> ScanIndex:
    """An index of `(start, end, last record of each lane)`."""
    scan = ScanIndex(even_split(len(lanes)))
    for start, end, lasts in blocks:
        scan.add(start, end, np.array(lasts, np.int64))
    return scan


@pytest.mark.parametrize("case", COMMIT_CASES, ids=lambda case: f"case-{case['n']}")
def test_worked_examples_of_a_commit(case: dict[str, Any]) -> None:
    """Each worked case gives its stable offset, ranges, appends, push and error."""
    state = state_at(42, [[45, 47], [50, 50]])

    outcome = state.commit_ranges(pairs(case["commit"]))

    state.check()
    assert outcome.error.name == case.get("error", "NONE")
    assert (outcome.stable_offset, state.stable_offset) == (case["stable"], case["stable"])
    assert state.ranges() == pairs(case["ic"])
    pushed = None if state.stable_offset == 42 else state.stable_offset
    assert pushed == case["push"]
    assert state.stable_position == case.get("kafka", case["stable"] + 1)
    assert list(outcome.duplicates) == pairs(case.get("duplicates", []))
    if "puts" in case:
        changes = state.unsaved()
        assert list(changes.tombstones) == [KeyedRange(*each) for each in case["tombstones"]]
        assert list(changes.puts) == [KeyedRange(*each) for each in case["puts"]]


def test_worked_example_of_a_poll() -> None:
    """S=40 with [43-45],[48-49]: poll over [40-50] has 41,42,46,47,50; their commit ends at 50."""
    state = state_at(40, [[43, 45], [48, 49]])

    wanted = state.uncommitted_ranges(40, 50)
    position_before = state.position_of(WHOLE).offset
    state.commit_ranges(wanted)

    assert wanted == [(41, 42), (46, 47), (50, 50)]
    assert position_before == 41
    assert (state.stable_offset, state.stable_position, state.ranges()) == (50, 51, [])


def test_state_is_a_stable_offset_and_ranges() -> None:
    """Commit [45-47] and [50-50] on S=42: both stand above S with their gaps."""
    state = OffsetState(committed=43)

    state.commit_ranges([(45, 47), (50, 50)])

    assert (state.stable_offset, state.ranges()) == (42, [(45, 47), (50, 50)])


def test_cap_of_individual_commits() -> None:
    """With a cap of 10 the 11th gap is refused, changes nothing, and closing a gap is not."""
    state = OffsetState(committed=0, individual_commits_max=10)
    state.commit_ranges([(offset, offset) for offset in range(1, 21, 2)])
    before = state.copy()

    outcome = state.commit_ranges([(40, 40)])

    assert (outcome.error, outcome.error.error_code) == (CommitError.MAX_REACHED, 27)
    assert state == before
    assert state.commit_ranges([(2, 2)]).error is CommitError.NONE
    assert state.commit_ranges([(40, 40)]).error is CommitError.NONE


def test_size_bound_and_nonsense_are_refused() -> None:
    """Too many ranges, negative offsets, reversed ends and huge metadata leave no trace."""
    state = OffsetState(committed=0)
    before = state.copy()

    errors = [
        state.commit_ranges([(1, 1)] * (RANGES_PER_COMMIT_MAX + 1)).error,
        state.commit_ranges([(-1, 1)]).error,
        state.commit_ranges([(2, 1)]).error,
        state.commit_keys((LANES[0],), -1).error,
        state.commit_keys((LANES[0],), 1, metadata="x" * (METADATA_BYTES_MAX + 1)).error,
    ]

    assert [error.name for error in errors] == [
        "TOO_MANY_RANGES", "INVALID", "INVALID", "INVALID", "METADATA_TOO_LARGE",
    ]  # fmt: skip
    assert state == before


def test_metadata_of_all_lanes_together_is_bounded() -> None:
    """Metadata is refused before a state outgrows one journal record, and only then."""
    lanes = LaneLayout(partition_count=1, lane_count=256)
    state = OffsetState(committed=0)
    text = "\U0001f511" * (METADATA_BYTES_MAX // 4)

    errors = [
        state.commit_keys((lanes.key_range(0, lane),), 1, metadata=f"{lane:04}{text[1:]}").error
        for lane in range(256)
    ]

    assert errors[0] is CommitError.NONE and errors[-1] is CommitError.METADATA_TOO_LARGE
    assert state.commit_keys((lanes.key_range(0, 255),), 1).error is CommitError.NONE


def test_count_of_intervals_is_bounded() -> None:
    """An interval too many is refused; a commit that cuts nothing still goes through."""
    state = OffsetState(committed=0)
    for number in range(POSITION_COUNT_MAX // 2 - 1):
        state.commit_keys((KeyRange(lo=4 * number + 1, hi=4 * number + 2),), 1)

    refused = state.commit_keys((KeyRange(lo=2**40, hi=2**40 + 9),), 2)
    refused = state.commit_keys((KeyRange(lo=2**41, hi=2**41 + 9),), 2)

    assert refused.error is CommitError.MAX_REACHED
    assert state.commit_keys((WHOLE,), 3).error is CommitError.NONE
    assert len(state.positions()) == 1


def test_fresh_group_has_no_position_until_it_commits() -> None:
    """Lanes without a commit answer -1; the stable position waits at the base for them."""
    state = OffsetState(committed=None, base=7)

    state.commit_keys((LANES[1],), 50)

    assert state.position_of(LANES[0]) == NOT_COMMITTED
    assert state.position_of(LANES[1]).offset == 50
    assert state.stable_position == 7


def test_group_with_direct_history_goes_on_where_it_stood() -> None:
    """Every lane of a group that Kafka has at 500 starts there."""
    state = OffsetState(committed=500)

    assert [state.position_of(lane).offset for lane in LANES] == [500] * 4


def test_plain_commits_of_lanes_give_the_lowest_as_stable() -> None:
    """The stable position is the lowest lane's; metadata and leader epoch come back per lane."""
    state = OffsetState(committed=0)

    for lane, offset in zip(LANES, (40, 20, 30, 25), strict=True):
        state.commit_keys((lane,), offset, metadata=f"m{offset}", leader_epoch=offset)

    assert state.stable_position == 20
    assert state.position_of(LANES[2]) == LanePosition(offset=30, leader_epoch=30, metadata="m30")


def test_all_keys_in_one_lane_bring_the_stable_position_to_the_log_end() -> None:
    """Three lanes without a record in [0, 100) need no commit; the fourth ends at record 96."""
    state = OffsetState(committed=None)
    scan = scan_of((0, 100, [-1, 96, -1, -1]))

    state.commit_keys((LANES[1],), 97, scan=scan)
    state.settle(scan)

    assert state.stable_position == 100
    assert state.position_of(LANES[1]).offset == 100
    assert state.position_of(LANES[0]) == NOT_COMMITTED


def test_an_uncommitted_last_record_holds_the_lane_back() -> None:
    """A lane at its last record, not behind it, does not count through the region."""
    state = OffsetState(committed=0)
    scan = scan_of((0, 100, [-1, 96, -1, -1]))

    state.commit_keys((LANES[1],), 96)
    state.settle(scan)

    assert state.stable_position == 96


def test_stable_position_stays_after_a_restart_with_nothing_scanned() -> None:
    """What was settled is in the journal: an empty index and the members' commits keep it."""
    state = OffsetState(committed=0, topic_name="orders")
    scan = scan_of((0, 100, [-1, 96, -1, -1]))
    state.commit_keys((LANES[1],), 97)
    state.settle(scan)

    restored = restart(state)
    restored.commit_keys((LANES[1],), 97)
    restored.settle(ScanIndex(even_split(4)))

    assert restored.stable_position == 100


def test_member_that_goes_on_below_what_was_settled_is_not_a_reset() -> None:
    """librdkafka commits its last record + 1 again and again: the settled position stays."""
    state = OffsetState(committed=0)
    scan = scan_of((0, 100, [10, 96, -1, -1]))
    for lane, offset in zip(LANES, (11, 97, 0, 0), strict=True):
        state.commit_keys((lane,), offset)
    state.settle(scan)

    outcomes = [state.commit_keys((LANES[0],), 11), state.commit_keys((LANES[0],), 12)]

    assert [outcome.stable_offset for outcome in outcomes] == [99, 99]


def test_member_going_back_on_purpose_starts_there_again() -> None:
    """A seek back that is committed takes the lane back, and the ranges above with it."""
    state = state_at(49, [[60, 69]])

    outcome = state.commit_keys((LANES[2],), 40)

    assert outcome.stable_offset == 39
    assert state.unsaved().tombstones == (KeyedRange(60, 69),)
    assert [state.position_of(lane).offset for lane in LANES] == [50, 50, 40, 50]


def test_admin_reset_of_all_lanes_lane_by_lane() -> None:
    """A reset to 30 of lanes that stand apart brings each there, and the stable position."""
    state = OffsetState(committed=0)
    for lane, offset in zip(LANES, (40, 90, 60, 80), strict=True):
        state.commit_keys((lane,), offset)
    state.commit_ranges([(95, 99)])

    for lane in LANES:
        state.commit_keys((lane,), 30, reset=True)

    assert [state.position_of(lane).offset for lane in LANES] == [30] * 4
    assert (state.stable_position, state.ranges()) == (30, [])


def test_admin_reset_goes_back_into_what_ranges_have_passed() -> None:
    """Members that commit ranges only never say a position; a reset below theirs still holds."""
    state = OffsetState(committed=0)
    state.commit_ranges([(0, 99)])

    state.commit_keys((WHOLE,), 50, reset=True)

    assert state.stable_position == 50


def test_change_of_lane_count_keeps_what_each_hash_had() -> None:
    """Four lanes at 40, 20, 30, 30 seen as two: members start at the lower, none goes back."""
    state = OffsetState(committed=0)
    for lane, offset in zip(LANES, (40, 20, 30, 30), strict=True):
        state.commit_keys((lane,), offset)

    starts = [state.position_of(lane).offset for lane in TWO]
    state.commit_keys((TWO[0],), 25)
    outcome = state.commit_keys((TWO[1],), 50)

    assert starts == [20, 30]
    assert [state.position_of(lane).offset for lane in LANES] == [40, 25, 50, 50]
    assert outcome.stable_offset == 24


def test_part_that_was_ahead_keeps_what_was_said_for_it() -> None:
    """Two lanes at 40 and 20, one member commits 25 for both: a later 30 takes the first back."""
    state = OffsetState(committed=0)
    state.commit_keys((LANES[0],), 40)
    state.commit_keys((LANES[1],), 20)
    state.commit_keys((TWO[0],), 25)

    state.commit_keys((LANES[0],), 30)

    assert state.position_of(LANES[0]).offset == 30


def test_direct_commit_keeps_what_was_scanned_ahead_of_it() -> None:
    """Settled to 100, Kafka's own offset moves from 0 to 50: the lane stays at 100."""
    state = OffsetState(committed=0)
    state.settle(scan_of((0, 100, [-1, 96, -1, -1])))
    state.commit_keys((LANES[0],), 1, scan=scan_of((0, 100, [-1, 96, -1, -1])))

    state.reconcile(50)

    assert state.position_of(LANES[0]).offset == 100
    assert state.stable_position == 50


def test_merged_lane_whose_lower_part_was_settled_does_not_go_back() -> None:
    """A member sent to 20 commits 25 after the scan took the part at 20 far ahead: 40 stays."""
    state = OffsetState(committed=0)
    for lane, offset in zip(LANES, (40, 20, 60, 60), strict=True):
        state.commit_keys((lane,), offset)
    reported = state.position_of(TWO[0]).offset
    state.settle(scan_of((0, 100, [90, 19, 90, 90])))

    state.commit_keys((TWO[0],), 25)

    assert reported == 20
    assert state.stable_position == 40


def test_lane_view_of_another_count_is_settled_by_the_scan_of_this_one() -> None:
    """A lane that overlaps two scanned lanes is held back by either's last record."""
    state = OffsetState(committed=0)
    scan = scan_of((0, 100, [10, 50, -1, -1]))

    state.commit_keys((TWO[0],), 40)
    state.settle(scan)
    held = state.position_of(TWO[0]).offset
    state.commit_keys((TWO[0],), 51, scan=scan)

    assert held == 40
    assert state.position_of(TWO[0]).offset == 100


def test_commit_beyond_the_log_end_is_taken_as_said() -> None:
    """Kafka takes such a commit too; the others hold the stable position."""
    state = OffsetState(committed=0)
    scan = scan_of((0, 100, [99, 98, 97, 96]))

    state.commit_keys((LANES[0],), 5_000)
    state.settle(scan)

    assert state.position_of(LANES[0]).offset == 5_000
    assert state.stable_position == 0


def test_commit_below_an_assumed_base_is_believed() -> None:
    """A lane assumed to start at 80 whose member commits 60 stands at 60."""
    state = OffsetState(committed=None)
    state.assume(WHOLE, 80)

    state.commit_keys((LANES[0],), 60)

    assert (state.position_of(LANES[0]).offset, state.stable_position) == (60, 60)


def test_ranges_and_scanned_gaps_lead_on_in_turn() -> None:
    """Range [0-4], no record in [5, 8), range [8-9]: the position stands at 10, committed."""
    state = OffsetState(committed=None)
    scan = scan_of((5, 8, [-1] * 4))
    state.commit_ranges([(8, 9)])
    state.commit_ranges([(0, 4)])

    moved = state.settle(scan)

    assert moved
    assert (state.stable_position, state.ranges()) == (10, [])
    assert state.position_of(WHOLE).offset == 10


@pytest.mark.parametrize(
    ("kafka", "how", "positions", "ranges"),
    [
        (20, Reconciled.EQUAL, [40, 20, 30, 30], [(60, 69)]),
        (35, Reconciled.FORWARD, [40, 35, 35, 35], [(60, 69)]),
        (60, Reconciled.FORWARD, [70, 70, 70, 70], []),
        (10, Reconciled.BACK, [10, 10, 10, 10], []),
        (None, Reconciled.GONE, [-1, -1, -1, -1], []),
    ],
)
def test_kafkas_own_offset_was_moved_by_somebody_else(
    kafka: int | None,
    how: Reconciled,
    positions: list[int],
    ranges: list[tuple[int, int]],
) -> None:
    """Forward raises what is behind, back restarts all, gone forgets all; nothing else moves."""
    state = OffsetState(committed=0)
    for lane, offset in zip(LANES, (40, 20, 30, 30), strict=True):
        state.commit_keys((lane,), offset)
    state.commit_ranges([(60, 69)])
    state.mark_pushed(20)

    reconciled = state.reconcile(kafka, base=5)

    state.check()
    assert reconciled is how
    assert [state.position_of(lane).offset for lane in LANES] == positions
    assert (state.ranges(), state.pushed) == (ranges, kafka)


def test_delete_lane_forgets_it_alone() -> None:
    """OffsetDelete of a lane: no position there any more, the others keep theirs."""
    state = OffsetState(committed=50)

    state.delete_lane(LANES[3], base=10)

    assert state.position_of(LANES[3]) == NOT_COMMITTED
    assert state.position_of(LANES[0]).offset == 50
    assert (state.stable_position, state.committed) == (10, True)
    for lane in LANES:
        state.delete_lane(lane, base=10)
    assert not state.committed


def test_log_start_takes_positions_and_ranges_along() -> None:
    """Retention has deleted up to 70: positions stand there and swallowed ranges are gone."""
    state = OffsetState(committed=20)
    state.commit_ranges([(30, 39), (70, 74), (90, 94)])

    moved = state.advance_log_start(70)

    state.check()
    assert moved and not state.advance_log_start(70)
    assert (state.stable_position, state.ranges()) == (75, [(90, 94)])


def test_failed_write_is_written_again_whichever_way_it_goes() -> None:
    """A range put by a write that failed gets a tombstone when a reset drops it afterwards."""
    state = OffsetState(committed=20)
    state.commit_ranges([(30, 39)])
    state.unsaved()  # written, and no ack came

    state.commit_keys((WHOLE,), 10, reset=True)

    assert state.unsaved().tombstones == (KeyedRange(30, 39),)
    state.commit_ranges([(30, 39)])
    assert state.unsaved().puts == (KeyedRange(30, 39),)


def test_copy_is_independent() -> None:
    """A refused push drops the copy, and the state is as before."""
    state = state_at(42, [[45, 47]])
    before = repr(state), state.ranges(), state.positions()
    draft = state.copy()

    draft.commit_ranges([(43, 44)])
    draft.commit_keys((LANES[0],), 90)
    draft.mark_pushed(48)

    assert (repr(state), state.ranges(), state.positions()) == before
    assert not state.unsaved() and draft.unsaved()
    assert draft != state


def restart(state: OffsetState) -> OffsetState:
    """The state that the journal gives back."""
    key, table, other = StateKey("g", uuid.UUID(int=1), 0), *(table_of_one() for _ in range(2))
    table.put(key, state)
    for offset, record in enumerate(table.records(key, now_ms=0)):
        other.apply(record.partition, offset, record.key, record.value)
    other.finish_load()
    restored = other.get(key)
    assert restored is not None
    return restored


def table_of_one() -> OffsetTable:
    return OffsetTable(partition_count=1)


def test_equal_bounds_of_the_hash_space() -> None:
    """The whole space ends at 2^63-1, Java's Long.MAX_VALUE."""
    assert (WHOLE.lo, WHOLE.hi) == (0, HASH_MAX)
