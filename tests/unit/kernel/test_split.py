"""Splitting a block, by example: what each lane is given and what the block says about itself."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.kernel import status as s
from keylane.kernel.block import LaneSlice, SplitBlock
from keylane.kernel.split import split_block
from keylane.keyrange.hash import key_hash, offset_hash
from keylane.keyrange.key_split import KeySplit
from keylane.keyrange.lane import LaneLayout
from keylane.wire.batch import OFFSET_DELTA_MAX, read_batch_header, write_empty_batch
from tests.reference.batches import (
    CODEC_FORMS,
    Batch,
    Record,
    control_batch,
    seal,
    write_batch,
    write_record,
)

LANES = LaneLayout(1, 4)
LANE_SPLIT = LANES.key_split(0)
BYTES_MAX = 1 << 20


def lane_of_key(key: bytes) -> int:
    """Return the lane of a key among four."""
    return next(lane for lane in range(4) if LANES.key_range(0, lane).contains(key_hash(key)))


def key_in(lane: int, number: int = 0) -> bytes:
    """Return the n-th key, in a fixed order, that belongs to a lane."""
    found = [b"key-%d" % i for i in range(100) if lane_of_key(b"key-%d" % i) == lane]
    return found[number]


def split(*batches: Batch | bytes, key_split: KeySplit = LANE_SPLIT) -> SplitBlock:
    """Split batches that are good."""
    wire = b"".join(b if isinstance(b, bytes) else write_batch(b) for b in batches)
    block = split_block(wire, key_split, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    assert block is not None
    return block


def slice_of(block: SplitBlock, lane: int) -> LaneSlice:
    """Return the slice of a lane that has one."""
    found = block.outputs[lane]
    assert found is not None
    return found


def spans(found: LaneSlice) -> list[tuple[int, int, int]]:
    """Base offset, last offset and record count of each batch."""
    rows = (found.base_offsets, found.last_offsets, found.record_counts)
    return list(zip(*(row.tolist() for row in rows), strict=True))


@pytest.mark.parametrize("form", sorted(CODEC_FORMS))
def test_a_lane_gets_the_records_of_its_key_range_only(form: str) -> None:
    """The union over the lanes is all records, in any codec."""
    records = tuple(Record(i, b"key-%d" % i, b"value") for i in range(100))

    block = split(Batch(0, records, form=form))

    assert block.record_count == 100
    for lane in range(4):
        expected = [r for r in records if r.key is not None and lane_of_key(r.key) == lane]
        batch = DefaultRecordBatch(bytes(slice_of(block, lane).data))
        assert batch.validate_crc()
        assert [record.offset for record in batch] == [r.offset_delta for r in expected]
        assert slice_of(block, lane).record_count == len(expected)
        assert slice_of(block, lane).record_bytes == sum(len(write_record(r)) for r in expected)


def test_a_rebuilt_batch_keeps_what_identifies_its_source() -> None:
    """Offsets, timestamps, producer, epoch and flag bits stay; codec, count, CRC are new."""
    source = Batch(
        1_000,
        (Record(3, key_in(0), b"a", (), 5), Record(7, key_in(1), b"b", ((b"h", b"v"),), 6)),
        last_offset_delta=9,
        form="lz4",
        leader_epoch=12,
        flags=0x58,
        base_timestamp=55,
        max_timestamp=66,
        producer_id=77,
        producer_epoch=8,
        base_sequence=99,
    )

    found = read_batch_header(slice_of(split(source), 1).data, 0)

    assert found is not None
    header, _ = found
    assert (header.base_offset, header.last_offset_delta) == (1_000, 9)
    assert (header.base_timestamp, header.max_timestamp) == (55, 66)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 8, 99)
    assert (header.partition_leader_epoch, header.attributes) == (12, 0x58)
    assert header.record_count == 1


def test_the_bytes_of_a_record_are_copied_as_they_are() -> None:
    """Key, value, headers and deltas: exactly the bytes the producer wrote."""
    record = Record(7, key_in(1), b"value", ((b"h", None), (b"", b"x" * 300)), 6)

    data = slice_of(split(Batch(0, (Record(3, key_in(0)), record))), 1).data

    assert bytes(data[61:]) == write_record(record)


def test_a_batch_of_one_lane_is_not_touched() -> None:
    """An uncompressed batch whose records share a lane arrives byte for byte."""
    wire = write_batch(Batch(0, (Record(0, key_in(2), b"a"), Record(1, key_in(2, 1), b"b"))))

    assert bytes(slice_of(split(wire), 2).data) == wire


def test_a_null_key_hashes_its_offset_and_an_empty_key_itself() -> None:
    """Keyless records spread, an empty key is a key; tombstones are records."""
    records = tuple(Record(i, None, None) for i in range(40))
    records += (Record(40, b"", b"v"), Record(41, b"", None))
    block = split(Batch(10_000, records))

    for lane in range(4):
        part = LANES.key_range(0, lane)
        hashes = {offset: offset_hash(offset) for offset in range(10_000, 10_040)}
        hashes |= {10_040: key_hash(b""), 10_041: key_hash(b"")}
        expected = [offset for offset, hashed in hashes.items() if part.contains(hashed)]
        batch = DefaultRecordBatch(bytes(slice_of(block, lane).data))
        assert [record.offset for record in batch] == expected


def test_runs_without_records_become_one_empty_header() -> None:
    """Before data, between data and at the end: one header each, and the end is covered."""
    # Each of another producer: they are not joined.
    own = [Batch(at, (Record(0, key_in(0), b"v"),), producer_id=at) for at in (2, 6)]
    others = [
        Batch(at, (Record(0, key_in(1), b"v"),), producer_id=at) for at in (0, 1, 3, 4, 5, 7, 8)
    ]
    batches = sorted(own + others, key=lambda batch: batch.base_offset)

    found = slice_of(split(*batches), 0)

    assert spans(found) == [(0, 1, 0), (2, 2, 1), (3, 5, 0), (6, 6, 1), (7, 8, 0)]
    assert found.last_record_offsets.tolist() == [-1, 2, -1, 6, -1]
    assert bytes(found.data[: found.ends[0]]) == write_empty_batch(0, 1, 5)


def test_a_lane_without_anything_is_none() -> None:
    """Neither a record nor a marker: no slice at all."""
    block = split(Batch(0, (Record(0, key_in(3), b"v"),)))

    assert [found is None for found in block.outputs] == [True, True, True, False]


def test_an_empty_run_wider_than_an_int32_takes_two_headers() -> None:
    """The last offset delta of a header is an int32."""
    far = 3 * OFFSET_DELTA_MAX
    others = [Batch(offset, (Record(0, key_in(1)),)) for offset in (0, 5, far, far + 1)]
    own = Batch(far + 2, (Record(0, key_in(0)),), leader_epoch=6)  # not joined to the others

    found = slice_of(split(*others, own), 0)

    assert spans(found) == [(0, 5, 0), (far, far + 1, 0), (far + 2, far + 2, 1)]


def test_a_marker_goes_to_every_lane_as_it_is() -> None:
    """Control batches are verbatim in each lane; aborts are listed with their producer."""
    data = Batch(0, (Record(0, key_in(0), b"v"),), flags=0x10, producer_id=9, producer_epoch=0)
    abort, commit = control_batch(1, 9, commit=False), control_batch(2, 8, commit=True)

    block = split(data, abort, commit)

    assert block.abort_markers == ((9, 1),)
    assert block.record_count == 1
    markers = write_batch(abort) + write_batch(commit)
    for lane in range(4):
        found = slice_of(block, lane)
        assert bytes(found.data).endswith(markers)
        assert found.meta[s.META_PRODUCER_ID].tolist() == [9 if lane == 0 else -1, 9, 8]
        assert found.record_count == (1 if lane == 0 else 0)


def test_holes_are_what_holds_no_data_record() -> None:
    """Markers, empty batches, gaps between batches, compacted edges, the end; merged."""
    block = split(
        Batch(10, (Record(2, key_in(0)), Record(4, key_in(1))), last_offset_delta=5),
        control_batch(20, 1, commit=True),
        write_empty_batch(30, 39, 0),
        Batch(40, (Record(0, key_in(0)),), last_offset_delta=2),
    )

    assert block.holes == ((10, 11), (15, 39), (41, 42))


def test_the_block_reports_what_it_used() -> None:
    """Offsets, epoch of the last batch, plain and wire bytes."""
    records = tuple(Record(i, b"key", b"x" * 500) for i in range(10))
    batches = [Batch(5, records, form="zstd"), Batch(100, records, leader_epoch=6)]
    wire = [write_batch(batch) for batch in batches]

    block = split(*wire)

    assert (block.base_offset, block.next_offset, block.leader_epoch) == (5, 110, 6)
    assert block.wire_bytes == len(wire[0]) + len(wire[1])
    assert block.plain_bytes == 2 * len(wire[1])
    assert block.error is None


def test_a_block_ends_where_the_next_batch_does_not_fit() -> None:
    """Plain bytes of the source, compressed or not; the first batch always goes."""
    records = tuple(Record(i, b"key", b"x" * 100) for i in range(10))
    size = len(write_batch(Batch(0, records)))
    for forms in (["none"] * 3, ["gzip"] * 3, ["gzip", "none", "none"], ["none", "none", "lz4"]):
        wire = b"".join(
            write_batch(Batch(10 * i, records, form=form)) for i, form in enumerate(forms)
        )
        for fitting, room in ((1, 0), (1, 2 * size - 1), (2, 2 * size), (3, 3 * size)):
            block = split_block(wire, LANE_SPLIT, plain_bytes_max=room, batch_bytes_max=BYTES_MAX)

            assert block is not None
            assert (block.next_offset, block.error) == (10 * fitting, None), (forms, room)


def test_a_first_batch_above_its_own_bound_is_unsupported() -> None:
    """Wire size or plain size above batch_bytes_max: nothing can be done with it."""
    records = tuple(Record(i, b"key", b"x" * 1_000) for i in range(10))
    for form in sorted(CODEC_FORMS):
        with pytest.raises(BatchUnsupported):
            split_block(
                write_batch(Batch(0, records, form=form)),
                LANE_SPLIT,
                plain_bytes_max=BYTES_MAX,
                batch_bytes_max=5_000,
            )


def test_each_slice_owns_its_memory() -> None:
    """A slice that waits keeps no other lane's bytes alive; a small one is bytes and no more."""
    small = split(Batch(0, tuple(Record(i, b"key-%d" % i, b"x" * 20) for i in range(8))))
    large = split(Batch(0, tuple(Record(i, b"key-%d" % i, b"x" * 200) for i in range(100))))

    data = [slice_of(large, lane).data for lane in range(4)]
    views = [part for part in data if isinstance(part, memoryview)]

    assert all(type(part.data) is bytes for part in small.outputs if part is not None)
    assert len(views) == 4 == len({id(view.obj) for view in views})
    slices = [part for block in (small, large) for part in block.outputs if part is not None]
    assert all(part.meta.base is None for part in slices)


def test_one_lane_gets_everything() -> None:
    """A single lane: the compressed batch comes back plain and whole."""
    records = tuple(Record(i, b"key-%d" % i, b"value") for i in range(50))

    block = split(Batch(0, records, form="snappy-xerial"), key_split=LaneLayout(1, 1).key_split(0))

    assert bytes(slice_of(block, 0).data) == write_batch(Batch(0, records))


def test_any_buffer_will_do() -> None:
    """bytes, bytearray and a memoryview inside a larger buffer give the same."""
    wire = write_batch(Batch(0, (Record(0, key_in(0), b"v"),), form="gzip"))
    inside = memoryview(b"xx" + wire)[2:]

    data = [
        bytes(slice_of(block, 0).data)
        for buffer in (wire, bytearray(wire), inside)
        if (
            block := split_block(
                buffer,
                LANE_SPLIT,
                plain_bytes_max=BYTES_MAX,
                batch_bytes_max=BYTES_MAX,
            )
        )
    ]

    assert len(data) == 3 and len(set(data)) == 1


def test_an_error_keeps_nothing_of_the_buffer() -> None:
    """Neither the one of a block nor one that is raised: no frame of theirs has a view of it."""
    good, damaged = (
        write_batch(Batch(0, (Record(0),))),
        bytearray(write_batch(Batch(1, (Record(0),)))),
    )
    damaged[22] |= 3  # not LZ4 at all
    bad = seal(bytes(damaged))
    buffer, first = bytearray(good + bad), bytearray(bad)

    block = split_block(buffer, LANE_SPLIT, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    try:
        split_block(first, LANE_SPLIT, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    except BatchCorrupt as error:
        assert "damaged" in error.reason  # noqa: PT017 -- its frames are to be gone

    assert block is not None and block.error is not None
    buffer.clear()  # BufferError, if there were a view of it
    first.clear()


def test_every_status_has_its_text() -> None:
    """No error without a reason."""
    codes = set(range(s.MAGIC_OLD, s.CONTROL_KEY + 1))

    assert set(s.REASONS) == codes
    assert codes >= s.UNSUPPORTED
