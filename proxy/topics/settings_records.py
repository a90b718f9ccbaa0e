"""Assignments and switches as records of a compacted topic, and back.

Source: docs/decisions/019. Keys and values are JSON, so that Kafka's own tools show them.

| key | value |
|---|---|
| `["assignment", CLIENT]` | topics, partitions, key ranges; a tombstone deletes |
| `["assignments"]` | the version; stands behind the assignments that it is the version of |
| `["switches"]` | the version and all switches that were set |
| `["fence"]` | nothing; written before a change, so that the writer alone has the end |
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from keylane.config.own_names import SETTINGS_TOPIC
from keylane.errors import AssignmentInvalid, RangesOverlap, SettingsInvalid
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.values import Damaged
from keylane.proxy.topics.range_table import (
    CLIENTS_MAX,
    RANGES_MAX,
    Assignment,
    RangeTable,
    check_client_id,
    read_parts,
)
from keylane.proxy.topics.switches import (
    ACCEPT_INDIVIDUAL_COMMIT,
    ACCEPT_RANGE_FETCH,
    ALLOW_INDIVIDUAL_COMMIT,
    Switches,
)
from keylane.wire.bounded_json import JsonInvalid, read_json

TOPIC_NAME: Final = SETTINGS_TOPIC
PARTITION: Final = 0
"""The only one."""
FORMAT: Final = 1
RECORD_BYTES_MAX: Final = 900_000
"""Bound of one client's record; leaves room for the rest of its change."""
CHANGE_BYTES_MAX: Final = 1_048_588
"""Kafka's default of `message.max.bytes`: a change is one batch, which is there or is not."""
BATCH_OVERHEAD: Final = 61
RECORD_OVERHEAD: Final = 32
"""Lengths, attributes and deltas of a record, at most."""
KEY_BYTES_MAX: Final = 4096
"""A client id has 249 characters at most, each of which takes 12 bytes at most as JSON."""
KEY_DEPTH_MAX: Final = 1
VALUE_DEPTH_MAX: Final = 6
"""Nesting: an object of topics, of partitions, of lists of pairs; one more for a later format."""
VERSION_ROOM: Final = 2**40
"""Bound of a version above its record's offset. A change takes a record at least, so the next
version has room after any version. Records that were restored from another cluster may have lower
offsets than they had there."""
PENDING_MAX: Final = 2 * (CLIENTS_MAX + RANGES_MAX)
"""Clients and ranges that wait for their version: twice what a table has room for."""
CHARACTERS_MAX: Final = 20
"""Digits of a number in an assignment: a hash has 19."""
ASSIGNMENT, ASSIGNMENTS, SWITCHES = "assignment", "assignments", "switches"
FENCE: Final = "fence"

Record = tuple[bytes, bytes | None]
"""Key and value; None is a tombstone."""


def write_assignments(table: RangeTable, changed: Mapping[str, object]) -> list[Record]:
    """Return records that lead a reader of the former ones to `table`: the version is last.

    changed: client ids with another assignment, or without one now.

    Raises: AssignmentInvalid (too much for a client's record, or for the change's batch).
    """
    records: list[Record] = []
    for client_id in sorted(changed):
        parts = table.clients.get(client_id)
        value = None if parts is None else _write({"topics": _topics(parts)})
        if value is not None and len(value) > RECORD_BYTES_MAX:
            reason = f"{len(value)} bytes, at most {RECORD_BYTES_MAX} have room"
            raise AssignmentInvalid(reason, client_id=client_id)
        records.append((_dump([ASSIGNMENT, client_id]), value))
    records.append((_dump([ASSIGNMENTS]), _write({"version": table.version})))
    size = batch_bytes(records)
    if size > CHANGE_BYTES_MAX:
        raise AssignmentInvalid(
            f"a change of {len(changed)} clients is {size} bytes in Kafka, at most"
            f" {CHANGE_BYTES_MAX} have room: change fewer clients at a time (PATCH)"
        )
    return records


def write_switches(switches: Switches) -> list[Record]:
    """Return all that was set, in one record; the longest names of `Switches` have room."""
    fields = {
        "version": switches.version,
        ACCEPT_INDIVIDUAL_COMMIT: switches.accept_individual_commit,
        ACCEPT_RANGE_FETCH: dict(switches.topics),
        ALLOW_INDIVIDUAL_COMMIT: dict(switches.clients),
    }
    return [(_dump([SWITCHES]), _write(fields))]


def write_fence() -> list[Record]:
    """Return a record that stands for its place in the log only."""
    return [(_dump([FENCE]), _write({}))]


def batch_bytes(records: Sequence[Record]) -> int:
    """Return the size of the records as one batch that is not compressed, at most."""
    return BATCH_OVERHEAD + sum(
        RECORD_OVERHEAD + len(key) + len(value or b"") for key, value in records
    )


@dataclass(frozen=True, slots=True)
class _Pending:
    """An assignment that waits for its version; None deletes."""

    assignment: Assignment | None
    offset: int

    @property
    def size(self) -> int:
        """Return the client and its ranges."""
        parts = (self.assignment or {}).values()
        return 1 + sum(len(ranges) for by in parts for ranges in by.values())


@dataclass(slots=True)
class SettingsState:
    """The state after the records that were read so far.

    Assignments count when the version behind them is read, all at once: a change is one batch, of
    which a reader may get the first records before the others, and compaction leaves the last
    version behind the last assignments. Reading the same records again changes nothing.
    Of assignments that do not fit together, which no node writes, the last ones count, and the
    others are left out: one of them must not block later ones.
    """

    table: RangeTable = field(default_factory=RangeTable)
    switches: Switches = field(default_factory=Switches)
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _pending_size: int = 0
    _left_out: list[Damaged] = field(default_factory=list)

    def apply(self, key: bytes | None, value: bytes | None, offset: int = 0) -> bool:
        """Take in one record; return whether `table` or `switches` changed.

        Raises: SettingsInvalid, and the state is as it was before.
        """
        match _read_key(key):
            case [str(kind), str(client_id)] if kind == ASSIGNMENT:
                self._wait(client_id, _Pending(_read_assignment(client_id, value), offset))
            case [str(kind)] if kind == ASSIGNMENTS and value is not None:
                return self._apply_version(_read_version(_read(value), offset))
            case [str(kind)] if kind == SWITCHES and value is not None:
                return self._apply_switches(_read(value), offset)
            case [str(kind)] if kind == FENCE:
                return False
            case _:
                raise SettingsInvalid("the key is unknown, or has no value")
        return False

    def apply_own(self, records: Sequence[Record]) -> bool:
        """Take in a change that this node has written, before it is read.

        Assignments that wait for their version are not part of this change.
        """
        waiting = self._take_pending()
        newest = max(self.table.version, self.switches.version)
        try:
            changed = [self.apply(key, value, newest) for key, value in records]
            return any(changed)
        finally:
            self._pending, self._pending_size = waiting, sum(each.size for each in waiting.values())

    def take_left_out(self) -> list[Damaged]:
        """Return the assignments that were read since the last call, and do not fit."""
        left_out, self._left_out = self._left_out, []
        return left_out

    def _wait(self, client_id: str, found: _Pending) -> None:
        """Append an assignment in the order of the log; drop the first one of too many."""
        before = self._pending.pop(client_id, None)
        self._pending[client_id] = found
        self._pending_size += found.size - (0 if before is None else before.size)
        while self._pending_size > PENDING_MAX:
            dropped = self._pending.pop(next(iter(self._pending)))
            self._pending_size -= dropped.size
            reason = "too many assignments stand before a version"
            self._left_out.append(Damaged(PARTITION, dropped.offset, reason))

    def _take_pending(self) -> dict[str, _Pending]:
        pending, self._pending, self._pending_size = self._pending, {}, 0
        return pending

    def _apply_version(self, version: int) -> bool:
        pending = self._take_pending()
        if version <= self.table.version:
            return False
        changes = {client_id: each.assignment for client_id, each in pending.items()}
        try:
            self.table = self.table.with_clients(changes, version=version)
        except (AssignmentInvalid, RangesOverlap):
            fitting = self.table.fitting(changes)
            self.table = self.table.with_clients(fitting, version=version)
            reason = f"an assignment of version {version} does not fit beside the others"
            self._left_out += [
                Damaged(PARTITION, each.offset, reason)
                for client_id, each in pending.items()
                if fitting[client_id] is not each.assignment
            ]
        return True

    def _apply_switches(self, fields: Mapping[str, Any], offset: int) -> bool:
        version = _read_version(fields, offset)
        if version <= self.switches.version:
            return False
        broker = fields.get(ACCEPT_INDIVIDUAL_COMMIT)
        if broker is not None and not isinstance(broker, bool):
            raise SettingsInvalid(f"{ACCEPT_INDIVIDUAL_COMMIT} is no boolean")
        try:
            self.switches = Switches(
                version=version,
                accept_individual_commit=broker,
                topics=_read_flags(fields, ACCEPT_RANGE_FETCH),
                clients=_read_flags(fields, ALLOW_INDIVIDUAL_COMMIT),
            )
        except AssignmentInvalid:
            reason = f"switches of version {version}: a name is none, or there are too many"
            raise SettingsInvalid(reason) from None
        return True


def _write(fields: Mapping[str, Any]) -> bytes:
    return _dump({"format": FORMAT, **fields})


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _topics(parts: Assignment) -> dict[str, dict[str, list[list[str]]]]:
    # Decimal strings, as everywhere: numbers beyond 2^53 do not survive every reader.
    return {
        topic: {
            str(partition): [[str(part.lo), str(part.hi)] for part in ranges]
            for partition, ranges in partitions.items()
        }
        for topic, partitions in parts.items()
    }


def _read_key(key: bytes | None) -> Any:
    try:
        return read_json(key or b"null", bytes_max=KEY_BYTES_MAX, depth_max=KEY_DEPTH_MAX)
    except JsonInvalid:
        return None


def _read(value: bytes) -> dict[str, Any]:
    try:
        fields = read_json(value, bytes_max=CHANGE_BYTES_MAX, depth_max=VALUE_DEPTH_MAX)
    except JsonInvalid:
        # Not the error's text: it may contain a name of the record.
        raise SettingsInvalid("the value is no JSON within its bounds") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise SettingsInvalid(f"the value is not of format {FORMAT}; a newer keylane wrote it")
    return fields


def _read_version(fields: Mapping[str, Any], offset: int) -> int:
    version = fields.get("version")
    if type(version) is not int or version < 1:
        raise SettingsInvalid("the version is not a positive number")
    if version > offset + VERSION_ROOM:
        raise SettingsInvalid("the version is above any possible version at its offset")
    return version


def _read_assignment(client_id: str, value: bytes | None) -> Assignment | None:
    """Read an assignment; None: a tombstone. Raises: SettingsInvalid."""
    try:
        if value is None:
            check_client_id(client_id)
            return None
        assignment = {
            topic: {
                _read_number(partition): [
                    KeyRange(_read_number(lo), _read_number(hi)) for lo, hi in ranges
                ]
                for partition, ranges in partitions.items()
            }
            for topic, partitions in _read(value)["topics"].items()
        }
        read_parts(client_id, assignment)
    except (AttributeError, KeyError, TypeError, ValueError, AssignmentInvalid):
        raise SettingsInvalid("the value is no assignment") from None
    return assignment


def _read_number(text: Any) -> int:
    """Read a number. Raises: ValueError."""
    if type(text) is int:
        number = text
    elif isinstance(text, str) and len(text) <= CHARACTERS_MAX and text.isascii():
        number = int(text)
    else:
        raise ValueError("not a number")
    if not 0 <= number <= HASH_MAX:
        raise ValueError("out of bounds")
    return number


def _read_flags(fields: Mapping[str, Any], name: str) -> dict[str, bool]:
    flags = fields.get(name, {})
    if not isinstance(flags, dict) or not all(isinstance(flag, bool) for flag in flags.values()):
        raise SettingsInvalid(f"{name} has values that are not booleans")
    return flags
