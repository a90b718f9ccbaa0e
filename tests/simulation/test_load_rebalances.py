"""Schedules in which keylane asks groups to rebalance for their load, whenever it may."""

from __future__ import annotations

from keylane.assignor.gain import Gain
from keylane.proxy.groups.load_turns import LoadTurns
from tests.simulation.run import play
from tests.simulation.scenario import draw

SCHEDULES = 20
INTERVAL_S = 15.0
"""A schedule takes a minute or two, and the interval of the configuration is ten."""


def test_rebalances_for_load_break_no_promise(monkeypatch) -> None:
    """A group is asked every 15 s, whatever its load: beside kills, cuts and nodes that hang."""
    asked: list[str] = []
    set_up, ask = LoadTurns.__init__, LoadTurns.ask

    def note_asked(turns: LoadTurns, group: str, generation_id: int, now_s: float) -> bool:
        is_asked = ask(turns, group, generation_id, now_s)
        asked.extend([group] * is_asked)
        return is_asked

    monkeypatch.setattr(LoadTurns, "__init__", lambda turns, _: set_up(turns, INTERVAL_S))
    monkeypatch.setattr(LoadTurns, "ask", note_asked)
    monkeypatch.setattr(Gain, "is_worth", lambda *_: True)

    breaches = [found for seed in range(SCHEDULES) for found in play(draw(seed)).breaches]

    assert not breaches
    assert len(asked) >= SCHEDULES / 2
