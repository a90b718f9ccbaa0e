"""proxy/topics/range_table.py: readers of the keys of each partition, changed all at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import AssignmentInvalid, RangesOverlap
from keylane.keyrange.space import HASH_MAX, WHOLE, KeyRange, merge_ranges
from keylane.proxy.topics import range_table
from keylane.proxy.topics.range_table import RangeTable, RangeTableHolder

MIDDLE = HASH_MAX // 2
LOW, HIGH = KeyRange(0, MIDDLE - 1), KeyRange(MIDDLE, HASH_MAX)
SMALL = 30
"""Hashes of the property tests: few, so that ranges touch and overlap."""
BOUNDS = st.integers(0, SMALL - 1)
PARTS = st.tuples(BOUNDS, BOUNDS).map(lambda ends: KeyRange(min(ends), max(ends)))
ASSIGNMENTS = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.integers(0, 1), st.lists(PARTS, max_size=3), max_size=2),
    max_size=2,
)
CHANGES = st.dictionaries(
    st.sampled_from(["c1", "c2", "c3"]), st.none() | ASSIGNMENTS, min_size=1, max_size=3
)


def test_an_empty_table_knows_no_client() -> None:
    """Version 0: no client, no owner, no topic."""
    table = RangeTableHolder().table

    assert table.version == 0
    assert table.ranges_of("c1", "orders") is None
    assert table.owners("orders", 0) == ()
    assert table.topics() == frozenset()


def test_a_whole_partition_and_half_of_one() -> None:
    """`{tp0: [], tp1: [(0, N//2-1)]}` is all of tp0 and half of tp1."""
    table = RangeTable().with_clients({"c1": {"orders": {0: [], 1: [LOW]}}})

    assert table.version == 1
    assert table.ranges_of("c1", "orders") == {0: (KeyRange(0, HASH_MAX),), 1: (LOW,)}
    assert table.ranges_of("c1", "other") is None
    assert table.ranges_of("c2", "orders") is None
    assert table.owners("orders", 0) == (("c1", WHOLE),)
    assert table.topics() == {"orders"}


def test_owners_stand_in_the_order_of_their_names() -> None:
    """Two halves, given in any order, are listed by client id."""
    table = RangeTable().with_clients({"z": {"orders": {0: [LOW]}}, "a": {"orders": {0: [HIGH]}}})

    assert table.owners("orders", 0) == (("a", (HIGH,)), ("z", (LOW,)))


def test_a_dead_ones_range_is_taken_over_in_one_change() -> None:
    """Deleting one and setting another at once never overlaps, the old table stays."""
    before = RangeTable().with_clients({"a": {"orders": {0: [LOW]}}, "b": {"orders": {0: [HIGH]}}})

    after = before.with_clients({"a": None, "c": {"orders": {0: [LOW]}}})

    assert after.version == before.version + 1
    assert after.owners("orders", 0) == (("b", (HIGH,)), ("c", (LOW,)))
    assert before.owners("orders", 0) == (("a", (LOW,)), ("b", (HIGH,)))


def test_a_new_assignment_replaces_all_of_the_old_one() -> None:
    """A client's assignment is one value: topics that the new one lacks are gone."""
    table = RangeTable().with_clients({"a": {"orders": {0: []}, "shop": {0: []}}})

    table = table.with_clients({"a": {"shop": {1: []}}})

    assert table.ranges_of("a", "orders") is None
    assert table.ranges_of("a", "shop") == {1: WHOLE}
    assert table.topics() == {"shop"}


@pytest.mark.parametrize("is_newcomer_first", [True, False])
def test_an_overlap_is_refused_with_its_place(*, is_newcomer_first: bool) -> None:
    """The error names client, topic, partition and both ranges, the last one first."""
    one, other = KeyRange(0, 100), KeyRange(100, 200)
    old, new = (other, one) if is_newcomer_first else (one, other)
    table = RangeTable().with_clients({"old": {"orders": {3: [old]}}})

    with pytest.raises(RangesOverlap) as caught:
        table.with_clients({"new": {"orders": {3: [new]}}})

    error = caught.value
    assert (error.client_id, error.key_range) == ("new", (new.lo, new.hi))
    assert (error.other_client_id, error.other_range) == ("old", (old.lo, old.hi))
    assert (error.topic, error.partition) == ("orders", 3)
    assert str(error) == (
        f"topic orders partition 3: [{new.lo}, {new.hi}] of client 'new' overlaps"
        f" [{old.lo}, {old.hi}] of client 'old'"
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"": {}}, "client '': a client id has"),
        ({"x" * 250: {}}, "a client id has"),
        ({"a\nb": {}}, "a client id has"),
        ({"a": {"no topic": {0: []}}}, "client 'a' topic 'no topic': no name"),
        ({"a": {"..": {0: []}}}, "no name of a topic"),
        ({"a": {"t": {-1: []}}}, "client 'a' topic 't' partition -1: a partition is"),
        ({"a": {"t": {2**31: []}}}, "a partition is"),
        ({"a": {"t": {0: [LOW] * 10_001}}}, "10001 key ranges"),
    ],
)
def test_what_is_out_of_bounds_is_refused(changes: Any, text: str) -> None:
    """Names, numbers and counts are bounded, and the error says where."""
    with pytest.raises(AssignmentInvalid, match=text):
        RangeTable().with_clients(changes)


def test_the_whole_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client, or one range, more than has room is refused."""
    monkeypatch.setattr(range_table, "CLIENTS_MAX", 2)
    monkeypatch.setattr(range_table, "RANGES_MAX", 3)
    table = RangeTable().with_clients({"a": {}, "b": {"t": {0: [], 1: [], 2: []}}})

    with pytest.raises(AssignmentInvalid, match="3 clients"):
        table.with_clients({"c": {}})
    with pytest.raises(AssignmentInvalid, match="4 key ranges"):
        table.with_clients({"a": {"t": {3: []}}})


@given(st.lists(PARTS, max_size=6))
def test_merged_ranges_hold_the_same_hashes(ranges: list[KeyRange]) -> None:
    """Merged ranges are sorted, have a gap between them, and hold just what was given."""
    merged = merge_ranges(ranges)

    assert all(one.hi + 1 < other.lo for one, other in pairwise(merged))
    for key_hash in range(SMALL):
        inside = any(part.contains(key_hash) for part in ranges)
        assert any(part.contains(key_hash) for part in merged) == inside


@given(st.lists(CHANGES, max_size=6))
def test_a_table_is_what_its_naive_twin_is(history: list[dict[str, Any]]) -> None:
    """After any history each hash of each partition has the owner that a plain dict says."""
    table, twin = RangeTable(), dict[str, Any]()
    for changes in history:
        wanted = {**twin, **changes}
        places = [
            (topic, partition, key_hash, client)
            for client, assignment in wanted.items()
            for topic, partitions in (assignment or {}).items()
            for partition, ranges in partitions.items()
            for key_hash in (*range(SMALL), HASH_MAX)
            if not ranges or any(part.contains(key_hash) for part in ranges)
        ]
        if len({place[:3] for place in places}) != len(places):
            with pytest.raises(RangesOverlap):
                table.with_clients(changes)
            continue
        table, twin = table.with_clients(changes), wanted
        for topic, partition, key_hash, client in places:
            owned = dict(table.owners(topic, partition))
            assert any(part.contains(key_hash) for part in owned[client])
            assert (table.ranges_of(client, topic) or {})[partition] == owned[client]
        assert table.topics() == {topic for topic, *_ in places}
        assert table.clients.keys() == {name for name, value in twin.items() if value is not None}
