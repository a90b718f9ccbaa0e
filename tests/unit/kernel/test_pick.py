"""Records held one by one, by example: what is known of each, and what a choice of them becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from keylane.errors import BatchCorrupt
from keylane.kernel.pick import RecordBlock, index_records
from keylane.keyrange.hash import key_hash
from keylane.wire.batch import read_batch_header, write_empty_batch
from tests.reference.batches import (
    CODEC_FORMS,
    Batch,
    Record,
    control_batch,
    seal,
    write_batch,
    write_record,
)

BYTES_MAX = 1 << 20
BASE_TIMESTAMP = 1_700_000_000_000
APPEND_TIMESTAMP = 1_700_000_000_999
RECORDS = (
    Record(0, b"a", b"one", ((b"h", b"1"), (b"i", None)), 5),
    Record(2, None, b"two", (), -7),
    Record(3, b"", None, (), 9_000),
    Record(9, b"key" * 20, b"v" * 700, ((b"long", b"x" * 200),), 1),
)


def index(*batches: Batch | bytes) -> RecordBlock:
    """Hold batches that are good."""
    wire = b"".join(b if isinstance(b, bytes) else write_batch(b) for b in batches)
    block = index_records(wire, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    assert block is not None
    return block


def read(picked: bytes) -> list[tuple[Any, ...]]:
    """Decode batches with aiokafka, after a look at their CRC."""
    found, position = [], 0
    while position < len(picked):
        header = read_batch_header(picked, position)
        assert header is not None
        batch = DefaultRecordBatch(picked[position : position + header[1]])
        assert batch.validate_crc()
        for record in batch:
            fields = (record.offset, record.timestamp, record.key, record.value)
            headers = tuple((name.encode(), value) for name, value in record.headers)
            found.append((*fields, headers))
        position += header[1]
    return found


def test_what_is_known_of_each_record() -> None:
    """Offset, point, size and source batch; control batches and empty ones have no record."""
    block = index(
        Batch(10, RECORDS, last_offset_delta=12),
        control_batch(23, 7, commit=True),
        write_empty_batch(30, 39, 0),
        Batch(40, (Record(1, b"a", b"v"),), form="lz4", leader_epoch=8),
        write_empty_batch(50, 59, 9),
    )

    assert block.offsets.tolist() == [10, 12, 13, 19, 41]
    points = [key_hash(b"a"), -1, key_hash(b""), key_hash(b"key" * 20), key_hash(b"a")]
    assert block.points.tolist() == points
    sizes = [len(write_record(record)) for record in RECORDS]
    assert block.sizes.tolist()[:4] == sizes
    assert block.base_offsets[block.batch_of].tolist() == [10, 10, 10, 10, 40]
    assert (block.next_offset, block.leader_epoch, block.error) == (60, 9, None)
    types = (block.offsets, block.points, block.sizes, block.batch_of, block.base_offsets)
    assert [array.dtype.name for array in types] == ["int64", "int64", "int32", "int32", "int64"]


@pytest.mark.parametrize("flags", [0, 0x08, 0x10])
@pytest.mark.parametrize("form", sorted(CODEC_FORMS))
def test_a_stock_client_reads_the_chosen_records_alone(form: str, flags: int) -> None:
    """Offset, timestamp, key, value and headers, in any codec, with the broker's time or not."""
    batch = Batch(1_000, RECORDS, form=form, flags=flags, max_timestamp=APPEND_TIMESTAMP)
    block = index(batch, Batch(2_000, RECORDS, form=form, flags=flags))

    picked = block.pick([1, 3, 4])

    expected = [
        (
            base + record.offset_delta,
            APPEND_TIMESTAMP if flags & 0x08 else BASE_TIMESTAMP + record.timestamp_delta,
            record.key,
            record.value,
            record.headers,
        )
        for base, record in ((1_000, RECORDS[1]), (1_000, RECORDS[3]), (2_000, RECORDS[0]))
    ]
    assert read(picked) == expected


def test_a_picked_batch_keeps_what_identifies_its_source() -> None:
    """Base offset, timestamps, producer, epoch and flag bits; it ends at its last record."""
    source = Batch(
        1_000,
        RECORDS,
        last_offset_delta=50,
        form="zstd",
        leader_epoch=12,
        flags=0x58,
        base_timestamp=55,
        max_timestamp=66,
        producer_id=77,
        producer_epoch=8,
        base_sequence=99,
    )

    found = read_batch_header(index(source).pick([0, 2]), 0)

    assert found is not None
    header, size = found
    assert size == 61 + len(write_record(RECORDS[0])) + len(write_record(RECORDS[2]))
    assert (header.base_offset, header.last_offset_delta) == (1_000, 3)
    assert (header.base_timestamp, header.max_timestamp) == (55, 66)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 8, 99)
    assert (header.partition_leader_epoch, header.attributes) == (12, 0x58)
    assert header.record_count == 2


def test_all_records_of_an_uncompressed_batch_are_that_batch() -> None:
    """Byte for byte, its CRC included."""
    wire = write_batch(Batch(5, RECORDS))

    assert index(wire).pick(range(4)) == wire


def test_no_record_is_no_batch() -> None:
    """An empty choice, also from a block without records."""
    assert index(Batch(0, RECORDS)).pick([]) == b""
    block = index(control_batch(7, 1, commit=False))
    assert (block.pick([]), block.compact([]).pick([]), block.next_offset) == (b"", b"", 8)


def test_rows_may_be_an_array_of_any_kind() -> None:
    """A list, a range, arrays of other types and strides, one that is read-only."""
    block = index(Batch(0, RECORDS))
    fixed = np.array([1, 3])
    fixed.setflags(write=False)
    rows: tuple[Any, ...] = (
        [1, 3], range(1, 4, 2), np.array([1, 3], np.int32), np.arange(4)[1::2], fixed,
    )  # fmt: skip

    assert len({block.pick(some) for some in rows}) == 1


@pytest.mark.parametrize("rows", [[-1], [4], [0, 0], [2, 1], [3, 2**40], [-(2**63)]])
def test_rows_that_are_not_of_the_block_are_refused(rows: list[int]) -> None:
    """Negative, too large, twice, descending: an error, and no access to memory."""
    block = index(Batch(0, RECORDS))

    for choose in (block.pick, block.compact):
        with pytest.raises(ValueError, match="rows must ascend"):
            choose(rows)


def test_more_than_records_of_average_size_is_picked_whole() -> None:
    """One long record among many short ones: the first guess of the room is too small."""
    records = (*(Record(i, b"k") for i in range(500)), Record(500, b"k", b"v" * 50_000))

    picked = index(Batch(0, records)).pick([3, 500])

    assert [(row[0], len(row[3])) for row in read(picked)] == [
        (3, 0),
        (500, 50_000),
    ]


def test_a_compact_block_has_its_records_alone() -> None:
    """Less memory, indices from 0, batches without a record left out, the same choice of bytes."""
    batches = [
        Batch(100 * i, tuple(Record(j, b"%d" % j, b"v" * 300) for j in range(20)), form="lz4")
        for i in range(5)
    ]
    block = index(*batches)

    compact = block.compact([21, 25, 99])

    assert compact.size_bytes < block.size_bytes // 10
    assert compact.offsets.tolist() == [101, 105, 419]
    assert compact.points.tolist() == block.points[[21, 25, 99]].tolist()
    assert compact.base_offsets[compact.batch_of].tolist() == [100, 100, 400]
    assert compact.pick([0, 2]) == block.pick([21, 99])
    assert (compact.next_offset, compact.wire_bytes) == (block.next_offset, block.wire_bytes)


def test_a_block_keeps_nothing_of_the_buffer() -> None:
    """The buffer is free at once, after a good block, one that ends at damage, and an error."""
    good, damaged = write_batch(Batch(0, RECORDS)), bytearray(write_batch(Batch(20, RECORDS)))
    damaged[22] |= 3  # not LZ4 at all
    lying = write_batch(Batch(30, (), payload=b"\0" * 20, record_count=1))
    for tail in (b"", seal(bytes(damaged)), lying, b"\0" * 70):
        buffer = bytearray(good + tail)

        block = index_records(buffer, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)

        buffer.clear()  # BufferError, if there were a view of it
        assert block is not None and block.pick(range(4)) == good
        assert (block.error is None) == (tail == b"")
        assert block.error is None or block.error.__traceback__ is None
    for bad in (seal(bytes(damaged)), lying):
        buffer = bytearray(bad)
        try:
            index_records(buffer, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
        except BatchCorrupt as error:
            assert error.position == 0  # noqa: PT017 -- its frames are to be gone
        buffer.clear()


def test_a_block_reports_the_memory_of_its_own_arrays() -> None:
    """None is a view of a larger one; a record of 7 bytes costs 28 beside itself."""
    tiny = Batch(0, tuple(Record(i, None, None) for i in range(1_000)))
    block = index(tiny)
    cut = index(tiny, write_batch(Batch(1_000, (), payload=b"\0" * 20_000, record_count=1)))

    assert cut.error is not None
    assert cut.size_bytes == block.size_bytes < 1_000 * (8 + 28) + 2_048
    for each in (block, cut, block.compact([5, 6])):
        arrays = (each.data, each.batches, each.records, each.spans)
        assert all(array.base is None for array in arrays)
        assert each.size_bytes >= sum(array.nbytes for array in arrays)


def test_any_buffer_will_do() -> None:
    """bytes, bytearray and a memoryview inside a larger buffer give the same."""
    wire = write_batch(Batch(0, RECORDS, form="gzip"))

    picked = {
        block.pick([1, 2])
        for buffer in (wire, bytearray(wire), memoryview(b"xx" + wire)[2:])
        if (block := index_records(buffer, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX))
    }

    assert len(picked) == 1


def test_no_whole_batch_is_no_block() -> None:
    """Nothing, and a batch that is cut."""
    wire = write_batch(Batch(0, RECORDS))

    for buffer in (b"", wire[:40], wire[:-1]):
        assert index_records(buffer, plain_bytes_max=1, batch_bytes_max=BYTES_MAX) is None
