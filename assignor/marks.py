"""Marks in the subscriptions of members behind keylane, by which answers of brokers show them.

A group may have members that connect to brokers directly. They take and own partitions, the others
lanes. Each JoinGroup and DescribeGroups shows both, to a leader on either side, after a restart
and at another node. So the subscription itself has the mark, as the broker keeps it:

- A topic without partitions among those that the member owns: no client has a use for it.
- Lanes that the member owns stand behind it, under a name that no topic can have. In their place it
  owns each partition of which it owns a lane. A leader at the broker's own address then moves such
  a partition only when all its owners have given it up (KIP-429, KIP-792).

Of the eager `sticky` assignor, lanes in its user data are replaced in the same way; there the owner
of a partition's first lane is its owner.
`unmark` gives the subscription back as its member sent it; topics that it owned stand in the same
order, lanes last.

Source: ConsumerProtocolSubscription.json; AbstractStickyAssignor and StickyAssignor of Kafka;
docs/decisions/047.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from keylane.assignor.protocol import TOPIC_BYTES_MIN, PhysicalName, split_names
from keylane.errors import FrameInvalid
from keylane.wire.primitives import INT16, INT32, Buffer, Reader, Writer

MARK: Final = "keylane:"
"""No topic has a colon in its name. Names of lane topics stand behind it."""
MARK_BYTES: Final = MARK.encode()
ADDED: Final = "keylane:+"
"""The mark where the member has written no field for what it owns."""
TAIL: Final = b"keylane:!"
"""The mark, behind all, of a subscription that cannot be read further than its topics."""
STICKY: Final = "sticky"
OWNED_FROM: Final = 1
"""First version in which a member says what it owns."""

Owned = tuple[str, tuple[int, ...]]
"""A topic, and partitions or lanes of it."""


class LaneCounts(NamedTuple):
    """A topic with lanes, by the name that a member has for it."""

    physical: str
    """The broker's name."""
    partition_count: int


class ShownMember(NamedTuple):
    """A member's subscription in the answer of a broker, as the member sent it."""

    names: frozenset[str]
    """Topics that it subscribes to, by its own names."""
    changed: bytes | None
    """The subscription; None: it is the broker's."""
    is_marked: bool
    """Its member is behind keylane, and subscribes to lanes."""

    def sent(self, metadata: Buffer) -> bytes:
        """Return the subscription as the member sent it; metadata: as the broker has it."""
        return bytes(metadata) if self.changed is None else self.changed


CountsOf = Callable[[str], LaneCounts | None]
"""None: the topic has no lanes."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields behind the topics of a subscription, and their places."""

    data_start: int
    data_end: int
    user_data: bytes
    owned: tuple[Owned, ...] | None
    """None: the field is not there."""
    end: int


def mark(metadata: Buffer, protocol: str, counts_of: CountsOf) -> bytes:
    """Return the subscription with the mark. protocol: the assignor that it is for."""
    view, fields = memoryview(metadata), _find_fields(metadata)
    if fields is None:
        return bytes(view) + TAIL
    user_data = fields.user_data
    if protocol == STICKY and user_data:
        user_data = _mark_sticky(user_data, counts_of)
    name = ADDED if fields.owned is None else MARK
    kept, claims, moved = _split(fields.owned or (), counts_of, _partitions)
    owned = _write([*kept, (name, ()), *claims, *moved])
    return _put(view, fields, user_data, owned)


def unmark(metadata: Buffer) -> bytes | None:
    """Return the subscription as its member sent it; None: it has no mark."""
    data = bytes(metadata)
    if MARK_BYTES not in data:
        return None  # most are of groups without lanes
    view, fields = memoryview(data), _find_fields(data)
    if fields is None:
        return data[: -len(TAIL)] if data.endswith(TAIL) else None
    name = _mark_of(fields.owned or ())
    if name is None:
        return None
    owned = b"" if name == ADDED else _write(_unsplit(fields.owned or ()))
    return _put(view, fields, _unmark_sticky(fields.user_data), owned)


def read_shown(metadata: Buffer, physical_name: PhysicalName) -> ShownMember:
    """Return a subscription without the mark, and without names that keylane has added."""
    own = unmark(metadata)
    names, taken = split_names(metadata if own is None else own, physical_name)
    return ShownMember(names, own if taken is None else taken, own is not None)


def _find_fields(metadata: Buffer) -> _Fields | None:
    try:
        reader = Reader(metadata, flexible=False)
        version = reader.int16()
        for _ in range(reader.count(INT16.size)):
            reader.string()
        data_start = reader.position
        user_data = bytes(reader.nullable_bytes() or b"")
        data_end = reader.position
        owned = _read(reader) if version >= OWNED_FROM and reader.remaining else None
    except FrameInvalid:
        return None
    end = reader.position
    if version < OWNED_FROM:
        owned, end = _find_added(reader, data_end)
    return _Fields(data_start, data_end, user_data, owned, end)


def _find_added(reader: Reader, data_end: int) -> tuple[tuple[Owned, ...] | None, int]:
    """Return a mark behind the last field of version 0, and its end."""
    try:
        owned = _read(reader) if reader.remaining else ()
    except FrameInvalid:
        return None, data_end
    return (owned, reader.position) if _mark_of(owned) == ADDED else (None, data_end)


def _mark_of(owned: Iterable[Owned]) -> str | None:
    return next((name for name, _ in owned if name in {MARK, ADDED}), None)


def _split(
    owned: Iterable[Owned], counts_of: CountsOf, partitions_of: Callable[..., tuple[int, ...]]
) -> tuple[list[Owned], list[Owned], list[Owned]]:
    """Return what stays, partitions of lane topics, and the lanes themselves."""
    kept: list[Owned] = []
    claims: list[Owned] = []
    moved: list[Owned] = []
    for name, numbers in owned:
        counts = counts_of(name)
        if counts is None:
            kept.append((name, numbers))
            continue
        claims.append((counts.physical, partitions_of(numbers, counts.partition_count)))
        moved.append((f"{MARK}{name}", numbers))
    return kept, claims, moved


def _unsplit(owned: Sequence[Owned]) -> list[Owned]:
    """Return what the member owns: what stands before the mark, and lanes behind it."""
    names = [name for name, _ in owned]
    at = names.index(MARK)
    lanes = [
        (name[len(MARK) :], numbers) for name, numbers in owned[at + 1 :] if name.startswith(MARK)
    ]
    return [*owned[:at], *lanes]


def _partitions(lanes: Iterable[int], partition_count: int) -> tuple[int, ...]:
    """Return partitions of which lanes are owned."""
    return tuple(sorted({lane % partition_count for lane in lanes if lane >= 0}))


def _first_lanes(lanes: Iterable[int], partition_count: int) -> tuple[int, ...]:
    """Return partitions whose first lane is owned: of its owners one at most has it."""
    return tuple(sorted({lane for lane in lanes if 0 <= lane < partition_count}))


def _mark_sticky(user_data: bytes, counts_of: CountsOf) -> bytes:
    """Return the assignor's user data with partitions for lanes; as it is if it has none."""
    try:
        reader = Reader(user_data, flexible=False)
        owned = _read(reader)
    except FrameInvalid:
        return user_data  # assignors plan without what they cannot read
    kept, claims, moved = _split(owned, counts_of, _first_lanes)
    if not moved:
        return user_data
    return _write([*kept, (MARK, ()), *claims, *moved]) + user_data[reader.position :]


def _unmark_sticky(user_data: bytes) -> bytes:
    if MARK_BYTES not in user_data:
        return user_data
    try:
        reader = Reader(user_data, flexible=False)
        owned = _read(reader)
    except FrameInvalid:
        return user_data
    if (MARK, ()) not in owned:
        return user_data
    return _write(_unsplit(owned)) + user_data[reader.position :]


def _put(view: memoryview, fields: _Fields, user_data: bytes, owned: bytes) -> bytes:
    """Return the subscription with other user data, and other topics that are owned."""
    data: Buffer = view[fields.data_start : fields.data_end]
    if user_data != fields.user_data:
        data = INT32.pack(len(user_data)) + user_data
    return b"".join((view[: fields.data_start], data, owned, view[fields.end :]))


def _read(reader: Reader) -> tuple[Owned, ...]:
    return tuple(
        (reader.string(), tuple(reader.int32() for _ in range(reader.count(INT32.size))))
        for _ in range(reader.count(TOPIC_BYTES_MIN))
    )


def _write(owned: Sequence[Owned]) -> bytes:
    writer = Writer(flexible=False)
    writer.count(len(owned))
    for name, numbers in owned:
        writer.string(name)
        writer.count(len(numbers))
        for number in numbers:
            writer.int32(number)
    return writer.to_bytes()
