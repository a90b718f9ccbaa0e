"""The key hash: which point of the hash space a record belongs to.

Source: XXH64 (xxHash fast digest algorithm, 0.1.1), seed 42, shifted right by one. Spark SQL
computes the same as `shiftrightunsigned(xxhash64(key), 1)`.
`org.apache.kafka.common.utils.Utils.murmur2` (Apache Kafka 4.3), the hash of the default
partitioner; docs/decisions/044 has its place in the hash space.

Theory of the second. Kafka's partitioner gives key k partition `h mod N` of N, where h is
`murmur2(k) & 0x7fffffff`. With P partitions and L lanes of each, N = P * L, that partition is lane
`q mod L` of partition `h mod P`, q = h // P. So a lane is a residue class of q, and the hash space
has to be such that classes are intervals. With L = m * 2^k, m odd, write q as r + m * j, r < m. The
point of a key is r, followed by the bits of j in reverse: the lowest ones come first, so that the
classes of 2L lanes are the halves of those of L, and of all counts m * 2^k each class is one range
of `space.split_even`. The point depends on P and m, and not on k.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import xxhash

from keylane.keyrange.space import HASH_MAX

KEY_HASH_SEED: Final = 42
"""Spark SQL's seed of `xxhash64`, so that a job can recompute every lane."""
MURMUR2_SEED: Final = 0x9747B28C
MURMUR2_MULTIPLIER: Final = 0x5BD1E995
MURMUR2_SHIFT: Final = 24
POSITIVE_MASK: Final = 0x7FFF_FFFF
"""`Utils.toPositive`: the sign is cleared, which is not the absolute value."""
QUOTIENT_BITS: Final = 31
"""Bits of j, as far as a positive hash has any."""
POINT_SLACK: Final = 2048
"""Added to each point: more than all that division cuts off, less than the distance of two."""
_WORD: Final = 0xFFFF_FFFF

HashName = Literal["xxh64", "murmur2"]


def key_hash(key: bytes | memoryview) -> int:
    """Hash a key that is present; an empty key is a key and hashes as zero bytes."""
    return xxhash.xxh64_intdigest(key, seed=KEY_HASH_SEED) >> 1


def offset_hash(offset: int) -> int:
    """Hash the offset of a record without a key, so that such records spread over all lanes.

    The 8 little-endian bytes of the int64 are hashed, which is Spark's `xxhash64(offset)`. It is
    so under each hash of keys: any lane is right for such a record.
    """
    return key_hash(offset.to_bytes(8, "little", signed=True))


def murmur2(key: bytes | memoryview) -> int:
    """Return the 32 bits of Kafka's hash of a key, unsigned."""
    size = len(key)
    whole = size & ~3
    value = MURMUR2_SEED ^ size
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * MURMUR2_MULTIPLIER & _WORD
        word = (word ^ (word >> MURMUR2_SHIFT)) * MURMUR2_MULTIPLIER & _WORD
        value = (value * MURMUR2_MULTIPLIER & _WORD) ^ word
    if size > whole:
        value = (value ^ int.from_bytes(key[whole:], "little")) * MURMUR2_MULTIPLIER & _WORD
    value = (value ^ (value >> 13)) * MURMUR2_MULTIPLIER & _WORD
    return value ^ (value >> 15)


def positive_murmur2(key: bytes | memoryview) -> int:
    """Return the hash of which Kafka's default partitioner takes the remainder."""
    return murmur2(key) & POSITIVE_MASK


@dataclass(frozen=True, slots=True)
class KeyHash:
    """The rule by which a key gets its point; equal rules give each key the same point."""

    name: HashName = "xxh64"
    partition_count: int = 0
    """Partitions of the topic; 0 where they do not matter."""
    odd_lanes: int = 0
    """Odd part of the lane counts that the points are for; 0 where it does not matter."""

    tag: str = field(init=False, repr=False, compare=False)
    """A short text that differs between rules; empty for XXH64."""

    def __post_init__(self) -> None:
        tag = f"{self.name}/{self.partition_count}/{self.odd_lanes}"
        object.__setattr__(self, "tag", "" if self.name == "xxh64" else tag)

    def point(self, key: bytes | memoryview) -> int:
        """Return the point of a key, 0 to HASH_MAX."""
        return key_hash(key) if self.name == "xxh64" else self.point_of(positive_murmur2(key))

    def point_of(self, positive: int) -> int:
        """Return the point of a key with this `positive_murmur2`."""
        index, rest = divmod(positive // self.partition_count, self.odd_lanes)[::-1]
        width, step, remainder = self.widths
        bits = reversed_bits(rest, QUOTIENT_BITS)
        return index * width + bits * step + (bits * remainder >> QUOTIENT_BITS) + POINT_SLACK

    @property
    def widths(self) -> tuple[int, int, int]:
        """Return the width of one r; that of one j below it, as a whole number and 2^-31ths."""
        width = HASH_MAX // self.odd_lanes
        return width, width >> QUOTIENT_BITS, width & POSITIVE_MASK

    def lane_order(self, lane_count: int) -> tuple[int, ...] | None:
        """Return the lane of each of `lane_count` even ranges, ascending; None: range k is lane k.

        Raises: ValueError, classes of this count are no ranges of this space.
        """
        if self.name == "xxh64":
            return None
        if odd_part(lane_count) != self.odd_lanes:
            raise ValueError(f"{lane_count} lanes are not {self.odd_lanes} times a power of two")
        halves = lane_count // self.odd_lanes
        bit_count = halves.bit_length() - 1
        return tuple(
            index + self.odd_lanes * reversed_bits(half, bit_count)
            for index in range(self.odd_lanes)
            for half in range(halves)
        )


XXH64: Final = KeyHash()
"""The hash of topics without another rule."""


def murmur2_hash(partition_count: int, lane_count: int) -> KeyHash:
    """Return the rule of a topic whose lanes are those of Kafka's default partitioner."""
    return KeyHash("murmur2", partition_count, odd_part(lane_count))


def odd_part(count: int) -> int:
    """Return the largest odd divisor."""
    return count // (count & -count)


def reversed_bits(value: int, bit_count: int) -> int:
    """Return the lowest `bit_count` bits in reverse order."""
    return int(f"{value:0{bit_count}b}"[::-1], 2) if bit_count else 0
