"""Events: every kind survives the pipe, and broken lines are named as such."""

from __future__ import annotations

import pytest

from keylane.demo.events import (
    CommitFailed,
    Delivered,
    Ended,
    Event,
    LanesAssigned,
    LanesCommitted,
    LanesReleased,
    OrderBatch,
    RecordsCommitted,
    SessionEnd,
    read_event,
    write_event,
)
from keylane.demo.orders import OrderRun

EVENTS: list[Event] = [
    LanesAssigned(3, 10, (0, 1)),
    LanesReleased(3, 11, (1,), SessionEnd.LOST),
    Delivered(3, 12, (OrderBatch(4, 100, 107, (OrderRun(1, 0, 3), OrderRun(2, 9, 1))),)),
    LanesCommitted(3, 13, ((4, 108), (5, 0))),
    RecordsCommitted(3, 13, ((4, (101, 107)), (5, ()))),
    CommitFailed(3, 14, (4,), "RebalanceInProgress"),
    Ended(3, 15, SessionEnd.KILLED),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_read_back(event: Event) -> None:
    """The event that is read is the event that was written."""
    assert read_event(3, write_event(event)) == event


@pytest.mark.parametrize(
    "line", ["", "{", "[]", '["LanesAssigned"]', '["Moved",1,[]]', "7", '["Ended",1]']
)
def test_a_broken_line_is_refused(line: str) -> None:
    """Whatever is not a whole event is a ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011  # json's own error has another text
        read_event(3, line)
