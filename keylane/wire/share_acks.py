"""Acknowledgements of a share request, counted by type without reading the rest of it.

Source: ShareFetchRequest.json and ShareAcknowledgeRequest.json of Apache Kafka 4.3 (v1 and v2);
`KafkaApis.validateAcknowledgementBatches`.

For requests that pass as bytes, so that nothing is refused here: the broker judges them. A request
without acknowledgements of which no partition is named ends at the count of its topics.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from keylane.errors import FrameInvalid
from keylane.wire.header import ApiKey
from keylane.wire.primitives import INT32, UUID_BYTES, Buffer, read_uvarint, skip_tags
from keylane.wire.share import FETCH_HEAD, FETCH_HEAD_V2, RANGE, RENEW, RENEW_FROM

TYPES: Final = RENEW + 1
OFFSETS_MAX: Final = 1 << 20
"""Offsets of one partition in a request; windows have 10,000 at most."""
NONE: Final = (0,) * TYPES


def group_of(frame: Buffer, position: int) -> str:
    """Return the group of either request, whose body begins at `position`. Raises: FrameInvalid."""
    size, start = read_uvarint(frame, position, len(frame))
    end = start + size - 1
    if size == 0 or end > len(frame):
        raise FrameInvalid(f"group of {size - 1} bytes at byte {start}")
    try:
        return str(frame[start:end], "utf-8")
    except UnicodeDecodeError:
        raise FrameInvalid(f"group at byte {start} is not UTF-8") from None


def count_acks(frame: Buffer, position: int, api_key: int, version: int) -> Sequence[int]:
    """Return the number of offsets by type of acknowledgement, from GAP to RENEW.

    Batches that no broker takes do not count: of a partition where they overlap, are too many, or
    have unknown types, nothing does. Raises: FrameInvalid.
    """
    try:
        return _count(frame, position, api_key, version)
    except (IndexError, struct.error):
        raise FrameInvalid(f"share request ends early, at byte {len(frame)}") from None


def _count(frame: Buffer, position: int, api_key: int, version: int) -> Sequence[int]:
    limit = len(frame)
    for _ in range(2):  # group and member
        size, position = read_uvarint(frame, position, limit)
        position += size - 1
    if api_key == ApiKey.SHARE_FETCH:
        position += FETCH_HEAD_V2.size if version >= RENEW_FROM else FETCH_HEAD.size
    else:
        position += INT32.size + (version >= RENEW_FROM)
    topics, position = read_uvarint(frame, position, limit)
    if topics <= 1:
        return NONE
    counts = [0] * TYPES
    for _ in range(topics - 1):
        partitions, position = read_uvarint(frame, position + UUID_BYTES, limit)
        for _ in range(partitions - 1):
            position += INT32.size
            batches = frame[position]
            position += 1
            if batches > 1:
                position = _count_batches(frame, position - 1, limit, counts)
            position = skip_tags(frame, position, limit)
        position = skip_tags(frame, position, limit)
    return counts


def _count_batches(frame: Buffer, position: int, limit: int, counts: list[int]) -> int:
    """Add the offsets of one partition to `counts`; return the position behind its batches."""
    batches, position = read_uvarint(frame, position, limit)
    found = [0] * TYPES
    previous, total, is_valid = -1, 0, True
    for _ in range(batches - 1):
        first, last = RANGE.unpack_from(frame, position)
        count, position = read_uvarint(frame, position + RANGE.size, limit)
        types = bytes(frame[position : position + count - 1])
        position = skip_tags(frame, position + count - 1, limit)
        size = last - first + 1
        total += size
        is_valid = is_valid and first > previous and size > 0 and total <= OFFSETS_MAX
        is_valid = is_valid and len(types) in (1, size) and max(types) <= RENEW
        previous = last
        if is_valid and len(types) == 1:
            found[types[0]] += size
        elif is_valid:
            for kind in range(TYPES):
                found[kind] += types.count(kind)
    if is_valid:
        counts[:] = map(sum, zip(counts, found, strict=True))
    return position
