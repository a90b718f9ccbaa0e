"""proxy/runtime/event_log.py: a bounded line of events, with members that come and go."""

from __future__ import annotations

import pytest

from keylane.proxy.runtime.event_log import EVENTS_MAX, TEXT_CHARS_MAX, EventLog, Kind, Severity


@pytest.fixture
def log() -> EventLog:
    """A log at a time that stands."""
    return EventLog(lambda: 5_000)


def texts(log: EventLog) -> list[str]:
    return [event.text for event in log.after(0, limit=EVENTS_MAX)]


def test_the_newest_are_kept_and_come_last(log) -> None:
    """Ids ascend; a caller that has one gets the later ones."""
    for number in range(EVENTS_MAX + 5):
        log.note(Kind.NODE, f"event {number}", group=None if number % 2 else "g")
        log.check()

    assert len(log.after(0, limit=2 * EVENTS_MAX)) == EVENTS_MAX
    first, second = log.after(0, limit=2)
    assert (second.id, second.text) == (log.last_id, f"event {EVENTS_MAX + 4}")
    assert (first.id, second.at_ms, second.severity) == (log.last_id - 1, 5_000, Severity.INFO)
    assert log.after(first.id, limit=9) == [second]
    assert {event.group for event in log.after(0, group="g", limit=9)} == {"g"}
    assert log.after(log.last_id, limit=9) == []


def test_names_of_clients_are_cut(log) -> None:
    """A client chooses names of up to 32 kB."""
    log.note(Kind.ERROR, "x" * 1000, group="g" * 1000, member="m" * 1000, topic="t" * 300)

    (event,) = log.after(0, limit=1)
    assert len(event.text) == TEXT_CHARS_MAX
    assert max(map(len, (event.group or "", event.member or "", event.topic or ""))) <= 255


def test_members_that_come_and_go_are_events(log) -> None:
    """Once each; a member that stays is none, and a label that changes neither."""
    log.note_members("g", {"1": "a", "2": "b"}, is_first=True)
    log.note_members("g", {"1": "a", "2": "b2"}, is_first=True)
    log.note_members("g", {"2": "b", "3": "c"}, is_first=False)

    assert texts(log) == [
        "a joined group g.", "b joined group g.", "c joined group g.", "a left group g.",
    ]  # fmt: skip
    assert [event.kind for event in log.after(0, limit=9)] == [*[Kind.JOIN] * 3, Kind.LEAVE]


def test_a_group_that_is_met_has_not_joined(log) -> None:
    """After a restart of the node its members were there before."""
    log.note_members("g", {"1": "a"}, is_first=False)
    log.note_members("g", {}, is_first=False)

    assert texts(log) == ["a left group g."]
    assert log.members_of("g") == {}
    assert log.members_of("other") is None


def test_many_at_once_are_one_event(log) -> None:
    """A deployment must not push all others out."""
    log.note_members("g", {str(number): f"m{number}" for number in range(50)}, is_first=True)

    assert texts(log) == ["50 members joined group g."]
