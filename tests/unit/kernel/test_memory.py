"""Memory for plain Python: what is checked there, and that both forms do the same."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from keylane.kernel import library, memory_checked
from keylane.kernel.jit import JIT


@pytest.fixture
def array() -> np.ndarray:
    """Sixteen bytes, the first negative as a signed number."""
    return np.arange(0xF0, 0x100, dtype=np.uint8)


def test_loads_have_their_width_order_and_sign(array: np.ndarray) -> None:
    """Big-endian fields of the protocol, little-endian words of the hash."""
    at = memory_checked.address_of(array)

    assert memory_checked.load_u8(at) == 0xF0
    assert memory_checked.load_u32_be(at) == 0xF0F1F2F3
    assert memory_checked.load_i32_be(at) == 0xF0F1F2F3 - 2**32
    assert memory_checked.load_i64_be(at) == 0xF0F1F2F3F4F5F6F7 - 2**64
    assert int(memory_checked.load_u32_le(at)) == 0xF3F2F1F0
    assert int(memory_checked.load_u64_le(at)) == 0xF7F6F5F4F3F2F1F0


def test_stores_are_what_loads_read(array: np.ndarray) -> None:
    """Each store, then its load; neighbours stay."""
    at = memory_checked.address_of(array)

    memory_checked.store_u8(at, 0x1FF)
    memory_checked.store_i32_be(at + 1, -5)
    memory_checked.store_i64_be(at + 5, -6)

    assert memory_checked.load_u8(at) == 0xFF
    assert memory_checked.load_i32_be(at + 1) == -5
    assert memory_checked.load_i64_be(at + 5) == -6
    assert memory_checked.load_u8(at + 13) == 0xFD


def test_an_access_outside_its_buffer_is_an_error(array: np.ndarray) -> None:
    """One byte before, across the end, after it, and at no buffer at all."""
    at = memory_checked.address_of(array)

    for address in (at - 1, at + 13, at + 16, 0, 12345):
        with pytest.raises(IndexError):
            memory_checked.load_i32_be(address)
    with pytest.raises(IndexError):
        memory_checked.store_u8(at + 16, 0)
    with pytest.raises(IndexError):
        memory_checked.copy_bytes(at, at + 8, 9)
    with pytest.raises(IndexError):
        memory_checked.copy_fast(at, at, 1)  # writes a whole word of 32 bytes


def test_an_address_ends_with_its_array() -> None:
    """A buffer that is gone cannot be read."""
    array = np.zeros(8, np.uint8)
    at = memory_checked.address_of(array)
    del array
    gc.collect()

    with pytest.raises(IndexError):
        memory_checked.load_u8(at)


def test_copies_move_bytes() -> None:
    """The exact copy, and the one that may overshoot into its slack."""
    source = np.arange(64, dtype=np.uint8)
    target = np.zeros(96, np.uint8)
    from_, to = memory_checked.address_of(source), memory_checked.address_of(target)

    memory_checked.copy_bytes(to, from_ + 4, 3)
    memory_checked.copy_fast(to + 32, from_ + 1, 5)

    assert target[:4].tolist() == [4, 5, 6, 0]
    assert target[32:37].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.skipif(not JIT, reason="there are no raw addresses without compilation")
def test_a_raw_address_is_where_numpy_says() -> None:
    """The `address_of` of compiled kernels, for writable and read-only arrays."""
    array = np.zeros(8, np.uint8)
    readonly = library.as_bytes_array(b"bytes")

    assert library.address_of(array) == array.__array_interface__["data"][0]
    assert library.address_of(readonly) == readonly.__array_interface__["data"][0]
