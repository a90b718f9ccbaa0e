"""Loads by key: shares, hot keys, and what a Spark profile becomes."""

from __future__ import annotations

import pytest

from keylane.advise.keys import TopicKeys, keys_of_profile, unseen_partition
from keylane.assignor.profile import HeavyKey, LoadProfile, PartitionLoad
from tests.reference.advise_topics import keys_of

QUARTER = 2**61


def test_hot_keys_come_heaviest_first_with_their_share_of_all() -> None:
    """A key of partition 1 with half of all records stands before one of partition 0."""
    keys = keys_of({5: 30, 6: 10}, {7: 50}, keyless=[10, 0])

    found = keys.hot_keys(2)

    assert found == [(1, 7, 0.5), (0, 5, 0.3)]
    assert keys.hottest_share == 0.5
    assert keys.keyless_share == 0.1
    assert keys.partition_shares == (0.5, 0.5)
    assert keys.record_bytes == 100


def test_a_topic_without_records_has_no_shares() -> None:
    """Nothing is divided by zero."""
    keys = keys_of({}, {})

    assert keys.hot_keys(5) == []
    assert (keys.hottest_share, keys.keyless_share, keys.record_bytes) == (0, 0, 0)
    assert keys.partition_shares == (0.0, 0.0)


def test_a_partition_that_was_not_read_is_even() -> None:
    """Four lanes have a quarter each, and no key is known."""
    part = unseen_partition(1000, 50)

    lanes = TopicKeys("orders", (part,)).lanes(4)

    assert lanes.records.tolist() == [[250.0] * 4]
    assert lanes.size_bytes.sum() == 50_000
    assert lanes.hottest.max() == 0


def profile_of(*, keyless: int = 0) -> LoadProfile:
    """Four buckets of 100 records, of which the third is one heavy key, but for 20."""
    return LoadProfile(
        topic="orders",
        bits=2,
        partitions=(
            PartitionLoad(
                start=0,
                end=400,
                records=(100, 100, 100, 100),
                size_bytes=(1000, 1000, 1000, 1000),
                keyless_records=keyless,
                keyless_bytes=10 * keyless,
                distinct_keys=50,
            ),
        ),
        heavy=(HeavyKey(partition=0, key_hash=2 * QUARTER + 3, records=80, size_bytes=800),),
    )


def test_a_profile_has_its_heavy_keys_beside_the_rest_of_their_buckets() -> None:
    """80 of 400 records are one key; no bucket counts twice."""
    keys = keys_of_profile(profile_of())

    assert keys.record_count == 400
    assert keys.hot_keys(3) == [(0, 2 * QUARTER + 3, 0.2)]
    assert keys.lanes(4).records.tolist() == [[100.0] * 4]
    assert keys.lanes(4).hottest.tolist() == [[0, 0, 80, 0]]


def test_records_without_a_key_leave_the_buckets_of_a_profile() -> None:
    """A profile counts them by the hash of their offset, and so evenly."""
    keys = keys_of_profile(profile_of(keyless=40))

    assert keys.record_count == pytest.approx(400)
    assert keys.keyless_share == pytest.approx(0.1)
    assert keys.lanes(2).records.sum() == pytest.approx(400)
