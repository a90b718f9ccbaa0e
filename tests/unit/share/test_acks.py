"""Acknowledgements in batches: brokers' checks, halves, and runs of one type."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from keylane.share.acks import (
    OFFSETS_MAX,
    check_batches,
    halves_of,
    has_renewals,
    ranges_without,
    runs_of,
)
from keylane.wire.share import ACCEPT, GAP, REJECT, RELEASE, RENEW, AckBatch

ONE = bytes((ACCEPT,))
kinds_of = st.dictionaries(st.integers(0, 60), st.sampled_from([ACCEPT, RELEASE, REJECT]))


def offsets_of(batches: list[AckBatch]) -> list[tuple[int, int]]:
    return [(offset, b.types[0]) for b in batches for offset in range(b.first, b.last + 1)]


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [AckBatch(0, 0, ONE)],
        [AckBatch(3, 5, ONE), AckBatch(6, 7, bytes((GAP, RENEW)))],
        [AckBatch(0, OFFSETS_MAX - 1, ONE)],
    ],
)
def test_batches_that_ascend_are_taken(batches: list[AckBatch]) -> None:
    """With one type for all offsets, or one for each."""
    assert check_batches(batches) == 0


@pytest.mark.parametrize(
    "batches",
    [
        [AckBatch(5, 4, ONE)],
        [AckBatch(-1, 4, ONE)],
        [AckBatch(0, 4, ONE), AckBatch(4, 5, ONE)],
        [AckBatch(7, 8, ONE), AckBatch(4, 5, ONE)],
        [AckBatch(0, 4, b"")],
        [AckBatch(0, 4, ONE * 2)],
        [AckBatch(0, 0, bytes((RENEW + 1,)))],
        [AckBatch(0, 1, b"\x01\xff")],
        [AckBatch(0, OFFSETS_MAX, ONE)],
        [AckBatch(0, 2**63 - 1, ONE)],
    ],
)
def test_batches_that_no_broker_takes_are_refused(batches: list[AckBatch]) -> None:
    """They overlap, go back, have no offset, wrong types, or far more offsets than a window."""
    assert check_batches(batches) == ErrorCode.invalid_request


def test_a_renewal_is_seen_among_other_types() -> None:
    """In any batch, at any offset."""
    assert has_renewals([AckBatch(0, 0, ONE), AckBatch(1, 2, bytes((ACCEPT, RENEW)))])
    assert not has_renewals([AckBatch(0, 5, ONE)])


@given(kinds=kinds_of, gaps=st.sets(st.integers(61, 80)))
def test_runs_are_the_offsets_that_they_are_made_of(kinds: dict[int, int], gaps: set[int]) -> None:
    """In the form that brokers take, with no two neighbours of one type apart."""
    batches = runs_of(kinds.items(), [(gap, gap) for gap in gaps])

    assert offsets_of(batches) == sorted([*kinds.items(), *((gap, GAP) for gap in gaps)])
    assert check_batches(batches) == 0
    for before, after in itertools.pairwise(batches):
        assert before.last + 1 < after.first or before.types != after.types


@given(kinds=kinds_of)
def test_halves_keep_all_offsets(kinds: dict[int, int]) -> None:
    """As many in each, and the lower ones first; one offset is the upper half."""
    batches = runs_of(kinds.items(), ())

    lower, upper = halves_of(batches)

    assert offsets_of(lower) + offsets_of(upper) == offsets_of(batches)
    assert len(offsets_of(lower)) == len(kinds) // 2


@given(st.sets(st.integers(0, 30)), st.integers(0, 30), st.integers(-1, 30))
def test_ranges_have_all_other_offsets(offsets: set[int], first: int, last: int) -> None:
    """Each of them once, and none of those that are left out."""
    ranges = ranges_without(offsets, first, last)

    found = [offset for low, high in ranges for offset in range(low, high + 1)]
    assert found == [each for each in range(first, last + 1) if each not in offsets]
