"""The fields of fetched records against the naive twin: any block, offset and transactions."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from keylane.kernel.fetched import Survey, survey
from tests.property.test_kernel_split import BYTES_MAX, blocks, streams
from tests.reference import fetched as reference
from tests.reference.batches import Batch, Record, control_batch, seal, write_batch
from tests.reference.kernel import read_run


@given(block=blocks(), data=st.data())
def test_fields_are_those_of_the_twin(block: list[bytes], data: st.DataObject) -> None:
    """Offsets, timestamps, keys, values, headers and epochs, from any offset on."""
    run = read_run(b"".join(block), plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    assert run is not None
    base, end = run.batches[0].base, run.batches[-1].last + 2
    from_offset = data.draw(st.integers(base, end))

    reference.assert_same(b"".join(block), from_offset, [], BYTES_MAX)


@given(stream=streams())
def test_small_batches_are_read_as_by_the_twin(stream: list[bytes]) -> None:
    """Hundreds of batches of a record or two, with epochs that change between them."""
    reference.assert_same(b"".join(stream), 0, [], BYTES_MAX)


@st.composite
def transactions(draw: st.DrawFn) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Draw a log of transactions of three producers and its list of aborted ones."""
    offset, log = draw(st.integers(0, 100)), []
    open_since: dict[int, int] = {}
    aborted = []
    for _ in range(draw(st.integers(1, 20))):
        producer_id = draw(st.sampled_from([1, 2, 3]))
        kind = draw(st.sampled_from(["data", "data", "plain", "commit", "abort"]))
        if kind in ("commit", "abort"):
            since = open_since.pop(producer_id, None)
            if kind == "abort" and since is not None:
                aborted.append((producer_id, since))
            batch = control_batch(offset, producer_id, commit=kind == "commit")
        else:
            is_plain = kind == "plain"
            records = tuple(Record(delta, b"k") for delta in range(draw(st.integers(1, 3))))
            batch = Batch(
                offset,
                records,
                flags=0 if is_plain else 0x10,
                producer_id=producer_id,
                form=draw(st.sampled_from(["none", "lz4"])),
            )
            if not is_plain:
                open_since.setdefault(producer_id, offset)
        log.append(write_batch(batch))
        offset = batch.next_offset
    return log, aborted


@given(drawn=transactions(), data=st.data())
def test_aborted_transactions_are_left_out_as_by_the_twin(
    drawn: tuple[list[bytes], list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Also from the middle of the log, and with the list in any order."""
    log, aborted = drawn
    start = data.draw(st.integers(0, len(log) - 1))

    reference.assert_same(b"".join(log[start:]), 0, data.draw(st.permutations(aborted)), BYTES_MAX)


@given(block=blocks(), data=st.data())
def test_a_cut_or_damaged_answer_is_read_or_refused_as_by_the_twin(
    block: list[bytes], data: st.DataObject
) -> None:
    """Any cut, and any flipped bit under a good CRC."""
    index = data.draw(st.integers(0, len(block) - 1))
    batch = bytearray(block[index])
    if not batch[22] & 7:
        batch[data.draw(st.integers(23, len(batch) - 1))] = data.draw(st.integers(0, 255))
        block[index] = seal(bytes(batch))
    buffer = b"".join(block)
    cut = data.draw(st.integers(0, len(buffer)))

    reference.assert_same(buffer[:cut], 0, [], BYTES_MAX)


@given(block=blocks(), data=st.data())
def test_what_whole_batches_hold_is_known_before_they_are_read(
    block: list[bytes], data: st.DataObject
) -> None:
    """The offset is that of the last whole batch, wherever the answer is cut; counts are of all."""
    buffer = b"".join(block)
    cut = data.draw(st.integers(0, len(buffer)))
    ends = list(accumulate(map(len, block)))
    whole = [batch for batch, end in zip(block, ends, strict=True) if end <= cut]
    run = read_run(buffer[:cut], plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)

    expected = None
    if whole:
        assert run is not None, "whole batches"
        compressed_bytes = sum(len(batch) for batch in whole if batch[22] & 7)
        records = sum(int.from_bytes(batch[57:61], "big") for batch in whole)
        expected = Survey(run.batches[-1].last + 1, compressed_bytes, len(whole), records)
    assert survey(memoryview(buffer)[:cut]) == expected
