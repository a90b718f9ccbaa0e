"""proxy/control/bounds.py: probes get in, and nothing that is slow stays."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keylane.proxy.control.bounds import (
    HEADERS_S,
    IDLE,
    KEEP_ALIVE_S,
    SLOW_READER,
    SLOW_REQUEST,
    UNREAD_S,
    ControlBounds,
)

ADDRESSES = ["a", "b", "c"]


class Doors(RuleBasedStateMachine):
    """Connections come, talk, are answered, stall and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds: ControlBounds[int] = ControlBounds(connections_max=6, per_address_max=3)
        self.now_s, self.count = 0.0, 0
        self.answering: set[int] = set()
        self.address: dict[int, str] = {}

    def some(self, data: st.DataObject) -> int | None:
        held = self.bounds.connections()
        return data.draw(st.sampled_from(held)) if held else None

    @rule(address=st.sampled_from(ADDRESSES))
    def comes(self, address: str) -> None:
        """It is let in unless all that could give way are being answered."""
        self.count += 1
        before = self.bounds.connections()
        of_address = [each for each in before if self.address[each] == address]
        rivals = of_address if len(of_address) >= 3 else before
        self.address[self.count] = address

        victim = self.bounds.enter(self.count, address, self.now_s)

        assert (victim == self.count) == (
            (len(of_address) >= 3 or len(before) >= 6) and self.answering.issuperset(rivals)
        )
        assert victim not in self.answering
        if victim is not None and victim != self.count and len(of_address) >= 3:
            assert self.address[victim] == address

    @rule(data=st.data())
    def asks(self, data: st.DataObject) -> None:
        """Whole headers."""
        if (each := self.some(data)) is not None:
            self.bounds.note_bytes(each, self.now_s)
            self.bounds.note_request(each)
            self.answering.add(each)

    @rule(data=st.data())
    def is_answered(self, data: st.DataObject) -> None:
        """Which it was not asked for, too: nothing breaks."""
        if (each := self.some(data)) is not None:
            self.bounds.note_answered(each, self.now_s)
            self.answering.discard(each)

    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        """Twice, as aborted ones do."""
        if (each := self.some(data)) is not None:
            self.bounds.leave(each)
            self.bounds.leave(each)
            self.answering.discard(each)

    @rule(seconds=st.floats(0, 200))
    def time_passes(self, seconds: float) -> None:
        """Go on in time; no overdue client is being answered, as all take their answers here."""
        self.now_s += seconds
        overdue = {each for each, _ in self.bounds.overdue(self.now_s)}
        assert overdue.isdisjoint(self.answering)
        if seconds >= KEEP_ALIVE_S:
            assert overdue == set(self.bounds.connections()) - self.answering
        for each in overdue:
            self.bounds.leave(each)

    @invariant()
    def holds(self) -> None:
        """The bounds."""
        self.bounds.check()


Doors.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestDoors = Doors.TestCase


def make(connections_max: int = 4, per_address_max: int = 4) -> ControlBounds[str]:
    return ControlBounds(connections_max=connections_max, per_address_max=per_address_max)


def test_of_many_addresses_the_one_with_most_gives_way() -> None:
    """A kubelet's only connection stays, however many strangers come from one address."""
    bounds = make()
    bounds.enter("kubelet", "10.0.0.1", 0.0)
    for number in range(3):
        bounds.enter(f"stranger {number}", "10.9.9.9", 1.0)

    assert bounds.enter("another", "10.9.9.9", 2.0) == "stranger 0"
    assert bounds.enter("prometheus", "10.0.0.2", 2.0) == "stranger 1"


def test_one_that_never_said_anything_gives_way_before_one_that_did() -> None:
    """Prometheus keeps its connection between scrapes."""
    bounds = make(connections_max=2)
    bounds.enter("prometheus", "a", 0.0)
    bounds.note_request("prometheus")
    bounds.note_answered("prometheus", 1.0)
    bounds.enter("silent", "a", 1.0)

    assert bounds.enter("new", "a", 2.0) == "silent"
    bounds.note_request("new")
    assert bounds.enter("newer", "a", 2.0) == "prometheus"
    bounds.note_request("newer")
    assert bounds.enter("too many", "a", 2.0) == "too many"


@pytest.mark.parametrize("begins", [0.0, 60.0])
def test_headers_have_so_long_wherever_they_stand_on_a_connection(begins: float) -> None:
    """One byte now and then does not help."""
    bounds = make()
    bounds.enter("slow", "a", begins if not begins else 0.0)
    if begins:
        bounds.note_request("slow")
        bounds.note_answered("slow", 1.0)
    for second in range(int(HEADERS_S)):
        bounds.note_bytes("slow", begins + second)
        assert not bounds.overdue(begins + second)

    assert bounds.overdue(begins + HEADERS_S) == [("slow", SLOW_REQUEST)]


def test_silence_after_an_answer_ends() -> None:
    """Later than after a connection that never said anything."""
    bounds = make()
    bounds.enter("idle", "a", 0.0)
    bounds.note_request("idle")
    assert not bounds.overdue(1000.0), "it is being answered"
    bounds.note_answered("idle", 1000.0)

    assert not bounds.overdue(1000.0 + KEEP_ALIVE_S - 1)
    assert bounds.overdue(1000.0 + KEEP_ALIVE_S) == [("idle", IDLE)]


def test_a_client_that_takes_nothing_of_an_answer_is_closed() -> None:
    """A client that takes some of it stays, also a page that is fed for days."""
    bounds = make()
    bounds.enter("page", "a", 0.0)
    bounds.note_request("page")
    for second in range(100):
        bounds.note_untaken("page", second, float(second))
        assert not bounds.overdue(float(second))

    assert not bounds.overdue(99.0 + UNREAD_S - 1)
    assert bounds.overdue(99.0 + UNREAD_S) == [("page", SLOW_READER)]
    bounds.note_untaken("page", None, 99.0 + UNREAD_S)
    assert not bounds.overdue(99.0 + UNREAD_S)
