"""Which stable offsets are remembered as late, and for how long."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keylane.offsets.records.journal import StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.proxy.commits import late_pushes
from keylane.proxy.commits.late_pushes import PATIENCE_S, LatePush, LatePushes
from tests.transcript.fake import FakeContext

VIEW = FakeContext().lanes("orders")
TOPIC = uuid.UUID(int=7)


def late(
    pushed: list[str], name: str = "", *, position: int = 0, since_s: float = 0.0
) -> Callable[[], LatePush]:
    """Makes one that says when it is pushed."""
    return lambda: LatePush(
        view=VIEW,
        partition=0,
        position=position,
        since_s=since_s,
        push=lambda: pushed.append(name),
    )


def state_behind() -> OffsetState:
    """One lane of four has committed."""
    state = OffsetState(committed=None, base=0, topic_name="orders")
    state.commit_keys(VIEW.key_ranges(0), 5, "", -1, ScanIndex(VIEW.key_split(0)))
    return state


def test_each_is_pushed_once_when_its_place_is_known() -> None:
    """All groups on the partition, and no other partition's."""
    pushes, pushed, scan = LatePushes(), list[str](), ScanIndex(VIEW.key_split(0))
    for name in ("a", "b"):
        pushes.note_commit(StateKey(name, TOPIC, 0), state_behind(), scan, late(pushed, name))
    pushes.check()
    scan.add(0, 8, np.array([4, -1, -1, -1], dtype=np.int64))
    pushes.note_scanned(VIEW.partition_split(1), scan)
    assert pushed == []

    for _ in range(2):
        pushes.note_scanned(VIEW.partition_split(0), scan)

    assert sorted(pushed) == ["a", "b"]
    pushes.check()
    assert len(pushes.owed("a")) == len(pushes.owed("b")) == 1, "until a broker has taken them"
    assert pushes.overdue(PATIENCE_S + 1) == [], "nothing is to be read"
    pushes.forget(StateKey("a", TOPIC, 0))
    assert not pushes.owed("a") and len(pushes) == 1
    pushes.check()


def test_a_place_that_retention_has_deleted_is_known_where_the_log_begins() -> None:
    """The stable offset is 0, the log begins at 5: nothing below that is ever scanned."""
    pushes, pushed, scan = LatePushes(), list[str](), ScanIndex(VIEW.key_split(0))
    pushes.note_commit(StateKey("a", TOPIC, 0), state_behind(), scan, late(pushed, "a"))
    scan.add(5, 8, np.array([5, -1, -1, -1], dtype=np.int64))
    key = VIEW.partition_split(0)
    pushes.note_scanned(key, scan)
    assert pushed == [], "where the log begins is not known"

    pushes.note_scanned(key, scan, log_start=5)

    assert pushed == ["a"]
    pushes.check()


def test_a_state_that_goes_on_from_what_was_pushed_is_pushed_again() -> None:
    """The log was found to begin at 5 while the broker was asked, and all lanes stand there."""
    pushes, pushed, scan = LatePushes(), list[str](), ScanIndex(VIEW.key_split(0))
    state = state_behind()
    state.mark_pushed(state.stable_position)
    state.advance_log_start(5)
    assert state.stable_position == state.fastest_position == 5 != state.pushed

    pushes.note_commit(StateKey("a", TOPIC, 0), state, scan, late(pushed, "a"))

    assert pushed == ["a"]
    assert len(pushes.owed("a")) == 1
    pushes.check()


def test_places_that_are_read_in_vain_let_others_be_read() -> None:
    """A leader is away: what waits on it is asked for again later, behind all others."""
    pushes, scan = LatePushes(), ScanIndex(VIEW.key_split(0))
    names = [f"g{number}" for number in range(2 * late_pushes.READS_MAX)]
    for name in names:
        pushes.note_commit(StateKey(name, TOPIC, 0), state_behind(), scan, late([]))
    now_s = PATIENCE_S + 1
    first = pushes.overdue(now_s)
    for each in first:
        each.want_read(now_s)

    now_s += PATIENCE_S + 1
    second = pushes.overdue(now_s)

    assert len(first) == len(second) == late_pushes.READS_MAX
    assert not {id(each) for each in first} & {id(each) for each in second}
    assert {id(each) for each in pushes.overdue(now_s)} == {id(each) for each in first}


def test_memory_is_bounded(monkeypatch: Any) -> None:
    """The one that waits longest is forgotten: it is late, not wrong."""
    monkeypatch.setattr(late_pushes, "PLACES_MAX", 3)
    pushes, scan = LatePushes(), ScanIndex(VIEW.key_split(0))
    for number in range(5):
        pushes.note_commit(StateKey(f"g{number}", TOPIC, 0), state_behind(), scan, late([]))
        pushes.check()

    assert len(pushes) == 3


@pytest.mark.parametrize("in_transactions", [True, False])
def test_a_place_that_is_noted_again_and_again_is_read_in_time(in_transactions: bool) -> None:
    """A tool that asks for a group's offsets has them looked at each time; members commit."""
    pushes, scan, key = LatePushes(), ScanIndex(VIEW.key_split(0)), StateKey("a", TOPIC, 0)
    for second in range(5):
        if in_transactions:
            pushes.note_transaction(key, state_behind(), late([], since_s=second)())
        pushes.note_commit(key, state_behind(), scan, late([], since_s=second))

    assert pushes.overdue(PATIENCE_S) == []
    assert len(pushes.overdue(PATIENCE_S + 1)) == 1
    pushes.note_commit(key, state_behind(), scan, late([], since_s=5))
    assert pushes.overdue(5 + PATIENCE_S) == [], "it was read, and is read again no sooner"
    pushes.note_commit(key, state_behind(), scan, late([], position=3, since_s=8))
    assert pushes.overdue(8 + PATIENCE_S) == [], "another place"
    pushes.check()


def test_what_was_loaded_behind_is_looked_at_once() -> None:
    """A node that takes a group over knows of no commit of it; one that has committed does."""
    pushes, behind = LatePushes(), state_behind()
    behind.mark_pushed(0)
    even = OffsetState(committed=5, topic_name="orders")
    pushes.note_loaded(StateKey("a", TOPIC, 0), behind)
    pushes.note_loaded(StateKey("a", TOPIC, 1), even)
    pushes.note_loaded(StateKey("b", TOPIC, 0), behind)
    pushes.note_loaded(StateKey("c", TOPIC, 0), behind)
    pushes.check()

    pushes.forget(StateKey("b", TOPIC, 0))
    pushes.forget_where(lambda group: group == "c")

    assert pushes.loaded("a") == [StateKey("a", TOPIC, 0)]
    pushes.note_looked_at(StateKey("a", TOPIC, 0))
    assert pushes.loaded("a") == []
    assert pushes.loaded("b") == []
    assert pushes.loaded("c") == []
    pushes.check()


def test_what_another_node_serves_is_not_owed_here() -> None:
    """Known or not: the node that takes it over looks for itself."""
    pushes, scan = LatePushes(), ScanIndex(VIEW.key_split(0))
    for name in ("a", "b"):
        pushes.note_commit(StateKey(name, TOPIC, 0), state_behind(), scan, late([]))
    scan.add(0, 8, np.array([4, -1, -1, -1], dtype=np.int64))
    pushes.note_scanned(VIEW.partition_split(0), scan)

    pushes.forget_where(lambda group: group == "a")

    assert not pushes.owed("a")
    assert len(pushes.owed("b")) == 1
    pushes.check()


def test_news_that_came_while_the_broker_was_asked_is_pushed() -> None:
    """The commit was settled before it, and nothing else will come."""
    pushes, pushed, scan = LatePushes(), list[str](), ScanIndex(VIEW.key_split(0))
    scan.add(0, 8, np.array([4, -1, -1, -1], dtype=np.int64))

    pushes.note_commit(StateKey("a", TOPIC, 0), state_behind(), scan, late(pushed, "a"))

    assert pushed == ["a"]
    assert len(pushes.owed("a")) == 1
    pushes.check()


@pytest.mark.parametrize("is_news", [True, False])
def test_news_behind_the_mark_of_a_commit_is_pushed(is_news: bool, monkeypatch: Any) -> None:
    """Settled, then scanned, then noted; without news in between no state is copied for a look."""
    pushes, pushed, scan = LatePushes(), list[str](), ScanIndex(VIEW.key_split(0))
    scan.add(0, 8, np.array([4, 0, 0, 0], dtype=np.int64))
    state = state_behind()
    state.settle(scan)
    assert state.is_settled(scan) and state.stable_position == 0
    if is_news:  # it had records of the other lanes that were compacted away
        scan.truncate(0)
        scan.add(0, 8, np.array([4, -1, -1, -1], dtype=np.int64))
    else:
        monkeypatch.setattr(OffsetState, "copy", None)

    pushes.note_commit(StateKey("a", TOPIC, 0), state, scan, late(pushed, "a"))

    assert pushed == ["a"] * is_news
    assert len(pushes) == is_news
    pushes.check()


def test_a_lane_with_a_record_to_read_owes_nothing() -> None:
    """The place is known, and the stable offset stands where it has to."""
    pushes, pushed, scan = LatePushes(), list[str](), ScanIndex(VIEW.key_split(0))
    scan.add(0, 8, np.array([4, 0, -1, -1], dtype=np.int64))

    pushes.note_commit(StateKey("a", TOPIC, 0), state_behind(), scan, late(pushed, "a"))

    assert pushed == [] and len(pushes) == 0
