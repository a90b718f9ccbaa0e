"""Records of the individual commit journal: keys and values of `__individual_commit_offsets`.

Source: docs/decisions/005, 006, 022, 027, 038, 042.

    key   = int16 version, int8 kind, then
            positions (1)  group, topic id, int32 partition
            range     (2)  group, topic id, int32 partition, int64 first, int64 last
            key range (10) the same, and int64 first hash, int64 last hash
            layout    (3)  view name
            intent    (5)  group, topic id, int32 partition, int64 offset (-1: none)
            epoch     (6)  group, topic id, int32 partition
            step      (7)  group, topic id, int32 partition, int32 number
            pusher    (8)  group, topic id, int32 partition
    value = int16 version, int64 timestamp in ms, then
            positions      int64 pushed (-1: none), topic name, int32 count, and each interval:
                           int64 last hash, int8 flags (1: committed), int64 offset,
                           int64 counted, int32 leader epoch, nullable metadata; in version 1,
                           behind which steps may stand, int64 base before all of it; in versions
                           2 and 3 the same, and the tag of the key hash behind the topic name; 4
                           more, where records of key ranges count beside it
            range          int32 leader epoch, member id; of a key range as well
            layout         topic id, int32 partition count, int32 lane count, and in version 1,
                           for lanes of unequal ranges or of another key hash, the SHA-256 of
                           their cuts or of the hash's name
            intent         int64 pushed before (-1: none), then as positions from pushed on; with
                           a key hash in version 2
            epoch          int32 leader epoch of what stands before the furthest position that a
                           scan has led to, int64 first offset that was seen of it
            step           see `offsets.steps`
            pusher         int64 producer id, int16 epoch: of the owner that pushed last

A key of kind 4 (fence) has nothing more, and its value no more than version and timestamp: an owner
among many nodes has opened the partition there. It says nothing of any group. Kind 9 stands in
`records.held`.

Integers are big-endian, strings have an int16 length, both ends are inclusive. A tombstone is a
null value. `read_key` gives None for a key of another version, which is some other keylane's.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple

from keylane.config.own_names import JOURNAL_TOPIC
from keylane.keyrange.space import HASH_MAX, LANE_COUNT_MAX
from keylane.offsets.keyed_ranges import KeyedRange
from keylane.offsets.lineage import EpochStart
from keylane.offsets.records.journal_parts import (
    INTERVAL_BYTES_MIN,
    VALUE_VERSION,
    all_of,
    expect,
    number_of,
    read_head,
    read_interval,
    read_offset,
    write_interval,
)
from keylane.offsets.values import (
    NO_LEADER_EPOCH,
    POSITION_COUNT_MAX,
    RANGE_LAST_MAX,
    OwnerEpoch,
    Position,
)
from keylane.wire.primitives import Reader, Writer

TOPIC_NAME: Final = JOURNAL_TOPIC
FORMAT: Final = 1
"""Format that nodes announce to each other as readable: 1 has steps, 0 has not."""
KEY_VERSION: Final = 0
CUT_LAYOUT_VERSION: Final = 1
BASE_VERSION: Final = 1
"""Version of positions that are but a base: a keylane without steps must not take them for all."""
HASH_VERSION: Final = 2
"""Added to the version of positions by another hash than XXH64: an older keylane leaves them."""
KEY_RANGES_VERSION: Final = 4
"""Added where key ranges stand beside: an older keylane goes on at Kafka's own offset."""
VERSION_MAX: Final = KEY_RANGES_VERSION + HASH_VERSION + BASE_VERSION
KEY_HEAD: Final = struct.Struct(">hb")
"""Version, kind."""
VALUE_HEAD: Final = struct.Struct(">hq")
"""Version, timestamp."""
PLACE: Final = struct.Struct(">16si")
"""Topic id, partition."""
POSITIONS: Final = 1
RANGE: Final = 2
LAYOUT: Final = 3
FENCE: Final = 4
INTENT: Final = 5
EPOCH: Final = 6
STEP: Final = 7
PUSHER: Final = 8
KEY_RANGE: Final = 10
STEPS_MAX: Final = 1024
"""Steps behind one whole record: a load goes through them, and a deletion deletes them."""
GROUPS_REMEMBERED: Final = 512
"""Groups whose partition is known; a commit asks for it several times."""
KEY_BYTES_MAX: Final = 128 * 1024
"""Two strings of 32,767 bytes and numbers at the most; keylane's own are a tenth of a percent."""
TIMESTAMP_MS_MAX: Final = 2**53
"""Time of a layout: the newest counts, and the next one is a millisecond later at least."""


@dataclass(frozen=True, slots=True)
class StateKey:
    """Group and partition of a state. Hashed once: a commit looks things up by one key."""

    group: str
    topic_id: uuid.UUID
    partition: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.group, self.topic_id, self.partition)))

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=1024)
def state_key(group: str, topic_id: uuid.UUID, partition: int) -> StateKey:
    """Return the same object for the same state, as a rule: a look-up by it compares no names."""
    return StateKey(group, topic_id, partition)


@dataclass(frozen=True, slots=True)
class RangeKey:
    """One individually committed offset range of a state."""

    state: StateKey
    first: int
    last: int
    lo: int = 0
    hi: int = HASH_MAX

    @property
    def range(self) -> KeyedRange:
        """Return the range without its place."""
        return KeyedRange(self.first, self.last, self.lo, self.hi)


@dataclass(frozen=True, slots=True)
class LayoutKey:
    """The name under which a topic is seen as lanes."""

    view: str


@dataclass(frozen=True, slots=True)
class IntentKey:
    """A push to Kafka's own group offset that the journal has to know before it is sent."""

    state: StateKey
    offset: int | None
    """Offset that is about to be pushed; None: the offset is about to be deleted."""


@dataclass(frozen=True, slots=True)
class EpochKey:
    """The leader epoch of a state, in a separate record: other keylanes do without."""

    state: StateKey


@dataclass(frozen=True, slots=True)
class StepKey:
    """One step of several: a state's positions since its whole record."""

    state: StateKey
    number: int
    """From 0 on behind each whole record, so that steps take the place of older ones."""


@dataclass(frozen=True, slots=True)
class PusherKey:
    """The owner that has pushed a state last, in a separate record as the epoch is."""

    state: StateKey


Key = StateKey | RangeKey | LayoutKey | IntentKey | EpochKey | StepKey | PusherKey
KINDS: Final[dict[type[Key], int]] = {
    StateKey: POSITIONS,
    RangeKey: RANGE,
    LayoutKey: LAYOUT,
    IntentKey: INTENT,
    EpochKey: EPOCH,
    StepKey: STEP,
    PusherKey: PUSHER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsValue:
    """Everything of a state but its ranges."""

    timestamp_ms: int
    pushed: int | None
    topic_name: str
    positions: tuple[tuple[int, Position], ...]
    """`(last hash, position)` ascending; the last hash of all is HASH_MAX."""
    hash_tag: str = ""
    """Key hash by which keys have positions, `KeyHash.tag`."""
    has_key_ranges: bool = False
    """True: there may be ranges of some keys only."""
    base: int | None = None
    """Steps that name it go on from here; None: there are none, and any keylane reads this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeValue:
    """Time and maker of a range's commit; for readers of the topic."""

    timestamp_ms: int
    leader_epoch: int = NO_LEADER_EPOCH
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutValue:
    """Meaning of a view's lane indexes while any commits stand on them."""

    timestamp_ms: int
    topic_id: uuid.UUID
    partition_count: int
    lane_count: int
    fingerprint: bytes = b""
    """`LaneLayout.fingerprint`; none for lanes of equal ranges by XXH64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentValue:
    """A state as it is once its push has reached Kafka, `after.pushed` being what was pushed."""

    before: int | None
    """Offset pushed before, by the state's record; it counts beside that record only."""
    after: PositionsValue


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochValue:
    """In which log a state's positions were concluded."""

    timestamp_ms: int
    seen: EpochStart


@dataclass(frozen=True, slots=True, kw_only=True)
class PusherValue:
    """Owner whose push Kafka took last; the time is that of the push."""

    timestamp_ms: int
    owner: OwnerEpoch


Value = PositionsValue | RangeValue | LayoutValue | IntentValue | EpochValue | PusherValue


class JournalRecord(NamedTuple):
    """One record to append; a None value is a tombstone."""

    partition: int
    key: bytes
    value: bytes | None


@lru_cache(maxsize=GROUPS_REMEMBERED)
def ic_partition(group: str, count: int) -> int:
    """Return the journal partition of a group: the one that Kafka's offsets topic has for it.

    Kafka: `Utils.abs(groupId.hashCode()) % partitions`, the hash over UTF-16 code units, and an
    `abs` that makes 0 of Integer.MIN_VALUE, which has no positive counterpart.
    """
    code = 0
    units = group.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        code = (31 * code + (units[position] << 8 | units[position + 1])) & 0xFFFF_FFFF
    absolute = 0x1_0000_0000 - code if code > 0x8000_0000 else code & 0x7FFF_FFFF
    return absolute % count


def write_key(key: Key) -> bytes:
    """Encode a key. Raises: ValueError, a name is longer than Kafka allows."""
    writer = Writer(flexible=False)
    kind = KINDS[type(key)]
    if isinstance(key, RangeKey) and not key.range.is_whole:
        kind = KEY_RANGE
    writer.raw(KEY_HEAD.pack(KEY_VERSION, kind))
    if isinstance(key, LayoutKey):
        writer.string(key.view)
        return writer.to_bytes()
    state = key if isinstance(key, StateKey) else key.state
    writer.string(state.group)
    writer.raw(PLACE.pack(state.topic_id.bytes, state.partition))
    match key:
        case StepKey():
            writer.int32(key.number)
        case RangeKey():
            writer.int64(key.first)
            writer.int64(key.last)
            if kind == KEY_RANGE:
                writer.int64(key.lo)
                writer.int64(key.hi)
        case IntentKey():
            writer.int64(number_of(key.offset))
    return writer.to_bytes()


def write_fence(partition: int, timestamp_ms: int) -> JournalRecord:
    """Return a record that is there for its place in the log; `read_key` gives None for it."""
    value = VALUE_HEAD.pack(VALUE_VERSION, timestamp_ms)
    return JournalRecord(partition, KEY_HEAD.pack(KEY_VERSION, FENCE), value)


@all_of("key", KEY_BYTES_MAX)
def read_key(reader: Reader) -> Key | None:
    """Decode a key; None: of a version or kind that this keylane does not know."""
    if reader.int16() != KEY_VERSION:
        return None
    kind = reader.int8()
    if kind == LAYOUT:
        return LayoutKey(reader.string())
    if kind not in (*KINDS.values(), KEY_RANGE):
        return None
    group, topic_id, partition = reader.string(), uuid.UUID(bytes=reader.uuid()), reader.int32()
    expect(f"partition {partition}", that=partition >= 0)
    state = StateKey(group, topic_id, partition)
    if kind in (RANGE, KEY_RANGE):
        return _range_key(reader, state, has_keys=kind == KEY_RANGE)
    if kind == INTENT:
        return IntentKey(state, read_offset(reader))
    if kind == STEP:
        number = reader.int32()
        expect(f"step {number}", that=0 <= number < STEPS_MAX)
        return StepKey(state, number)
    if kind == POSITIONS:
        return state
    return EpochKey(state) if kind == EPOCH else PusherKey(state)


def _range_key(reader: Reader, state: StateKey, *, has_keys: bool) -> RangeKey:
    first, last = reader.int64(), reader.int64()
    expect(f"range from {first} to {last}", that=0 <= first <= last <= RANGE_LAST_MAX)
    if not has_keys:
        return RangeKey(state, first, last)
    lo, hi = reader.int64(), reader.int64()
    expect(f"keys from {lo} to {hi}", that=0 <= lo <= hi <= HASH_MAX)
    expect("all keys, as a range of some", that=(lo, hi) != (0, HASH_MAX))
    return RangeKey(state, first, last, lo, hi)


def write_value(value: Value) -> bytes:
    """Encode a value. Raises: ValueError, a string is longer than Kafka allows."""
    writer = Writer(flexible=False)
    timed = value.after if isinstance(value, IntentValue) else value
    writer.raw(VALUE_HEAD.pack(_version_of(value), timed.timestamp_ms))
    match value:
        case PositionsValue():
            if value.base is not None:
                writer.int64(value.base)
            _write_positions(writer, value)
        case IntentValue():
            writer.int64(number_of(value.before))
            _write_positions(writer, value.after)
        case RangeValue():
            writer.int32(value.leader_epoch)
            writer.string(value.member_id)
        case LayoutValue():
            writer.raw(value.topic_id.bytes)
            writer.int32(value.partition_count)
            writer.int32(value.lane_count)
            writer.raw(value.fingerprint)
        case EpochValue():
            writer.int32(value.seen.epoch)
            writer.int64(value.seen.start)
        case PusherValue():
            writer.int64(value.owner.producer_id)
            writer.int16(value.owner.epoch)
    return writer.to_bytes()


@all_of("intent")
def read_intent(reader: Reader) -> IntentValue:
    """Decode the value of an `IntentKey`."""
    version, timestamp_ms = reader.int16(), reader.int64()
    expect(f"value version {version}", that=version in (VALUE_VERSION, HASH_VERSION))
    before = read_offset(reader)
    after = _positions(reader, timestamp_ms, has_hash=version == HASH_VERSION)
    return IntentValue(before=before, after=after)


@all_of("positions")
def read_positions(reader: Reader) -> PositionsValue:
    """Decode the value of a `StateKey`."""
    version = reader.int16()
    expect(f"value version {version}", that=0 <= version <= VERSION_MAX)
    timestamp_ms = reader.int64()
    base = reader.int64() if version & BASE_VERSION else None
    expect(f"base {base}", that=base is None or base >= 0)
    found = _positions(reader, timestamp_ms, has_hash=bool(version & HASH_VERSION))
    return replace(found, base=base, has_key_ranges=bool(version & KEY_RANGES_VERSION))


def _version_of(value: Value) -> int:
    match value:
        case LayoutValue() if value.fingerprint:
            return CUT_LAYOUT_VERSION
        case PositionsValue():
            version = _hash_version(value) + (0 if value.base is None else BASE_VERSION)
            return version + (KEY_RANGES_VERSION if value.has_key_ranges else 0)
        case IntentValue():
            return _hash_version(value.after)
        case _:
            return VALUE_VERSION


def _hash_version(value: PositionsValue) -> int:
    return HASH_VERSION if value.hash_tag else VALUE_VERSION


def _write_positions(writer: Writer, value: PositionsValue) -> None:
    writer.int64(number_of(value.pushed))
    writer.string(value.topic_name)
    if value.hash_tag:
        writer.string(value.hash_tag)
    writer.count(len(value.positions))
    for last_hash, position in value.positions:
        write_interval(writer, last_hash, position)


def _positions(reader: Reader, timestamp_ms: int, *, has_hash: bool) -> PositionsValue:
    pushed, topic_name = read_offset(reader), reader.string()
    hash_tag = reader.string() if has_hash else ""
    expect("key hash without a tag", that=bool(hash_tag) == has_hash)
    count = reader.count(INTERVAL_BYTES_MIN)
    expect(f"{count} intervals", that=1 <= count <= POSITION_COUNT_MAX)
    positions: list[tuple[int, Position]] = []
    last_before = -1
    for _ in range(count):
        last_hash, position = read_interval(reader)
        expect("intervals out of order", that=last_before < last_hash)
        last_before = last_hash
        positions.append((last_hash, position))
    expect("intervals do not cover the hash space", that=last_before == HASH_MAX)
    return PositionsValue(
        timestamp_ms=timestamp_ms,
        pushed=pushed,
        topic_name=topic_name,
        hash_tag=hash_tag,
        positions=tuple(positions),
    )


@all_of("range")
def read_range(reader: Reader) -> RangeValue:
    """Decode the value of a `RangeKey`."""
    return RangeValue(
        timestamp_ms=read_head(reader), leader_epoch=reader.int32(), member_id=reader.string()
    )


@all_of("layout")
def read_layout(reader: Reader) -> LayoutValue:
    """Decode the value of a `LayoutKey`."""
    version = reader.int16()
    expect(f"value version {version}", that=version in (VALUE_VERSION, CUT_LAYOUT_VERSION))
    value = LayoutValue(
        timestamp_ms=reader.int64(),
        topic_id=uuid.UUID(bytes=reader.uuid()),
        partition_count=reader.int32(),
        lane_count=reader.int32(),
        fingerprint=reader.uuid() + reader.uuid() if version == CUT_LAYOUT_VERSION else b"",
    )
    expect(f"time {value.timestamp_ms}", that=value.timestamp_ms <= TIMESTAMP_MS_MAX)
    expect(f"{value.partition_count} partitions", that=value.partition_count >= 1)
    expect(f"{value.lane_count} lanes", that=1 <= value.lane_count <= LANE_COUNT_MAX)
    return value


@all_of("epoch")
def read_epoch(reader: Reader) -> EpochValue:
    """Decode the value of an `EpochKey`."""
    timestamp_ms = read_head(reader)
    seen = EpochStart(reader.int32(), reader.int64())
    expect(f"epoch {seen.epoch} from {seen.start}", that=min(seen) >= 0)
    return EpochValue(timestamp_ms=timestamp_ms, seen=seen)


@all_of("pusher")
def read_pusher(reader: Reader) -> PusherValue:
    """Decode the value of a `PusherKey`."""
    timestamp_ms = read_head(reader)
    owner = OwnerEpoch(reader.int64(), reader.int16())
    expect(f"producer {owner.producer_id} epoch {owner.epoch}", that=min(owner) >= 0)
    return PusherValue(timestamp_ms=timestamp_ms, owner=owner)
