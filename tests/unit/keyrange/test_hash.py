"""The key hash: pinned values, so that no release moves a key to another lane."""

from __future__ import annotations

import pytest
import xxhash

from keylane.keyrange.hash import key_hash, offset_hash
from keylane.keyrange.space import HASH_MAX

PINNED = {
    b"": 0x98B1582B0977E704 >> 1,
    b"a": 0x88E4FE59ADF7B0CC >> 1,
    b"order-1": 0x8514C4F5D6412603 >> 1,
    bytes(range(40)): 0x02A745038A573BFA >> 1,
}


@pytest.mark.parametrize("key", [b"", b"a", b"order-1", b"k" * 31, b"k" * 32, b"k" * 100])
def test_a_key_hashes_as_xxh64_of_seed_42_shifted(key: bytes) -> None:
    """XXH64(key, 42) >>> 1, inside the hash space."""
    assert key_hash(key) == xxhash.xxh64(key, seed=42).intdigest() >> 1
    assert 0 <= key_hash(key) <= HASH_MAX


@pytest.mark.parametrize(("key", "expected"), PINNED.items())
def test_the_hash_never_changes(key: bytes, expected: int) -> None:
    """Literal values, independent of any library."""
    assert key_hash(key) == expected


@pytest.mark.parametrize("offset", [0, 1, 255, 2**31, 2**63 - 1, -1])
def test_an_offset_hashes_as_its_eight_little_endian_bytes(offset: int) -> None:
    """The value of Spark's xxhash64 of a long, shifted."""
    assert offset_hash(offset) == key_hash((offset & (2**64 - 1)).to_bytes(8, "little"))


def test_the_hash_of_an_offset_never_changes() -> None:
    """A literal value, independent of any library."""
    assert offset_hash(7) == 0xD84046C3CF69AAF1 >> 1


def test_keyless_records_spread() -> None:
    """Each of 16 lanes gets near a sixteenth of 10,000 consecutive offsets."""
    counts = [0] * 16
    for offset in range(10_000):
        counts[offset_hash(offset) * 16 // (HASH_MAX + 1)] += 1

    assert min(counts) > 500 and max(counts) < 750


def test_a_memoryview_hashes_as_its_bytes() -> None:
    """No copy of the key is needed."""
    assert key_hash(memoryview(b"a key")[2:]) == key_hash(b"key")
