"""Records of an answer as a piece of a sample: hashes, sizes, offsets, the batches' bytes."""

from __future__ import annotations

import pytest

from keylane.advise.fetching import make_piece
from keylane.advise.sample import SamplePiece
from keylane.kernel.fetched import read_fetched
from keylane.keyrange.hash import key_hash
from tests.reference.batches import Batch, Record, write_batch

RECORDS = (
    Record(0, b"a", b"12345"),
    Record(1, None, b"123"),
    Record(2, b"", None, timestamp_delta=40),
    Record(4, b"a", b"1", headers=((b"h", b"v"),)),
)
"""Offset 3 is compacted away."""


def piece_of(start: int, end: int, *, form: str, cut: int = 0) -> SamplePiece:
    """The piece of an answer with one batch at offset 100, and `cut` bytes of another."""
    batch = write_batch(Batch(100, RECORDS, form=form))
    data = memoryview(batch + batch[:cut])
    fields = read_fetched(data, from_offset=start, plain_bytes_max=1 << 20, batch_bytes_max=1 << 20)
    assert fields is not None
    return make_piece(fields, data, start, end)


@pytest.mark.parametrize("form", ["none", "zstd"])
def test_keys_are_hashed_as_lanes_hash_them(form: str) -> None:
    """An empty key is a key, and null is none; a header counts with its bytes."""
    piece = piece_of(100, 200, form=form, cut=50)

    size = len(write_batch(Batch(100, RECORDS, form=form)))
    assert piece.hashes.tolist() == [key_hash(b"a"), 0, key_hash(b""), key_hash(b"a")]
    assert piece.has_key.tolist() == [True, False, True, True]
    assert piece.size_bytes.tolist() == [6, 3, 0, 2 + 4]
    assert (piece.timestamps_ms - piece.timestamps_ms[0]).tolist() == [0, 0, 40, 0]
    assert (piece.start, piece.end, piece.wire_bytes) == (100, 105, size)


def test_a_span_that_begins_within_a_batch_has_its_part_of_the_bytes() -> None:
    """Two of four records of the batch: half of its bytes, and not all of them."""
    piece = piece_of(102, 200, form="none")

    size = len(write_batch(Batch(100, RECORDS, form="none")))
    assert len(piece.hashes) == 2
    assert piece.wire_bytes == size // 2


def test_records_behind_the_span_are_left_out() -> None:
    """Up to offset 102 there are two records, and the piece covers no more."""
    piece = piece_of(100, 102, form="none")

    assert len(piece.hashes) == 2
    assert (piece.start, piece.end) == (100, 102)


def test_a_span_whose_records_are_compacted_away_covers_its_offsets() -> None:
    """Offset 103 has no record: the piece says so by its offsets."""
    piece = piece_of(103, 104, form="none")

    assert len(piece.hashes) == 0
    assert (piece.start, piece.end, piece.wire_bytes) == (103, 104, 0)
