"""Records of steps: changes of a state's positions since the step or whole record before.

Source: docs/decisions/038; the key is in `offsets.journal`.

    value = int16 version, int64 timestamp in ms, int64 base (that of the whole record it follows),
            int64 pushed (-1: none), int64 lift from, int64 lift to (equal: no lift),
            int32 count, and each change: int64 first hash, then as an interval of a whole record
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from keylane.offsets.positions import Change, Step
from keylane.offsets.records.journal_parts import (
    INTERVAL_BYTES_MIN,
    VALUE_VERSION,
    expect,
    number_of,
    read_bounded,
    read_head,
    read_interval,
    read_offset,
    write_interval,
)
from keylane.offsets.values import POSITION_COUNT_MAX
from keylane.wire.primitives import Buffer, Reader, Writer

HEAD: Final = struct.Struct(">hqqqqqi")
"""Head of a value, before its changes."""


class StepValue(NamedTuple):
    """One step. It has all that changed, so with it a state has come about whole, or not at all."""

    timestamp_ms: int
    base: int
    pushed: int | None
    step: Step


def write_step(value: StepValue) -> bytes:
    """Encode a step. Raises: ValueError, a string is longer than Kafka allows."""
    writer = Writer(flexible=False)
    lift, changes = value.step
    start, end = lift or (0, 0)
    pushed = number_of(value.pushed)
    head = VALUE_VERSION, value.timestamp_ms, value.base, pushed, start, end, len(changes)
    writer.raw(HEAD.pack(*head))
    for first_hash, last_hash, position in changes:
        writer.int64(first_hash)
        write_interval(writer, last_hash, position)
    return writer.to_bytes()


def read_step(data: Buffer, *, place: str) -> StepValue:
    """Decode the value of a `StepKey`. Raises: JournalInvalid."""
    return read_bounded(data, _step_value, f"{place} step")


def _step_value(reader: Reader) -> StepValue:
    timestamp_ms, base = read_head(reader), reader.int64()
    pushed, start, end = read_offset(reader), reader.int64(), reader.int64()
    expect(f"base {base}", that=base >= 0)
    expect(f"lift from {start} to {end}", that=min(start, end) >= 0)
    count = reader.count(8 + INTERVAL_BYTES_MIN)
    expect(f"{count} changes", that=count <= POSITION_COUNT_MAX)
    changes: list[Change] = []
    last_before = -1
    for _ in range(count):
        first_hash = reader.int64()
        last_hash, position = read_interval(reader)
        expect("changes out of order", that=last_before < first_hash <= last_hash)
        last_before = last_hash
        changes.append((first_hash, last_hash, position))
    reader.end()
    lift = None if start == end else (start, end)
    return StepValue(
        timestamp_ms=timestamp_ms, base=base, pushed=pushed, step=Step(lift, tuple(changes))
    )
