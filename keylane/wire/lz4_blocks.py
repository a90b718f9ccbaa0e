"""Decompress an LZ4 frame of independent blocks straight into one buffer.

Source: LZ4 Frame Format 1.6.1; LZ4 Block Format ("end of block conditions", 255 to 1 at best).

lz4.frame decompresses into its own memory and copies all of it, holding the GIL: a quarter of
its time at records of 1 KB.
"""

from __future__ import annotations

import struct
from typing import Final

import cramjam
import numpy as np
import xxhash

_MAGIC: Final = 0x184D2204
_VERSION: Final = 0x40
_INDEPENDENT: Final = 0x20
_CONTENT_SIZE: Final = 0x08
_DESCRIPTOR_BITS: Final = _VERSION | _INDEPENDENT | _CONTENT_SIZE
"""A frame with any other bit (checksums, a dictionary) is left to lz4.frame."""
_HEADER_BYTES: Final = 7
_STORED: Final = 1 << 31
_RATIO_MAX: Final = 255
_BLOCK_SIZES: Final = {0x40: 64 << 10, 0x50: 256 << 10, 0x60: 1 << 20, 0x70: 4 << 20}
_WORD: Final = struct.Struct("<I")


def read_independent_blocks(data: memoryview, bytes_max: int) -> memoryview | None:
    """Return the plain bytes of one whole frame, where lz4.frame is not needed for it.

    None: a frame of another kind, a damaged one, or one that might become larger than
    `bytes_max`. Memory is taken for what the blocks may become at most: the size of a block as
    the header says, and 255 times the bytes that are there.
    """
    found = _read_header(data)
    if found is None:
        return None
    position, block_bytes_max, content_size = found
    blocks = _find_blocks(data, position, block_bytes_max)
    if blocks is None:
        return None
    bounds = [_bound(size, block_bytes_max) for _, size in blocks]
    if sum(bounds) > bytes_max:
        return None
    plain, end = np.empty(sum(bounds), np.uint8).data, 0
    for (at, size), bound in zip(blocks, bounds, strict=True):
        if size & _STORED:
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


def _read_header(data: memoryview) -> tuple[int, int, int | None] | None:
    """Return where the blocks begin, their largest plain size, and that of all if given."""
    if len(data) < _HEADER_BYTES or _WORD.unpack_from(data)[0] != _MAGIC:
        return None
    flags, block_bytes_max = data[4], _BLOCK_SIZES.get(data[5])
    if flags | _CONTENT_SIZE != _DESCRIPTOR_BITS or block_bytes_max is None:
        return None
    end = _HEADER_BYTES + (8 if flags & _CONTENT_SIZE else 0)
    if len(data) < end or xxhash.xxh32_intdigest(data[4 : end - 1]) >> 8 & 0xFF != data[end - 1]:
        return None
    content_size = int.from_bytes(data[6:14], "little") if flags & _CONTENT_SIZE else None
    return end, block_bytes_max, content_size


def _find_blocks(
    data: memoryview, position: int, block_bytes_max: int
) -> list[tuple[int, int]] | None:
    """Return position and size word of each block; None unless the data ends with its end mark."""
    blocks: list[tuple[int, int]] = []
    while position + 4 <= len(data):
        (size,) = _WORD.unpack_from(data, position)
        position += 4
        if size == 0:
            return blocks if position == len(data) else None
        if size & ~_STORED > block_bytes_max:
            return None
        blocks.append((position, size))
        position += size & ~_STORED
    return None


def _bound(size: int, block_bytes_max: int) -> int:
    """The most bytes that a block becomes."""
    if size & _STORED:
        return size & ~_STORED
    return min(block_bytes_max, size * _RATIO_MAX)
