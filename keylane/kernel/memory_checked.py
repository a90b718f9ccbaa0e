"""Loads, stores and copies over virtual addresses, each one checked: memory for plain Python.

An address is (region number << 40) + position. An access that begins or ends outside its own
region raises IndexError, where the compiled form would read a neighbour's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final, Literal
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

_Order = Literal["big", "little"]
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


def _make_load(size: int, order: _Order, *, signed: bool = False) -> Callable[[int], int]:
    def load(address: int) -> int:
        return int.from_bytes(view_of(address, size).tobytes(), order, signed=signed)

    return load


def _make_store(size: int) -> Callable[[int, int], None]:
    def store(address: int, value: int) -> None:
        low = int(value) & ((1 << 8 * size) - 1)
        view_of(address, size)[:] = np.frombuffer(low.to_bytes(size, "big"), np.uint8)

    return store


load_u8 = _make_load(1, "big")
load_i32_be = _make_load(4, "big", signed=True)
load_u32_be = _make_load(4, "big")
load_i64_be = _make_load(8, "big", signed=True)
_load_u32_le = _make_load(4, "little")
_load_u64_le = _make_load(8, "little")
store_u8 = _make_store(1)
store_i32_be = _make_store(4)
store_i64_be = _make_store(8)


def load_u32_le(address: int) -> np.uint64:
    """Load a little-endian uint32 as uint64."""
    return np.uint64(_load_u32_le(address))


def load_u64_le(address: int) -> np.uint64:
    """Load a little-endian uint64."""
    return np.uint64(_load_u64_le(address))


def copy_bytes(target: int, source: int, size: int) -> None:
    """Copy `size` bytes between regions."""
    view_of(target, size)[:] = view_of(source, size)


def copy_fast(target: int, source: int, size: int) -> None:
    """Copy by whole 32-byte words, overshoot included, so that the overshoot is checked too."""
    words_size = (size + 31) // 32 * 32
    view_of(target, words_size)[:] = view_of(source, words_size)


def prefetch_write(address: int) -> None:
    """Do nothing: a hint to the processor, allowed at any address."""
