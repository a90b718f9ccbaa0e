"""A run of the simulation is at rest only when every commit is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.simulation.broker import Broker
from tests.simulation.broker_groups import write_late
from tests.simulation.cluster import Cluster, Committed
from tests.simulation.scenario import GroupPlan, Scenario, TopicPlan
from tests.simulation.stage import Stage
from tests.simulation.world import World

LATE_S_MAX = 3.0


def test_a_commit_that_is_still_to_be_written_is_waited_for() -> None:
    """It may take Kafka's own offset back, and members commit what they have again."""
    topic = TopicPlan("t0", 1, 2, is_safe=True, keys=1, batches_per_s=1.0)
    group = GroupPlan("g0", "t0", 1, 1.0, 0.0, is_committed=False, by_lane_name=False)
    world = World(1)
    cluster = Cluster(world, 1)
    cluster.create("t0", 1)
    broker = Broker(cluster, 1)
    own: Any = SimpleNamespace()
    stage = Stage(Scenario(1, 0, 1, (topic,), (group,), ()), world, cluster, own, {1: broker})
    world.run(1.0)
    write_late(broker, "g0", {("t0", 0): Committed(0)})

    assert not stage.is_at_rest()
    world.run(1.0 + LATE_S_MAX)
    assert stage.is_at_rest()
