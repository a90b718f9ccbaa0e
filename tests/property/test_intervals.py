"""Range sets and interval maps do what plain sets and dicts of integers do."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from keylane.offsets import intervals
from keylane.offsets.intervals import Range, RangeSet, merge_sorted
from tests.reference.interval_map import IntervalMap

LAST = 30
points = st.integers(0, LAST)
ranges = st.tuples(points, points).map(lambda pair: (min(pair), max(pair)))
edits = st.lists(
    st.tuples(st.sampled_from(["add", "remove_below", "remove_from"]), ranges), max_size=20
)


def members(range_set: RangeSet) -> set[int]:
    return {number for first, last in range_set for number in range(first, last + 1)}


def spread(bounds: Range) -> set[int]:
    return set(range(bounds[0], bounds[1] + 1))


def put(value: int, _lo: int, _hi: int, _old: int) -> int:
    return value


@given(edits=edits)
def test_range_set_holds_what_a_set_holds(edits):
    """After every edit the ranges hold the same integers, and the edit returns the difference."""
    tested, twin, reported = RangeSet(), set[int](), set[Range]()
    for name, bounds in edits:
        if name == "add":
            edit = tested.add(*bounds)
            twin |= spread(bounds)
        elif name == "remove_below":
            edit = tested.remove_below(bounds[0])
            twin -= set(range(bounds[0]))
        else:
            edit = tested.remove_from(bounds[0])
            twin -= set(range(bounds[0], LAST + 1))
        reported = (reported - set(edit.removed)) | set(edit.added)

        tested.check()
        assert members(tested) == twin
        assert reported == set(tested)


@given(initial=st.lists(ranges), added=st.lists(ranges, max_size=20), one_by_one=st.booleans())
def test_many_ranges_are_added_as_one_after_the_other(initial, added, one_by_one):
    """Few are added one by one, many in one pass: the set and the difference are the same."""
    tested, twin = RangeSet(initial), RangeSet(initial)
    before, apart = set(tested), merge_sorted(sorted(added))
    assert apart == list(RangeSet(added))
    for bounds in added:
        twin.add(*bounds)

    silent = RangeSet(initial)
    with (
        mock.patch.object(intervals, "FEW", len(apart) if one_by_one else 0),
        mock.patch.object(intervals, "SPARSE", 0 if one_by_one else 100),
    ):
        edit = tested.add_all(apart)
        silent.add_sorted(apart)

    tested.check()
    silent.check()
    assert tested == silent == twin
    assert set(edit.removed) == before - set(tested)
    assert set(edit.added) == set(tested) - before


@given(initial=st.lists(ranges), bounds=ranges)
def test_range_set_answers_what_a_set_answers(initial, bounds):
    """Covers, skip and gaps agree with set arithmetic."""
    tested = RangeSet(initial)
    twin = members(tested)
    first, last = bounds

    gaps = tested.gaps(first, last)

    assert members(RangeSet(gaps)) == spread(bounds) - twin
    assert tested.covers(first, last) == (spread(bounds) <= twin)
    assert tested.skip(first) == min(set(range(first, LAST + 2)) - twin)


@given(updates=st.lists(st.tuples(ranges, st.integers(0, 3)), max_size=20))
def test_interval_map_holds_what_a_dict_holds(updates):
    """After every update the map gives each integer the value that a dict gives it."""
    tested = IntervalMap(0, LAST, 0)
    twin = dict.fromkeys(range(LAST + 1), 0)
    for bounds, value in updates:
        differs = any(twin[number] != value for number in spread(bounds))
        grows_by_at_most = tested.cuts_added(*bounds)
        count_before = len(tested)

        moved = tested.update(bounds[0], bounds[1], partial(put, value))

        twin.update(dict.fromkeys(spread(bounds), value))
        tested.check()
        assert moved == differs
        assert len(tested) <= count_before + grows_by_at_most
        assert {n: v for lo, hi, v in tested.items() for n in range(lo, hi + 1)} == twin


@given(updates=st.lists(st.tuples(ranges, st.integers(0, 3)), max_size=20), bounds=ranges)
def test_interval_map_is_rebuilt_from_its_ends(updates, bounds):
    """The ends of a map make an equal map, and a part of it is cut to the bounds asked for."""
    made = IntervalMap(0, LAST, 0)
    for (first, last), value in updates:
        made.update(first, last, partial(put, value))

    rebuilt = IntervalMap.from_ends(0, LAST, [(hi, value) for _, hi, value in made.items()])

    assert rebuilt == made == made.copy()
    part = list(made.items(*bounds))
    assert (part[0][0], part[-1][1]) == bounds
    assert all(before[1] + 1 == after[0] for before, after in pairwise(part))
