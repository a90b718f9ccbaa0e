"""Lanes dealt out to the members of a scenario, by the assignors that groups run with.

`keylane.advise.speedup` has the course of a group whose members all come at once; what its members
are dealt is keylane's own plan, or Kafka's.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from keylane.advise.keys import SampledLanes
from keylane.advise.speedup import TOPIC, deal_lanes
from keylane.assignor.key_range import assign_blocks, assign_in_turn
from keylane.assignor.level import COARSE, FINE
from keylane.assignor.model import Member
from keylane.pipeline.simulate.model import Assignor

Owners = NDArray[np.int64]
"""(partitions, lanes) member of each lane."""
_CLIENTS_OWN: Final = {"range": assign_blocks, "roundrobin": assign_in_turn}


def deal_whole(partition_count: int, member_count: int) -> Owners:
    """Return the members of whole partitions, by Kafka's default, its range assignor."""
    return _deal_by_count("range", (partition_count, 1), member_count)


def deal(assignor: Assignor, lanes: SampledLanes, member_count: int) -> Owners:
    """Return the member of each lane.

    `key-range` is keylane's plan for a classic group that has run for long enough to know the load
    of its lanes, `consumer` that of a group with the consumer protocol, `unmeasured` the first plan
    of either. `range` and `roundrobin` are Kafka's, for rules with `assignor: client`.
    """
    if assignor in _CLIENTS_OWN:
        return _deal_by_count(assignor, lanes.records.shape, member_count)
    dealt = deal_lanes(lanes, member_count, FINE if assignor == "consumer" else COARSE)
    return dealt.first if assignor == "unmeasured" else dealt.settled


def _deal_by_count(name: str, shape: tuple[int, ...], member_count: int) -> Owners:
    partition_count, lane_count = shape
    names = [f"{number:06}" for number in range(member_count)]
    members = [Member(member_id=name, topics=frozenset({TOPIC})) for name in names]
    assigned = _CLIENTS_OWN[name]({TOPIC: partition_count * lane_count}, members)
    owners = np.zeros((partition_count, lane_count), np.int64)
    for number, member_id in enumerate(names):
        for _, index in assigned[member_id]:
            lane, partition = divmod(index, partition_count)
            owners[partition, lane] = number
    return owners
