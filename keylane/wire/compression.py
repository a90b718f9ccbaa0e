"""Decompress the records of a batch, never past a bound.

The four libraries let go of the GIL while they work, measured to scale.
Source: Kafka documentation, "Record Batch" (codec ids); RFC 1952 (gzip); snappy format
description; xerial snappy-java SnappyOutputStream; LZ4 frame format 1.6.1, block format
("end of block conditions", 255 to 1 at best); RFC 8878 (zstd).

A size that the data declares about itself is checked before memory is taken for it, and where a
format declares none the bound is derived from its blocks. So ten hostile bytes cost ten bytes.
"""

from __future__ import annotations

import struct
import threading
from typing import Any, Final, cast

import cramjam
import lz4.frame
import numpy as np
import xxhash
import zstandard
from isal import isal_zlib

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.wire.batch import CODEC_GZIP, CODEC_LZ4, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD

Buffer = bytes | memoryview

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES: Final = 16
"""Magic, version and lowest compatible version; the Java client writes blocks of 32 KiB after."""
SNAPPY_RATIO_MAX: Final = 22
"""A copy of 64 bytes takes 3; nothing in the format expands further."""
GZIP_WINDOW_BITS: Final = 31
ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
LZ4_FIRST_GUESS_BYTES: Final = 256 * 1024
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_VERSION: Final = 0x40
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_DESCRIPTOR_BITS: Final = _LZ4_VERSION | _LZ4_INDEPENDENT | _LZ4_CONTENT_SIZE
"""A frame with any other bit (checksums, a dictionary) is left to lz4.frame."""
_LZ4_HEADER_BYTES: Final = 7
_LZ4_STORED: Final = 1 << 31
_LZ4_RATIO_MAX: Final = 255
_LZ4_BLOCK_SIZES: Final = {0x40: 64 << 10, 0x50: 256 << 10, 0x60: 1 << 20, 0x70: 4 << 20}
_LZ4_WORD: Final = struct.Struct("<I")
PARTS_MAX: Final = 16
"""Members of a gzip stream, frames of LZ4. Clients write one; the libraries copy what is left
after each, so a batch of a hundred thousand empty ones would cost gigabytes of copying."""
_ZSTD_MAGIC: Final = 0xFD2FB528

_local = threading.local()


def decompress(codec: int, data: Buffer, *, bytes_max: int, position: int = 0) -> Buffer:
    """Decompress the records of one batch; `data` itself when the codec is none.

    `position` is where the batch starts, for the error only.

    Raises:
        BatchUnsupported: the plain records are larger than `bytes_max`.
        BatchCorrupt: the data is cut off or damaged, or the codec is unknown.
    """
    declared = 0
    if codec == CODEC_NONE:
        plain: Buffer | None = data if len(data) <= bytes_max else None
    else:
        decoder = _DECODERS.get(codec)
        if decoder is None:
            raise BatchCorrupt(f"unknown compression codec {codec}", position=position)
        try:
            plain = decoder(memoryview(data), bytes_max)
        except _Declared as error:
            plain, declared = None, error.size_bytes
        except _ERRORS as error:
            name = _NAMES[codec]
            raise BatchCorrupt(f"{name} data is damaged: {error}", position=position) from error
    if plain is None:
        says = f", they declare {declared}" if declared else ""
        reason = f"records are larger than {bytes_max} bytes{says}"
        raise BatchUnsupported(reason, position=position, plain_bytes=declared)
    return plain


class _Damaged(Exception):
    """A decoder's own finding; never leaves this module."""


class _Declared(Exception):
    """The data declares to become more than it may; never leaves this module.

    size_bytes: what it declares, 0 where that is no size to go by.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


_ERRORS: Final = (
    _Damaged,
    cast("type[Exception]", isal_zlib.error),  # its stub names an instance
    cramjam.DecompressionError,
    zstandard.ZstdError,
    RuntimeError,  # what lz4.frame raises
    ValueError,
    EOFError,
    struct.error,
)


def _read_gzip(data: memoryview, bytes_max: int) -> bytes | None:
    parts: list[bytes] = []
    size, rest = 0, data
    for _ in range(PARTS_MAX):
        decoder = isal_zlib.decompressobj(wbits=GZIP_WINDOW_BITS)
        part = decoder.decompress(rest, bytes_max - size + 1)
        parts.append(part)
        size += len(part)
        if size > bytes_max:
            return None
        if not decoder.eof:
            raise _Damaged("it ends early")
        rest = memoryview(decoder.unused_data)
        # A stream may consist of several members (RFC 1952, 2.2); padding after them is ignored
        # as by java.util.zip.GZIPInputStream.
        if bytes(rest[:2]) != b"\x1f\x8b":
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise _Damaged(f"more than {PARTS_MAX} members")


def _read_snappy(data: memoryview, bytes_max: int) -> Buffer:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _read_snappy_blocks([data], bytes_max)
    blocks = []
    position = XERIAL_HEADER_BYTES
    if len(data) < position:
        raise _Damaged("it ends early")
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 < size <= len(data) - position:
            raise _Damaged(f"a block of {size} bytes")
        blocks.append(data[position : position + size])
        position += size
    return _read_snappy_blocks(blocks, bytes_max)


def _read_snappy_blocks(blocks: list[memoryview], bytes_max: int) -> Buffer:
    sizes = [_snappy_plain_size(block) for block in blocks]
    if sum(sizes) > bytes_max:
        raise _Declared(sum(sizes))
    # Not a bytearray: that is filled with zeros first, while every other thread waits.
    view, position = np.empty(sum(sizes), np.uint8).data, 0
    for block, size in zip(blocks, sizes, strict=True):
        written = cramjam.snappy.decompress_raw_into(block, view[position : position + size])
        if written != size:
            raise _Damaged("a block is shorter than it declares")
        position += size
    return view


def _snappy_plain_size(block: memoryview) -> int:
    """Read the plain size that a raw block declares; refuse what it cannot hold."""
    size = 0
    for index, byte in enumerate(bytes(block[:5])):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size > len(block) * SNAPPY_RATIO_MAX:
                raise _Damaged(f"{len(block)} bytes declare {size}")
            return size
    raise _Damaged("its size is cut off")


def _read_lz4(data: memoryview, bytes_max: int) -> Buffer | None:
    plain = read_independent_blocks(data, bytes_max)
    return plain if plain is not None else _read_lz4_frames(data, bytes_max)


def read_independent_blocks(data: memoryview, bytes_max: int) -> memoryview | None:
    """Return the plain bytes of one whole frame, where lz4.frame is not needed for it.

    lz4.frame decompresses into its own memory and copies all of it, holding the GIL: a quarter of
    its time at records of 1 KB.

    None: a frame of another kind, a damaged one, or one that might become larger than
    `bytes_max`. Memory is taken for what the blocks may become at most: the size of a block as
    the header says, and 255 times the bytes that are there.
    """
    found = _lz4_header(data)
    if found is None:
        return None
    position, block_bytes_max, content_size = found
    blocks = _lz4_blocks(data, position, block_bytes_max)
    if blocks is None:
        return None
    bounds = [_lz4_bound(size, block_bytes_max) for _, size in blocks]
    if sum(bounds) > bytes_max:
        return None
    plain, end = np.empty(sum(bounds), np.uint8).data, 0
    for (at, size), bound in zip(blocks, bounds, strict=True):
        if size & _LZ4_STORED:
            plain[end : end + bound] = data[at : at + bound]
            end += bound
            continue
        try:
            end += cramjam.lz4.decompress_block_into(
                data[at : at + size], plain[end : end + bound], bound
            )
        except cramjam.DecompressionError:
            return None  # lz4.frame says what is wrong with it
    if content_size is not None and content_size != end:
        return None
    return plain[:end]


def _lz4_header(data: memoryview) -> tuple[int, int, int | None] | None:
    """Return where the blocks begin, their largest plain size, and that of all if given."""
    if len(data) < _LZ4_HEADER_BYTES or _LZ4_WORD.unpack_from(data)[0] != _LZ4_MAGIC:
        return None
    flags, block_bytes_max = data[4], _LZ4_BLOCK_SIZES.get(data[5])
    if flags | _LZ4_CONTENT_SIZE != _LZ4_DESCRIPTOR_BITS or block_bytes_max is None:
        return None
    end = _LZ4_HEADER_BYTES + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    if len(data) < end or xxhash.xxh32_intdigest(data[4 : end - 1]) >> 8 & 0xFF != data[end - 1]:
        return None
    content_size = int.from_bytes(data[6:14], "little") if flags & _LZ4_CONTENT_SIZE else None
    return end, block_bytes_max, content_size


def _lz4_blocks(
    data: memoryview, position: int, block_bytes_max: int
) -> list[tuple[int, int]] | None:
    """Return position and size word of each block; None unless the data ends with its end mark."""
    blocks: list[tuple[int, int]] = []
    while position + 4 <= len(data):
        (size,) = _LZ4_WORD.unpack_from(data, position)
        position += 4
        if size == 0:
            return blocks if position == len(data) else None
        if size & ~_LZ4_STORED > block_bytes_max:
            return None
        blocks.append((position, size))
        position += size & ~_LZ4_STORED
    return None


def _lz4_bound(size: int, block_bytes_max: int) -> int:
    """The most bytes that a block becomes."""
    if size & _LZ4_STORED:
        return size & ~_LZ4_STORED
    return min(block_bytes_max, size * _LZ4_RATIO_MAX)


def _read_lz4_frames(data: memoryview, bytes_max: int) -> bytes | None:
    parts: list[bytes] = []
    size, rest = 0, data
    for _ in range(PARTS_MAX):
        decoder = lz4.frame.LZ4FrameDecompressor()
        guess = max(LZ4_FIRST_GUESS_BYTES, 4 * len(rest))
        chunk: Any = rest
        while not decoder.eof:
            part = decoder.decompress(chunk, max_length=min(guess, bytes_max - size + 1))
            parts.append(part)
            size += len(part)
            if size > bytes_max:
                return None
            if decoder.needs_input and not decoder.eof:
                raise _Damaged("it ends early")
            chunk, guess = b"", 4 * guess
        if not decoder.unused_data:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        rest = memoryview(decoder.unused_data)
    raise _Damaged(f"more than {PARTS_MAX} frames")


def _read_zstd(data: memoryview, bytes_max: int) -> bytes | None:
    decoder = getattr(_local, "zstd", None)
    if decoder is None:
        decoder = _local.zstd = zstandard.ZstdDecompressor()
    parts: list[bytes] = []
    size = position = 0
    while position < len(data) or not parts:
        frame_end, bound = _zstd_frame(data, position)
        declared = zstandard.frame_content_size(data[position:frame_end])
        if max(declared, 0) > bytes_max - size:
            raise _Declared(size + _zstd_declared(data, position))
        if declared > bound:
            raise _Damaged(f"blocks of {bound} bytes at most declare {declared}")
        room = min(bound, bytes_max - size)
        part = _read_zstd_frame(decoder, data[position:frame_end], room, bound)
        if part is None:
            return None
        parts.append(part)
        size += len(part)
        position = frame_end
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_zstd_frame(decoder: Any, frame: memoryview, room: int, bound: int) -> bytes | None:
    try:
        return bytes(decoder.decompress(frame, max_output_size=max(room, 1)))
    except zstandard.ZstdError as error:
        # The walk over the blocks has shown that the frame is whole, so it is the room that
        # ended before the frame did.
        if room < bound and "did not decompress full frame" in str(error):
            return None
        raise


def _zstd_declared(data: memoryview, position: int) -> int:
    """Return the size that all frames from `position` on declare together.

    Raises: _Declared, with 0 where one declares nothing, or more than its blocks can hold.
    """
    size = 0
    while position < len(data):
        frame_end, bound = _zstd_frame(data, position)
        declared = zstandard.frame_content_size(data[position:frame_end])
        if not 0 <= declared <= bound:
            raise _Declared(0)
        size += declared
        position = frame_end
    return size


def _zstd_frame(data: memoryview, position: int) -> tuple[int, int]:
    """Walk the blocks of a frame; return its end and the most bytes it can become."""
    if struct.unpack_from("<I", data, position)[0] != _ZSTD_MAGIC:
        raise _Damaged("no zstd frame")
    parameters = zstandard.get_frame_parameters(data[position:])
    at = position + zstandard.frame_header_size(data[position:])
    bound, is_last = 0, False
    while not is_last:
        head = int.from_bytes(data[at : at + 3], "little")
        is_last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        # Raw blocks hold their bytes, a run-length block one byte, others are compressed.
        at += 3 + (1 if kind == 1 else size)
        if kind == 3 or at > len(data) or size > ZSTD_BLOCK_BYTES_MAX:
            raise _Damaged("a block is longer than the data")
        bound += size if kind < 2 else ZSTD_BLOCK_BYTES_MAX
    at += 4 if parameters.has_checksum else 0
    if at > len(data):
        raise _Damaged("it ends early")
    return at, bound


_DECODERS: Final = {
    CODEC_GZIP: _read_gzip,
    CODEC_SNAPPY: _read_snappy,
    CODEC_LZ4: _read_lz4,
    CODEC_ZSTD: _read_zstd,
}
_NAMES: Final = {CODEC_GZIP: "gzip", CODEC_SNAPPY: "snappy", CODEC_LZ4: "lz4", CODEC_ZSTD: "zstd"}
