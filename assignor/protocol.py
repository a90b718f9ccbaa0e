"""Kafka's consumer protocol: what members say when they join, and what the leader answers.

Source: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json of Apache Kafka
(versions 0 to 3: owned partitions are of KIP-429, the generation of KIP-792, the rack of KIP-881).

As Kafka's own ConsumerProtocol, a newer version is read as the newest known one, and what follows
is left alone. A field that is missing at the end counts as not said: clients have announced
version 1 and written version 0.

A broker reads the topics of the metadata and no more (ClassicGroup.computeSubscribedTopics): names
are added there, and taken out again, without a touch on what follows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from keylane.assignor.model import NO_GENERATION, Lane
from keylane.errors import FrameInvalid
from keylane.wire.primitives import INT16, INT32, Buffer, Reader, Writer

VERSION_MAX: Final = 3
MESSAGE_BYTES_MAX: Final = 4 << 20
"""A million lanes. Kafka stores a whole group in one record, of 1 MiB unless configured higher."""
TOPIC_BYTES_MIN: Final = 6
"""Of a topic with its partitions: the length of its name and a count."""

COUNT_POSITION: Final = INT16.size
NAMES_POSITION: Final = COUNT_POSITION + INT32.size
PhysicalName = Callable[[str], str]
"""The broker's name of what a client calls a topic."""

SHARE_MARK: Final = b"keylane\x01"
"""User data that starts with it is ours, version 1: one byte follows, `allowKeyShare`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A member's subscription, as it joins."""

    version: int
    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: tuple[Lane, ...] = ()
    generation_id: int = NO_GENERATION
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Partitions that a member shall read."""

    version: int
    lanes: tuple[Lane, ...]
    user_data: bytes = b""


def read_subscription(data: Buffer) -> Subscription:
    """Read the metadata of one member.

    Raises:
        FrameInvalid: the bytes are none, or too many.
    """
    reader = _open(data)
    version = _read_version(reader)
    topics = _read_strings(reader)
    user_data = bytes(reader.nullable_bytes() or b"") if reader.remaining else b""
    owned: tuple[Lane, ...] = ()
    generation_id, rack = NO_GENERATION, None
    if version >= 1 and reader.remaining:
        owned = _read_lanes(reader)
    if version >= 2 and reader.remaining:
        generation_id = reader.int32()
    if version >= 3 and reader.remaining:
        rack = reader.nullable_string()
    return Subscription(
        version=version,
        topics=topics,
        user_data=user_data,
        owned=owned,
        generation_id=generation_id,
        rack=rack,
    )


def write_subscription(subscription: Subscription) -> bytes:
    """Metadata of one member, in its version.

    Raises:
        ValueError: a version that is not known.
    """
    version = _known(subscription.version)
    writer = Writer(flexible=False)
    writer.int16(version)
    writer.count(len(subscription.topics))
    for topic in subscription.topics:
        writer.string(topic)
    writer.count(len(subscription.user_data))
    writer.raw(subscription.user_data)
    if version >= 1:
        _write_lanes(writer, subscription.owned)
    if version >= 2:
        writer.int32(subscription.generation_id)
    if version >= 3:
        writer.string(subscription.rack)
    return writer.to_bytes()


def read_allow_key_share(user_data: bytes) -> bool:
    """Return whether a member takes a part of a partition, by its own word.

    True where nothing is said: stock assignors have their own user data, or none.
    """
    return user_data[: len(SHARE_MARK) + 1] != SHARE_MARK + b"\x00"


def read_assignment(data: Buffer) -> Assignment:
    """Read what one member was assigned.

    No bytes at all are no lanes: that is what the coordinator hands to a member that the leader
    left out.

    Raises:
        FrameInvalid: the bytes are no assignment, or too many.
    """
    if not len(data):
        return Assignment(version=0, lanes=())
    reader = _open(data)
    version = _read_version(reader)
    lanes = _read_lanes(reader)
    user_data = bytes(reader.nullable_bytes() or b"") if reader.remaining else b""
    return Assignment(version=version, lanes=lanes, user_data=user_data)


def write_assignment(lanes: Iterable[Lane], *, version: int, user_data: bytes = b"") -> bytes:
    """Bytes of an assignment; topics and lanes stand in the order given.

    Raises:
        ValueError: a version that is not known.
    """
    writer = Writer(flexible=False)
    writer.int16(_known(version))
    _write_lanes(writer, lanes)
    writer.count(len(user_data))
    writer.raw(user_data)
    return writer.to_bytes()


def read_names(metadata: Buffer) -> tuple[str, ...] | None:
    """Topics that a member subscribes to; None: the bytes are not of the consumer protocol."""
    found = _read_topics(metadata)
    return None if found is None else found[0]


def hidden_names(names: Sequence[str], physical_name: PhysicalName) -> tuple[str, ...]:
    """Topics behind the lane names among `names`, which a broker has to see as subscribed, too.

    It expires a group's offsets of topics that it does not see there, and lets them be deleted. A
    name that itself stands for lanes is no topic of the broker.
    """
    behind = [topic for name in names if (topic := physical_name(name)) != name]
    return tuple(dict.fromkeys(name for name in behind if physical_name(name) == name))


def add_hidden_names(metadata: Buffer, physical_name: PhysicalName) -> bytes | None:
    """The metadata with `hidden_names` behind the others; None: nothing is to be added."""
    found = _read_topics(metadata)
    if found is None:
        return None
    names, end = found
    hidden = hidden_names(names, physical_name)
    return _with_tail(metadata, len(names), end, end, hidden) if hidden else None


def split_names(
    metadata: Buffer, physical_name: PhysicalName
) -> tuple[frozenset[str], bytes | None]:
    """Topics that the member itself has named, and the metadata as it sent it.

    No names where the bytes are not of the protocol; None: nothing was added to the metadata.
    """
    found = _read_topics(metadata)
    if found is None:
        return frozenset(), None
    names, end = found
    hidden = hidden_names(names, physical_name)
    kept = len(names) - len(hidden)
    if not hidden or kept < 1 or names[kept:] != hidden:
        return frozenset(names), None
    start = end - sum(INT16.size + len(name.encode()) for name in hidden)
    return frozenset(names[:kept]), _with_tail(metadata, kept, start, end, ())


def _open(data: Buffer) -> Reader:
    if len(data) > MESSAGE_BYTES_MAX:
        raise FrameInvalid(f"consumer protocol: {len(data)} bytes, at most {MESSAGE_BYTES_MAX}")
    return Reader(data, flexible=False)


def _known(version: int) -> int:
    if not 0 <= version <= VERSION_MAX:
        raise ValueError(f"consumer protocol version {version}: known are 0 to {VERSION_MAX}")
    return version


def _read_version(reader: Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise FrameInvalid(f"consumer protocol version {version}")
    return min(version, VERSION_MAX)


def _read_strings(reader: Reader) -> tuple[str, ...]:
    return tuple(reader.string() for _ in range(reader.count(INT16.size)))


def _read_lanes(reader: Reader) -> tuple[Lane, ...]:
    lanes: list[Lane] = []
    for _ in range(reader.count(TOPIC_BYTES_MIN)):
        topic = reader.string()
        lanes += [(topic, reader.int32()) for _ in range(reader.count(4))]
    return tuple(lanes)


def _write_lanes(writer: Writer, lanes: Iterable[Lane]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, index in lanes:
        by_topic.setdefault(topic, []).append(index)
    writer.count(len(by_topic))
    for topic, indexes in by_topic.items():
        writer.string(topic)
        writer.count(len(indexes))
        for index in indexes:
            writer.int32(index)


def _read_topics(metadata: Buffer) -> tuple[tuple[str, ...], int] | None:
    """The names, and where they end."""
    try:
        reader = _open(metadata)
        _read_version(reader)
        return _read_strings(reader), reader.position
    except FrameInvalid:
        return None


def _with_tail(metadata: Buffer, count: int, start: int, end: int, tail: Sequence[str]) -> bytes:
    """`count` names up to `start`, then `tail`, then what stands behind `end`."""
    view = memoryview(metadata)
    encoded = [name.encode() for name in tail]
    added = [part for name in encoded for part in (INT16.pack(len(name)), name)]
    head = (view[:COUNT_POSITION], INT32.pack(count + len(tail)), view[NAMES_POSITION:start])
    return b"".join((*head, *added, view[end:]))
