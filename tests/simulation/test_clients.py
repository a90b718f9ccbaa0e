"""Members of the simulation behave as stock clients do, where waits are judged by it."""

from __future__ import annotations

from typing import Any
from unittest import mock

from tests.simulation.client import Connection
from tests.simulation.run import play
from tests.simulation.scenario import Fault, GroupPlan, Scenario, TopicPlan
from tests.simulation.waits import FETCH


def test_a_member_has_one_fetch_under_way_at_each_node() -> None:
    """Also while another node is away, and across generations: Java and librdkafka wait for it."""
    topic = TopicPlan("t0", 2, 2, is_safe=True, keys=5, batches_per_s=0.5)
    group = GroupPlan(
        "g0", "t0", 2, 1.0, 0.002, is_committed=False, by_lane_name=False, is_patient=True
    )
    kills = Fault(2.5, "node_kill", 1, 0.9), Fault(6.0, "member_kill", 0, 0.5)
    ask_raw, counts = Connection.ask_raw, list[int]()

    async def counted(self: Connection, key: int, *values: Any, **named: Any) -> tuple[bytes, int]:
        if key == FETCH:
            counts.append(sum(each == FETCH for each, _ in self._asked.values()))
        return await ask_raw(self, key, *values, **named)

    with mock.patch.object(Connection, "ask_raw", counted):
        outcome = play(Scenario(7, 2, 3, (topic,), (group,), kills))

    assert not outcome.breaches
    assert len(counts) > 20 and not any(counts)
