"""The model of `keylane advise` beside its naive twin, and the bounds that nothing exceeds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keylane.advise.keys import Floats, TopicKeys
from keylane.advise.sample import estimate_distinct
from keylane.advise.spans import SPANS, plan_spans, share_out
from keylane.advise.speedup import (
    bound_of,
    deal_lanes,
    direct_parallel,
    find_speedup,
    key_ceiling,
    serial_parallel,
    workers_parallel,
)
from keylane.keyrange.space import HASH_MAX
from tests.reference import advise as twin
from tests.reference.advise_topics import keys_of, sample_of

SLIGHTLY = 1 + 1e-9
MARGIN = 1.101
"""Of keylane's assignor: 1.10, and its weights are whole numbers."""

hashes = st.integers(0, HASH_MAX)
loads = st.dictionaries(hashes, st.integers(1, 1_000), max_size=30)
keyless = st.integers(0, 500)
partitions = st.lists(st.tuples(loads, keyless), min_size=1, max_size=4)


def topic_of(rows: list[tuple[dict[int, int], int]]) -> TopicKeys:
    return keys_of(*(keys for keys, _ in rows), keyless=[none for _, none in rows])


@given(rows=partitions, lane_count=st.integers(1, 9))
def test_lanes_have_what_the_twin_gives_them(rows, lane_count) -> None:
    """Records of each lane are those of the keys in its range, and a part of the keyless ones."""
    records = {(place, key): n for place, (keys, _) in enumerate(rows) for key, n in keys.items()}

    found = topic_of(rows).lanes(lane_count)

    expected = twin.lane_loads(records, [none for _, none in rows], lane_count)
    assert found.records.tolist() == [pytest.approx(row) for row in expected]
    assert found.size_bytes == pytest.approx(found.records * 100)
    hottest = max(records.values(), default=0)
    assert found.hottest.max() == hottest


def least_busiest(lane_loads: Floats, members: int) -> float:
    """Load below which no plan brings the busiest member.

    It is the mean at least, and of k * members + 1 lanes some member has k + 1 of them.
    """
    descending = np.sort(lane_loads)[::-1]
    sums = [
        float(descending[count - count // members : count + 1].sum())
        for count in range(0, descending.size, members)
    ]
    return max(float(lane_loads.sum()) / members, *sums)


@settings(max_examples=60, deadline=None)
@given(rows=partitions, members=st.integers(1, 12), lane_count=st.sampled_from([1, 2, 3, 8, 16]))
@example(rows=[({}, 0), ({}, 1), ({}, 1)], members=3, lane_count=2)
def test_no_speedup_exceeds_its_bounds(rows, members, lane_count) -> None:
    """Not the members, not the lanes, not the heaviest lane, not one part of the hottest key."""
    keys = topic_of(rows)
    if not keys.record_count:
        return

    found = find_speedup(keys, members, lane_count)

    ceiling = key_ceiling(keys)
    for parallel in (found.parallel, found.parallel_first):
        assert 1 / SLIGHTLY <= parallel <= members * SLIGHTLY
        assert parallel <= len(rows) * lane_count * SLIGHTLY
        assert parallel <= found.bound * SLIGHTLY
        assert ceiling is None or parallel <= ceiling * SLIGHTLY
    lanes = keys.lanes(lane_count)
    loads = np.bincount(
        deal_lanes(lanes, members).settled.ravel(), lanes.records.ravel(), minlength=members
    )
    allowed = max(MARGIN * least_busiest(lanes.records.ravel(), members), 2 * loads.min())
    noise = 40 / 1024 * lanes.total  # idle lanes weigh something, and weights are rounded
    assert loads.max() <= allowed + noise


@settings(max_examples=60, deadline=None)
@given(rows=partitions, members=st.integers(1, 20))
def test_bounds_grow_with_members_and_lanes(rows, members) -> None:
    """More members, and twice the lanes, never lower what is possible."""
    keys = topic_of(rows)
    if not keys.record_count:
        return

    by_members = [bound_of(keys.lanes(4), count) for count in (members, members + 1)]
    by_lanes = [bound_of(keys.lanes(count), members) for count in (2, 4, 8)]

    assert by_members == sorted(by_members)
    assert all(more >= less / SLIGHTLY for less, more in itertools.pairwise(by_lanes))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(loads, st.just(0)), min_size=1, max_size=2),
    members=st.integers(1, 3),
    lane_count=st.integers(1, 3),
)
def test_no_assignment_is_better_than_the_best_of_all(rows, members, lane_count) -> None:
    """The speed-up is that of an assignment, so that the best of all is no less."""
    keys = topic_of(rows)
    if not keys.record_count:
        return

    found = find_speedup(keys, members, lane_count)

    loads = keys.lanes(lane_count).records.ravel().tolist()
    assert found.parallel <= twin.best_parallel(loads, members) * SLIGHTLY


@settings(max_examples=60, deadline=None)
@given(rows=partitions, members=st.integers(1, 8), concurrency=st.integers(1, 32))
def test_workers_are_bounded_by_their_turns_and_by_the_hottest_key(
    rows, members, concurrency
) -> None:
    """Never below serial members, never above all turns or one part of the hottest key."""
    keys = topic_of(rows)
    if not keys.record_count:
        return
    lanes = keys.lanes(8)
    owners = deal_lanes(lanes, members).settled

    found = workers_parallel(lanes, owners, members, concurrency)

    ceiling = key_ceiling(keys)
    assert found >= serial_parallel(lanes, owners, members) / SLIGHTLY
    assert found <= members * concurrency * SLIGHTLY
    assert ceiling is None or found <= ceiling * SLIGHTLY


@given(rows=partitions, members=st.integers(1, 12))
def test_a_plain_group_uses_no_more_members_than_partitions(rows, members) -> None:
    """Its speed-up is at most the members, the partitions, and that of one per partition."""
    keys = topic_of(rows)

    found = direct_parallel(keys, members)

    assert 1 / SLIGHTLY <= found <= min(members, len(rows)) * SLIGHTLY
    assert found <= direct_parallel(keys) * SLIGHTLY


@given(start=st.integers(0, 10**12), count=st.integers(0, 10**9), wanted=st.integers(0, 10**7))
def test_spans_are_disjoint_and_inside_and_hold_what_is_wanted(start, count, wanted) -> None:
    """The newest offset comes first, and no offset is in two spans."""
    end = start + count

    spans = plan_spans(start, end, wanted)

    ordered = sorted(spans)
    assert all(start <= span.start < span.end <= end for span in spans)
    assert all(one.end <= two.start for one, two in itertools.pairwise(ordered))
    read = sum(span.end - span.start for span in spans)
    assert min(wanted, count) <= read or not spans
    assert read < wanted + SPANS or read == count
    assert not spans or spans[0].end == end


@given(
    counts=st.dictionaries(st.integers(0, 50), st.integers(0, 10**6), max_size=20),
    wanted=st.integers(1, 10**6),
)
def test_every_partition_with_records_is_sampled(counts, wanted) -> None:
    """By its part of all records, and never for more than it has."""
    shares = share_out(counts, wanted)

    assert shares.keys() == {part for part, count in counts.items() if count}
    assert all(0 < share <= counts[part] for part, share in shares.items())


@given(
    rows=st.lists(
        st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=50), min_size=1, max_size=3
    ),
    scale=st.integers(1, 1000),
    seed=st.integers(0, 1000),
)
def test_a_sample_stands_for_its_whole_range(rows, scale, seed) -> None:
    """Its keys have all records of the range, drawn anew or not."""
    sample = sample_of(*rows, scale=scale)
    expected = sum(len(row) for row in rows) * scale
    chance = np.random.default_rng(seed)

    for keys in (sample.keys(), sample.redrawn(chance)):
        assert keys.record_count == pytest.approx(expected)
    none = sum(key is None for row in rows for key in row) * scale
    assert sample.keys().keyless_share == pytest.approx(none / expected if expected else 0)


@given(counts=st.lists(st.integers(1, 20), min_size=1, max_size=50), share=st.floats(0.001, 1.0))
def test_distinct_keys_are_between_those_seen_and_all_records(counts, share) -> None:
    """No fewer than were seen, no more than unseen records could add."""
    drawn = sum(counts)

    found = estimate_distinct(np.array(counts, np.int64), share)

    assert len(counts) <= found <= len(counts) + drawn / share - drawn + 1e-6
