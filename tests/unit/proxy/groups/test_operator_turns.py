"""proxy/groups/load_turns.py: the generation that an operator's rebalance is asked of."""

from __future__ import annotations

from keylane.proxy.groups.load_turns import LoadTurns


def test_the_generation_of_the_last_heartbeat() -> None:
    """None before one has passed; an older generation is not asked."""
    turns = LoadTurns(600.0)
    assert turns.generation_of("g") is None
    assert not turns.ask("g", 1, 0.0)

    turns.next("g", 1, 0.0)
    turns.next("g", 2, 1.0)

    assert turns.generation_of("g") == 2
    assert not turns.ask("g", 1, 2.0)
    assert turns.ask("g", 2, 2.0) and turns.is_asked("g", "leader", "leader")
