"""Lanes as partitions: numbering both ways, key ranges, kernel limits."""

from __future__ import annotations

import numpy as np
import pytest

from keylane.keyrange.key_split import LaneCuts
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX, LANE_COUNT_MAX, KeyRange


@pytest.mark.parametrize(("partitions", "lanes"), [(1, 1), (2, 8), (3, 5), (7, 16)])
def test_an_index_names_one_lane_of_one_partition(partitions: int, lanes: int) -> None:
    """lane_index, partition_of and lane_of are inverse; every index is used once."""
    layout = LaneLayout(partitions, lanes)
    seen = [layout.lane_index(p, lane) for lane in range(lanes) for p in range(partitions)]

    assert seen == list(range(layout.index_count))
    for index in seen:
        assert layout.lane_index(layout.partition_of(index), layout.lane_of(index)) == index


def test_a_producers_default_partitioner_lands_on_the_same_partition() -> None:
    """(h % PL) % P = h % P, for a producer that sees the lanes as partitions."""
    layout = LaneLayout(6, 16)

    for hashed in range(0, 100_000, 997):
        assert layout.partition_of(hashed % layout.index_count) == hashed % 6


def test_limits_are_the_ends_of_the_key_ranges() -> None:
    """Exclusive upper bounds of the lanes; the last is 2**63."""
    layout = LaneLayout(2, 5)

    assert layout.key_split(1).limits.dtype == np.uint64
    assert layout.key_split(1).limits.tolist() == [
        layout.key_range(1, lane).hi + 1 for lane in range(5)
    ]
    assert int(layout.key_split(1).limits[-1]) == HASH_MAX + 1


def test_limits_are_shared_and_read_only() -> None:
    """Equal lane counts give one array, which no holder can change under another."""
    assert LaneLayout(1, 9).key_split(0).limits is LaneLayout(4, 9).key_split(0).limits
    with pytest.raises(ValueError, match="read-only"):
        LaneLayout(1, 9).key_split(0).limits[0] = 1


@pytest.mark.parametrize(("partitions", "lanes"), [(0, 1), (1, 0), (1, LANE_COUNT_MAX + 1)])
def test_a_layout_without_lanes_is_refused(partitions: int, lanes: int) -> None:
    """ValueError says which count."""
    with pytest.raises(ValueError, match="must be"):
        LaneLayout(partitions, lanes)


def test_what_is_outside_the_layout_is_refused() -> None:
    """ValueError for a partition, lane or index that is not there."""
    layout = LaneLayout(2, 4)

    for call in (
        lambda: layout.lane_index(2, 0),
        lambda: layout.lane_index(0, 4),
        lambda: layout.lane_index(-1, 0),
        lambda: layout.partition_of(8),
        lambda: layout.lane_of(-1),
        lambda: layout.key_range(0, 4),
        lambda: layout.key_range(2, 0),
    ):
        with pytest.raises(ValueError, match=r"no lane|no interval 4 of 4"):
            call()


@pytest.mark.parametrize(
    "layout",
    [
        LaneLayout(2, 4),
        LaneLayout(2, 12, hash="murmur2"),
        LaneLayout(2, 3, LaneCuts.of([[5, 9], [7, 11]])),
    ],
    ids=["even", "murmur2", "cuts"],
)
def test_the_lane_with_a_key_range_is_found(layout: LaneLayout) -> None:
    """Each by its own range; none by a range that is larger, smaller, or over an end."""
    for lane in range(layout.lane_count):
        part = layout.key_range(1, lane)
        assert layout.lane_with(1, part) == lane
        assert layout.lane_with(1, KeyRange(part.lo, part.hi - 1)) is None
        assert layout.lane_with(1, KeyRange(part.lo + 1, part.hi)) is None
    assert layout.lane_with(1, KeyRange(0, HASH_MAX)) is None


def test_layouts_of_two_hashes_differ() -> None:
    """In their splits and in what the journal keeps of them; partitions matter to one alone."""
    plain, hashed, wider = LaneLayout(2, 4), LaneLayout(2, 4, hash="murmur2"), LaneLayout(3, 8)

    assert plain != hashed
    assert plain.key_split(0) != hashed.key_split(0)
    assert (plain.fingerprint, len(hashed.fingerprint)) == (b"", 32)
    assert plain.key_hash == wider.key_hash
    assert hashed.key_hash != LaneLayout(3, 4, hash="murmur2").key_hash
    assert hashed.key_split(0) is hashed.key_split(1)


def test_lanes_by_murmur2_have_no_cuts() -> None:
    """Free cuts would break the promise that a lane index is a partition."""
    cuts = LaneCuts.of([[100], [100]])

    with pytest.raises(ValueError, match="murmur2 have no cuts"):
        LaneLayout(2, 2, cuts, "murmur2")
