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


def test_the_loads_that_an_operator_saw_plan_the_next_generation() -> None:
    """Rates of new partitions change by the second: others would move other lanes."""
    turns = LoadTurns(600.0)
    turns.next("g", 4, 0.0)
    seen = {("orders", 0): 10.0}

    before = turns.shown_loads("g", 5)
    turns.ask("g", 4, 1.0, seen)
    asked = [turns.shown_loads("g", generation_id) for generation_id in (4, 5, 6)]
    turns.next("g", 5, 2.0)

    assert before == {} and asked == [{}, seen, {}]
    assert turns.shown_loads("g", 5) == turns.shown_loads("g", 6) == {}
    assert turns.shown_loads("other", 5) == {}


def test_keylane_itself_asks_for_a_plan_by_the_loads_of_its_time() -> None:
    """Its own request has no preview."""
    turns = LoadTurns(600.0)
    turns.next("g", 4, 0.0)

    turns.ask("g", 4, 1.0)

    assert turns.shown_loads("g", 5) == {}
