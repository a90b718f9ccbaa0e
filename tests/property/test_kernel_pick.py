"""Records held one by one against the naive twin: blocks of every codec, whole, cut and damaged."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import BatchUnsupported
from keylane.kernel.pick import index_records
from tests.property.test_kernel_split import BYTES_MAX, blocks, streams
from tests.reference import pick as reference
from tests.reference.batches import seal
from tests.reference.kernel import read_run


@given(block=blocks())
def test_records_are_held_and_picked_as_by_the_twin(block: list[bytes]) -> None:
    """Offsets, points, sizes and batches; what is picked of them, before and after compact."""
    reference.assert_same_answer(b"".join(block), BYTES_MAX, BYTES_MAX)


@given(stream=streams())
def test_small_batches_stay_what_they_are(stream: list[bytes]) -> None:
    """Batches of one record and more from producers with linger 0: none is joined to another."""
    reference.assert_same_answer(b"".join(stream), BYTES_MAX, BYTES_MAX)


@given(block=blocks(), data=st.data())
def test_any_choice_of_records_is_picked_as_by_the_twin(
    block: list[bytes], data: st.DataObject
) -> None:
    """The bytes of the batches, and the records that they decode to."""
    wire = b"".join(block)
    run = read_run(wire, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    held = index_records(wire, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    assert held is not None and run is not None
    count = len(held.offsets)
    rows = sorted(data.draw(st.sets(st.integers(0, count - 1)))) if count else []

    reference.assert_same_choice(held, run, rows)


@given(block=blocks(), data=st.data())
def test_batches_of_an_answer_do_not_overlap(block: list[bytes], data: st.DataObject) -> None:
    """Each ends at its last record, below the base offset of the next."""
    held = index_records(b"".join(block), plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    assert held is not None
    count = len(held.offsets)
    rows = sorted(data.draw(st.sets(st.integers(0, count - 1)))) if count else []

    picked = held.pick(rows)

    run = read_run(picked, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    batches = [] if run is None else run.batches
    assert [batch.last for batch in batches] == [batch.records[-1].offset for batch in batches]
    assert all(first.last < second.base for first, second in pairwise(batches))


@given(block=blocks(), data=st.data())
def test_a_cut_last_batch_is_left_for_the_next_read(
    block: list[bytes], data: st.DataObject
) -> None:
    """Only the whole batches before the cut are in the block."""
    buffer = b"".join(block)
    cut = data.draw(st.integers(0, len(buffer)))

    reference.assert_same_answer(buffer[:cut], BYTES_MAX, BYTES_MAX)


@given(
    block=blocks(),
    plain_max=st.integers(0, 4_000),
    batch_max=st.integers(200, 8_000),
)
def test_a_block_ends_before_it_is_too_large(
    block: list[bytes], plain_max: int, batch_max: int
) -> None:
    """The decompressed bound is kept, except for the first batch, whose own bound is kept."""
    buffer = b"".join(block)
    first = read_run(buffer, plain_bytes_max=0, batch_bytes_max=BYTES_MAX)
    assert first is not None
    if max(first.plain_bytes, first.wire_bytes) > batch_max:  # compressing may lengthen
        with pytest.raises(BatchUnsupported, match="at byte 0"):
            index_records(buffer, plain_bytes_max=plain_max, batch_bytes_max=batch_max)
        return

    held = index_records(buffer, plain_bytes_max=plain_max, batch_bytes_max=batch_max)

    assert held is not None
    if held.error is None:
        run = read_run(buffer, plain_bytes_max=plain_max, batch_bytes_max=BYTES_MAX)
        assert run is not None
        reference.assert_same_block(held, run)


@given(block=blocks(), data=st.data())
def test_a_flipped_bit_is_refused_or_harmless(block: list[bytes], data: st.DataObject) -> None:
    """A damaged byte anywhere gives the twin's answer: a clean error at the right batch."""
    buffer = bytearray(b"".join(block))
    bit = data.draw(st.integers(0, len(buffer) * 8 - 1))
    buffer[bit // 8] ^= 1 << bit % 8

    reference.assert_same_answer(bytes(buffer), BYTES_MAX, BYTES_MAX)


@given(block=blocks(), data=st.data())
def test_damage_under_a_good_crc_is_found_by_the_walk(
    block: list[bytes], data: st.DataObject
) -> None:
    """Records that lie although the CRC holds are refused exactly where the twin refuses."""
    index = data.draw(st.integers(0, len(block) - 1))
    batch = bytearray(block[index])
    if batch[22] & 7:
        return  # damaged compressed data is the decoders' matter: see tests/hostile
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(23, len(batch) - 1))] = data.draw(st.integers(0, 255))
    block[index] = seal(bytes(batch))

    reference.assert_same_answer(b"".join(block), BYTES_MAX, BYTES_MAX)
