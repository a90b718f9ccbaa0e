"""Intents: the journal's records of pushes that do not go forward."""

from __future__ import annotations

import uuid

import pytest

from keylane.errors import JournalInvalid
from keylane.keyrange.key_split import even_split
from keylane.keyrange.space import WHOLE
from keylane.offsets.intents import LATE_MAX, LATE_S, Intents, intent_of, needs_intent
from keylane.offsets.keyed_ranges import KeyedRange
from keylane.offsets.records.journal import (
    IntentKey,
    JournalRecord,
    StateKey,
    read_intent,
    read_key,
    write_key,
    write_value,
)
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable

KEY = StateKey("g", uuid.UUID(int=1), 0)
LANES = even_split(4)


def at(pushed: int | None) -> OffsetState:
    """A state of which so much was pushed."""
    state = OffsetState(committed=1000, topic_name="orders")
    state.mark_pushed(pushed)
    return state


@pytest.mark.parametrize(
    ("pushed", "offset", "needs"),
    [(10, 9, True), (10, 10, False), (10, 11, False), (10, None, True), (None, 5, True),
     (None, None, False)],
)  # fmt: skip
def test_what_needs_an_intent(pushed, offset, needs) -> None:
    """Whatever would be taken for a move of somebody else."""
    assert needs_intent(at(pushed), offset) is needs


@pytest.mark.parametrize("offset", [10, None])
def test_an_intent_is_written_and_read(offset) -> None:
    """Key and value are what they were."""
    draft = at(1000)
    draft.commit_keys((LANES.key_range(0),), 10, "metadata", 7)
    intent, place = intent_of(at(1000), draft, offset, 99), IntentKey(KEY, offset)

    key = read_key(write_key(place))
    value = read_intent(write_value(intent))

    assert (key, value) == (place, intent)
    assert (intent.before, intent.after.pushed) == (1000, offset)


@pytest.mark.parametrize("cut", [0, 1, 9, 17, -1])
def test_a_damaged_intent_is_named(cut) -> None:
    """As other records of the journal."""
    value = write_value(intent_of(at(1000), at(1000), 10, 99))

    with pytest.raises(JournalInvalid, match="journal intent"):
        read_intent(value[:cut])


def test_an_intent_under_the_key_of_another_offset_is_damaged() -> None:
    """It is counted, and the state is as its own record says."""
    table, state = OffsetTable(partition_count=1), at(1000)
    table.put(KEY, state)
    records = table.records(KEY, now_ms=1)
    value = write_value(intent_of(state, state, 10, 1))
    records.append(JournalRecord(0, write_key(IntentKey(KEY, 20)), value))

    loaded = OffsetTable(partition_count=1)
    for number, record in enumerate(records):
        loaded.apply(0, number, record.key, record.value)

    assert loaded.finish_load().damaged_count == 1
    assert loaded.get(KEY) == state and not loaded.intents.stored(KEY)


def test_a_push_without_an_answer_is_forgotten_some_time_after_another_was_seen() -> None:
    """Not before Kafka's offset was seen elsewhere, and then `LATE_S` later."""
    intents, state = Intents(), at(1000)
    intents.note_unanswered(KEY, 10)
    assert intents.may_come_late(KEY, 1e9)

    intents.note_seen(KEY, 1000, 50.0)

    assert intents.may_come_late(KEY, 50.0 + LATE_S - 0.1)
    assert not intents.may_come_late(KEY, 50.0 + LATE_S)
    assert intents.recognise(KEY, state, 20, 60.0) is None
    intents.check()


def test_pushes_without_an_answer_are_bounded() -> None:
    """The oldest go first."""
    intents = Intents()
    for offset in range(LATE_MAX + 5):
        intents.note_unanswered(KEY, offset)

    assert intents.recognise(KEY, at(1000), 0, 1.0) is None
    assert intents.recognise(KEY, at(1000), LATE_MAX, 1.0) is not None
    intents.check()


def test_a_second_step_back_to_one_offset_waits_until_the_first_is_known() -> None:
    """With other positions; the same one again, as clients do it, does not wait."""
    intents, state = Intents(), at(1000)
    first = intent_of(state, at(1000), 10, 1)
    other = at(1000)
    other.commit_keys((LANES.key_range(1),), 10)
    second = intent_of(state, other, 10, 2)
    intents.note_stored(KEY, 10)
    intents.open(KEY, first)
    intents.note_unanswered(KEY, 10)
    intents.note_seen(KEY, 1000, 0.0)

    assert intents.may_open(KEY, first, 1.0) and not intents.may_open(KEY, second, 1.0)
    assert intents.may_open(KEY, second, LATE_S + 1.0)


@pytest.mark.parametrize("is_like_one_on_its_way", [False, True])
def test_a_push_that_was_not_sent_leaves_what_may_still_arrive(is_like_one_on_its_way) -> None:
    """Another one of its offset waits only for a push like it that was sent before."""
    intents, state = Intents(), at(1000)
    other = at(1000)
    other.commit_keys((LANES.key_range(1),), 10)
    if is_like_one_on_its_way:
        intents.note_unanswered(KEY, 10)
    intents.note_stored(KEY, 10)
    intents.open(KEY, intent_of(state, at(1000), 10, 1))

    intents.note_unsent(KEY, 10)

    may_open = intents.may_open(KEY, intent_of(state, other, 10, 2), 1.0)
    assert may_open is not is_like_one_on_its_way
    intents.check()


def test_a_step_back_that_the_journal_does_not_have_yet_drops_its_ranges() -> None:
    """A crash between Kafka's answer and the save: 150 to 200 are wanted again, and not passed."""
    back, other = LANES.key_range(0), LANES.key_range(1)
    state = OffsetState(committed=100, topic_name="orders")
    state.mark_pushed(100)
    state.commit_ranges([(150, 200)], [back])
    state.commit_ranges([(300, 310)], [other])
    state.mark_saved()
    draft = state.copy()
    draft.commit_keys((back,), 50)
    intents = Intents()
    intents.load(KEY, {50: intent_of(state, draft, 50, 1)})

    arrived = intents.recognise(KEY, state, 50, 1.0)

    assert arrived is not None
    assert arrived.ranges(back) == [] and arrived.ranges(other) == [(300, 310)]
    assert arrived.unsaved().tombstones == (KeyedRange(150, 200, back.lo, back.hi),)
    arrived.commit_keys((back,), 50)
    arrived.commit_keys((back,), 150)
    assert arrived.position_of(back).offset == 150


def test_a_first_push_that_the_journal_does_not_have_yet_keeps_ranges() -> None:
    """It goes forward: what was committed stays so."""
    state = OffsetState(committed=None, topic_name="orders")
    state.commit_ranges([(150, 200)])
    state.mark_saved()
    draft = state.copy()
    draft.commit_keys(WHOLE, 100)
    intents = Intents()
    intents.load(KEY, {100: intent_of(state, draft, 100, 1)})

    arrived = intents.recognise(KEY, state, 100, 1.0)

    assert arrived is not None
    assert arrived.ranges() == [(150, 200)] and not arrived.unsaved().tombstones


@pytest.mark.parametrize("target", [500, 1500])
def test_a_reset_that_the_journal_does_not_have_yet_drops_all_ranges(target) -> None:
    """Back or forward: all keys stand at its offset, and what was done beyond it comes again."""
    state = at(1000)
    state.commit_keys((LANES.key_range(0),), 2000)
    state.commit_ranges([(3000, 3010)], (LANES.key_range(1),))
    draft = state.copy()
    draft.reset(target)
    intents = Intents()
    intents.note_stored(KEY, target)
    intents.open(KEY, intent_of(state, draft, target, 1))

    found = intents.recognise(KEY, state, target, 0.0)

    draft.mark_pushed(target)
    assert found == draft
    assert found is not None and not found.keyed_ranges()
    assert (found.stable_position, found.fastest_position) == (target, target)
    assert intents.recognise(KEY, state, 1000, 0.0) is state
