"""Offset ranges of some keys: in a state, in the journal, and beside a keylane of before."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.keyrange.space import HASH_MAX, KeyRange, split_even
from keylane.offsets.keyed_ranges import (
    KeyedRange,
    KeyedRanges,
    covers_all,
    gaps_of_all,
    skip_all,
)
from keylane.offsets.records.journal import (
    JournalRecord,
    RangeKey,
    StateKey,
    read_key,
    read_positions,
    write_key,
    write_value,
)
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import WHOLE, CommitError

LOWER, UPPER = split_even(2)
KEY = StateKey("group", uuid.UUID(int=1), 0)
ATOMS = split_even(8)
spans = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda s: (s[0], s[0] + s[1]))
parts = st.tuples(st.integers(0, 7), st.integers(0, 7)).map(
    lambda ends: KeyRange(ATOMS[min(ends)].lo, ATOMS[max(ends)].hi)
)


def loaded(records: list[JournalRecord]) -> OffsetTable:
    """What a start makes of these records."""
    table = OffsetTable(partition_count=1)
    for offset, record in enumerate(records):
        table.apply(record.partition, offset, record.key, record.value)
    assert table.finish_load().damaged_count == 0
    return table


def written(state: OffsetState) -> list[JournalRecord]:
    """All records of a state."""
    table = OffsetTable(partition_count=1)
    table.put(KEY, state)
    records = table.records(KEY, now_ms=1)
    table.mark_saved(KEY)
    return records


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), spans, parts),
            st.tuples(st.just("below"), st.integers(0, 36), parts),
            st.tuples(st.just("from"), st.integers(0, 36), parts),
        ),
        max_size=12,
    )
)
def test_sets_of_key_ranges_hold_what_their_twin_holds(steps) -> None:
    """Every (offset, key) that was added and not removed, after any history and in each copy."""
    tested, twin = KeyedRanges(), dict[KeyRange, set[int]]()
    for name, value, key_range in steps:
        before, copied = tested, sorted(tested)
        tested = tested.copy()
        if name == "add":
            tested.add(value[0], value[1], key_range)
            twin.setdefault(key_range, set()).update(range(value[0], value[1] + 1))
        elif name == "below":
            tested.remove_below(value, key_range)
            twin[key_range] = {o for o in twin.get(key_range, ()) if o >= value}
        else:
            tested.remove_from(value, [key_range])
            for other in twin:
                if other.lo <= key_range.hi and key_range.lo <= other.hi:
                    twin[other] = {o for o in twin[other] if o < value}
        tested.check()
        assert sorted(before) == copied, "a copy is independent"
        found = {(o, r.key_range) for r in tested for o in range(r.first, r.last + 1)}
        assert found == {(o, key_range) for key_range, offsets in twin.items() for o in offsets}
    for atom in ATOMS:
        done = {o for k, offsets in twin.items() if k.lo <= atom.lo <= k.hi for o in offsets}
        sets = tested.covering(atom.lo, atom.hi)
        assert skip_all(sets, 5) == next(o for o in range(5, 99) if o not in done)
        assert covers_all(sets, 3, 9) == (set(range(3, 10)) <= done)
        gaps = {o for first, last in gaps_of_all(sets, 0, 40) for o in range(first, last + 1)}
        assert gaps == set(range(41)) - done
        assert tested.cells(atom) == [atom], "all ranges begin and end between atoms"


@given(
    bounds=st.lists(st.integers(0, 40), unique=True, max_size=12).map(sorted),
    asked=st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted),
    has_whole=st.booleans(),
    gone=st.integers(0, 6),
)
def test_key_ranges_that_lie_apart_are_found_by_what_is_asked(
    bounds, asked, has_whole, gone
) -> None:
    """As a look at every one finds them; also when one of them has no offsets any more."""
    tested = KeyedRanges()
    apart = [KeyRange(*pair) for pair in zip(bounds[::2], bounds[1::2], strict=False)]
    for number, key_range in enumerate([*apart, *([WHOLE] if has_whole else [])]):
        tested.add(number, number, key_range)
    lo, hi = asked
    for is_after in (False, True):
        present = tested.key_ranges
        found = {id(ranges) for ranges in tested.covering(lo, hi)}
        assert found == {id(tested.of(k)) for k in present if k.lo <= lo and hi <= k.hi}
        cuts = {cut for k in present for cut in (k.lo, k.hi + 1) if lo < cut <= hi}
        assert [cell.lo for cell in tested.cells(KeyRange(lo, hi))] == sorted({lo, *cuts})
        tested.check()
        if not is_after and gone < len(apart):
            tested.remove_below(100, apart[gone])


def test_a_fast_lane_has_no_ranges_while_a_slow_one_stands() -> None:
    """The upper half is done to 100, in two steps; the lower one has not begun."""
    state = OffsetState(committed=0)

    assert state.commit_ranges([(50, 99)], [UPPER]).stable_offset == -1
    assert state.keyed_ranges() == [KeyedRange(50, 99, UPPER.lo, UPPER.hi)]
    assert state.commit_ranges([(0, 49)], [UPPER]).stable_offset == -1

    assert state.keyed_ranges() == []
    assert [state.position_of(half).offset for half in (LOWER, UPPER)] == [0, 100]


def test_a_range_behind_its_keys_is_no_duplicate_and_one_above_them_is() -> None:
    """A fast lane's position passes offsets without a record of it: nothing was committed twice."""
    state = OffsetState(committed=0)
    state.commit_ranges([(0, 99), (150, 160)], [UPPER])

    behind = state.commit_ranges([(50, 60)], [UPPER])
    again = state.commit_ranges([(90, 99), (150, 160)], [UPPER])

    assert (behind.error, behind.duplicates) == (CommitError.NONE, ())
    assert (again.error, again.duplicates) == (CommitError.NONE, ((150, 160),))
    assert state.keyed_ranges() == [KeyedRange(150, 160, UPPER.lo, UPPER.hi)]


def test_ranges_of_many_key_ranges_count_for_each() -> None:
    """1,000 ranges of 200 key ranges would be 200,000: refused before anything is made of them."""
    state = OffsetState(committed=0)
    width = HASH_MAX // 200
    key_ranges = [KeyRange(number * width, (number + 1) * width - 1) for number in range(200)]
    ranges = [(2 * number + 1, 2 * number + 1) for number in range(1_000)]

    assert state.commit_ranges(ranges, key_ranges).error is CommitError.TOO_MANY_RANGES
    assert state.commit_ranges(ranges, key_ranges[:2]).error is CommitError.NONE
    assert len(state.keyed_ranges()) == 2_000


def test_key_ranges_over_each_other_have_a_bound() -> None:
    """16 over one key, 1,024 in all; lanes lie apart, and are 8,192: each commit looks at them."""
    state = OffsetState(committed=0)

    errors = [
        state.commit_ranges([(5 * number, 5 * number)], [KeyRange(number, HASH_MAX - number)]).error
        for number in range(1, 18)
    ]

    assert errors == [CommitError.NONE] * 16 + [CommitError.MAX_REACHED]
    assert len(state.keyed_ranges()) == 16

    beside = OffsetState(committed=0)
    for lane in split_even(1_024):
        assert beside.commit_ranges([(5, 5)], [lane]).error is CommitError.NONE
    over = KeyRange(0, HASH_MAX // 2 + 1)
    assert beside.commit_ranges([(7, 7)], [over]).error is CommitError.MAX_REACHED


def test_a_lower_commit_of_a_member_with_ranges_is_a_step_back() -> None:
    """What the member said by ranges is its own word: 40 below 100 is meant."""
    state = OffsetState(committed=0)
    state.commit_ranges([(0, 99), (150, 160)], [UPPER])

    outcome = state.commit_keys((UPPER,), 40)

    assert outcome.back_from == 100
    assert state.position_of(UPPER).offset == 40 and state.keyed_ranges() == []


def test_a_stock_member_goes_on_behind_ranges_of_another_one() -> None:
    """It passes them at 60, and commits 65 next: no step back, and nothing is read twice."""
    state = OffsetState(committed=50)
    state.commit_ranges([(60, 69)], [UPPER])

    assert state.commit_keys((UPPER,), 60).back_from is None
    assert state.position_of(UPPER).offset == 70
    assert state.commit_keys((UPPER,), 65).back_from is None
    assert state.position_of(UPPER).offset == 70


def test_ranges_of_some_keys_outlive_a_restart() -> None:
    """Journal and back: ranges of halves, of all keys, and none once they are passed."""
    state = OffsetState(committed=10)
    state.commit_ranges([(20, 29)], [LOWER])
    state.commit_ranges([(40, 49)])
    records = written(state)

    again = loaded(records).get(KEY)

    assert again == state and not again.unsaved()
    state.mark_saved()
    state.commit_ranges([(10, 49)])
    table = OffsetTable(partition_count=1)
    table.put(KEY, state)
    assert loaded([*records, *table.records(KEY, now_ms=2)]).get(KEY) == state
    assert state.keyed_ranges() == [] and state.stable_position == 50


def test_a_keylane_of_before_goes_on_without_ranges_of_keys() -> None:
    """It cannot read the positions, and leaves the ranges; what it writes, drops them here."""
    state = OffsetState(committed=10)
    state.commit_ranges([(20, 29)], [LOWER])
    state.commit_ranges([(40, 49)])
    records = written(state)
    (whole,) = (r for r in records if isinstance(read_key(r.key), StateKey))
    assert whole.value is not None
    positions = read_positions(whole.value)
    assert positions.has_key_ranges
    assert int.from_bytes(whole.value[:2], "big") > 3, "a version that it refuses"

    of_before = write_value(replace(positions, has_key_ranges=False))
    table = loaded([*records, whole._replace(value=of_before)])

    back = table.get(KEY)
    assert back is not None and back.keyed_ranges() == [KeyedRange(40, 49)]
    dropped = [read_key(record.key) for record in table.take_orphan_tombstones()]
    assert dropped == [RangeKey(KEY, 20, 29, LOWER.lo, LOWER.hi)]


def test_a_key_range_of_all_keys_has_one_form() -> None:
    """All keys are of the old kind of record, and a record of the new kind is refused for them."""
    whole, half = RangeKey(KEY, 1, 2), RangeKey(KEY, 1, 2, UPPER.lo, UPPER.hi)
    assert read_key(write_key(whole)) == whole and read_key(write_key(half)) == half
    assert write_key(whole)[2] == 2 and write_key(half)[2] == 10
    table = OffsetTable(partition_count=1)
    forged = write_key(half)[:-16] + (0).to_bytes(8, "big") + HASH_MAX.to_bytes(8, "big")
    table.apply(0, 0, forged, b"")
    assert table.finish_load().damaged_count == 1


@pytest.mark.parametrize("key_ranges", [(WHOLE,), (LOWER, UPPER)])
def test_a_range_beyond_the_cap_changes_nothing(key_ranges) -> None:
    """Ten ranges for each, and an eleventh gap; joining and passing still work."""
    cap = 10 * len(key_ranges)
    state = OffsetState(committed=0, individual_commits_max=cap)
    gaps = [(2 * n + 1, 2 * n + 1) for n in range(11)]
    assert state.commit_ranges(gaps[:10], key_ranges).error is CommitError.NONE
    before = state.copy()

    assert state.commit_ranges(gaps[10:], key_ranges).error is CommitError.MAX_REACHED
    assert state == before
    assert state.commit_ranges([(2, 2), (0, 0)], key_ranges).stable_offset == 3
    assert state.commit_ranges(gaps[10:], key_ranges).error is CommitError.NONE
