"""Fields that keylane adds to Kafka's messages: offset ranges and key ranges, as tagged fields.

A field stands in the tagged fields section (KIP-482) of a flexible version. Brokers and stock
clients skip a tag that they do not know; keylane takes its own out before a broker sees the
message. A client uses them when ApiVersions names the feature `FEATURE`.
Source: docs/protocol-extensions.md, which has them byte by byte; KIP draft "Cooperative consumer
processing semantic", "Public Interfaces".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from keylane.errors import FrameInvalid
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.wire.primitives import (
    INT16,
    INT64,
    NO_TAGS,
    Buffer,
    Reader,
    Writer,
    read_tags,
    write_tags,
)

FEATURE: Final = "keylane.ranges"
"""Among the supported features of an ApiVersions answer (v3 and later)."""
FEATURE_VERSION: Final = 1

OFFSET_RANGES: Final = 10000
"""[(first int64, last int64)] of an OffsetCommit or TxnOffsetCommit partition, of the partitions of
an OffsetFetch answer: offsets that are done, both ends inclusive."""
KEY_RANGES: Final = 10001
"""[(lo int64, hi int64)] of a Fetch or OffsetCommit partition: the keys that it is about. The index
is the broker's partition then, also where the topic's name means lanes. No range: all keys."""
STABLE_OFFSET: Final = 10002
"""int64, in answers: up to and including it all is committed by all members; -1: nothing is."""
DRAFT_ERROR: Final = 10003
"""int16, in answers: the KIP draft's number of an error; the entry has the nearest stock code."""
PARTITION_KEY_RANGES: Final = 10004
"""[(partition int32, [(lo int64, hi int64)])] of a topic that OffsetFetch asks for: the answer has
OFFSET_RANGES and STABLE_OFFSET. Partitions that are not named are asked for as they stand."""
LANE_RANGES: Final = 10005
"""[(partition int32, lo int64, hi int64)] of a topic in a heartbeat's assignment, and of a topic
in an OffsetFetch answer, one for each of its partitions: what the lane index stands for. In the
heartbeat itself, empty: asks for it."""
ALLOW_KEY_SHARE: Final = 10006
"""int8 of a ConsumerGroupHeartbeat that joins: 0, the member takes whole partitions only."""

PAIR_BYTES: Final = 16
KEY_RANGES_MAX: Final = 10_000
"""Key ranges of one entry, as the control port has it."""

Pair = tuple[int, int]


class LaneRange(NamedTuple):
    """The meaning of a lane index: the broker's partition, and the keys of it."""

    partition: int
    key_range: KeyRange


def read_extensions(section: bytes) -> tuple[dict[int, bytes], bytes]:
    """Return keylane's own fields of a tagged fields section, and the section without them.

    Raises: FrameInvalid, the section is not well formed.
    """
    if section == NO_TAGS:
        return {}, NO_TAGS
    fields = read_tags(section)
    own = {tag: data for tag, data in fields.items() if OFFSET_RANGES <= tag <= ALLOW_KEY_SHARE}
    if not own:
        return {}, section
    return own, write_tags({tag: data for tag, data in fields.items() if tag not in own})


def with_extensions(section: bytes, own: Mapping[int, bytes]) -> bytes:
    """Return a tagged fields section with these fields added."""
    return section if not own else write_tags({**read_tags(section), **own})


# -- values ---------------------------------------------------------------------------------


def read_pairs(data: Buffer) -> tuple[Pair, ...]:
    """Read OFFSET_RANGES: a compact array of two int64 each; the bounds are not compared.

    Raises: FrameInvalid, it is not well formed.
    """
    reader = Reader(data, flexible=True)
    pairs = _read_pairs(reader)
    reader.end()
    return pairs


def write_pairs(pairs: Sequence[Pair]) -> bytes:
    """Return a compact array of two int64 each."""
    writer = Writer(flexible=True)
    _write_pairs(writer, pairs)
    return writer.to_bytes()


def read_key_ranges(data: Buffer) -> tuple[KeyRange, ...]:
    """Read KEY_RANGES. Raises: FrameInvalid, also where a range is none of the hash space."""
    return _key_ranges(read_pairs(data))


def write_key_ranges(ranges: Iterable[KeyRange]) -> bytes:
    """Return the bytes of KEY_RANGES."""
    return write_pairs([(each.lo, each.hi) for each in ranges])


def read_partition_key_ranges(data: Buffer) -> dict[int, tuple[KeyRange, ...]]:
    """Read PARTITION_KEY_RANGES. Raises: FrameInvalid."""
    reader = Reader(data, flexible=True)
    found: dict[int, tuple[KeyRange, ...]] = {}
    for _ in range(reader.count(INT16.size)):
        partition = reader.int32()
        found[partition] = _key_ranges(_read_pairs(reader))
    reader.end()
    return found


def write_partition_key_ranges(ranges: Mapping[int, Iterable[KeyRange]]) -> bytes:
    """Return the bytes of PARTITION_KEY_RANGES."""
    writer = Writer(flexible=True)
    writer.count(len(ranges))
    for partition, of_partition in ranges.items():
        writer.int32(partition)
        _write_pairs(writer, [(each.lo, each.hi) for each in of_partition])
    return writer.to_bytes()


def read_lane_ranges(data: Buffer) -> tuple[LaneRange, ...]:
    """Read LANE_RANGES. Raises: FrameInvalid."""
    reader = Reader(data, flexible=True)
    found = []
    for _ in range(reader.count(4 + PAIR_BYTES)):
        partition, lo, hi = reader.int32(), reader.int64(), reader.int64()
        found.append(LaneRange(partition, _key_range(lo, hi)))
    reader.end()
    return tuple(found)


def write_lane_ranges(ranges: Sequence[LaneRange]) -> bytes:
    """Return the bytes of LANE_RANGES."""
    writer = Writer(flexible=True)
    writer.count(len(ranges))
    for partition, key_range in ranges:
        writer.int32(partition)
        writer.int64(key_range.lo)
        writer.int64(key_range.hi)
    return writer.to_bytes()


def read_int64(data: Buffer) -> int:
    """Read STABLE_OFFSET. Raises: FrameInvalid."""
    reader = Reader(data, flexible=True)
    value = reader.int64()
    reader.end()
    return value


def write_int64(value: int) -> bytes:
    """Return the bytes of STABLE_OFFSET."""
    return INT64.pack(value)


def read_int16(data: Buffer) -> int:
    """Read DRAFT_ERROR. Raises: FrameInvalid."""
    reader = Reader(data, flexible=True)
    value = reader.int16()
    reader.end()
    return value


def write_int16(value: int) -> bytes:
    """Return the bytes of DRAFT_ERROR."""
    return INT16.pack(value)


def _read_pairs(reader: Reader) -> tuple[Pair, ...]:
    count = reader.count(PAIR_BYTES)
    start = reader.advance(count * PAIR_BYTES)
    numbers = struct.unpack_from(f">{2 * count}q", reader.buffer, start)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _write_pairs(writer: Writer, pairs: Sequence[Pair]) -> None:
    writer.count(len(pairs))
    writer.raw(struct.pack(f">{2 * len(pairs)}q", *chain.from_iterable(pairs)))


def _key_ranges(pairs: Sequence[Pair]) -> tuple[KeyRange, ...]:
    if len(pairs) > KEY_RANGES_MAX:
        raise FrameInvalid(f"{len(pairs)} key ranges of a partition, at most {KEY_RANGES_MAX}")
    return tuple(_key_range(lo, hi) for lo, hi in pairs)


def _key_range(lo: int, hi: int) -> KeyRange:
    if not 0 <= lo <= hi <= HASH_MAX:
        raise FrameInvalid(f"key range [{lo}, {hi}] is none of 0 to 2^63-1")
    return KeyRange(lo, hi)
