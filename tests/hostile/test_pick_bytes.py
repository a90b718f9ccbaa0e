"""Bytes that only a broken or hostile broker sends, held one by one: an error, or records.

The same examples run once more in a process without compilation, where every load and store of
the kernels is checked against its buffer: an access outside of one is an IndexError there.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.kernel.jit import JIT
from keylane.kernel.pick import RecordBlock, index_records
from tests.hostile.test_kernel_bytes import BYTES_MAX, COUNTS, LYING_PAYLOADS, sealed
from tests.reference import pick as reference
from tests.reference.batches import CODEC_FORMS, HEADER, Batch, Record, seal, write_batch
from tests.reference.random_batches import random_block


def index(buffer: bytes) -> RecordBlock | None:
    """Hold the records with bounds that no example reaches."""
    return index_records(buffer, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)


@pytest.mark.parametrize("name", LYING_PAYLOADS)
def test_records_that_lie_are_refused(name: str) -> None:
    """BatchCorrupt at the batch, with the twin agreeing."""
    batch = sealed(LYING_PAYLOADS[name], COUNTS.get(name, 1))

    with pytest.raises(BatchCorrupt) as caught:
        index(batch)

    assert caught.value.position == 0
    reference.assert_same_answer(batch, BYTES_MAX, BYTES_MAX)


@pytest.mark.parametrize("name", LYING_PAYLOADS)
def test_what_comes_before_a_bad_batch_is_held(name: str) -> None:
    """The good batch makes a block; its error names where the bad one begins."""
    good = write_batch(Batch(0, (Record(0, b"a", b"1"),)))
    bad = bytearray(sealed(LYING_PAYLOADS[name], COUNTS.get(name, 1)))
    bad[:8] = (1).to_bytes(8, "big")

    block = index(good + bytes(bad))

    assert block is not None
    assert (block.next_offset, block.wire_bytes, block.offsets.tolist()) == (1, len(good), [0])
    assert block.error is not None and block.error.position == len(good)
    assert block.pick([0]) == good


@pytest.mark.parametrize("count", [-1, -(2**31), 2, 2**31 - 1])
@pytest.mark.parametrize("form", sorted(CODEC_FORMS))
def test_a_record_count_that_lies_is_refused(count: int, form: str) -> None:
    """No memory is taken for records that the batch cannot hold."""
    with pytest.raises(BatchCorrupt):
        index(write_batch(Batch(0, (Record(0, b"k", b"v"),), form=form, record_count=count)))


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_is_unsupported(magic: int) -> None:
    """Magic 0 and 1 are reported as unsupported, not as damage."""
    batch = bytearray(write_batch(Batch(0, (Record(0),))))
    batch[16] = magic

    with pytest.raises(BatchUnsupported):
        index(bytes(batch))


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_without_its_key_is_refused(key: bytes | None) -> None:
    """A control record needs a version and a type."""
    with pytest.raises(BatchCorrupt):
        index(write_batch(Batch(0, (Record(0, key, b"value"),), flags=0x30, producer_id=1)))


@given(buffer=st.binary(max_size=300))
def test_noise_is_refused_or_cut(buffer: bytes) -> None:
    """Any bytes at all: nothing, or BatchCorrupt."""
    reference.assert_same_answer(buffer, BYTES_MAX, BYTES_MAX)


@given(payload=st.binary(max_size=80), count=st.integers(-1, 6), flags=st.sampled_from([0, 0x30]))
def test_noise_under_a_good_crc_is_judged_as_by_the_twin(
    payload: bytes, count: int, flags: int
) -> None:
    """Any bytes as records: the walk accepts and refuses what the twin does."""
    batch = sealed(payload, count, last_delta=50, flags=flags)

    reference.assert_same_answer(batch, BYTES_MAX, BYTES_MAX)


@given(seed=st.integers(0, 2**32))
def test_a_cut_or_flipped_block_is_judged_as_by_the_twin(seed: int) -> None:
    """Truncations and bit flips of blocks of every codec: the twin's records, or its refusal."""
    rng = random.Random(seed)
    wire = bytearray(b"".join(random_block(rng, 4, sorted(CODEC_FORMS))))
    place = rng.randrange(len(wire))

    if rng.random() < 0.4:
        del wire[place:]
    else:
        wire[place] ^= 1 << rng.randrange(8)

    reference.assert_same_answer(bytes(wire), BYTES_MAX, BYTES_MAX)


@given(seed=st.integers(0, 2**32))
def test_damaged_compressed_records_are_refused_or_held(seed: int) -> None:
    """Damage inside compressed data under a good CRC: BatchCorrupt, or records to pick from."""
    rng = random.Random(seed)
    form = rng.choice(sorted(CODEC_FORMS))
    batch = bytearray(random_block(rng, 1, [form])[0])
    for _ in range(rng.randrange(1, 4)):
        batch[rng.randrange(HEADER.size - 4, len(batch))] = rng.randrange(256)

    try:
        block = index(seal(bytes(batch)))
    except BatchCorrupt as error:
        block = None
        assert error.position == 0  # noqa: PT017 -- either outcome is right

    if block is not None and len(block.offsets):
        rows = range(len(block.offsets))
        again = index(block.pick(rows))
        assert again is not None and again.offsets.tolist() == block.offsets.tolist()
        assert block.compact(rows).pick(rows) == block.pick(rows)


@pytest.mark.skipif(not JIT, reason="this is that process")
def test_no_access_leaves_its_buffer() -> None:
    """Without compilation every access is checked, and all of this file passes."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "pytest", "-q", "-x"]

    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", __file__],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3_000:]
