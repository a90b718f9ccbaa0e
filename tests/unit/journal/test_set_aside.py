"""Records that are set aside: counted once, logged within bounds."""

from __future__ import annotations

import logging

import pytest

from keylane.journal import set_aside
from keylane.journal.set_aside import INTERVAL_S, LINES_MAX, SetAside
from keylane.offsets.values import Damaged


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the module has logged: asyncio may log what another test has left, at any time."""
    return [each.getMessage() for each in caplog.records if each.name == "keylane.records"]


def test_a_record_counts_once_however_often_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """A partition of the journal is loaded again with each owner."""
    book = SetAside(lambda: 0.0)
    for _ in range(3):
        book.note("topic", Damaged(1, 7, "no JSON"))
    book.note("topic", Damaged(2, 7, "no JSON"))

    assert book.counts == {"topic": 2}
    logged = lines(caplog)
    assert logged[0] == "record set aside topic=topic partition=1 offset=7 reason=no JSON"
    assert len(logged) == 2


def test_many_records_cost_few_lines_and_little_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that may write there can write a million; places without a line are counted."""
    monkeypatch.setattr(set_aside, "PLACES_MAX", 50)
    now_s = [0.0]
    book = SetAside(lambda: now_s[0])
    with caplog.at_level(logging.ERROR, "keylane.records"):
        for offset in range(100):
            book.note("topic", Damaged(0, offset, "no JSON"))
        assert len(lines(caplog)) == LINES_MAX
        now_s[0] = INTERVAL_S
        book.note("topic", Damaged(0, 100, "no JSON"))

    assert f"count={100 - LINES_MAX}" in lines(caplog)[LINES_MAX]
    assert "offset=100" in lines(caplog)[-1]
    assert len(book._places["topic"]) == 50
    book.note_more("topic", 9)
    book.note_more("topic", 0)
    places = ", ".join(f"partition 0 offset {offset}" for offset in (98, 99, 100))
    assert book.lines() == [f"set aside: 110 records of topic, the last at {places}"]
