"""Assignments and switches as records of a compacted topic, and back.

In:    changes and the new version.  Out: keys and values; the state that records add up to.
Next:  `settings_store` appends them in one batch, and feeds back what it reads.
Pure:  no I/O.
Source: docs/decisions/019; keys and values are JSON, so that Kafka's own tools show them.

| key | value |
|---|---|
| `["assignment", CLIENT]` | topics, partitions, key ranges; a tombstone deletes |
| `["assignments"]` | the version; stands behind the assignments that it is the version of |
| `["switches"]` | the version and all switches that were set |
| `["fence"]` | nothing: whoever changes something wrote it before, to have the end to himself |
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from keylane.errors import AssignmentInvalid, RangesOverlap, SettingsInvalid
from keylane.keyrange.space import KeyRange
from keylane.proxy.range_table import Assignment, RangeTable
from keylane.proxy.switches import (
    ACCEPT_INDIVIDUAL_COMMIT,
    ACCEPT_RANGE_FETCH,
    ALLOW_INDIVIDUAL_COMMIT,
    Switches,
)

TOPIC_NAME: Final = "__keylane_settings"
FORMAT: Final = 1
RECORD_BYTES_MAX: Final = 900_000
"""Of what one client has; leaves room for the rest of its change."""
CHANGE_BYTES_MAX: Final = 1_048_588
"""Kafka's default of `message.max.bytes`: a change is one batch, which is there or is not."""
BATCH_OVERHEAD: Final = 61
RECORD_OVERHEAD: Final = 32
"""Lengths, attributes and deltas of a record, at the most."""
ASSIGNMENT, ASSIGNMENTS, SWITCHES = "assignment", "assignments", "switches"
FENCE: Final = "fence"

Record = tuple[bytes, bytes | None]
"""Key and value; None is a tombstone."""


def write_assignments(table: RangeTable, changed: Mapping[str, object]) -> list[Record]:
    """What makes a reader of the former records arrive at `table`: the version is last.

    changed: the client ids whose assignment is another, or gone.

    Raises:
        AssignmentInvalid: a client has more ranges than a record holds, or the change has more
            than a batch does.
    """
    records: list[Record] = []
    for client_id in sorted(changed):
        parts = table.clients.get(client_id)
        value = None if parts is None else _write({"topics": _topics(parts)})
        if value is not None and len(value) > RECORD_BYTES_MAX:
            reason = f"{len(value)} bytes, at most {RECORD_BYTES_MAX} have room"
            raise AssignmentInvalid(reason, client_id=client_id)
        records.append((_key(ASSIGNMENT, client_id), value))
    records.append((_key(ASSIGNMENTS), _write({"version": table.version})))
    size = batch_bytes(records)
    if size > CHANGE_BYTES_MAX:
        raise AssignmentInvalid(
            f"a change of {len(changed)} clients is {size} bytes in Kafka, at most"
            f" {CHANGE_BYTES_MAX} have room: change fewer clients at a time (PATCH)"
        )
    return records


def write_switches(switches: Switches) -> list[Record]:
    """All that was set, in one record; the longest names that `Switches` takes have room."""
    fields = {
        "version": switches.version,
        ACCEPT_INDIVIDUAL_COMMIT: switches.accept_individual_commit,
        ACCEPT_RANGE_FETCH: dict(switches.topics),
        ALLOW_INDIVIDUAL_COMMIT: dict(switches.clients),
    }
    return [(_key(SWITCHES), _write(fields))]


def write_fence() -> list[Record]:
    """What stands for its place in the log only."""
    return [(_key(FENCE), _write({}))]


def batch_bytes(records: Sequence[Record]) -> int:
    """What they take as one batch that is not compressed, at the most."""
    return BATCH_OVERHEAD + sum(
        RECORD_OVERHEAD + len(key) + len(value or b"") for key, value in records
    )


@dataclass(slots=True)
class SettingsState:
    """What the records read so far add up to.

    Assignments count when the version behind them is read, all at once: a change is one batch,
    of which a reader may get the first records before the others, and compaction leaves the last
    version behind the last assignments. Reading the same records again changes nothing.
    """

    table: RangeTable = field(default_factory=RangeTable)
    switches: Switches = field(default_factory=Switches)
    _pending: dict[str, Assignment | None] = field(default_factory=dict)

    def apply(self, key: bytes | None, value: bytes | None) -> bool:
        """Take in one record; tell whether `table` or `switches` is another now.

        Raises:
            SettingsInvalid: nothing that this version wrote; the state is as it was before.
        """
        match _read_key(key):
            case [str(kind), str(client_id)] if kind == ASSIGNMENT:
                self._pending[client_id] = None if value is None else _read_assignment(value)
            case [str(kind)] if kind == ASSIGNMENTS and value is not None:
                return self._apply_version(_read_version(_read(value)))
            case [str(kind)] if kind == SWITCHES and value is not None:
                return self._apply_switches(_read(value))
            case [str(kind)] if kind == FENCE:
                return False
            case _:
                raise SettingsInvalid(f"key {bytes(key or b'')[:60]!r} is unknown")
        return False

    def apply_own(self, records: Sequence[Record]) -> bool:
        """Take in a change that this node has written, before it is read.

        Of what has been read, assignments may wait for their version; they are not of this one.
        """
        waiting, self._pending = self._pending, {}
        try:
            changed = [self.apply(key, value) for key, value in records]
            return any(changed)
        finally:
            self._pending = waiting

    def _apply_version(self, version: int) -> bool:
        pending, self._pending = self._pending, {}
        if version <= self.table.version:
            return False
        try:
            self.table = self.table.with_clients(pending, version=version)
        except (AssignmentInvalid, RangesOverlap) as error:
            raise SettingsInvalid(f"assignments of version {version}: {error}") from None
        return True

    def _apply_switches(self, fields: Mapping[str, Any]) -> bool:
        version = _read_version(fields)
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
        except AssignmentInvalid as error:
            raise SettingsInvalid(f"switches of version {version}: {error}") from None
        return True


def _key(*parts: str) -> bytes:
    return _dump(parts)


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
        return json.loads(key or b"null")
    except ValueError:
        return None


def _read(value: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        raise SettingsInvalid("the value is no JSON") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise SettingsInvalid(f"the value is not of format {FORMAT}; a newer keylane wrote it")
    return fields


def _read_version(fields: Mapping[str, Any]) -> int:
    version = fields.get("version")
    if not isinstance(version, int) or version < 1:
        raise SettingsInvalid("the version is no positive number")
    return version


def _read_assignment(value: bytes) -> Assignment:
    try:
        return {
            topic: {
                int(partition): [KeyRange(int(lo), int(hi)) for lo, hi in ranges]
                for partition, ranges in partitions.items()
            }
            for topic, partitions in _read(value)["topics"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SettingsInvalid("the value is no assignment") from None


def _read_flags(fields: Mapping[str, Any], name: str) -> dict[str, bool]:
    flags = fields.get(name, {})
    if not isinstance(flags, dict) or not all(isinstance(flag, bool) for flag in flags.values()):
        raise SettingsInvalid(f"{name} holds something else than booleans")
    return flags
