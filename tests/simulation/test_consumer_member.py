"""Members of consumer groups say in heartbeats what Java's client and librdkafka say."""

from __future__ import annotations

import uuid
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.client import Lost
from tests.simulation.consumer_member import ConsumerLife
from tests.simulation.fetching import Habits
from tests.simulation.member import Member
from tests.simulation.test_members import run_out
from tests.simulation.world import Process, World

TOPIC_ID = uuid.UUID(int=7)
LOADING, NOT_AVAILABLE, UNKNOWN, FENCED = 14, 15, 25, 110
HEARTBEAT = 68


def taken(epoch: int, lanes: list[int] | None = None) -> Any:
    """An answer with an assignment, or with none."""
    assignment = None
    if lanes is not None:
        topic = SimpleNamespace(topic_id=TOPIC_ID, partitions=lanes)
        assignment = SimpleNamespace(topic_partitions=[topic] if lanes else [])
    return SimpleNamespace(
        error_code=0, member_epoch=epoch, heartbeat_interval=timedelta(seconds=1),
        assignment=assignment,
    )  # fmt: skip


def refused(code: int) -> Any:
    return SimpleNamespace(error_code=code, error_message="")


class Coordinator:
    """Gives its answers to heartbeats in turn, then the last one; no lane has an offset yet."""

    is_open = True

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.said: list[tuple[int, bool, list[int] | None]] = []
        """Epoch, whether all was said, and the lanes that the member said it owns."""

    async def ask(self, key: int, _version: int, /, **values: Any) -> Any:
        if key != HEARTBEAT:
            raise Lost("not here")
        owned = values["topic_partitions"]
        lanes = None if owned is None else [i for each in owned for i in each["partitions"]]
        self.said.append((values["member_epoch"], "rebalance_timeout" in values, lanes))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def play(*answers: Any, until_s: float = 2.5, **habits: Any) -> Coordinator:
    """A member that joins, and beats for a while."""
    world = World(0)
    process = Process(world, "m.1")
    life = ConsumerLife(Member(world, "m", [], Habits("g", "t", 1, **habits)), process)
    coordinator: Any = Coordinator(*answers)

    async def look_up() -> Any:
        return coordinator

    life._client.topic_ids["t"] = TOPIC_ID
    life._look_up = look_up  # type: ignore[method-assign]
    process.spawn(_beats(life), "beats")
    run_out(world, until_s)
    found: Coordinator = coordinator
    return found


async def _beats(life: ConsumerLife) -> None:
    await life._heartbeats()


def test_lanes_are_confirmed_at_once_and_then_left_out() -> None:
    """A join says all, the next heartbeat what it has, and those after it nothing."""
    coordinator = play(taken(2, [0, 1]), taken(2))

    assert coordinator.said[:3] == [(0, True, []), (2, False, [0, 1]), (2, False, None)]


def test_a_lane_that_is_not_assigned_any_more_is_given_up_first() -> None:
    """The new one is taken with the same word."""
    coordinator = play(taken(2, [0, 1]), taken(2), taken(3, [1, 2]), taken(3))

    assert coordinator.said[3:5] == [(3, False, [1, 2]), (3, False, None)]


def test_a_slow_member_reads_on_while_it_gives_a_lane_up() -> None:
    """Its heartbeats go on meanwhile, and say nothing of what it owns."""
    coordinator = play(taken(2, [0]), taken(2), taken(3, []), taken(3), until_s=5.0, revoke_s=2.5)

    nothing = (3, False, None)
    assert coordinator.said[3:] == [nothing, nothing, (3, False, []), nothing]


@pytest.mark.parametrize(
    ("code", "is_java", "is_full"),
    [(NOT_AVAILABLE, True, True), (NOT_AVAILABLE, False, True), (LOADING, True, True),
     (LOADING, False, False)],
)  # fmt: skip
def test_all_is_said_again_after_an_error(code, is_java, is_full) -> None:
    """But librdkafka repeats the same heartbeat while the coordinator loads the group."""
    coordinator = play(taken(2, [0]), taken(2), refused(code), taken(2), is_java=is_java)

    said = (2, True, [0]) if is_full else (2, False, None)
    assert coordinator.said[3] == said
