"""The batch header: read whole, cut, old and lying ones; write the empty one."""

from __future__ import annotations

import struct
from dataclasses import replace

import google_crc32c
import pytest

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.wire.batch import (
    BATCH_HEADER_BYTES,
    CODEC_GZIP,
    CONTROL_BIT,
    OFFSET_DELTA_MAX,
    drop_empty_batches,
    read_batch_header,
    write_empty_batch,
    write_passed_batch,
)
from tests.reference.batches import Batch, Record, control_batch, write_batch

BATCH = write_batch(
    Batch(
        70,
        (Record(0, b"k", b"v"), Record(9, b"k", b"w")),
        form="gzip",
        leader_epoch=3,
        flags=0x10,
        producer_id=11,
        producer_epoch=2,
        base_sequence=40,
    )
)


def test_every_field_is_read() -> None:
    """All 13 fields in wire order, and the size of the whole batch."""
    found = read_batch_header(b"before" + BATCH + b"after", 6)

    assert found is not None
    header, size_bytes = found
    assert size_bytes == len(BATCH) == header.batch_length + 12
    assert (header.base_offset, header.last_offset_delta, header.last_offset) == (70, 9, 79)
    assert (header.partition_leader_epoch, header.magic, header.record_count) == (3, 2, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 2, 40)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_999)
    assert header.crc == google_crc32c.value(BATCH[21:])
    assert header.codec == CODEC_GZIP
    assert header.is_transactional and not header.attributes & CONTROL_BIT


def test_a_marker_is_a_control_batch() -> None:
    """Both bits of a transaction marker."""
    found = read_batch_header(write_batch(control_batch(5, 11, commit=True)), 0)

    assert found is not None
    assert found[0].attributes & CONTROL_BIT and found[0].is_transactional


@pytest.mark.parametrize("size", [0, 1, BATCH_HEADER_BYTES - 1, BATCH_HEADER_BYTES, len(BATCH) - 1])
def test_a_cut_batch_is_no_batch(size: int) -> None:
    """None: a broker may cut the last batch of a fetch."""
    assert read_batch_header(memoryview(BATCH)[:size], 0) is None


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_magic_is_unsupported(magic: int) -> None:
    """BatchUnsupported with the position."""
    old = bytearray(BATCH)
    old[16] = magic

    with pytest.raises(BatchUnsupported, match="at byte 0"):
        read_batch_header(bytes(old), 0)


@pytest.mark.parametrize("magic", [3, -1, 127])
def test_an_unknown_magic_is_corrupt(magic: int) -> None:
    """BatchCorrupt, and not the kind that is merely unsupported."""
    bad = bytearray(BATCH)
    struct.pack_into(">b", bad, 16, magic)

    with pytest.raises(BatchCorrupt) as caught:
        read_batch_header(bytes(bad), 0)

    assert not isinstance(caught.value, BatchUnsupported)


@pytest.mark.parametrize("length", [48, 0, -1, -(2**31)])
def test_a_length_too_small_for_a_header_is_corrupt(length: int) -> None:
    """BatchCorrupt with the length."""
    bad = bytearray(BATCH)
    struct.pack_into(">i", bad, 8, length)

    with pytest.raises(BatchCorrupt, match=str(length)):
        read_batch_header(bytes(bad), 0)


@pytest.mark.parametrize(("base", "last"), [(0, 0), (7, 7), (2**40, 2**40 + OFFSET_DELTA_MAX)])
def test_an_empty_batch_covers_its_offsets(base: int, last: int) -> None:
    """Header only, a good CRC, no producer, no record."""
    batch = write_empty_batch(base, last, 4)
    found = read_batch_header(batch, 0)

    assert found is not None
    header, size_bytes = found
    assert size_bytes == len(batch) == BATCH_HEADER_BYTES
    assert (header.base_offset, header.last_offset) == (base, last)
    assert (header.partition_leader_epoch, header.record_count, header.attributes) == (4, 0, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
    assert header.crc == google_crc32c.value(batch[21:])


def test_an_empty_control_batch_differs_in_one_bit() -> None:
    """What the log cleaner leaves of a transaction marker: the same, with the control bit."""
    found = read_batch_header(write_empty_batch(3, 9, 4, is_control=True), 0)
    other = read_batch_header(write_empty_batch(3, 9, 4), 0)

    assert found is not None
    assert other is not None
    assert found[0].attributes & CONTROL_BIT
    assert replace(found[0], attributes=0, crc=other[0].crc) == other[0]


@pytest.mark.parametrize(("base", "last"), [(5, 4), (0, OFFSET_DELTA_MAX + 1)])
def test_an_empty_batch_of_an_impossible_span_is_refused(base: int, last: int) -> None:
    """ValueError: backwards, or wider than an int32."""
    with pytest.raises(ValueError, match="cannot span"):
        write_empty_batch(base, last, 0)


def test_a_passed_batch_has_one_null_record_at_its_start() -> None:
    """It is an ordinary batch of one record whose other records were compacted away."""
    expected = write_batch(
        Batch(
            8,
            (Record(0, None, None),),
            last_offset_delta=12,
            leader_epoch=4,
            base_timestamp=-1,
            max_timestamp=-1,
        )
    )

    assert write_passed_batch(8, 20, 4) == expected


def test_empty_batches_are_dropped() -> None:
    """What is between them stays, as it was."""
    empty = write_empty_batch(0, 4, 1)

    assert list(drop_empty_batches(BATCH)) == [BATCH]
    assert list(drop_empty_batches(empty + BATCH + BATCH + empty + empty + BATCH + empty)) == [
        BATCH + BATCH,
        BATCH,
    ]
    assert not list(drop_empty_batches(empty))
    assert not list(drop_empty_batches(b""))
