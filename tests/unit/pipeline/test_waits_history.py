"""pipeline/waits/history.py: commit times that a journal shows, and those that it has lost."""

from __future__ import annotations

import uuid

from keylane.keyrange.space import HASH_MAX
from keylane.offsets.keyed_ranges import KeyedRange
from keylane.offsets.positions import Step
from keylane.offsets.records.journal import (
    Key,
    PositionsValue,
    RangeKey,
    RangeValue,
    StateKey,
    StepKey,
    Value,
    write_key,
    write_value,
)
from keylane.offsets.steps import StepValue, write_step
from keylane.offsets.values import Position
from keylane.pipeline.waits.history import (
    EXACT,
    INDIVIDUAL,
    LOST,
    OTHER_HASH,
    Commit,
    CommitHistory,
)

TOPIC_ID = uuid.uuid4()
HALF = 1 << 62
STATE = StateKey("billing", TOPIC_ID, 3)


def positions(low: int, high: int, *, tag: str = "", low_committed: bool = True) -> PositionsValue:
    """A whole record of two lanes."""
    lanes = ((low, low_committed), (high, True))
    return PositionsValue(
        timestamp_ms=0,
        pushed=None,
        topic_name="orders",
        hash_tag=tag,
        positions=tuple(
            (last, Position(at, at, committed))
            for last, (at, committed) in zip((HALF - 1, HASH_MAX), lanes, strict=True)
        ),
    )


def take(history: CommitHistory, offset: int, key: Key, value: Value | bytes | None):
    """Give a record at `offset`, whose time is ten times that."""
    data = value if isinstance(value, bytes) or value is None else write_value(value)
    return history.take(offset, 10 * offset, write_key(key), data)


def low(position: int, t_ms: int, doubt: int) -> Commit:
    return Commit(3, 0, HALF - 1, position, t_ms, doubt)


def high(position: int, t_ms: int, doubt: int) -> Commit:
    return Commit(3, HALF, HASH_MAX, position, t_ms, doubt)


def test_commits_one_after_the_other_are_exact() -> None:
    """What lies beyond the offset at which all lanes began came with the first record."""
    history = CommitHistory("billing", TOPIC_ID)

    first = take(history, 0, STATE, positions(100, 120))
    other = take(history, 1, StateKey("other", TOPIC_ID, 3), positions(7, 8))
    second = take(history, 2, STATE, positions(150, 120))

    assert set(first) == {low(100, 0, EXACT), high(120, 0, EXACT), low(100, 0, LOST),
                          high(100, 0, LOST)}  # fmt: skip
    assert other == []
    assert second == [low(150, 20, EXACT), high(120, 20, EXACT)]


def test_behind_a_gap_of_compaction_the_time_is_in_doubt() -> None:
    """Offset 1 is gone, which may have been a commit of the same lanes; later ones are exact."""
    history = CommitHistory("billing", TOPIC_ID)
    take(history, 0, STATE, positions(100, 120))

    behind = take(history, 2, STATE, positions(150, 160))
    later = take(history, 3, STATE, positions(150, 170))

    assert behind == [low(150, 20, LOST), high(160, 20, LOST)]
    assert later == [low(150, 30, EXACT), high(170, 30, EXACT)]


def test_a_journal_that_does_not_begin_at_its_start_has_lost_what_was_before() -> None:
    """The first record that is left may repeat positions of any age."""
    history = CommitHistory("billing", TOPIC_ID)

    assert take(history, 9, STATE, positions(100, 120)) == [low(100, 90, LOST), high(120, 90, LOST)]


def test_a_step_has_only_what_changed_and_an_uncommitted_lane_is_no_commit() -> None:
    """The lane that begins at 100 without a commit is given out once it has one."""
    history = CommitHistory("billing", TOPIC_ID)
    changes = ((0, HALF - 1, Position(130, 130, True)),)
    step = StepValue(timestamp_ms=0, base=1, pushed=None, step=Step(None, changes))

    first = take(history, 0, STATE, positions(100, 120, low_committed=False))
    second = take(history, 1, StepKey(STATE, 0), write_step(step))

    assert first == [high(120, 0, EXACT), high(100, 0, LOST)]
    assert second == [low(130, 10, EXACT)]


def test_a_deleted_state_begins_anew() -> None:
    """The group may have gone on without keylane: up to the common offset nothing is known."""
    history = CommitHistory("billing", TOPIC_ID)
    take(history, 0, STATE, positions(100, 120))
    take(history, 1, STATE, None)

    found = take(history, 2, STATE, positions(500, 510))

    assert low(500, 20, LOST) in found
    assert high(500, 20, LOST) in found
    assert high(510, 20, EXACT) in found


def test_offsets_that_are_committed_one_by_one_put_positions_in_doubt() -> None:
    """The position moves over them later than they were committed."""
    history = CommitHistory("billing", TOPIC_ID)
    take(history, 0, STATE, positions(100, 120))

    ranges = take(history, 1, RangeKey(STATE, *KeyedRange(140, 149)), RangeValue(timestamp_ms=0))
    found = take(history, 2, STATE, positions(150, 120))

    assert ranges == []
    assert found == [low(150, 20, INDIVIDUAL), high(120, 20, INDIVIDUAL)]


def test_lanes_of_another_hash_are_in_doubt_for_all_keys() -> None:
    """Their intervals are not of XXH64, by which records are placed."""
    history = CommitHistory("billing", TOPIC_ID)

    found = take(history, 0, STATE, positions(100, 120, tag="murmur2"))

    assert found == [Commit(3, 0, HASH_MAX, 120, 0, OTHER_HASH)]


def test_strangers_and_damage_are_gaps() -> None:
    """A damaged record of positions is not taken, and what follows is in doubt."""
    history = CommitHistory("billing", TOPIC_ID)
    take(history, 0, STATE, positions(100, 120))

    damaged = take(history, 1, STATE, b"\x00\x00nonsense")
    keyless = history.take(2, 20, None, b"x")
    found = take(history, 3, STATE, positions(150, 160))

    assert damaged == keyless == []
    assert found == [low(150, 30, LOST), high(160, 30, LOST)]
