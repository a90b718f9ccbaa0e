"""Rates and lag from two looks at offsets."""

from __future__ import annotations

import pytest

from keylane.advise.facts import Look, find_group, produced_per_s


def look(at_s: float, ends: list[int], committed: list[int | None]) -> Look:
    """Offsets by partition, from 0 on."""
    found = {part: at for part, at in enumerate(committed) if at is not None}
    return Look(at_s=at_s, ends=dict(enumerate(ends)), committed=found)


def test_rates_are_of_the_time_between_the_looks() -> None:
    """In ten seconds 200 records came and 100 were consumed; 150 wait."""
    first = look(5.0, [100, 100], [100, 50])
    second = look(15.0, [200, 200], [200, 50])

    group = find_group("billing", 2, first, second)

    assert produced_per_s(first, second) == 20
    assert group.consumed_per_s == 10
    assert group.lag == 150
    assert group.behind_count == 1


def test_the_work_follows_from_members_that_lag() -> None:
    """Two partitions lag, 50 records/s are done: a record takes 40 ms."""
    first = look(0.0, [1000, 1000, 10], [0, 0, 10])
    second = look(10.0, [1000, 1000, 10], [200, 300, 10])

    group = find_group("billing", 3, first, second)

    assert group.work_s == pytest.approx(0.04)


def test_one_member_that_has_all_partitions_is_one_that_works() -> None:
    """Two partitions lag at one member: 20 ms."""
    first, second = look(0.0, [1000, 1000], [0, 0]), look(10.0, [1000, 1000], [200, 300])

    assert find_group("billing", 1, first, second).work_s == pytest.approx(0.02)


def test_a_group_that_keeps_up_or_stands_says_nothing_of_its_work() -> None:
    """None of its members is known to be busy."""
    still = find_group("g", 1, look(0.0, [100], [50]), look(10.0, [100], [50]))
    ahead = find_group("g", 1, look(0.0, [100], [100]), look(10.0, [200], [200]))

    assert still.work_s is None
    assert ahead.work_s is None


def test_a_group_that_was_set_back_consumes_nothing() -> None:
    """A reset between the looks is no negative rate, and a partition without an offset no lag."""
    group = find_group("g", 1, look(0.0, [100, 9], [90, None]), look(1.0, [100, 9], [10, None]))

    assert group.consumed_per_s == 0
    assert group.lag == 90
    assert group.committed_count == 1
