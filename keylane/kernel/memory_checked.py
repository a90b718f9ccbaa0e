"""Loads, stores and copies over virtual addresses, each one checked: memory for plain Python.

In:    arrays, then the addresses that `address_of` gave for them.  Out: integers.

An address is (region number << 40) + position. An access that begins or ends outside its own
region raises IndexError, where the compiled form would read a neighbour's bytes.
"""

from __future__ import annotations

from itertools import count
from typing import Final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

REGION_SHIFT: Final = 40
_POSITION_MASK: Final = (1 << REGION_SHIFT) - 1

_regions: WeakValueDictionary[int, NDArray[np.uint8]] = WeakValueDictionary()
_numbers = count(1)


def address_of(array: NDArray[np.uint8]) -> int:
    """Give the array a region of the virtual address space; valid while the array lives."""
    number = next(_numbers)
    _regions[number] = array
    return number << REGION_SHIFT


def view_of(address: int, size: int) -> NDArray[np.uint8]:
    """Return the bytes at an address; IndexError when they are not all inside one region."""
    region = _regions.get(int(address) >> REGION_SHIFT)
    position = int(address) & _POSITION_MASK
    if region is None or size < 0 or position + size > region.size:
        raise IndexError(f"{size} bytes at {address:#x} are outside of every buffer")
    return region[position : position + size]


def _load(address: int, size: int) -> bytes:
    return view_of(address, size).tobytes()


def _store(address: int, data: bytes) -> None:
    view_of(address, len(data))[:] = np.frombuffer(data, np.uint8)


def load_u8(address: int) -> int:
    """Load an unsigned byte."""
    return _load(address, 1)[0]


def load_i32_be(address: int) -> int:
    """Load a big-endian int32."""
    return int.from_bytes(_load(address, 4), "big", signed=True)


def load_u32_be(address: int) -> int:
    """Load a big-endian uint32."""
    return int.from_bytes(_load(address, 4), "big")


def load_i64_be(address: int) -> int:
    """Load a big-endian int64."""
    return int.from_bytes(_load(address, 8), "big", signed=True)


def load_u32_le(address: int) -> np.uint64:
    """Load a little-endian uint32 as uint64."""
    return np.uint64(int.from_bytes(_load(address, 4), "little"))


def load_u64_le(address: int) -> np.uint64:
    """Load a little-endian uint64."""
    return np.uint64(int.from_bytes(_load(address, 8), "little"))


def store_u8(address: int, value: int) -> None:
    """Store the low byte."""
    _store(address, (int(value) & 0xFF).to_bytes(1, "big"))


def store_i32_be(address: int, value: int) -> None:
    """Store the low 32 bits, big-endian."""
    _store(address, (int(value) & 0xFFFFFFFF).to_bytes(4, "big"))


def store_i64_be(address: int, value: int) -> None:
    """Store an int64, big-endian."""
    _store(address, (int(value) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big"))


def copy_bytes(target: int, source: int, size: int) -> None:
    """Copy `size` bytes between regions."""
    view_of(target, size)[:] = view_of(source, size)


def copy_fast(target: int, source: int, size: int) -> None:
    """Copy by whole 32-byte words, overshoot included, so that the overshoot is checked too."""
    words_size = (size + 31) // 32 * 32
    view_of(target, words_size)[:] = view_of(source, words_size)


def prefetch_write(address: int) -> None:
    """Do nothing: a hint to the processor, allowed at any address."""
