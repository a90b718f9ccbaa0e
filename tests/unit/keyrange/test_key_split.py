"""How a partition is split: intervals and their outputs, equality, cuts of a topic."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.keyrange.key_split import (
    NO_OUTPUT,
    OUTPUT_COUNT_MAX,
    KeySplit,
    LaneCuts,
    even_split,
    owners_split,
)
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX, KeyRange, split_even
from keylane.offsets.scan import ScanIndex

cuts = st.sets(st.integers(1, HASH_MAX), max_size=12).map(lambda found: tuple(sorted(found)))


@given(cuts=cuts, point=st.integers(0, HASH_MAX))
def test_each_hash_is_in_one_interval(cuts: tuple[int, ...], point: int) -> None:
    """The ranges cover the space, apart; limits are their exclusive ends."""
    split = KeySplit(cuts)

    ranges = split.key_ranges()

    assert [part.contains(point) for part in ranges].count(True) == 1
    assert [split.key_range(number) for number in range(len(ranges))] == list(ranges)
    assert split.limits.tolist() == [part.hi + 1 for part in ranges]
    assert split.output_count == len(ranges)


@given(cuts=cuts, others=cuts)
def test_a_split_knows_its_cuts(cuts: tuple[int, ...], others: tuple[int, ...]) -> None:
    """Neither end of the space is one."""
    split = KeySplit(cuts)
    assert split.has_cuts(others) == (set(others) <= set(cuts))
    assert split.has_cuts(cuts[::2]) and not split.has_cuts((0,))


@given(cuts=cuts, data=st.data())
def test_owners_get_their_ranges_back(cuts: tuple[int, ...], data: st.DataObject) -> None:
    """An output stands for the ranges that its owner brought; the rest has no owner."""
    ranges = KeySplit(cuts).key_ranges()
    dealt = data.draw(
        st.lists(st.integers(NO_OUTPUT, 3), min_size=len(ranges), max_size=len(ranges))
    )
    names = sorted({owner for owner in dealt if owner != NO_OUTPUT})
    owned = [[r for r, owner in zip(ranges, dealt, strict=True) if owner == name] for name in names]

    split = owners_split(owned)

    assert split.outputs is not None and split.output_count == len(names)
    for part, owner in zip(ranges, dealt, strict=True):
        for point in (part.lo, part.hi):
            (interval,) = (n for n, r in enumerate(split.key_ranges()) if r.contains(point))
            wanted = NO_OUTPUT if owner == NO_OUTPUT else names.index(owner)
            assert split.outputs[interval] == wanted


def test_a_split_is_two_arrays() -> None:
    """16 bytes per lane, which scans and readers share; nothing is kept of the cuts."""
    split = KeySplit(tuple(range(1, 1024)))

    sizes = [split.lows.itemsize * len(split.lows), split.limits.nbytes, split.output_of.nbytes]

    assert sizes == [8 * 1024, 8 * 1024, 0]
    assert split.cuts == tuple(range(1, 1024))
    assert ScanIndex(split)._lows is split.lows


def test_even_lanes_are_the_even_ranges() -> None:
    """The literal form of the cuts; one object per count."""
    assert even_split(5).key_ranges() == split_even(5)
    assert even_split(5) is even_split(5)


def test_equal_splits_are_equal_and_hash_alike() -> None:
    """Readers are found by them; other cuts, or other owners of the same cuts, are others."""
    assert KeySplit((5, 9)) == KeySplit((5, 9)) and hash(KeySplit((5,))) == hash(KeySplit((5,)))
    assert KeySplit((5, 9)) != KeySplit((5, 8))
    assert KeySplit((5,), (0, 1)) != KeySplit((5,), (1, 0))
    assert KeySplit((5,)) != (5,)


@pytest.mark.parametrize(
    ("wrong_cuts", "outputs"),
    [
        ((0,), None),
        ((5, 5), None),
        ((9, 5), None),
        ((HASH_MAX + 1,), None),
        ((5,), (0,)),
        ((5,), (0, 2)),
        ((5,), (0, -2)),
    ],
)
def test_a_split_that_would_lose_records_is_refused(
    wrong_cuts: tuple[int, ...], outputs: tuple[int, ...] | None
) -> None:
    """ValueError: an empty interval, an interval without a word on its owner, a gap in outputs."""
    with pytest.raises(ValueError, match=r"must ascend|needs an output"):
        KeySplit(wrong_cuts, outputs)


def test_more_outputs_than_the_kernel_counts_are_refused() -> None:
    """It has an int16 per record."""
    with pytest.raises(ValueError, match="at most 32767"):
        KeySplit(tuple(range(1, OUTPUT_COUNT_MAX + 1)))


def test_no_interval_of_that_number_is_refused() -> None:
    """ValueError names it."""
    with pytest.raises(ValueError, match="no interval 3 of 3"):
        KeySplit((5, 9)).key_range(3)


def test_owners_that_overlap_or_have_nothing_are_refused() -> None:
    """A hash has one owner, an owner has a hash."""
    with pytest.raises(ValueError, match="two owners of hash 5"):
        owners_split([[KeyRange(0, 5)], [KeyRange(5, 9)]])
    with pytest.raises(ValueError, match="without a range"):
        owners_split([[KeyRange(0, 5)], []])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_partition_of_a_layout_has_its_own_cuts(count: int) -> None:
    """Lanes of a partition are those of its row; equal rows are one split."""
    row_of = [tuple(100 * (p % 2 + 1) + lane for lane in range(1, count)) for p in range(3)]

    layout = LaneLayout(3, count, LaneCuts.of(row_of))

    for partition, row in enumerate(row_of):
        bounds = (0, *row, HASH_MAX + 1)
        found = [layout.key_range(partition, lane) for lane in range(count)]
        assert found == [KeyRange(lo, limit - 1) for lo, limit in itertools.pairwise(bounds)]
    assert layout.key_split(0) is layout.key_split(2)


def test_equal_cuts_make_equal_layouts() -> None:
    """By a fingerprint that is made once; equal ranges have none."""
    one, same = (LaneLayout(2, 2, LaneCuts.of([(5,), (9,)])) for _ in range(2))
    other = LaneLayout(2, 2, LaneCuts.of([(5,), (8,)]))

    assert one == same and hash(one) == hash(same) and one.fingerprint == same.fingerprint
    assert one != other and one.fingerprint != other.fingerprint
    assert one != LaneLayout(2, 2) and LaneLayout(2, 2).fingerprint == b""
    assert one.cuts != "cuts"


def test_cuts_that_do_not_fit_are_refused() -> None:
    """Of another number of partitions or lanes, or not the same in all partitions."""
    cuts_of_two = LaneCuts.of([(5,), (9,)])
    for partitions, lanes in ((3, 2), (2, 3)):
        with pytest.raises(ValueError, match=r"cuts are of \(2, 2\)"):
            LaneLayout(partitions, lanes, cuts_of_two)
    with pytest.raises(ValueError, match="same count"):
        LaneCuts.of([(5,), (5, 9)])
    with pytest.raises(ValueError, match="same count"):
        LaneCuts((owners_split([[KeyRange(0, 5)]]),))
