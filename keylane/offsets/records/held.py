"""Records of lanes that members of KIP-848 groups hold, and all of them that a journal has.

Source: docs/decisions/043; ConsumerGroupCurrentMemberAssignment of KIP-848, which brokers write
for the same reason.

    key   = int16 version, int8 kind (9), group, identity
    value = int16 version, int64 timestamp in ms, int32 epoch, member id, nullable instance id,
            int32 count, and each topic: name, int32 count, int32 lane indexes

A lane stands in the record of its next holder after it was taken out of that of the last one: where
two records have a lane, the later one counts. A keylane that does not know the kind passes over it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from keylane.offsets.records.journal import (
    KEY_BYTES_MAX,
    KEY_HEAD,
    KEY_VERSION,
    VALUE_HEAD,
    JournalRecord,
    ic_partition,
)
from keylane.offsets.records.journal_parts import VALUE_VERSION, all_of, expect, read_head
from keylane.wire.primitives import Reader, Writer

HELD: Final = 9
INDEX: Final = struct.Struct(">i")
TOPIC_BYTES_MIN: Final = 6
"""Length of a name, and a count."""


class HeldLanes(NamedTuple):
    """Lanes that may be in the hands of one member."""

    member_id: str
    instance_id: str | None
    epoch: int
    """The member's epoch when they changed last."""
    lanes: frozenset[tuple[str, int]]
    """Topics as clients name them, and lane indexes."""


class HeldTable:
    """Held lanes of all members, by group and identity, each group in the order of the log."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, HeldLanes]] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take in a record, unless it is of another kind. Raises: JournalInvalid."""
        named = read_held_key(key)
        if named is not None:
            self._put(*named, None)
            if value is not None:
                self._put(*named, read_held(value))

    def of_group(self, group: str) -> dict[str, HeldLanes]:
        """Return held lanes by identity; an own dict."""
        return dict(self._groups.get(group, {}))

    def has_group(self, group: str) -> bool:
        """Return whether any member of the group holds lanes."""
        return group in self._groups

    def groups(self) -> list[str]:
        """Return the groups that have a record."""
        return list(self._groups)

    def changed(
        self, group: str, changes: Mapping[str, HeldLanes | None], partition_count: int, now_ms: int
    ) -> list[JournalRecord]:
        """Put changes in place, None for a member without lanes; return what to append, in order.

        Losers come first: a crash may cut the list anywhere.
        """
        before = self._groups.get(group, {})
        order = sorted(changes.items(), key=lambda item: _gains(before.get(item[0]), item[1]))
        partition = ic_partition(group, partition_count)
        records = []
        for identity, held in order:
            value = None if held is None else write_held(held, now_ms)
            records.append(JournalRecord(partition, write_held_key(group, identity), value))
        for identity, held in order:
            self._put(group, identity, held)
        return records

    def _put(self, group: str, identity: str, held: HeldLanes | None) -> None:
        members = self._groups.setdefault(group, {})
        members.pop(identity, None)
        if held is not None:
            members[identity] = held
        if not members:
            del self._groups[group]


def _gains(before: HeldLanes | None, after: HeldLanes | None) -> bool:
    if after is None:
        return False
    return before is None or bool(after.lanes - before.lanes)


def write_held_key(group: str, identity: str) -> bytes:
    """Encode a key. Raises: ValueError, a name is longer than Kafka allows."""
    writer = Writer(flexible=False)
    writer.raw(KEY_HEAD.pack(KEY_VERSION, HELD))
    writer.string(group)
    writer.string(identity)
    return writer.to_bytes()


@all_of("key", KEY_BYTES_MAX)
def read_held_key(reader: Reader) -> tuple[str, str] | None:
    """Decode group and identity; None: a key of another kind."""
    if (reader.int16(), reader.int8()) != (KEY_VERSION, HELD):
        return None
    return reader.string(), reader.string()


def write_held(held: HeldLanes, now_ms: int) -> bytes:
    """Encode a value. Raises: ValueError, a name is longer than Kafka allows."""
    writer = Writer(flexible=False)
    writer.raw(VALUE_HEAD.pack(VALUE_VERSION, now_ms))
    writer.int32(held.epoch)
    writer.string(held.member_id)
    writer.string(held.instance_id)
    topics = _by_topic(held.lanes)
    writer.count(len(topics))
    for name, indexes in topics.items():
        writer.string(name)
        writer.count(len(indexes))
        writer.raw(b"".join(map(INDEX.pack, indexes)))
    return writer.to_bytes()


@all_of("held lanes")
def read_held(reader: Reader) -> HeldLanes:
    """Decode a value. Raises: JournalInvalid."""
    read_head(reader)
    epoch, member_id, instance_id = reader.int32(), reader.string(), reader.nullable_string()
    lanes: set[tuple[str, int]] = set()
    for _ in range(reader.count(TOPIC_BYTES_MIN)):
        name = reader.string()
        lanes.update((name, reader.int32()) for _ in range(reader.count(INDEX.size)))
    expect(f"epoch {epoch}", that=epoch >= 0)
    expect("a lane index below 0", that=all(index >= 0 for _, index in lanes))
    return HeldLanes(member_id, instance_id, epoch, frozenset(lanes))


def _by_topic(lanes: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(lanes):
        topics.setdefault(name, []).append(index)
    return topics
