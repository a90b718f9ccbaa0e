"""The key hash: which point of the hash space a record belongs to.

Source: XXH64 (xxHash fast digest algorithm, 0.1.1), seed 42, shifted right by one. Spark SQL
computes the same as `shiftrightunsigned(xxhash64(key), 1)`.
"""

from __future__ import annotations

from typing import Final

import xxhash

KEY_HASH_SEED: Final = 42
"""Spark SQL's seed of `xxhash64`, so that a job can recompute every lane."""


def key_hash(key: bytes | memoryview) -> int:
    """Hash a key that is present; an empty key is a key and hashes as zero bytes."""
    return xxhash.xxh64_intdigest(key, seed=KEY_HASH_SEED) >> 1


def offset_hash(offset: int) -> int:
    """Hash the offset of a record without a key, so that such records spread over all lanes.

    The 8 little-endian bytes of the int64 are hashed, which is Spark's `xxhash64(offset)`.
    """
    return key_hash(offset.to_bytes(8, "little", signed=True))
