"""proxy/session/entrance.py: strangers take room from each other only."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from keylane.proxy.session import entrance as module
from keylane.proxy.session.entrance import Newcomers


def test_the_one_that_is_silent_longest_makes_room() -> None:
    """A client that has sent something since then stays."""
    newcomers: Newcomers[str] = Newcomers(count_max=2, timeout_s=30.0)
    newcomers.enter("client", 0.0)
    newcomers.enter("stranger", 0.1)
    newcomers.received("client", 5.0)

    assert newcomers.is_full and newcomers.find_silent(any_of) == "stranger"


def any_of(_connection: object) -> bool:
    """All of them have nothing under way."""
    return True


def test_a_client_that_waits_for_its_broker_is_not_silent(monkeypatch) -> None:
    """The next one goes; of so many that are looked at, or none."""
    monkeypatch.setattr(module, "LOOKED_AT_MAX", 2)
    newcomers: Newcomers[str] = Newcomers(count_max=3, timeout_s=30.0)
    for name in ("waits", "stranger", "late"):
        newcomers.enter(name, 0.0)

    assert newcomers.find_silent(lambda name: name != "waits") == "stranger"
    assert newcomers.find_silent(lambda name: name == "late") is None


def test_each_has_its_time_whatever_it_sends() -> None:
    """A byte now and then does not make it longer."""
    newcomers: Newcomers[str] = Newcomers(count_max=3, timeout_s=30.0)
    for name, came_s in (("slow", 0.0), ("done", 1.0), ("late", 2.0)):
        newcomers.enter(name, came_s)
    newcomers.received("slow", 29.0)
    newcomers.leave("done")

    assert newcomers.find_overdue(30.0) == []
    assert newcomers.find_overdue(31.0) == ["slow"]
    assert sorted(newcomers.find_overdue(33.0)) == ["late", "slow"]


class Coming(RuleBasedStateMachine):
    """Newcomers beside a plain list of what came and was received."""

    def __init__(self) -> None:
        super().__init__()
        self.newcomers: Newcomers[int] = Newcomers(count_max=3, timeout_s=10.0)
        self.twin: dict[int, tuple[float, float]] = {}
        self.now_s, self.number = 0.0, 0

    @rule(seconds=st.floats(0.0, 6.0))
    def time_passes(self, seconds) -> None:
        self.now_s += seconds

    @precondition(lambda self: len(self.twin) < 3)
    @rule()
    def comes(self) -> None:
        self.number += 1
        self.newcomers.enter(self.number, self.now_s)
        self.twin[self.number] = self.now_s, self.now_s

    @rule(number=st.integers(1, 30))
    def is_received(self, number) -> None:
        self.newcomers.received(number, self.now_s)
        if number in self.twin:
            self.twin[number] = self.twin[number][0], self.now_s

    @rule(number=st.integers(1, 30))
    def leaves(self, number) -> None:
        self.newcomers.leave(number)
        self.twin.pop(number, None)

    @invariant()
    def is_as_the_twin(self) -> None:
        self.newcomers.check()
        assert len(self.newcomers) == len(self.twin)
        assert self.newcomers.is_full == (len(self.twin) == 3)
        overdue = {n for n, (came_s, _) in self.twin.items() if self.now_s - came_s > 10.0}
        assert set(self.newcomers.find_overdue(self.now_s)) == overdue
        silent = self.newcomers.find_silent(any_of)
        if silent is None:
            assert not self.twin
        else:
            assert self.twin[silent][1] == min(received_s for _, received_s in self.twin.values())


Coming.TestCase.settings = settings(max_examples=60, deadline=None)
test_beside_a_twin = Coming.TestCase
