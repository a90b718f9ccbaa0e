"""Time of a scrape of /metrics: 10,000 lanes and more, all states replaced since the last one.

python -m bench.micro.scrape
"""

from __future__ import annotations

import statistics
import time
import uuid

from keylane.keyrange.space import split_even
from keylane.offsets.positions import PositionMap
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.values import Position
from keylane.proxy.control.gauges import GroupGauges
from keylane.proxy.control.metrics import Exposition
from keylane.proxy.runtime.stats import ProxyStats

SIZES = ((1, 100, 100), (10, 10, 100), (100, 10, 16), (10, 10, 1000))
"""Groups, partitions, lanes per partition."""
RUNS = 15
TOPIC_ID = uuid.UUID(int=1)
APIS = 60


def make_state(lane_count: int) -> OffsetState:
    """Every lane stands somewhere else."""
    positions = [
        (lane.hi, Position(offset=at, counted=at, committed=True))
        for at, lane in enumerate(split_even(lane_count))
    ]
    return OffsetState.restore(
        positions=PositionMap.from_ends(positions), ranges=[], pushed=0, topic_name="orders"
    )


def measure(group_count: int, partition_count: int, lane_count: int) -> None:
    """Scrape, with all states replaced before each run and with none."""
    stats = ProxyStats()
    stats.requests.update({f"Api{number}": 1 for number in range(APIS)})
    state = make_state(lane_count)
    keys = [
        StateKey(f"group-{group}", TOPIC_ID, partition)
        for group in range(group_count)
        for partition in range(partition_count)
    ]
    states = {key: state.copy() for key in keys}
    ends = {(TOPIC_ID, partition): 10_000 for partition in range(partition_count)}
    gauges = GroupGauges(states.items, lambda: ends, lambda: 0)
    exposition = Exposition([stats.samples, gauges.samples])
    busy: list[float] = []
    idle: list[float] = []
    text = ""
    for _ in range(RUNS):
        states.update({key: state.copy() for key in keys})
        for times in (busy, idle):
            started_s = time.perf_counter()
            text = exposition.text()
            times.append((time.perf_counter() - started_s) * 1e3)
    print(
        f"{group_count:4} groups x {partition_count:3} partitions x {lane_count:4} lanes: "
        f"{statistics.median(busy):6.1f} ms ({max(busy):.1f}), "
        f"no commit {statistics.median(idle):5.1f} ms, {len(text.splitlines())} lines",
        flush=True,
    )


if __name__ == "__main__":
    for size in SIZES:
        measure(*size)
