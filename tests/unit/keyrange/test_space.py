"""Even cuts of the hash space: worked examples, and a range for every hash."""

from __future__ import annotations

from itertools import pairwise

import pytest

from keylane.keyrange.space import HASH_MAX, KeyRange, split_even

EVEN_RANGES = {
    1: [(0, 9223372036854775807)],
    2: [(0, 4611686018427387902), (4611686018427387903, 9223372036854775807)],
    3: [
        (0, 3074457345618258601),
        (3074457345618258602, 6148914691236517203),
        (6148914691236517204, 9223372036854775807),
    ],
    4: [
        (0, 2305843009213693950),
        (2305843009213693951, 4611686018427387902),
        (4611686018427387903, 6917529027641081854),
        (6917529027641081855, 9223372036854775807),
    ],
    5: [
        (0, 1844674407370955160),
        (1844674407370955161, 3689348814741910321),
        (3689348814741910322, 5534023222112865483),
        (5534023222112865484, 7378697629483820644),
        (7378697629483820645, 9223372036854775807),
    ],
}


@pytest.mark.parametrize("count", EVEN_RANGES)
def test_even_ranges_are_the_worked_example(count: int) -> None:
    """The exact integers for one to five ranges."""
    assert [(part.lo, part.hi) for part in split_even(count)] == EVEN_RANGES[count]


def test_the_second_of_two_is_larger_by_two() -> None:
    """The literal form of the cuts, not the balanced one."""
    first, second = split_even(2)

    assert (second.hi - second.lo) - (first.hi - first.lo) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 16, 1_000, 1_024])
def test_every_hash_is_in_exactly_one_range(count: int) -> None:
    """Ranges go from 0 to 2**63 - 1 without a gap or an overlap; sizes differ by two at most."""
    ranges = split_even(count)

    assert ranges[0].lo == 0 and ranges[-1].hi == HASH_MAX
    assert all(a.hi + 1 == b.lo for a, b in pairwise(ranges))
    sizes = {part.hi - part.lo for part in ranges}
    assert max(sizes) - min(sizes) <= 2


@pytest.mark.parametrize("count", [0, -1, HASH_MAX + 1])
def test_a_count_without_ranges_is_refused(count: int) -> None:
    """ValueError for no range at all, and for ranges that would be empty."""
    with pytest.raises(ValueError, match="cannot cut"):
        split_even(count)


def test_a_range_holds_both_its_ends() -> None:
    """Inclusive on both sides, nothing beyond."""
    part = KeyRange(10, 20)

    assert [part.contains(point) for point in (9, 10, 20, 21)] == [False, True, True, False]


def test_long_max_value_belongs_to_the_last_range() -> None:
    """2**63 - 1, java.lang.Long.MAX_VALUE."""
    assert HASH_MAX == 9223372036854775807
    assert split_even(7)[-1].contains(HASH_MAX)


@pytest.mark.parametrize(("lo", "hi"), [(-1, 5), (6, 5), (0, HASH_MAX + 1)])
def test_a_range_outside_the_space_is_refused(lo: int, hi: int) -> None:
    """ValueError names the bounds."""
    with pytest.raises(ValueError, match=f"{lo}, {hi}"):
        KeyRange(lo, hi)


def test_ranges_sort_by_their_start() -> None:
    """By `lo`, then `hi`."""
    assert sorted([KeyRange(5, 9), KeyRange(0, 9), KeyRange(0, 4)]) == [
        KeyRange(0, 4),
        KeyRange(0, 9),
        KeyRange(5, 9),
    ]
