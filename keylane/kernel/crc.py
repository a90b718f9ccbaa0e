"""CRC32C inside kernels, so that a small batch costs no Python call for its checksum.

Source: RFC 3720 B.4 (Castagnoli polynomial); Intel SDM, CRC32; M. Kounavis and F. Berry,
"Novel Table Lookup-Based Algorithms for High-Performance CRC Generation" (slicing by eight).

Four ways give the same number: folding by whole vectors where the processor can, the CRC32
instruction of x86 (three streams at once for large input), tables where it is missing, and the
google_crc32c library as plain Python.
"""

from __future__ import annotations

import platform
from typing import Any, Final

import google_crc32c
import numpy as np
from llvmlite import binding
from numba import config
from numpy.typing import NDArray

from keylane.kernel.jit import JIT, kernel, leaf
from keylane.kernel.memory import load_u8, load_u64_le

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli, bits reversed."""
_ALL_ONES: Final = np.uint64(0xFFFFFFFF)
_BYTE: Final = np.uint64(0xFF)
_EIGHT: Final = np.uint64(8)


def has_crc_instruction() -> bool:
    """Return whether numba will compile for a processor with SSE 4.2.

    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are respected: an image whose cache is built for a
    generic processor must not get an instruction that LLVM cannot select there.
    """
    return _has_features("sse4.2")


def has_wide_multiplication() -> bool:
    """Return whether numba will compile for a processor that multiplies 64 bytes at once."""
    return _has_features("sse4.2", "avx512f", "vpclmulqdq")


def _has_features(*names: str) -> bool:
    if not JIT or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if config.CPU_NAME or config.CPU_FEATURES is not None:
        chosen = (config.CPU_FEATURES or "").split(",")
        return all(f"+{name}" in chosen for name in names)
    found = binding.get_host_cpu_features()
    return all(found.get(name, False) for name in names)


def _build_tables() -> NDArray[np.uint64]:
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for row in range(1, 8):
        previous = tables[row - 1]
        tables[row] = (previous >> _EIGHT) ^ tables[0][(previous & _BYTE).astype(np.intp)]
    return tables


_TABLES: Final = _build_tables()


@kernel
def crc32c_by_tables(address: int, size: int) -> Any:
    """CRC32C by eight tables; the fallback, and what the tests compare with."""
    end = address + size
    crc = _ALL_ONES
    while address + 8 <= end:
        word = load_u64_le(address) ^ crc
        crc = np.uint64(0)
        for row in range(8):
            crc ^= _TABLES[7 - row, np.int64(word & _BYTE)]
            word >>= _EIGHT
        address += 8
    while address < end:
        low = np.int64((crc ^ np.uint64(load_u8(address))) & _BYTE)
        crc = _TABLES[0, low] ^ (crc >> _EIGHT)
        address += 1
    return np.int64(crc ^ _ALL_ONES)


STREAM_BYTES: Final = (1024, 128)
"""Per stream and step: the instruction takes 3 cycles and starts every cycle, so three streams
run side by side; joining them costs eight table reads, hence the long step, then the short."""


def _build_shift_table(size: int) -> NDArray[np.uint64]:
    """Return (4, 256): what byte k of a running CRC turns into after `size` zero bytes."""
    shifted = np.arange(256, dtype=np.uint64) << (np.arange(4, dtype=np.uint64)[:, None] * _EIGHT)
    for _ in range(size):
        shifted = (shifted >> _EIGHT) ^ _TABLES[0][(shifted & _BYTE).astype(np.intp)]
    return shifted


_SHIFT_LONG: Final = _build_shift_table(STREAM_BYTES[0])
_SHIFT_SHORT: Final = _build_shift_table(STREAM_BYTES[1])

if has_crc_instruction():
    from keylane.kernel.crc_instruction import BLOCK_BYTES, crc_u8, crc_u64, fold_blocks

    @leaf
    def _shift(crc: np.uint64, table: Any) -> np.uint64:
        return (
            table[0, np.uintp(crc & _BYTE)]
            ^ table[1, np.uintp((crc >> _EIGHT) & _BYTE)]
            ^ table[2, np.uintp((crc >> np.uint64(16)) & _BYTE)]
            ^ table[3, np.uintp(crc >> np.uint64(24))]
        )

    @leaf
    def _three_streams(crc: np.uint64, address: int, size: int, table: Any) -> np.uint64:
        """Take 3 * size bytes: CRC(a b c) = shift(shift(CRC(a)) ^ CRC(b)) ^ CRC(c)."""
        second = third = np.uint64(0)
        end = address + size
        while address < end:
            crc = crc_u64(crc, load_u64_le(address))
            second = crc_u64(second, load_u64_le(address + size))
            third = crc_u64(third, load_u64_le(address + 2 * size))
            address += 8
        return _shift(_shift(crc, table) ^ second, table) ^ third

    if has_wide_multiplication():

        @leaf
        def _by_steps(crc: np.uint64, address: int, size: int) -> tuple[np.uint64, int]:
            """Take as many whole steps as there are; return the CRC and the address after."""
            blocks = size // BLOCK_BYTES
            if blocks > 0:
                crc = fold_blocks(crc, address, blocks)
            return crc, address + blocks * BLOCK_BYTES

    else:

        @leaf
        def _by_steps(crc: np.uint64, address: int, size: int) -> tuple[np.uint64, int]:
            """Take as many whole steps as there are; return the CRC and the address after."""
            end = address + size
            while end - address >= 3 * STREAM_BYTES[0]:
                crc = _three_streams(crc, address, STREAM_BYTES[0], _SHIFT_LONG)
                address += 3 * STREAM_BYTES[0]
            while end - address >= 3 * STREAM_BYTES[1]:
                crc = _three_streams(crc, address, STREAM_BYTES[1], _SHIFT_SHORT)
                address += 3 * STREAM_BYTES[1]
            return crc, address

    @kernel
    def crc32c_at(address: int, size: int) -> Any:
        """CRC32C of `size` bytes at `address`."""
        end = address + size
        crc, address = _by_steps(_ALL_ONES, address, size)
        while address + 8 <= end:
            crc = crc_u64(crc, load_u64_le(address))
            address += 8
        while address < end:
            crc = crc_u8(crc, load_u8(address))
            address += 1
        return np.int64(crc ^ _ALL_ONES)

elif JIT:
    crc32c_at = crc32c_by_tables
else:
    from keylane.kernel.memory_checked import view_of

    def crc32c_at(address: int, size: int) -> Any:
        """CRC32C of `size` bytes at `address`."""
        return int(google_crc32c.value(view_of(address, size).tobytes()))
