"""Lanes by murmur2: Kafka's partitioner says the same, for all partitions, lanes and keys."""

from __future__ import annotations

import numpy as np
import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from keylane.kernel.hashes import hash_murmur2, point_of_murmur2
from keylane.kernel.lane_table import hashing_of
from keylane.kernel.library import address_of, as_bytes_array
from keylane.kernel.split import split_block
from keylane.keyrange.hash import (
    KeyHash,
    murmur2,
    murmur2_hash,
    odd_part,
    offset_hash,
    positive_murmur2,
)
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX, LANE_COUNT_MAX
from tests.reference.batches import CODEC_FORMS, Batch, Record, write_batch
from tests.reference.murmur2 import VECTORS, default_partition, to_positive
from tests.reference.murmur2 import murmur2 as twin

BYTES_MAX = 1 << 22
positives = st.one_of(
    st.integers(0, 2**31 - 1), st.integers(0, 99), st.integers(2**31 - 99, 2**31 - 1)
)
partition_counts = st.one_of(st.integers(1, 9), st.integers(1, 2**31 - 1))
lane_counts = st.integers(1, LANE_COUNT_MAX)
keys = st.one_of(st.none(), st.just(b""), st.binary(max_size=9), st.binary(max_size=80))


@pytest.mark.parametrize(("key", "hashed"), VECTORS.items())
def test_kafkas_own_cases(key: bytes, hashed: int) -> None:
    """The hashes of Kafka's `UtilsTest`."""
    assert murmur2(key) == hashed % 2**32
    assert twin(key) == hashed


@given(key=st.binary(max_size=80))
def test_a_key_has_one_hash(key: bytes) -> None:
    """keylane, its kernel, the twin and aiokafka's default partitioner agree."""
    array = as_bytes_array(b"x" + key)

    by_kernel = int(hash_murmur2(address_of(array) + 1, len(key)))

    assert by_kernel == positive_murmur2(key) == to_positive(key)
    assert by_kernel == aiokafka_murmur2(key) & 0x7FFFFFFF


@given(positive=positives, partitions=partition_counts, lanes=lane_counts)
def test_a_lane_index_is_a_partition(positive: int, partitions: int, lanes: int) -> None:
    """The key's lane index is what the partitioner has for as many partitions."""
    layout = LaneLayout(partitions, lanes, hash="murmur2")

    lane = layout.key_split(0).output_at(layout.key_hash.point_of(positive))

    assert layout.lane_index(positive % partitions, lane) == positive % (partitions * lanes)
    assert layout.key_range(0, lane).contains(layout.key_hash.point_of(positive))


@given(positive=positives, partitions=partition_counts, lanes=lane_counts)
def test_the_kernel_has_the_same_point(positive: int, partitions: int, lanes: int) -> None:
    """A point is inside of the hash space, and the same in both."""
    rule = murmur2_hash(partitions, lanes)

    with np.errstate(over="ignore"):
        point = int(point_of_murmur2(np.uint64(positive), hashing_of(rule, 0)))

    assert point == rule.point_of(positive)
    assert 0 <= point <= HASH_MAX


@given(
    positive=positives,
    partitions=partition_counts,
    lanes=st.integers(1, LANE_COUNT_MAX // 2),
)
def test_twice_the_lanes_are_halves(positive: int, partitions: int, lanes: int) -> None:
    """Points stay, and each lane of the half as many covers two whole lanes."""
    few, many = (LaneLayout(partitions, n, hash="murmur2") for n in (lanes, 2 * lanes))
    point = few.key_hash.point_of(positive)

    outer = few.key_range(0, few.key_split(0).output_at(point))
    inner = many.key_range(0, many.key_split(0).output_at(point))

    assert few.key_hash == many.key_hash
    assert outer.lo <= inner.lo <= point <= inner.hi <= outer.hi


@given(lanes=lane_counts)
def test_each_lane_has_one_of_the_even_ranges(lanes: int) -> None:
    """Ranges of lanes are those of XXH64 in another order, so positions are as short to write."""
    plain, hashed = LaneLayout(2, lanes), LaneLayout(2, lanes, hash="murmur2")

    ranges = [hashed.key_range(1, lane) for lane in range(lanes)]

    assert sorted(ranges) == [plain.key_range(1, lane) for lane in range(lanes)]


@given(
    records=st.lists(st.tuples(keys, st.binary(max_size=9)), min_size=1, max_size=30),
    form=st.sampled_from(sorted(CODEC_FORMS)),
    partitions=st.integers(1, 5),
    lanes=st.sampled_from([1, 2, 6, 8, 24]),
    data=st.data(),
)
def test_a_block_is_split_by_kafkas_partitioner(
    records: list[tuple[bytes | None, bytes]],
    form: str,
    partitions: int,
    lanes: int,
    data: st.DataObject,
) -> None:
    """Each record is in its lane, and the first one of another partition is noticed."""
    partition = data.draw(st.integers(0, partitions - 1))
    layout = LaneLayout(partitions, lanes, hash="murmur2")
    split, wanted = layout.key_split(partition), dict.fromkeys(range(lanes), 0)
    for offset, (key, _) in enumerate(records, start=100):
        if key is None:
            wanted[split.output_at(offset_hash(offset))] += 1
        else:
            wanted[default_partition(key, partitions * lanes) // partitions] += 1
    wrong = [
        offset
        for offset, (key, _) in enumerate(records, start=100)
        if key is not None and default_partition(key, partitions) != partition
    ]
    batch = Batch(
        100, tuple(Record(delta, *each, (), 0) for delta, each in enumerate(records)), form=form
    )

    block = split_block(
        write_batch(batch),
        split,
        plain_bytes_max=BYTES_MAX,
        batch_bytes_max=BYTES_MAX,
        partition=partition,
    )

    assert block is not None
    counts = [0 if part is None else part.record_count for part in block.outputs]
    assert counts == list(wanted.values())
    assert block.misplaced_offset == (wrong[0] if wrong else -1)


@given(lanes=lane_counts, other=lane_counts)
def test_only_counts_of_one_odd_part_share_a_space(lanes: int, other: int) -> None:
    """Others are refused, and never taken for the same."""
    rule = KeyHash("murmur2", 3, odd_part(lanes))

    if odd_part(lanes) == odd_part(other):
        assert sorted(rule.lane_order(other) or ()) == list(range(other))
        assert rule == murmur2_hash(3, other)
        return
    with pytest.raises(ValueError, match="times a power of two"):
        rule.lane_order(other)
    assert rule.tag != murmur2_hash(3, other).tag
