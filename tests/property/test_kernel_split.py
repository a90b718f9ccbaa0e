"""The kernel against its naive twin: random blocks of every codec, whole, cut and damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import BatchUnsupported
from keylane.kernel.lane_table import lane_table
from keylane.kernel.single import read_single
from keylane.kernel.split import split_block
from keylane.kernel.status import NO_PARTITION
from keylane.keyrange.key_split import NO_OUTPUT, KeySplit, even_split
from keylane.keyrange.space import HASH_MAX
from tests.reference import kernel as reference
from tests.reference.batches import CODEC_FORMS, Batch, Record, control_batch, seal, write_batch

BYTES_MAX = 1 << 20

keys = st.one_of(st.none(), st.just(b""), st.binary(max_size=9), st.binary(max_size=80))
fields = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=100, max_size=700))
headers = st.lists(st.tuples(st.binary(max_size=5), fields), max_size=3).map(tuple)
gaps = st.one_of(st.just(1), st.integers(1, 3), st.integers(1, 40_000))
timestamp_deltas = st.one_of(st.integers(-9, 9_000), st.integers(-(2**63), 2**63 - 1))


@st.composite
def record_lists(draw: st.DrawFn) -> tuple[Record, ...]:
    """Draw the records of a batch; holes between them as compaction leaves them."""
    delta, records = draw(st.sampled_from([-1, -1, 5])), []
    for key, value in draw(st.lists(st.tuples(keys, fields), max_size=12)):
        delta += draw(gaps)
        record_headers = draw(headers) if draw(st.booleans()) else ()
        records.append(Record(delta, key, value, record_headers, draw(timestamp_deltas)))
    return tuple(records)


@st.composite
def batches(draw: st.DrawFn, base_offset: int) -> Batch:
    """Draw a data batch, an empty one or a transaction marker."""
    if draw(st.integers(0, 5)) == 0:
        return control_batch(base_offset, draw(st.integers(0, 9)), commit=draw(st.booleans()))
    records = draw(record_lists())
    last = records[-1].offset_delta if records else 0
    return Batch(
        base_offset,
        records,
        last_offset_delta=draw(st.sampled_from([last, last, last + 7, 2**31 - 1])),
        form=draw(st.sampled_from(sorted(CODEC_FORMS))),
        leader_epoch=draw(st.integers(-1, 99)),
        flags=draw(st.sampled_from([0, 0x08, 0x10, 0x40])),
        max_timestamp=draw(st.integers(-1, 2**63 - 1)),
        producer_id=draw(st.integers(-1, 2**63 - 1)),
        producer_epoch=draw(st.integers(-1, 99)),
        base_sequence=draw(st.integers(-1, 2**31 - 1)),
    )


@st.composite
def blocks(draw: st.DrawFn) -> list[bytes]:
    """Draw consecutive batches, with offsets missing between some."""
    offset, drawn = draw(st.integers(0, 2**40)), []
    for _ in range(draw(st.integers(1, 6))):
        batch = draw(batches(offset))
        drawn.append(write_batch(batch))
        offset = batch.next_offset + draw(st.sampled_from([0, 0, 1, 3_000_000_000]))
    return drawn


small_values = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=60, max_size=300))
odd_timestamps = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Draw small batches as producers with linger 0 write them: states, epochs, gaps, markers."""
    offset, sequence, drawn = draw(st.integers(0, 2**40)), draw(st.integers(0, 2**31 - 1)), []
    producer_id = draw(st.sampled_from([-1, 7, 7, 7]))
    form = draw(st.sampled_from(["none", "none", "lz4", "zstd"]))
    flags = draw(st.sampled_from([0, 0, 0x08, 0x10, 0x40]))
    timestamps = draw(st.sampled_from([st.integers(0, 10**6)] * 9 + [odd_timestamps]))
    for _ in range(draw(st.integers(1, 25))):
        if draw(st.integers(0, 15)) == 0:
            drawn.append(write_batch(control_batch(offset, producer_id, commit=True)))
            offset += 1
            continue
        records = tuple(
            Record(delta, draw(keys), draw(small_values), (), draw(timestamps))
            for delta in range(draw(st.sampled_from([1, 1, 1, 2, 9])))
        )
        batch = Batch(
            offset,
            records,
            last_offset_delta=draw(st.sampled_from([None] * 9 + [len(records)])),
            form=form,
            leader_epoch=draw(st.sampled_from([5] * 15 + [6])),
            flags=flags,
            base_timestamp=draw(st.sampled_from([0, 1_700_000_000_000, 1_700_000_000_001])),
            max_timestamp=draw(st.sampled_from([1_700_000_000_999] * 9 + [1_700_000_001_000])),
            producer_id=draw(st.sampled_from([producer_id] * 15 + [8])),
            producer_epoch=draw(st.sampled_from([0] * 15 + [1])),
            base_sequence=sequence if producer_id >= 0 else -1,
        )
        drawn.append(write_batch(batch))
        offset = batch.next_offset + draw(st.sampled_from([0] * 15 + [1, 3_000_000_000]))
        # As producers count: 0 comes after the largest number of 31 bits.
        sequence = (sequence + len(records) + draw(st.sampled_from([0] * 15 + [1]))) % 2**31
    return drawn


even_splits = st.sampled_from([1, 2, 3, 5, 16, 200]).map(even_split)
cut_splits = st.sets(st.integers(1, HASH_MAX), max_size=20).map(lambda cuts: KeySplit(sorted(cuts)))
splits = st.one_of(even_splits, cut_splits)


@given(block=blocks(), key_split=splits)
def test_a_block_is_split_as_by_the_twin(block: list[bytes], key_split: KeySplit) -> None:
    """Every lane's bytes and metadata, markers and holes equal the twin's."""
    reference.assert_same_answer(b"".join(block), key_split, BYTES_MAX, BYTES_MAX)


@st.composite
def singles(draw: st.DrawFn) -> Batch:
    """Draw a batch of one record, as a producer with linger 0 writes it."""
    record = Record(0, draw(keys), draw(fields), draw(headers), draw(timestamp_deltas))
    return Batch(
        draw(st.integers(0, 2**63 - 2**32 - 1)),
        (record,),
        form=draw(st.sampled_from(sorted(CODEC_FORMS))),
        leader_epoch=draw(st.integers(-1, 99)),
        flags=draw(st.sampled_from([0, 0x08, 0x10, 0x40])),
        producer_id=draw(st.integers(-1, 2**63 - 1)),
        base_sequence=draw(st.integers(-1, 2**31 - 1)),
    )


@given(single=singles(), key_split=splits, data=st.data())
def test_one_record_alone_is_split_as_by_the_twin(
    single: Batch, key_split: KeySplit, data: st.DataObject
) -> None:
    """Of any codec, also where no output has its interval; and the kernels are not asked."""
    count = len(key_split.lows)
    if count > 1 and data.draw(st.booleans()):
        outputs = list(range(count - 1))
        outputs.insert(data.draw(st.integers(0, count - 2)), NO_OUTPUT)
        key_split = KeySplit(key_split.cuts, tuple(outputs))
    wire = write_batch(single)

    reference.assert_same_answer(wire, key_split, BYTES_MAX, BYTES_MAX)
    assert read_single(wire, lane_table(key_split), BYTES_MAX, NO_PARTITION) is not None


@given(single=singles(), key_split=even_splits, data=st.data())
def test_what_is_odd_about_one_record_is_left_to_the_kernels(
    single: Batch, key_split: KeySplit, data: st.DataObject
) -> None:
    """Damage under a good CRC, or a tail of another batch: the twin's answer, block or error."""
    batch = bytearray(write_batch(single))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(16, len(batch) - 1))] = data.draw(st.integers(0, 255))
    if batch[22] & 7 == 0:  # damaged compressed data is the decoders' matter
        wire = seal(bytes(batch)) + data.draw(st.sampled_from([b"", b"\0" * 9]))
        reference.assert_same_answer(wire, key_split, BYTES_MAX, BYTES_MAX)


@given(stream=streams(), key_split=splits)
def test_small_batches_of_one_producer_are_joined_as_by_the_twin(
    stream: list[bytes], key_split: KeySplit
) -> None:
    """Records of neighbours share a lane batch exactly where the protocol allows it."""
    reference.assert_same_answer(b"".join(stream), key_split, BYTES_MAX, BYTES_MAX)


@given(stream=streams(), key_split=even_splits, data=st.data())
def test_damage_in_a_small_batch_is_reported_at_its_own_place(
    stream: list[bytes], key_split: KeySplit, data: st.DataObject
) -> None:
    """Joining hides no bad record, and the batches before it are still served."""
    index = data.draw(st.integers(0, len(stream) - 1))
    batch = bytearray(stream[index])
    if batch[22] & 7:
        return  # damaged compressed data is the decoders' matter
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(23, len(batch) - 1))] = data.draw(st.integers(0, 255))
    stream[index] = seal(bytes(batch))

    reference.assert_same_answer(b"".join(stream), key_split, BYTES_MAX, BYTES_MAX)


@given(block=blocks(), key_split=splits, data=st.data())
def test_intervals_are_dealt_to_owners_as_by_the_twin(
    block: list[bytes], key_split: KeySplit, data: st.DataObject
) -> None:
    """An owner of many intervals gets all of them in one slice; what has no output is dropped."""
    count = len(key_split.lows)
    drawn = data.draw(st.lists(st.integers(-1, count - 1), min_size=count, max_size=count))
    drawn[data.draw(st.integers(0, count - 1))] = count - 1
    numbers = {owner: number for number, owner in enumerate(sorted({*drawn} - {NO_OUTPUT}))}
    outputs = tuple(numbers.get(owner, NO_OUTPUT) for owner in drawn)

    dealt = KeySplit(key_split.cuts, outputs)
    reference.assert_same_answer(b"".join(block), dealt, BYTES_MAX, BYTES_MAX)


@given(block=blocks(), key_split=even_splits, data=st.data())
def test_a_cut_last_batch_is_left_for_the_next_read(
    block: list[bytes], key_split: KeySplit, data: st.DataObject
) -> None:
    """Only the whole batches before the cut are in the block."""
    buffer = b"".join(block)
    cut = data.draw(st.integers(0, len(buffer)))

    reference.assert_same_answer(buffer[:cut], key_split, BYTES_MAX, BYTES_MAX)


@given(
    block=blocks(),
    key_split=even_splits,
    plain_max=st.integers(0, 4_000),
    batch_max=st.integers(200, 8_000),
)
def test_a_block_ends_before_it_is_too_large(
    block: list[bytes], key_split: KeySplit, plain_max: int, batch_max: int
) -> None:
    """The decompressed bound is kept, except for the first batch, whose own bound is kept."""
    buffer = b"".join(block)
    first = reference.split_block(
        buffer, key_split.limits.tolist(), plain_bytes_max=0, batch_bytes_max=BYTES_MAX
    )
    assert first is not None
    if max(first.plain_bytes, first.wire_bytes) > batch_max:  # compressing may lengthen
        with pytest.raises(BatchUnsupported, match="at byte 0"):
            split_block(buffer, key_split, plain_bytes_max=plain_max, batch_bytes_max=batch_max)
        return

    actual = split_block(buffer, key_split, plain_bytes_max=plain_max, batch_bytes_max=batch_max)

    assert actual is not None
    assert actual.plain_bytes <= max(plain_max, first.plain_bytes)
    if actual.error is None:
        expected = reference.split_block(
            buffer, key_split.limits.tolist(), plain_bytes_max=plain_max, batch_bytes_max=BYTES_MAX
        )
        reference.assert_same_block(actual, expected)


@given(block=blocks(), key_split=even_splits, data=st.data())
def test_a_flipped_bit_is_refused_or_harmless(
    block: list[bytes], key_split: KeySplit, data: st.DataObject
) -> None:
    """A damaged byte anywhere gives the twin's answer: a clean error at the right batch."""
    buffer = bytearray(b"".join(block))
    bit = data.draw(st.integers(0, len(buffer) * 8 - 1))
    buffer[bit // 8] ^= 1 << bit % 8

    reference.assert_same_answer(bytes(buffer), key_split, BYTES_MAX, BYTES_MAX)


@given(block=blocks(), key_split=even_splits, data=st.data())
def test_damage_under_a_good_crc_is_found_by_the_walk(
    block: list[bytes], key_split: KeySplit, data: st.DataObject
) -> None:
    """Records that lie although the CRC holds are refused exactly where the twin refuses."""
    index = data.draw(st.integers(0, len(block) - 1))
    batch = bytearray(block[index])
    if batch[22] & 7:
        return  # damaged compressed data is the decoders' matter: see tests/hostile
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(23, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    block[index] = seal(bytes(batch))

    reference.assert_same_answer(b"".join(block), key_split, BYTES_MAX, BYTES_MAX)


def test_no_batch_at_all_is_no_block() -> None:
    """An empty answer has nothing to split."""
    assert split_block(b"", even_split(4), plain_bytes_max=1, batch_bytes_max=1) is None
