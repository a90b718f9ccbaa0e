"""Steps of positions for the journal: whole now and then, and in between what has changed.

Source: docs/decisions/038.

A whole record with a base is followed by steps 0, 1, 2 of that base, each under its own key,
each with all that changed since the one before. The steps behind the next whole record have the
same keys and another base. So compaction keeps one whole record and the newest step of each number,
and the steps that do not name the whole record's base are remains.

    value of a step = int16 version, int64 timestamp in ms, int64 base (that of its whole record),
                      int64 pushed (-1: none), int64 lift from, int64 lift to (equal: no lift),
                      int32 count, and each change: int64 first hash, then as an interval of a
                      whole record

Only what the journal surely holds is gone on from. After an append without an ack, a load, or a
journal that was cut, the next record is whole.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from keylane.errors import JournalInvalid
from keylane.offsets.positions import Change, PositionMap, Step
from keylane.offsets.records.journal import (
    STEPS_MAX,
    Key,
    PositionsValue,
    StateKey,
    StepKey,
    write_value,
)
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
from keylane.offsets.state import OffsetState
from keylane.offsets.values import POSITION_COUNT_MAX
from keylane.wire.primitives import Reader, Writer

INTERVALS_MIN: Final = 9
"""Below, a whole record is hardly longer than a step, and any keylane can read it."""
ROOM: Final = 2
"""Steps may take so many times the bytes of their whole record: a third of what is written is
whole records then, however many lanes there are, and a load reads three times the least."""
HEAD: Final = struct.Struct(">hqqqqqi")
"""Head of a step's value, before its changes."""
STEP_BYTES_MIN: Final = HEAD.size

Entry = tuple[Key, bytes | None]
"""Key, and value; None: a tombstone."""


class StepValue(NamedTuple):
    """One step. It has all that changed, so with it a state has come about whole, or not at all."""

    timestamp_ms: int
    base: int
    pushed: int | None
    step: Step


@dataclass(slots=True)
class _Written:
    """Content of the journal for one state."""

    base: int | None = None
    """Of the last whole record; None: no step may follow it."""
    held: PositionMap | None = None
    """Positions that the journal holds, if that is sure."""
    pending: PositionMap | None = None
    """Positions that were given out to be written, without an ack."""
    names: tuple[str, str, bool] = ("", "", False)
    """Topic name and key hash of the last whole record."""
    count: int = 0
    """Steps behind the whole record."""
    room: int = 0
    """Bytes that further steps may take."""
    numbers: int = 0
    """The journal may hold steps with numbers below."""
    numbers_kept: int = 0
    """The same once the last whole record has its ack, with the tombstones behind it."""


class Steps:
    """By state. Invariant: a state's `held` is what a load at this moment would find."""

    def __init__(self) -> None:
        self._written: dict[StateKey, _Written] = {}
        self._base_last = 0
        """No base is used twice, of whatever state."""

    def entries(
        self, key: StateKey, state: OffsetState, *, now_ms: int, is_whole: bool
    ) -> list[Entry]:
        """Return what has to be written of a state's positions, in this order.

        is_whole: as every keylane can read it.
        """
        written = self._written.setdefault(key, _Written())
        positions = state.positions_held()
        value = None if is_whole else _step(written, state, positions, now_ms)
        written.held = None  # what becomes of the append is not known
        if value is None:
            return self._whole(key, written, state, now_ms=now_ms, is_whole=is_whole)
        written.pending = positions
        number, written.count = written.count, written.count + 1
        written.numbers = max(written.numbers, written.count)
        written.room -= len(value)
        return [(StepKey(key, number), value)]

    def mark_saved(self, key: StateKey) -> None:
        """Note that all of the last `entries` were acknowledged."""
        written = self._written.get(key)
        if written is None or written.pending is None:
            return
        if written.count == 0:
            written.numbers = min(written.numbers, written.numbers_kept)
        written.held, written.pending = written.pending, None
        if written.base is None:
            written.held = None
            if not written.numbers:
                del self._written[key]  # nothing is to be known of it

    def note_cut(self) -> None:
        """The journal may have lost its last records: nothing of it is sure."""
        for written in self._written.values():
            written.held = None

    def note_loaded(
        self,
        key: StateKey,
        whole: PositionsValue | None,
        steps: Mapping[int, StepValue | None],
    ) -> None:
        """Take note of what a load has found; None in the place of a step: it is damaged."""
        base = None if whole is None else whole.base
        bases = [step.base for step in steps.values() if step is not None]
        self._base_last = max(self._base_last, base or 0, *bases)
        if base is not None or steps:
            self._written[key] = _Written(base=base, numbers=max(steps, default=-1) + 1)

    def based(self) -> list[StateKey]:
        """Return states whose last whole record has a base: an older keylane cannot read them."""
        return [key for key, written in self._written.items() if written.base is not None]

    def given_up(self, key: StateKey) -> list[StepKey]:
        """Return keys of steps that the journal may hold: the state is about to be deleted.

        Should it stay after all, its next record is whole.
        """
        written = self._written.get(key)
        if written is None:
            return []
        written.held = None
        return [StepKey(key, number) for number in range(written.numbers)]

    def forget(self, key: StateKey) -> None:
        """The state was deleted."""
        self._written.pop(key, None)

    def _whole(
        self,
        key: StateKey,
        written: _Written,
        state: OffsetState,
        *,
        now_ms: int,
        is_whole: bool,
    ) -> list[Entry]:
        positions = state.positions_held()
        written.pending, written.names = positions, _names(state)
        written.base, written.count, written.room = None, 0, 0
        if not is_whole and len(positions) >= INTERVALS_MIN:
            self._base_last = written.base = max(now_ms, self._base_last + 1)
        value = write_value(
            PositionsValue(
                timestamp_ms=now_ms,
                pushed=state.pushed,
                topic_name=state.topic_name,
                hash_tag=state.hash_tag,
                positions=positions.ends(),
                base=written.base,
                has_key_ranges=state.has_key_ranges,
            )
        )
        if written.base is not None:
            written.room = ROOM * len(value)
        # Fewer lanes than before: what no step will take the place of is deleted.
        written.numbers_kept = min(STEPS_MAX, written.room // STEP_BYTES_MIN)
        unused = range(written.numbers_kept, written.numbers)
        return [(key, value), *((StepKey(key, number), None) for number in unused)]


def _names(state: OffsetState) -> tuple[str, str, bool]:
    """Return what a whole record says and a step does not."""
    return state.topic_name, state.hash_tag, state.has_key_ranges


def _step(
    written: _Written, state: OffsetState, positions: PositionMap, now_ms: int
) -> bytes | None:
    """Return the value of the next step; None: a whole record is due."""
    held, base = written.held, written.base
    if held is None or base is None or written.count >= STEPS_MAX:
        return None
    step = positions.step_from(held)
    if 2 * len(step.changes) > len(positions):
        return None
    if written.names != _names(state):
        return None
    value = write_step(StepValue(timestamp_ms=now_ms, base=base, pushed=state.pushed, step=step))
    return value if len(value) <= written.room else None


def walked(
    whole: PositionsValue, steps: Mapping[int, StepValue | None], *, is_moving: bool = False
) -> tuple[PositionMap, int | None]:
    """Return the end of a whole record's steps: positions, and the offset that was pushed.

    steps: by number, of whatever base; None: it is damaged, and may be of this one.
    is_moving: others write meanwhile, so a compaction may have taken a step whose successor is
        behind what was read. The steps up to there are walked, whose end was right at no moment.
    Raises: JournalInvalid, when a step is damaged or missing, or leads to nonsense.
    """
    positions, pushed, number = PositionMap.from_ends(whole.positions), whole.pushed, 0
    if whole.base is None:
        return positions, pushed
    while number in steps:
        value = steps[number]
        if value is None:
            raise JournalInvalid(f"journal positions: step {number} is damaged")
        if value.base != whole.base:
            break
        positions.apply_step(value.step)
        pushed, number = value.pushed, number + 1
    beyond = [value for other, value in steps.items() if other > number and value is not None]
    if not is_moving and any(value.base == whole.base for value in beyond):
        raise JournalInvalid(f"journal positions: step {number} is missing")
    if not positions.is_sound:
        raise JournalInvalid("journal positions: steps lead to nonsense")
    return positions, pushed


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


@all_of("step")
def read_step(reader: Reader) -> StepValue:
    """Decode the value of a `StepKey`."""
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
    lift = None if start == end else (start, end)
    return StepValue(
        timestamp_ms=timestamp_ms, base=base, pushed=pushed, step=Step(lift, tuple(changes))
    )
