"""A change of the key hash: positions of the old one are never taken for those of the new one."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from keylane.keyrange.lane import LaneLayout
from keylane.offsets.intents import intent_of
from keylane.offsets.records.journal import (
    IntentKey,
    JournalRecord,
    StateKey,
    write_key,
    write_value,
)
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import WHOLE

KEY = StateKey("billing", uuid.UUID(int=7), 0)
LANES = LaneLayout(1, 16, hash="murmur2")
TAG = LANES.key_hash.tag


def uneven(tag: str = TAG) -> OffsetState:
    """Return a state whose lanes stand at 10, 11, 12 and so on."""
    state = OffsetState(committed=10, topic_name="orders", hash_tag=tag)
    for lane in range(16):
        state.commit_keys((LANES.key_range(0, lane),), 10 + lane)
    state.mark_pushed(10)
    return state


def save(table: OffsetTable, state: OffsetState) -> list[JournalRecord]:
    """Put a state in place and write what the journal lacks of it."""
    table.put(KEY, state)
    records = table.records(KEY, now_ms=1)
    table.mark_saved(KEY)
    return records


def load(journal: Sequence[JournalRecord]) -> OffsetTable:
    """Return a table that has read a journal."""
    table = OffsetTable(partition_count=1)
    for offset, record in enumerate(journal):
        table.apply(record.partition, offset, record.key, record.value)
    assert table.finish_load().damaged_count == 0
    table.check()
    return table


def test_all_keys_begin_again_at_the_stable_position() -> None:
    """Nothing below it is lost, and no lane stands beyond it; offset ranges of all keys stay."""
    state = uneven("")
    state.commit_ranges([(20, 29)])

    state.rehash(TAG)

    assert state.hash_tag == TAG
    assert state.position_of(WHOLE).offset == state.stable_position == 10
    assert all(state.position_of(LANES.key_range(0, lane)).offset == 10 for lane in range(16))
    assert state.ranges() == [(20, 29)]
    assert state.unsaved().positions
    state.check()


def test_a_state_that_never_committed_stays_so() -> None:
    """A client then begins where its own settings say."""
    state = OffsetState(committed=None, base=3)

    state.rehash(TAG)

    assert not state.committed
    assert state.stable_position == 3


def test_states_by_other_hashes_are_not_equal() -> None:
    """Their positions mean other keys."""
    assert uneven() == uneven().copy()
    assert uneven() != uneven("")


def test_a_load_gives_a_state_its_hash() -> None:
    """Whole records have it, and steps behind them are of the same one."""
    table, state = OffsetTable(partition_count=1), uneven()
    journal = save(table, state)
    state = state.copy()
    state.commit_keys((LANES.key_range(0, 3),), 99)
    journal += save(table, state)

    found = load(journal).get(KEY)

    assert len(journal) > 1
    assert found == state


def test_no_step_stands_behind_a_record_of_another_hash() -> None:
    """The record after the change is whole, so that a load finds the new hash."""
    table, state = OffsetTable(partition_count=1), uneven("")
    journal = save(table, state)
    state = state.copy()
    state.rehash(TAG)
    state.commit_keys((LANES.key_range(0, 3),), 99)
    journal += save(table, state)

    found = load(journal).get(KEY)

    assert found == state


@pytest.mark.parametrize("tag", ["", TAG])
def test_an_intent_brings_the_hash_of_its_positions(tag: str) -> None:
    """A push from before a change that arrives behind it is known for what it is."""
    table, before, after = OffsetTable(partition_count=1), uneven(""), uneven(tag)
    after.commit_keys((WHOLE,), 5)
    journal = save(table, before)
    intent = write_value(intent_of(before, after, 5, 1))
    journal.append(JournalRecord(0, write_key(IntentKey(KEY, 5)), intent))

    found = load(journal).recognise(KEY, 5, 0.0)

    assert found is not None
    assert (found.hash_tag, found.pushed) == (tag, 5)
