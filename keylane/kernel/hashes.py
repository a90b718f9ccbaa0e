"""Key hashes inside kernels, as `keylane.keyrange.hash` has them, and the interval of a hash.

Source: xxHash fast digest algorithm 0.1.1, "XXH64 algorithm description", steps 1 to 6;
`org.apache.kafka.common.utils.Utils.murmur2` (Apache Kafka 4.3); guide
tables (Chen and Asau, 1974): the top bits of a hash bound the search. With even lanes most entries
name one lane outright; with the cuts of a plan the search stays logarithmic.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from keylane.kernel import status as s
from keylane.kernel.jit import kernel, leaf
from keylane.kernel.lane_table import GUIDE_SHIFT
from keylane.kernel.memory import load_u8, load_u32_le, load_u64_le
from keylane.keyrange.hash import (
    KEY_HASH_SEED,
    MURMUR2_MULTIPLIER,
    MURMUR2_SEED,
    MURMUR2_SHIFT,
    POINT_SLACK,
    POSITIVE_MASK,
    QUOTIENT_BITS,
)

_PRIME_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3: Final = np.uint64(0x165667B19E3779F9)
_PRIME_4: Final = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5: Final = np.uint64(0x27D4EB2F165667C5)
_SEED: Final = np.uint64(KEY_HASH_SEED)
_ONE: Final = np.uint64(1)
_WORD_BITS: Final = np.uint64(64)
_SEED_2: Final = np.uint64(MURMUR2_SEED)
_MULTIPLIER: Final = np.uint64(MURMUR2_MULTIPLIER)
_SHIFT: Final = np.uint64(MURMUR2_SHIFT)
_WORD: Final = np.uint64(0xFFFF_FFFF)
_POSITIVE: Final = np.uint64(POSITIVE_MASK)
_SLACK: Final = np.uint64(POINT_SLACK)
_QUOTIENT_BITS: Final = np.uint64(QUOTIENT_BITS)


@leaf
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    left = np.uint64(bits)
    return (value << left) | (value >> (_WORD_BITS - left))


@leaf
def _round(accumulator: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(accumulator + word * _PRIME_2, 31) * _PRIME_1


@leaf
def _merge(accumulator: np.uint64, lane: np.uint64) -> np.uint64:
    return (accumulator ^ _round(np.uint64(0), lane)) * _PRIME_1 + _PRIME_4


@leaf
def _avalanche(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(33))) * _PRIME_2
    value = (value ^ (value >> np.uint64(29))) * _PRIME_3
    return value ^ (value >> np.uint64(32))


@kernel
def _stripes(address: int, size: int) -> np.uint64:
    """Steps 1 to 3 for 32 bytes and more: four accumulators, merged."""
    first = _SEED + _PRIME_1 + _PRIME_2
    second = _SEED + _PRIME_2
    third = _SEED
    fourth = _SEED - _PRIME_1
    last = address + size - 32
    while address <= last:
        first = _round(first, load_u64_le(address))
        second = _round(second, load_u64_le(address + 8))
        third = _round(third, load_u64_le(address + 16))
        fourth = _round(fourth, load_u64_le(address + 24))
        address += 32
    merged = _rotate(first, 1) + _rotate(second, 7) + _rotate(third, 12) + _rotate(fourth, 18)
    merged = _merge(_merge(merged, first), second)
    return _merge(_merge(merged, third), fourth)


@leaf
def hash_key(address: int, size: int) -> np.uint64:
    """Hash a key of `size` bytes (0 for an empty key): XXH64 with seed 42, shifted right once."""
    end = address + size
    if size >= 32:
        value = _stripes(address, size)
        address += size & ~31
    else:
        value = _SEED + _PRIME_5
    value += np.uint64(size)
    while address + 8 <= end:
        value = _rotate(value ^ _round(np.uint64(0), load_u64_le(address)), 27)
        value = value * _PRIME_1 + _PRIME_4
        address += 8
    if address + 4 <= end:
        value = _rotate(value ^ (load_u32_le(address) * _PRIME_1), 23) * _PRIME_2 + _PRIME_3
        address += 4
    while address < end:
        value = _rotate(value ^ (np.uint64(load_u8(address)) * _PRIME_5), 11) * _PRIME_1
        address += 1
    return _avalanche(value) >> _ONE


@leaf
def hash_offset(offset: int) -> np.uint64:
    """Hash an offset as the eight little-endian bytes of its int64."""
    value = _SEED + _PRIME_5 + np.uint64(8)
    value = _rotate(value ^ _round(np.uint64(0), np.uint64(offset)), 27)
    return _avalanche(value * _PRIME_1 + _PRIME_4) >> _ONE


@kernel
def hash_murmur2(address: int, size: int) -> np.uint64:
    """Hash a key of `size` bytes as Kafka's producer does: murmur2 without its sign, 31 bits.

    Bytes count as unsigned: Java masks each of the last ones with 0xff.
    """
    end = address + size
    value = _SEED_2 ^ np.uint64(size)
    while address + 4 <= end:
        word = (load_u32_le(address) * _MULTIPLIER) & _WORD
        word = ((word ^ (word >> _SHIFT)) * _MULTIPLIER) & _WORD
        value = ((value * _MULTIPLIER) & _WORD) ^ word
        address += 4
    if address < end:
        shift = np.uint64(0)
        while address < end:
            value ^= np.uint64(load_u8(address)) << shift
            shift += np.uint64(8)
            address += 1
        value = (value * _MULTIPLIER) & _WORD
    value = ((value ^ (value >> np.uint64(13))) * _MULTIPLIER) & _WORD
    return (value ^ (value >> np.uint64(15))) & _POSITIVE


@leaf
def _reverse(value: np.uint64) -> np.uint64:
    """Return the lowest 31 bits in reverse order; the others are 0."""
    for shift, mask in (
        (np.uint64(1), np.uint64(0x5555_5555)),
        (np.uint64(2), np.uint64(0x3333_3333)),
        (np.uint64(4), np.uint64(0x0F0F_0F0F)),
        (np.uint64(8), np.uint64(0x00FF_00FF)),
        (np.uint64(16), np.uint64(0x0000_FFFF)),
    ):
        value = ((value >> shift) & mask) | ((value & mask) << shift)
    return value >> _ONE


@kernel
def point_of_murmur2(positive: np.uint64, hashing: Any) -> np.uint64:
    """Return the point of a key by its hash; hashing: see `lane_table.hashing_of`."""
    odd_lanes = hashing[s.HASHING_ODD_LANES]
    rest = positive // hashing[s.HASHING_PARTITIONS]
    index = np.uint64(0)
    if odd_lanes != _ONE:
        whole = rest // odd_lanes
        index = rest - whole * odd_lanes
        rest = whole
    bits = _reverse(rest)
    low = (bits * hashing[s.HASHING_REMAINDER]) >> _QUOTIENT_BITS
    start = index * hashing[s.HASHING_WIDTH] + bits * hashing[s.HASHING_STEP]
    return start + low + _SLACK


@kernel
def hash_placed(address: int, size: int, offset: int, hashing: Any, cursor: Any) -> np.uint64:
    """Return the point of a key by murmur2; note the first record in another partition than its.

    cursor: [4] is set to the offset where it is -1.
    """
    positive = hash_murmur2(address, size)
    if (
        cursor[4] == s.NONE_MISPLACED
        and positive % hashing[s.HASHING_PARTITIONS] != hashing[s.HASHING_PARTITION]
    ):
        cursor[4] = offset
    return point_of_murmur2(positive, hashing)


@leaf
def interval_of_hash(key_hash: np.uint64, limits: Any, guide: Any) -> Any:
    """Return the first interval whose limit is above the hash."""
    slot = np.int64(key_hash >> GUIDE_SHIFT)
    low: Any = np.int64(guide[slot])
    high: Any = np.int64(guide[slot + 1])
    while low < high:
        middle = (low + high) >> 1
        if key_hash < limits[middle]:
            high = middle
        else:
            low = middle + 1
    return low
