"""Known answers of the model."""

from __future__ import annotations

import numpy as np
import pytest

from keylane.advise.speedup import (
    deal_lanes,
    direct_parallel,
    find_speedup,
    key_ceiling,
    member_loads,
    sweep,
    workers_parallel,
)
from keylane.keyrange.space import HASH_MAX
from tests.reference.advise_topics import even_keys, keys_of

EIGHTH = HASH_MAX // 8 + 1


def test_even_keys_bring_one_time_more_for_each_member() -> None:
    """8 members do 8 times, less the tenth within which keylane moves no lane."""
    found = find_speedup(even_keys(2), 8, 16)

    assert found.parallel == pytest.approx(8, rel=0.1)
    assert found.bound == 8


def test_one_partition_of_equal_lanes_is_exact() -> None:
    """Eight keys, one in each of 8 lanes: 2, 4 and 8 members do as many times the work."""
    keys = keys_of({EIGHTH * number + 5: 10 for number in range(8)})

    found = [find_speedup(keys, members, 8).parallel for members in (1, 2, 3, 4, 8, 9)]

    assert found == [1, 2, pytest.approx(8 / 3), 4, 8, 8]


def test_a_hot_key_ends_it() -> None:
    """A key with half of all records: no number of members does more than twice one's work."""
    keys = keys_of({EIGHTH // 2: 800, **{EIGHTH * number + 9: 100 for number in range(8)}})

    found = [find_speedup(keys, members, 64).parallel for members in (2, 8, 64)]

    assert key_ceiling(keys) == 2
    assert found == [pytest.approx(2), pytest.approx(2), pytest.approx(2)]


def test_lanes_that_nothing_is_known_of_are_dealt_out_by_their_number() -> None:
    """Six of eight lanes are idle: at first one member may have both others; then not."""
    keys = keys_of({5: 100, EIGHTH + 5: 100})

    found = find_speedup(keys, 2, 8)

    assert found.parallel_first == 1
    assert found.parallel == 2


def test_records_without_a_key_are_in_all_lanes() -> None:
    """Nothing but the members bounds them."""
    keys = keys_of({}, keyless=[1000])

    assert key_ceiling(keys) is None
    assert find_speedup(keys, 4, 8).parallel == 4


def test_a_plain_group_is_as_fast_as_its_fullest_partitions() -> None:
    """Partitions with 4, 3, 2 and 1 tenths: one member each, or two members with two each."""
    keys = keys_of({1: 40}, {1: 30}, {1: 20}, {1: 10})

    assert direct_parallel(keys) == pytest.approx(2.5)
    assert direct_parallel(keys, 8) == pytest.approx(2.5)
    assert direct_parallel(keys, 2) == pytest.approx(1 / 0.6)
    assert direct_parallel(keys, 1) == pytest.approx(1)


def test_workers_are_held_up_by_the_hottest_key_of_a_process() -> None:
    """Ten equal keys at 4 records at once do 4 times; a key with half of all ends it at 2."""
    even = keys_of(dict.fromkeys(range(10), 10)).lanes(1)
    hot = keys_of({1: 50, 2: 25, 3: 25}).lanes(1)
    owners = np.zeros((1, 1), np.int64)

    assert workers_parallel(even, owners, 1, 4) == 4
    assert workers_parallel(hot, owners, 1, 64) == 2


def test_every_lane_is_at_one_member() -> None:
    """Loads of the members are those of the lanes."""
    lanes = even_keys(3).lanes(8)

    deal = deal_lanes(lanes, 5)

    for owners in (deal.first, deal.settled):
        assert set(owners.ravel().tolist()) == set(range(5))
        assert member_loads(lanes, owners, 5).sum() == lanes.total


def test_a_sweep_has_each_number_of_members_for_each_number_of_lanes() -> None:
    """One lane is a plain group; more lanes let more members work."""
    found = sweep(even_keys(2), [1, 4], [1, 8])

    assert [round(each.parallel) for each in found[1]] == [1, 2]
    assert [round(each.parallel) for each in found[8]] == [1, 4]
