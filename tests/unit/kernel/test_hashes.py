"""The kernel's hash is the hash of `keylane.keyrange`, for keys of every length."""

from __future__ import annotations

import random

import numpy as np
import pytest

from keylane.kernel.hashes import hash_key, hash_offset
from keylane.kernel.library import address_of, as_bytes_array
from keylane.keyrange.hash import key_hash, offset_hash


@pytest.mark.parametrize("size", [*range(1, 70), 127, 1_000])
def test_a_key_of_every_length_hashes_alike(size: int) -> None:
    """XXH64 takes another path at 4, 8 and 32 bytes."""
    data = random.Random(size).randbytes(size + 1)
    array = as_bytes_array(data)

    with np.errstate(over="ignore"):
        assert int(hash_key(address_of(array) + 1, size)) == key_hash(data[1:])


def test_an_empty_key_reads_nothing() -> None:
    """Zero bytes at the end of a buffer."""
    array = as_bytes_array(b"x")

    with np.errstate(over="ignore"):
        assert int(hash_key(address_of(array) + 1, 0)) == key_hash(b"")


@pytest.mark.parametrize("offset", [0, 1, 41, 2**31, 2**62, 2**63 - 2**32])
def test_an_offset_hashes_alike(offset: int) -> None:
    """Eight little-endian bytes."""
    with np.errstate(over="ignore"):
        assert int(hash_offset(offset)) == offset_hash(offset)
