"""LZ4 frames of independent blocks: read directly where they are plain, left alone otherwise."""

from __future__ import annotations

import random
from typing import Any

import lz4.frame
import pytest

from keylane.errors import BatchCorrupt
from keylane.wire.batch import CODEC_LZ4
from keylane.wire.compression import decompress, read_independent_blocks

TEXT = b"".join(b"record %d of the lane;" % number for number in range(40_000))
NOISE = random.Random(3).randbytes(200_000)


def frame_of(data: bytes, **options: Any) -> bytes:
    """A frame as the Java client writes it, but for the options."""
    return lz4.frame.compress(data, **{"block_linked": False, "store_size": False} | options)


@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, TEXT + NOISE], ids=len)
@pytest.mark.parametrize("size", [64, 256, 1024, 4096])
def test_independent_blocks_of_every_size(data: bytes, size: int) -> None:
    """Compressed and stored blocks, with and without the size of all."""
    block_size = getattr(
        lz4.frame, f"BLOCKSIZE_MAX{size}KB" if size < 1024 else f"BLOCKSIZE_MAX{size >> 10}MB"
    )
    for reported in (False, True):
        frame = frame_of(data, block_size=block_size, store_size=reported)

        plain = read_independent_blocks(memoryview(frame), 64 << 20)

        assert plain is not None and bytes(plain) == data


@pytest.mark.parametrize(
    "options",
    [{"block_linked": True}, {"content_checksum": True}, {"block_checksum": True}],
    ids=str,
)
def test_other_frames_are_left_to_the_library(options: dict[str, bool]) -> None:
    """They come out right all the same."""
    frame = frame_of(TEXT, **options)

    assert read_independent_blocks(memoryview(frame), 64 << 20) is None
    assert bytes(decompress(CODEC_LZ4, frame, bytes_max=64 << 20)) == TEXT


def test_nothing_is_read_past_the_bound() -> None:
    """What might become larger is left to the library, which stops at the bound."""
    assert read_independent_blocks(memoryview(frame_of(TEXT)), 1000) is None


@pytest.mark.parametrize("seed", range(200))
def test_a_damaged_frame_gives_the_library_s_verdict(seed: int) -> None:
    """One changed byte or a cut: never other bytes than the library's, never another error."""
    rng = random.Random(seed)
    frame = bytearray(frame_of(TEXT[:100_000] + NOISE[:100], store_size=bool(seed % 2)))
    if seed % 5 == 0:
        del frame[rng.randrange(len(frame)) :]
    else:
        at = rng.randrange(20) if seed % 3 == 0 else rng.randrange(len(frame))
        frame[at] ^= 1 << rng.randrange(8)
    plain = read_independent_blocks(memoryview(frame), 64 << 20)

    if plain is not None:
        assert bytes(plain) == lz4.frame.decompress(bytes(frame))
        return
    try:
        expected = lz4.frame.decompress(bytes(frame))
    except RuntimeError:
        with pytest.raises(BatchCorrupt):
            decompress(CODEC_LZ4, bytes(frame), bytes_max=64 << 20)
    else:
        assert bytes(decompress(CODEC_LZ4, bytes(frame), bytes_max=64 << 20)) == expected
