"""Nodes of the simulation go by its clocks alone: else a seed is another run on another machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any

from tests.simulation.broker import Broker
from tests.simulation.cluster import Cluster
from tests.simulation.node import Node, simulated
from tests.simulation.world import World

REAL_CLOCKS = time.monotonic, time.time  # noqa: TID251 - to find them
SERVES_S = 5.0


def links_of(root: Any) -> Iterator[tuple[Any, Any]]:
    """Each object that can be reached, with the one that holds it; no types, no modules."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, FunctionType):
            held = [cell.cell_contents for cell in holder.__closure__ or ()]
        else:
            held = gc.get_referents(holder)
        for each in held:
            yield holder, each
            if id(each) not in seen and not isinstance(each, type | ModuleType | FrameType | World):
                seen.add(id(each))
                waiting.append(each)


def test_no_part_of_a_node_holds_a_real_clock() -> None:
    """A default such as `clock=time.monotonic` is bound at its import: the node has to give one."""
    world = World(0)
    cluster = Cluster(world, 3)
    with simulated(world, cluster):
        world.brokers = {f"kafka{number}": Broker(cluster, number) for number in (1, 2, 3)}
        topic = cluster.create("t", 2)
        cluster.create_own("__consumer_offsets", 3)
        node = Node(world, 0, {"lanes": [{"topic": topic.name, "lanes": 2}], "node": 0})
        node.start()
        try:
            world.run(SERVES_S)
            links = list(links_of(node.server))
        finally:
            world.close()

    assert len(links) > 1000, "the node was looked through"
    assert not [holder for holder, held in links if any(held is each for each in REAL_CLOCKS)]
