"""States by another key hash than the topic has now: their lanes begin at the stable offset."""

from __future__ import annotations

import logging

import pytest

from keylane.config.node import LaneRule
from keylane.keyrange.lane import LaneLayout
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.txn_metadata import LaneCommit, LaneNote, write_note
from keylane.offsets.values import WHOLE
from keylane.proxy.topics.view import View
from tests.transcript.fake import ORDERS, FakeContext

GROUP = "billing"
KEY = StateKey(GROUP, ORDERS, 0)
PLAIN = LaneLayout(2, 4)


def context() -> tuple[FakeContext, View]:
    """Return a node on which orders has lanes by murmur2."""
    made = FakeContext(LaneRule(topic="orders", lanes=4, hash="murmur2"))
    view = made.registry.view("orders")
    assert view is not None
    return made, view


def plain_state() -> OffsetState:
    """Return a state by XXH64 whose lanes stand at 10, 20, 30 and 40."""
    state = OffsetState(committed=10, topic_name="orders")
    for lane in range(4):
        state.commit_keys((PLAIN.key_range(0, lane),), 10 * (lane + 1))
    state.mark_pushed(10)
    return state


async def test_a_state_is_not_read_as_one_of_the_new_hash(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All lanes are at 10, below which all keys were committed; the change is logged once."""
    made, view = context()
    made.groups.table.put(KEY, plain_state())

    with caplog.at_level(logging.WARNING):
        found = made.groups.state_of(GROUP, view, 0)
        again = made.groups.state_of(GROUP, view, 0)

    assert found is again is made.groups.table.get(KEY)
    assert found is not None
    assert found.hash_tag == view.hash_tag(0) == "murmur2/2/1"
    assert {found.position_of(*view.key_ranges(index)).offset for index in (0, 2, 4, 6)} == {10}
    (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("keylane")]
    assert "hash of keys has changed group=billing topic=orders partition=0 offset=10" in line


async def test_a_note_of_the_old_hash_is_passed_over() -> None:
    """A transaction's note names lanes that mean other keys; its offset is what all had reached."""
    made, view = context()
    made.groups.table.put(KEY, plain_state())
    note = LaneNote(20, (LaneCommit(PLAIN.key_range(0, 3), 99),))

    state = await made.groups.adopt(GROUP, view, 0, 20, write_note(ORDERS, note))

    assert state.hash_tag == view.hash_tag(0)
    assert state.position_of(WHOLE).offset == state.stable_position == 20
    assert state.fastest_position == 20


async def test_a_new_state_has_the_hash_of_its_topic() -> None:
    """It is adopted from Kafka's own offset."""
    made, view = context()

    state = await made.groups.adopt(GROUP, view, 0, 7)

    assert (state.hash_tag, state.stable_position) == ("murmur2/2/1", 7)
