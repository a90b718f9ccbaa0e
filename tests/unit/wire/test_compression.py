"""Decompression: every form that clients write, and a bound that no data talks its way past."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import cramjam
import lz4.frame
import pytest
import zstandard

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.wire.compression import PARTS_MAX, decompress
from tests.reference.batches import CODEC_FORMS, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress

TEXT = b"".join(b"record %d of a batch that compresses well; " % i for i in range(5_000))
COMPRESSED_FORMS = sorted(set(CODEC_FORMS) - {"none"})


@pytest.mark.parametrize("form", sorted(CODEC_FORMS))
@pytest.mark.parametrize("plain", [b"x", b"\0" * 300_000, TEXT], ids=["byte", "zeros", "text"])
def test_what_a_client_compressed_comes_back(form: str, plain: bytes) -> None:
    """The plain bytes, from bytes and from a memoryview inside a larger buffer."""
    data = compress(form, plain)
    inside = memoryview(b"before" + data + b"after")[6 : 6 + len(data)]

    assert bytes(decompress(CODEC_FORMS[form], data, bytes_max=len(plain))) == plain
    assert bytes(decompress(CODEC_FORMS[form], inside, bytes_max=len(plain))) == plain


@pytest.mark.parametrize("form", sorted(CODEC_FORMS))
def test_one_byte_above_the_bound_is_refused(form: str) -> None:
    """BatchUnsupported, naming the position of the batch."""
    with pytest.raises(BatchUnsupported, match="at byte 77") as caught:
        decompress(CODEC_FORMS[form], compress(form, TEXT), bytes_max=len(TEXT) - 1, position=77)

    assert caught.value.position == 77


@pytest.mark.parametrize("form", COMPRESSED_FORMS)
def test_a_cut_is_refused(form: str) -> None:
    """BatchCorrupt wherever the data ends early, never part of the records."""
    data = compress(form, TEXT[:5_000])

    for size in {0, 1, 3, 7, 12, len(data) // 2, len(data) - 5, len(data) - 1}:
        with pytest.raises(BatchCorrupt):
            decompress(CODEC_FORMS[form], data[:size], bytes_max=1 << 20)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_garbage_is_refused(codec: int) -> None:
    """BatchCorrupt for bytes that were never compressed."""
    with pytest.raises(BatchCorrupt, match="damaged"):
        decompress(codec, bytes(range(256)), bytes_max=1 << 20)


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_an_undefined_codec_is_refused(codec: int) -> None:
    """BatchCorrupt, with its number."""
    with pytest.raises(BatchCorrupt, match=f"codec {codec}"):
        decompress(codec, b"data", bytes_max=100)


def test_no_codec_costs_no_copy() -> None:
    """The same buffer comes back."""
    assert decompress(NONE, TEXT, bytes_max=len(TEXT)) is TEXT


def _snappy_that_declares(size: int) -> bytes:
    head = bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size]) + b"\0a"


def _xerial(block: bytes) -> bytes:
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(block)) + block


def _zstd_that_declares(size: int) -> bytes:
    # Single segment, 8-byte content size, then a last raw block of one byte.
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + b"\x09\0\0a"


def _lz4_that_declares(size: int) -> bytes:
    frame = bytearray(lz4.frame.compress(b"a" * 100, store_size=True))
    frame[6:14] = struct.pack("<Q", size)
    return bytes(frame)


LIARS = {
    "snappy": (SNAPPY, _snappy_that_declares(0xFFFF_FFFF)),
    "snappy within the bound": (SNAPPY, _snappy_that_declares(90 << 20)),
    "xerial": (SNAPPY, _xerial(_snappy_that_declares(90 << 20))),
    "zstd": (ZSTD, _zstd_that_declares(2**63)),
    "zstd within the bound": (ZSTD, _zstd_that_declares(90 << 20)),
    "lz4": (LZ4, _lz4_that_declares(2**62)),
    "lz4 within the bound": (LZ4, _lz4_that_declares(90 << 20)),
}


@pytest.mark.parametrize("name", LIARS)
def test_a_size_that_lies_takes_no_memory(name: str) -> None:
    """A few bytes that declare gigabytes are refused for less than a megabyte."""
    codec, data = LIARS[name]
    tracemalloc.start()
    try:
        with pytest.raises(BatchCorrupt):
            decompress(codec, data, bytes_max=100 << 20)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1 << 20


@pytest.mark.parametrize("form", COMPRESSED_FORMS)
def test_a_bomb_stops_at_the_bound(form: str) -> None:
    """64 MiB of zeros against a bound of 1 MiB: refused."""
    bomb = compress(form, bytes(64 << 20))

    with pytest.raises(BatchUnsupported):
        decompress(CODEC_FORMS[form], bomb, bytes_max=1 << 20)


def test_a_gzip_stream_of_two_members_is_one() -> None:
    """Both parts, as the Java client reads it; padding after them is ignored."""
    data = gzip.compress(TEXT) + gzip.compress(b"more") + b"\0\0\0"

    assert bytes(decompress(GZIP, data, bytes_max=1 << 20)) == TEXT + b"more"


def test_two_frames_of_lz4_or_zstd_are_one() -> None:
    """Both parts, as the Java client reads them."""
    lz4_data = lz4.frame.compress(TEXT) + lz4.frame.compress(b"more")
    zstd_data = zstandard.compress(TEXT) + compress("zstd", b"more")

    assert bytes(decompress(LZ4, lz4_data, bytes_max=1 << 20)) == TEXT + b"more"
    assert bytes(decompress(ZSTD, zstd_data, bytes_max=1 << 20)) == TEXT + b"more"
    with pytest.raises(BatchUnsupported):
        decompress(ZSTD, zstd_data, bytes_max=len(TEXT) + 3)
    with pytest.raises(BatchUnsupported):
        decompress(LZ4, lz4_data, bytes_max=len(TEXT) + 3)


def test_very_many_parts_are_refused() -> None:
    """Thousands of empty members or frames would cost a copy of the rest each."""
    for codec, part in ((GZIP, gzip.compress(b"")), (LZ4, lz4.frame.compress(b""))):
        with pytest.raises(BatchCorrupt, match="more than"):
            decompress(codec, part * (PARTS_MAX + 1), bytes_max=1 << 20)


def test_zstd_of_many_flushed_blocks_is_read() -> None:
    """Blocks far smaller than the block size, as a streaming producer flushes them."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(3).stream_writer(out, closefd=False) as writer:
        for start in range(0, len(TEXT), 1_000):
            writer.write(TEXT[start : start + 1_000])
            writer.flush(zstandard.FLUSH_BLOCK)

    assert bytes(decompress(ZSTD, out.getvalue(), bytes_max=len(TEXT))) == TEXT
    with pytest.raises(BatchUnsupported):
        decompress(ZSTD, out.getvalue(), bytes_max=len(TEXT) - 1)


def test_zstd_with_a_checksum_is_checked() -> None:
    """A frame with a content checksum is read to its end; a wrong one is refused."""
    data = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)

    assert bytes(decompress(ZSTD, data, bytes_max=len(TEXT))) == TEXT
    with pytest.raises(BatchCorrupt):
        decompress(ZSTD, data[:-1] + bytes([data[-1] ^ 1]), bytes_max=len(TEXT))
    with pytest.raises(BatchCorrupt):
        decompress(ZSTD, data[:-2], bytes_max=len(TEXT))


def test_xerial_blocks_that_lie_are_refused() -> None:
    """A block length that is zero, negative or beyond the data."""
    good = compress("snappy-xerial", TEXT)

    for size in (0, -1, 2**31 - 1, len(good)):
        with pytest.raises(BatchCorrupt):
            decompress(SNAPPY, good[:16] + struct.pack(">i", size) + good[20:], bytes_max=1 << 20)
    with pytest.raises(BatchCorrupt):
        decompress(SNAPPY, good[:10], bytes_max=1 << 20)


def test_empty_snappy_is_empty() -> None:
    """A raw block of nothing, and a xerial stream without blocks."""
    assert bytes(decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(b"")), bytes_max=0)) == b""
    assert bytes(decompress(SNAPPY, _xerial(b"\0"), bytes_max=0)) == b""


@pytest.mark.parametrize("form", COMPRESSED_FORMS)
def test_threads_do_not_share_a_decoder(form: str) -> None:
    """Many batches at once over four threads, each comes back as it was."""
    texts = [TEXT[i : i + 50_000] for i in range(40)]
    packed = [compress(form, text) for text in texts]

    with ThreadPoolExecutor(4) as pool:
        plain = list(
            pool.map(lambda d: bytes(decompress(CODEC_FORMS[form], d, bytes_max=1 << 20)), packed)
        )

    assert plain == texts
