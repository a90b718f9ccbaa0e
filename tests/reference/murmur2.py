"""Kafka's murmur2 and default partitioner, slow and obvious, with Java's signed 32-bit numbers.

It shares no code with keylane. Source: `org.apache.kafka.common.utils.Utils` (`murmur2`,
`toPositive`), `BuiltInPartitioner.partitionForKey` and `UtilsTest` (Apache Kafka 4.3).
"""

from __future__ import annotations

VECTORS: dict[bytes, int] = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""`UtilsTest.testMurmur2`."""


def _int(value: int) -> int:
    """Return what Java's int makes of a number."""
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def _shift(value: int, bits: int) -> int:
    """Java's `>>>` of an int."""
    return _int((value % 2**32) >> bits)


def murmur2(data: bytes) -> int:
    """Return the hash as Java's int."""
    m, r = 0x5BD1E995, 24
    h = _int(0x9747B28C ^ len(data))
    for i in range(len(data) // 4):
        four = data[4 * i : 4 * i + 4]
        k = _int(four[0] + (four[1] << 8) + (four[2] << 16) + (four[3] << 24))
        k = _int(k * m)
        k ^= _shift(k, r)
        k = _int(k * m)
        h = _int(h * m)
        h ^= k
    rest = data[len(data) & ~3 :]
    if len(rest) == 3:
        h ^= rest[2] << 16
    if len(rest) >= 2:
        h ^= rest[1] << 8
    if len(rest) >= 1:
        h ^= rest[0]
        h = _int(h * m)
    h ^= _shift(h, 13)
    h = _int(h * m)
    return h ^ _shift(h, 15)


def to_positive(data: bytes) -> int:
    """Return `Utils.toPositive` of the hash."""
    return murmur2(data) & 0x7FFFFFFF


def default_partition(data: bytes, count: int) -> int:
    """Return the partition of a key, of `count`, by Kafka's default partitioner."""
    return to_positive(data) % count
