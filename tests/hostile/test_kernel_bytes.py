"""Bytes that only a broken or hostile broker sends: a clean error or a good block, never more.

The same examples run once more in a process without compilation, where every load and store of
the kernels is checked against its buffer: an access outside of one is an IndexError there.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.kernel.block import SplitBlock
from keylane.kernel.jit import JIT
from keylane.kernel.split import split_block
from keylane.keyrange.lane import LaneLayout
from tests.reference import kernel as reference
from tests.reference.batches import (
    CODEC_FORMS,
    HEADER,
    Batch,
    Record,
    seal,
    write_batch,
    write_record,
    write_varint,
)
from tests.reference.random_batches import random_block

LANE_SPLIT = LaneLayout(1, 4).key_split(0)
BYTES_MAX = 1 << 20
RECORD = write_record(Record(0, b"key", b"value", ((b"h", b"v"),)))


def split(buffer: bytes) -> SplitBlock | None:
    """Split with bounds that no example reaches."""
    return split_block(buffer, LANE_SPLIT, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)


def sealed(payload: bytes, count: int = 1, last_delta: int = 0, flags: int = 0) -> bytes:
    """Write a batch whose records are `payload`, whatever that is, under a good CRC."""
    return write_batch(
        Batch(0, (), payload=payload, record_count=count, last_offset_delta=last_delta, flags=flags)
    )


def record_of(body: bytes) -> bytes:
    """Prefix a body with its length."""
    return write_varint(len(body)) + body


OVERLONG = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
LYING_PAYLOADS = {
    "length beyond the batch": write_varint(1_000) + RECORD[1:],
    "length of two GiB": write_varint(2**31 - 1) + RECORD[1:],
    "negative length": write_varint(-5) + RECORD[1:],
    "length zero": b"\0" * 20,
    "length one short": bytes([RECORD[0] - 2]) + RECORD[1:],
    "length one long": bytes([RECORD[0] + 2]) + RECORD[1:] + b"\0",
    "length varint without end": b"\xff" * 20,
    "length varint above 32 bits": b"\xff\xff\xff\xff\x7f" + RECORD[1:],
    "timestamp varint without end": record_of(b"\0" + OVERLONG + RECORD[3:]),
    "offset varint without end": record_of(b"\0\0" + OVERLONG + RECORD[4:]),
    "offset delta beyond the last": write_record(Record(1)),
    "negative offset delta": write_record(Record(-1)),
    "key beyond the record": record_of(b"\0\0\0" + write_varint(100) + b"k\1\0"),
    "key of two GiB": record_of(b"\0\0\0" + write_varint(2**31 - 1) + b"k\1\0"),
    "value beyond the record": record_of(b"\0\0\0\1" + write_varint(100) + b"v\0"),
    "value varint cut": record_of(b"\0\0\0\1\xff\xff"),
    "header count beyond the record": record_of(b"\0\0\0\1\1" + write_varint(50)),
    "header count of two billion": record_of(b"\0\0\0\1\1" + write_varint(2**31 - 1)),
    "negative header count": record_of(b"\0\0\0\1\1\1"),
    "null header key that would be read again as its value": record_of(b"\0\0\0\1\1\2\1"),
    "null header key": record_of(b"\0\0\0\1\1\2\1\1"),
    "header key beyond the record": record_of(b"\0\0\0\1\1\2" + write_varint(9) + b"h\1"),
    "header value beyond the record": record_of(b"\0\0\0\1\1\2\2h" + write_varint(9) + b"v"),
    "bytes after the last record": RECORD + b"\0",
    "no record at all": b"",
    "second record missing": RECORD,
}
COUNTS = {"second record missing": 2}


@pytest.mark.parametrize("name", LYING_PAYLOADS)
def test_records_that_lie_are_refused(name: str) -> None:
    """BatchCorrupt at the batch, with the twin agreeing."""
    batch = sealed(LYING_PAYLOADS[name], COUNTS.get(name, 1))

    with pytest.raises(BatchCorrupt) as caught:
        split(batch)

    assert caught.value.position == 0
    with pytest.raises(reference.Bad):
        reference.split_block(
            batch, LANE_SPLIT.limits.tolist(), plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX
        )


@pytest.mark.parametrize("name", LYING_PAYLOADS)
def test_what_comes_before_a_bad_batch_is_served(name: str) -> None:
    """The good batch makes a block; its error names where the bad one begins."""
    good = write_batch(Batch(0, (Record(0, b"a", b"1"),)))
    bad = bytearray(sealed(LYING_PAYLOADS[name], COUNTS.get(name, 1)))
    bad[:8] = (1).to_bytes(8, "big")

    block = split(good + bytes(bad))

    assert block is not None
    assert (block.next_offset, block.wire_bytes, block.record_count) == (1, len(good), 1)
    assert block.error is not None
    assert block.error.position == len(good)


@pytest.mark.parametrize("count", [-1, -(2**31), 2, 2**31 - 1])
@pytest.mark.parametrize("form", sorted(CODEC_FORMS))
def test_a_record_count_that_lies_is_refused(count: int, form: str) -> None:
    """No memory is taken for records that the batch cannot hold."""
    with pytest.raises(BatchCorrupt):
        split(write_batch(Batch(0, (Record(0, b"k", b"v"),), form=form, record_count=count)))


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_is_unsupported(magic: int) -> None:
    """Magic 0 and 1 are reported as unsupported, not as damage."""
    batch = bytearray(write_batch(Batch(0, (Record(0),))))
    batch[16] = magic

    with pytest.raises(BatchUnsupported):
        split(bytes(batch))


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (0, ">q", -1),
        (0, ">q", 2**63 - 1),
        (8, ">i", -1),
        (8, ">i", -(2**31)),
        (8, ">i", 48),
        (16, ">b", 3),
        (16, ">b", -1),
        (21, ">h", 5),
        (21, ">h", 7),
        (23, ">i", -1),
    ],
)
def test_a_header_that_lies_is_refused(position: int, layout: str, value: int) -> None:
    """Offsets, lengths, magic and codec that cannot be, under a good CRC."""
    batch = bytearray(write_batch(Batch(0, (Record(0, b"k", b"v"),))))
    struct.pack_into(layout, batch, position, value)

    with pytest.raises(BatchCorrupt) as caught:
        split(seal(bytes(batch)))

    assert not isinstance(caught.value, BatchUnsupported)


def test_a_length_above_the_bound_is_unsupported_at_once() -> None:
    """A batch that claims two GiB is not waited for."""
    batch = bytearray(write_batch(Batch(0, (Record(0, b"k", b"v"),))))
    struct.pack_into(">i", batch, 8, 2**31 - 1)

    with pytest.raises(BatchUnsupported):
        split(bytes(batch))


def test_offsets_that_go_back_end_the_block() -> None:
    """A batch that repeats an offset is an error after the good one, not a second copy."""
    batch = write_batch(Batch(5, (Record(0, b"k", b"v"),)))

    block = split(batch + batch)

    assert block is not None and block.error is not None
    assert (block.next_offset, block.error.position) == (6, len(batch))


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_without_its_key_is_refused(key: bytes | None) -> None:
    """A control record needs a version and a type."""
    with pytest.raises(BatchCorrupt):
        split(write_batch(Batch(0, (Record(0, key, b"value"),), flags=0x30, producer_id=1)))


def test_a_marker_before_the_damage_of_its_batch_does_not_count() -> None:
    """The abort markers of a block are those of its good batches only."""
    good = write_batch(Batch(0, (Record(0, b"k", b"v"),)))
    records = (Record(0, b"\0\0\0\0", b""), Record(1, b"\0", b""))
    bad = write_batch(Batch(1, records, flags=0x30, producer_id=5))

    block = split(good + bad)

    assert block is not None and block.error is not None
    assert (block.next_offset, block.abort_markers) == (1, ())


@given(buffer=st.binary(max_size=300))
def test_noise_is_refused_or_cut(buffer: bytes) -> None:
    """Any bytes at all: nothing, or BatchCorrupt."""
    reference.assert_same_answer(buffer, LANE_SPLIT, BYTES_MAX, BYTES_MAX)


@given(payload=st.binary(max_size=80), count=st.integers(-1, 6), flags=st.sampled_from([0, 0x30]))
def test_noise_under_a_good_crc_is_judged_as_by_the_twin(
    payload: bytes, count: int, flags: int
) -> None:
    """Any bytes as records: the walk accepts and refuses what the twin does."""
    batch = sealed(payload, count, last_delta=50, flags=flags)

    reference.assert_same_answer(batch, LANE_SPLIT, BYTES_MAX, BYTES_MAX)


@given(seed=st.integers(0, 2**32))
def test_damaged_compressed_records_are_refused_or_read(seed: int) -> None:
    """Damage inside compressed data under a good CRC: BatchCorrupt or a block, nothing else."""
    rng = random.Random(seed)
    form = rng.choice(sorted(CODEC_FORMS))
    batch = bytearray(random_block(rng, 1, [form])[0])
    for _ in range(rng.randrange(1, 4)):
        batch[rng.randrange(HEADER.size - 4, len(batch))] = rng.randrange(256)

    try:
        block = split(seal(bytes(batch)))
    except BatchCorrupt as error:
        block = None
        assert error.position == 0  # noqa: PT017 -- either outcome is right

    assert block is None or block.next_offset > block.base_offset


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
