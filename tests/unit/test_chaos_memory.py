"""A long run of chaos finds a node that grows, and says nothing of one that was started again."""

from __future__ import annotations

from tests.long.chaos_memory import Memory, Sample


def samples(*mib: float) -> list[Sample]:
    """A look each 30 s."""
    return [Sample(30.0 * number, each) for number, each in enumerate(mib)]


def test_a_node_that_grows_is_found() -> None:
    """By the medians of its first and its last tenth, once it is warm."""
    memory = Memory()
    memory.samples[0, 100] = samples(*(150 + number for number in range(180)))
    assert memory.faults() == ["memory: node 0 grew from 162 to 321 MiB"]


def test_a_start_and_a_peak_are_no_growth() -> None:
    """A process warms up, and takes more for a while."""
    memory = Memory()
    memory.samples[0, 100] = samples(80, 100, *[150] * 60, *[400] * 20, *[151] * 60)
    assert memory.faults() == []


def test_each_process_of_a_node_is_looked_at_by_itself() -> None:
    """One that lived for less than what can be compared is left out."""
    memory = Memory()
    memory.samples[0, 100] = samples(*[150] * 20)
    memory.samples[0, 101] = samples(*[300] * 100)
    memory.samples[1, 102] = samples(*range(200, 240))
    assert memory.faults() == []
    assert memory.lines() == [
        "node 0: 300 to 300 MiB in 50 minutes, at most 300",
        "node 1: 200 to 239 MiB in 20 minutes, at most 239",
    ]
