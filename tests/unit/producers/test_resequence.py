"""A new base sequence: the header changes, the records are a view, the CRC fits."""

from __future__ import annotations

import os

import pytest
from google_crc32c import value as crc32c

from keylane.errors import BatchCorrupt
from keylane.producers.resequence import append_zeros, resequence
from keylane.wire.batch import BATCH_HEADER, read_batch_header


def make_batch(records: bytes, *, epoch: int = 3, base_sequence: int = 40) -> bytes:
    head = bytearray(
        BATCH_HEADER.pack(0, 49 + len(records), -1, 2, 0, 0, 9, 5, 6, 77, epoch, base_sequence, 10)
    )
    head[17:21] = crc32c(bytes(head[21:]) + records).to_bytes(4, "big")
    return bytes(head) + records


@pytest.mark.parametrize("size", [0, 1, 4, 100, 65_537])
def test_the_crc_is_that_of_a_whole_reading(size: int) -> None:
    """The same batch built with the other sequence and epoch, byte for byte."""
    records = os.urandom(size)

    pieces = resequence(memoryview(make_batch(records)), 123_456, 9)

    assert b"".join(pieces) == make_batch(records, epoch=9, base_sequence=123_456)


def test_the_epoch_stays_unless_one_is_given() -> None:
    """Only the sequence changes."""
    pieces = resequence(memoryview(make_batch(b"records")), 7)

    assert b"".join(pieces) == make_batch(b"records", base_sequence=7)


def test_the_records_are_not_copied() -> None:
    """The second piece is a view of the batch that was given."""
    batch = make_batch(b"records")

    _, records = resequence(memoryview(batch), 7)

    assert isinstance(records, memoryview)
    assert records.obj is batch


def test_a_corrupt_batch_stays_corrupt() -> None:
    """A flipped bit in the records is still caught by the new CRC."""
    batch = bytearray(make_batch(b"records"))
    batch[-1] ^= 1

    out = b"".join(resequence(memoryview(bytes(batch)), 7))

    found = read_batch_header(out, 0)
    assert found is not None
    assert found[0].crc != crc32c(out[21:])


@pytest.mark.parametrize("cut", [b"", make_batch(b"r")[:-1], make_batch(b"r") + b"x"])
def test_what_is_not_one_batch_is_refused(cut: bytes) -> None:
    """BatchCorrupt for nothing, a cut batch, and bytes behind it."""
    with pytest.raises(BatchCorrupt):
        resequence(memoryview(cut), 7)


def test_zeros_advance_the_register_as_bytes_do() -> None:
    """For 0 to 300 and 10^6 bytes: equal to reading them."""
    for count in (*range(300), 1_000_000):
        read = crc32c(b"abc" + bytes(count)) ^ crc32c(bytes(3 + count))

        assert append_zeros(crc32c(b"abc") ^ crc32c(bytes(3)), count) == read
