"""Samples: what they stand for, distinct keys, and samples that chance could have given."""

from __future__ import annotations

import numpy as np
import pytest

from keylane.advise.sample import SampledPartition, TopicSample, estimate_distinct
from tests.reference.advise_topics import sample_of


def test_a_sample_is_brought_up_to_the_records_of_each_partition() -> None:
    """Ten records of either partition; the second stands for three times as many."""
    first, second = sample_of([1] * 10).partitions[0], sample_of([2] * 10, scale=3).partitions[0]

    sample = TopicSample("orders", [first, second])

    assert sample.keys().partition_shares == (0.25, 0.75)
    assert sample.record_count == 20
    assert sample.records_in_range == 40
    assert sample.wire_bytes == 40
    assert sample.seconds == 0.09


def test_offsets_without_a_record_do_not_count() -> None:
    """Half of the offsets that were looked at hold a record, so half of the range does."""
    piece = sample_of([1] * 10).partitions[0].pieces[0]._replace(end=20)

    part = SampledPartition(0, 1000, (piece,))

    assert part.density == 0.5
    assert part.records_in_range == 500
    assert TopicSample("orders", [part]).density == 0.5


def test_a_partition_that_was_not_reached_counts_with_its_offsets() -> None:
    """Its load is taken for even, and the others' for what was read."""
    sample = TopicSample("orders", [*sample_of([1] * 10).partitions, SampledPartition(0, 30, ())])

    keys = sample.keys()

    assert keys.partition_shares == (0.25, 0.75)
    assert keys.hot_keys(2) == [(0, 1, 0.25)]


def test_a_key_in_two_partitions_is_one_distinct_key() -> None:
    """Where all was read the count is exact."""
    assert sample_of([1, 2, 3], [3, 4, None]).distinct_keys() == 4


def test_redrawn_samples_are_spread_as_chance_spreads_them() -> None:
    """A key with a tenth of 3,200 records varies by about its count's square root."""
    chance = np.random.default_rng(5)
    hashes = [1 if chance.random() < 0.1 else 2 + n for n in range(3200)]
    sample = sample_of(hashes)

    shares = [sample.redrawn(chance).hottest_share for _ in range(200)]

    assert np.mean(shares) == pytest.approx(sample.keys().hottest_share, rel=0.03)
    assert np.std(shares) == pytest.approx((0.1 * 0.9 / 3200) ** 0.5, rel=0.4)


def test_distinct_keys_are_estimated_from_those_seen_once_and_twice() -> None:
    """Of 1,000 equal keys in 100,000 records a sample of 2,000 shows 865; the estimate is near."""
    chance = np.random.default_rng(3)
    drawn = np.repeat(np.arange(1000), 100)
    chance.shuffle(drawn)
    _, counts = np.unique(drawn[:2000], return_counts=True)

    found = estimate_distinct(counts, 2000 / 100_000)

    assert len(counts) < 900
    assert found == pytest.approx(1000, rel=0.05)


def test_keys_that_never_repeat_are_as_many_as_records() -> None:
    """Each key was seen once: there are no more than records."""
    assert estimate_distinct(np.ones(100, np.int64), 0.01) == pytest.approx(9_901, rel=0.02)
