"""The consumer protocol as Kafka's ConsumerProtocol*.json say, apart from keylane's own codec."""

from __future__ import annotations

import struct
from collections.abc import Sequence

Lanes = Sequence[tuple[str, int]]


def text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(value)) + value.encode()


def places(lanes: Lanes) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, index in lanes:
        by_topic.setdefault(topic, []).append(index)
    parts = [struct.pack(">i", len(by_topic))]
    for topic, indexes in by_topic.items():
        parts += [text(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)]
    return b"".join(parts)


def blob(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def subscription(
    *topics: str,
    version: int = 0,
    user_data: bytes | None = None,
    owned: Lanes = (),
    generation_id: int = -1,
    rack: str | None = None,
) -> bytes:
    parts = [struct.pack(">hi", version, len(topics)), *map(text, topics), blob(user_data)]
    parts += [places(owned)] * (version >= 1)
    parts += [struct.pack(">i", generation_id)] * (version >= 2)
    return b"".join(parts + [text(rack)] * (version >= 3))


def assignment(lanes: Lanes, *, version: int = 0, user_data: bytes | None = None) -> bytes:
    return struct.pack(">h", version) + places(lanes) + blob(user_data)


def lanes_of(raw: bytes) -> tuple[list[tuple[str, int]], bytes | None]:
    """The lanes of an assignment in the order they stand, and its user data."""
    if not raw:
        return [], None
    found, (topic_count,), position = [], struct.unpack_from(">i", raw, 2), 6
    for _ in range(topic_count):
        (size,) = struct.unpack_from(">h", raw, position)
        topic = raw[position + 2 : position + 2 + size].decode()
        position += 2 + size
        (count,) = struct.unpack_from(">i", raw, position)
        indexes = struct.unpack_from(f">{count}i", raw, position + 4)
        position += 4 + 4 * count
        found += [(topic, index) for index in indexes]
    (size,) = struct.unpack_from(">i", raw, position)
    assert len(raw) == position + 4 + max(size, 0)
    return found, None if size < 0 else raw[position + 4 :]


def sticky_data(lanes: Lanes, generation_id: int | None) -> bytes:
    """User data of StickyAssignor for a member: version 0 ends before the generation."""
    return places(lanes) + (b"" if generation_id is None else struct.pack(">i", generation_id))


def task_data(
    tasks: Sequence[tuple[int, int]], *, version: int = 11, topology: str = "", end: bytes = b"end"
) -> bytes:
    """User data of Kafka Streams: (subtopology, partition) of each task, then what `end` holds."""
    name = struct.pack(">i", len(topology)) + topology.encode("utf-16-be")
    parts = [struct.pack(">i", version)]
    parts += [struct.pack(">i", 11)] * (version >= 3)
    parts += [struct.pack(">i", len(tasks))]
    parts += [struct.pack(">ii", *task) + (name if version >= 10 else b"") for task in tasks]
    return b"".join((*parts, end))
