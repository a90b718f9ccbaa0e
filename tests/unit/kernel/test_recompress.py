"""Lane batches that are compressed again: other bytes, the same records, smaller."""

from __future__ import annotations

import random
from dataclasses import fields

import google_crc32c
import pytest

from keylane.kernel.block import LaneSlice, SplitBlock
from keylane.kernel.recompress import recompress
from keylane.kernel.split import split_block
from keylane.keyrange.lane import LaneLayout
from keylane.wire.batch import (
    BATCH_HEADER_BYTES,
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    CRC_START,
    read_batch_header,
)
from keylane.wire.compression import decompress
from tests.reference.batches import Batch, Record, write_batch
from tests.reference.random_batches import random_block

BYTES_MAX = 1 << 22


def split(wire: bytes, lanes: int = 4) -> SplitBlock:
    """As a reader would."""
    key_split = LaneLayout(1, lanes).key_split(0)
    block = split_block(wire, key_split, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    assert block is not None
    return block


def batches_of(part: LaneSlice) -> list[bytes | memoryview]:
    """By the metadata."""
    starts = [0, *part.ends.tolist()]
    assert starts[-1] == len(part.data) == part.size_bytes
    return [part.data[start:end] for start, end in zip(starts, part.ends.tolist(), strict=False)]


def records_of(batch: bytes | memoryview, codec: int) -> bytes:
    """The plain records, with the header's length and CRC checked."""
    found = read_batch_header(batch, 0)
    assert found is not None
    header, size_bytes = found
    assert size_bytes == len(batch)
    assert header.codec in {CODEC_NONE, codec}
    assert google_crc32c.value(bytes(batch[CRC_START:])) == int.from_bytes(batch[17:21], "big")
    return bytes(decompress(header.codec, batch[BATCH_HEADER_BYTES:], bytes_max=BYTES_MAX))


@pytest.mark.parametrize("codec", [CODEC_LZ4, CODEC_ZSTD])
@pytest.mark.parametrize("seed", range(8))
def test_only_length_codec_and_checksum_change(codec: int, seed: int) -> None:
    """Random batches, control and empty ones among them: all else is what it was."""
    plain = split(b"".join(random_block(random.Random(seed), 12, ["none", "zstd"])))

    packed = recompress(plain, codec)

    for field in fields(SplitBlock):
        if field.name != "outputs":
            assert getattr(packed, field.name) == getattr(plain, field.name)
    for before, after in zip(plain.outputs, packed.outputs, strict=True):
        if before is None or after is None:
            assert before is after
            continue
        assert after.size_bytes <= before.size_bytes
        assert after.base_offsets.tolist() == before.base_offsets.tolist()
        assert after.last_record_offsets.tolist() == before.last_record_offsets.tolist()
        for old, new in zip(batches_of(before), batches_of(after), strict=True):
            assert records_of(new, codec) == records_of(old, CODEC_NONE)
            assert new[:8] == old[:8] and new[12:17] == old[12:17] and new[23:61] == old[23:61]


@pytest.mark.parametrize("codec", [CODEC_LZ4, CODEC_ZSTD])
def test_what_compresses_gets_smaller(codec: int) -> None:
    """Records alike; and noise stays as it is, since nothing is gained."""
    alike = tuple(Record(i, b"key", b"the same value " * 8, (), 0) for i in range(500))
    rng = random.Random(1)
    noise = (Record(0, rng.randbytes(20), rng.randbytes(400), (), 0),)

    (part,) = recompress(split(write_batch(Batch(0, alike)), 1), codec).outputs
    (kept,) = recompress(split(write_batch(Batch(0, noise)), 1), codec).outputs

    assert part is not None and part.size_bytes * 4 < 500 * 120
    assert kept is not None and kept.data[22] & 7 == CODEC_NONE


def test_without_a_codec_nothing_is_touched() -> None:
    """The block itself."""
    block = split(write_batch(Batch(0, (Record(0, b"k", b"v" * 500, (), 0),))))

    assert recompress(block, CODEC_NONE) is block
