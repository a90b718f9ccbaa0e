"""Members of the simulation do as stock clients do, where a stall would be their own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.long.chaos_history import Place
from tests.reference.broker_log import LaneClient
from tests.simulation.client import Lost
from tests.simulation.fetching import Habits, Lane
from tests.simulation.member import Life, Member
from tests.simulation.world import Process, World


class Coordinator:
    """Takes each commit, and loses its first answers or is slow with them."""

    is_open = True

    def __init__(self, *, lost: int, slow_s: tuple[float, ...] = ()) -> None:
        self._lost, self._slow_s = lost, slow_s
        self.offsets: list[int] = []

    async def ask(self, _key: int, _version: int, /, **values: Any) -> Any:
        (entry,) = values["topics"][0]["partitions"]
        self.offsets.append(entry["committed_offset"])
        if len(self.offsets) <= self._lost:
            raise Lost("reset by the peer")
        if len(self.offsets) <= len(self._slow_s):
            await asyncio.sleep(self._slow_s[len(self.offsets) - 1])  # of the world's time
        done = SimpleNamespace(partition_index=entry["partition_index"], error_code=0)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[done])])


def run_out(world: World, until_s: float) -> None:
    """Let what was spawned happen; nothing of it may fail."""
    try:
        world.run(until_s)
    finally:
        world.close()
    assert not world.errors


@pytest.mark.parametrize("by_record", [True, False])
def test_what_an_unanswered_commit_has_done_is_not_taken_for_known(*, by_record: bool) -> None:
    """A member that went back, and is where it was again, says so: Kafka may have it gone back."""
    world = World(0)
    process = Process(world, "m.1")
    habits = Habits("g", "t", 1, by_record=by_record, is_patient=True)
    life = Life(Member(world, "m", [], habits), process)
    coordinator: Any = Coordinator(lost=1)
    lane = Lane(0, Place("t", 0), LaneClient(position=30), committed=30, by_record=by_record)
    lane.given = 30
    life._lanes, life._coordinator = {0: lane}, coordinator

    async def work() -> None:
        life.seek(6)
        with pytest.raises(Lost):
            await life._commit()
        lane.client.position = lane.given = 30
        await life._commit()
        await life._commit()

    process.spawn(work(), "work")
    run_out(world, 1.0)

    assert coordinator.offsets == [24, 30], "and what was answered is not said again"


@pytest.mark.parametrize(
    ("older", "newer", "newer_s"), [(30, 24, 90.0), (24, 30, 0.0)], ids=["went back", "went on"]
)
def test_the_late_answer_of_an_older_commit_says_nothing_of_a_newer_one(
    older: int, newer: int, newer_s: float
) -> None:
    """The commit that Kafka took last is not known: the member commits its position again."""
    world = World(0)
    process = Process(world, "m.1")
    life = Life(Member(world, "m", [], Habits("g", "t", 1, is_patient=True)), process)
    coordinator: Any = Coordinator(lost=0, slow_s=(20.0, newer_s))
    lane = Lane(0, Place("t", 0), LaneClient(position=older))
    life._lanes, life._coordinator = {0: lane}, coordinator

    async def work() -> None:
        process.spawn(life._commit(), "older")
        await asyncio.sleep(1.0)  # of the world's time, as below
        lane.client.position = newer
        process.spawn(life._commit(), "newer")
        await asyncio.sleep(25.0)
        lane.client.position = 30
        await life._commit()

    process.spawn(work(), "work")
    run_out(world, 27.0)

    assert coordinator.offsets == [older, newer, 30]


def test_what_is_asked_first_is_sent_first_though_no_coordinator_is_known() -> None:
    """A node that answers late where the coordinator is does not keep an older commit back."""
    world = World(0)
    process = Process(world, "m.1")
    life = Life(Member(world, "m", [], Habits("g", "t", 1)), process)
    coordinator, waits_s = Coordinator(lost=0), [10.0, 0.0]

    async def look_up(_: str) -> Any:
        await asyncio.sleep(waits_s.pop(0))  # of the world's time
        return coordinator

    async def commit(offset: int) -> None:
        entry = {"partition_index": 0, "committed_offset": offset}
        await life._ask(8, 7, topics=[{"partitions": [entry]}])

    life._client.coordinator = look_up  # type: ignore[method-assign, assignment]
    process.spawn(commit(6), "a seek")
    process.spawn(commit(30), "what was done since")
    run_out(world, 20.0)

    assert coordinator.offsets == [6, 30]
