"""The speed-up that members on lanes can bring: lanes dealt out by keylane's own assignor.

A stock member works on one record after the other, so a group is as fast as its busiest member
allows: it does `total / busiest` times the work of one member. `Workers` of keylane work on many
records at once, one of each key, so a process is held up by its load or by its hottest key.

Theory of the bounds. With N members, P partitions of L lanes, and a hottest key of share h, no plan
does more than min(N, P * L, 1 / h, 1 / heaviest lane) times the work of one member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from keylane.advise.keys import Floats, SampledLanes, TopicKeys
from keylane.assignor.gain import find_gain
from keylane.assignor.level import COARSE, Margins
from keylane.assignor.model import Lane, LaneTopic, Loads, Member, Plan
from keylane.assignor.sticky import join_rates, plan_sticky

TOPIC: Final = "topic"
"""Name under which lanes are dealt out; it changes nothing."""
MANY_RECORDS: Final = 1e12
"""Enough that a difference is no chance: a group runs for as long as it takes to know its load."""


@dataclass(frozen=True, slots=True, eq=False)
class LaneDeal:
    """The lanes of each member, twice: before their load is known, and when it is."""

    first: NDArray[np.int64]
    """(partitions, lanes) member of each lane in the first generation, dealt out by count."""
    settled: NDArray[np.int64]
    """The same after the rebalance for load, if keylane would ask for one."""
    member_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Results for one number of members and lanes, in times the work of one member."""

    members: int
    lanes: int
    parallel: float
    """Once keylane knows the load."""
    parallel_first: float
    """In the first minutes, when lanes are dealt out by their number."""
    bound: float
    """No assignment of these lanes to as many members does more."""
    busiest_share: float
    """Part of all records that the busiest member has."""


def deal_lanes(lanes: SampledLanes, member_count: int, margins: Margins = COARSE) -> LaneDeal:
    """Deal lanes to members as keylane does for a group whose members all come at once.

    margins: of the rebalance for load; FINE with the consumer protocol.
    Cost: that of two plans, see `plan_sticky`.
    """
    partition_count, lane_count = lanes.records.shape
    topic = LaneTopic(name=TOPIC, partition_count=partition_count, lane_count=lane_count)
    names = [f"{number:06}" for number in range(member_count)]
    members = [Member(member_id=name, topics=frozenset({TOPIC})) for name in names]
    first = plan_sticky(members, [topic], {})
    owning = [replace(member, owned=first[member.member_id]) for member in members]
    loads = _lane_rates(lanes)
    gain = find_gain(owning, [topic], loads, margins)
    assert gain is not None, "every lane has an owner"
    is_worth = gain.is_worth(MANY_RECORDS, margins)
    settled = plan_sticky(owning, [topic], loads, margins=margins) if is_worth else first
    shape = partition_count, lane_count
    return LaneDeal(_owners(first, shape), _owners(settled, shape), member_count)


def member_loads(lanes: SampledLanes, owners: NDArray[np.int64], member_count: int) -> Floats:
    """Return the records of each member, (members,)."""
    found = np.bincount(owners.ravel(), lanes.records.ravel(), member_count)
    return found.astype(np.float64)


def serial_parallel(lanes: SampledLanes, owners: NDArray[np.int64], member_count: int) -> float:
    """Return how many times one member's work a group of stock clients does."""
    busiest = float(member_loads(lanes, owners, member_count).max())
    return lanes.total / busiest if busiest else 1.0


def workers_parallel(
    lanes: SampledLanes, owners: NDArray[np.int64], member_count: int, concurrency: int
) -> float:
    """Return the same of processes with `Workers`, each with so many records at once."""
    loads = member_loads(lanes, owners, member_count)
    hottest = np.zeros(member_count)
    np.maximum.at(hottest, owners.ravel(), lanes.hottest.ravel())
    busiest = float(np.maximum(loads / concurrency, hottest).max())
    return lanes.total / busiest if busiest else 1.0


def find_speedup(keys: TopicKeys, member_count: int, lane_count: int) -> Speedup:
    """Return what stock members reach on lanes."""
    lanes = keys.lanes(lane_count)
    deal = deal_lanes(lanes, member_count)
    parallel = serial_parallel(lanes, deal.settled, member_count)
    return Speedup(
        members=member_count,
        lanes=lane_count,
        parallel=parallel,
        parallel_first=serial_parallel(lanes, deal.first, member_count),
        bound=bound_of(lanes, member_count),
        busiest_share=1 / parallel,
    )


def bound_of(lanes: SampledLanes, member_count: int) -> float:
    """Return what no assignment exceeds: the members, and the heaviest lane, which is not cut."""
    heaviest = float(lanes.records.max())
    return min(float(member_count), lanes.total / heaviest if heaviest else 1.0)


def key_ceiling(keys: TopicKeys) -> float | None:
    """Return what no number of members and lanes exceeds: a key is at one member at a time.

    None: no key is known, or no record has one, so that nothing bounds the members.
    """
    share = keys.hottest_share
    return 1 / share if share > 0 else None


def direct_parallel(keys: TopicKeys, member_count: int | None = None) -> float:
    """Return what a plain group does: whole partitions, dealt out in turn by their number.

    None: one member per partition, which is the most that a plain group can use.
    """
    shares = keys.partition_shares
    count = len(shares) if member_count is None else min(member_count, len(shares))
    if not sum(shares):
        return 1.0
    # Kafka's assignors count partitions: member m has the m-th, the (m + count)-th and so on.
    return 1 / max(sum(shares[member::count]) for member in range(count))


def sweep(
    keys: TopicKeys, member_counts: Sequence[int], lane_counts: Sequence[int]
) -> dict[int, list[Speedup]]:
    """Return the speed-ups by lanes, for each number of members."""
    return {
        lane_count: [find_speedup(keys, count, lane_count) for count in member_counts]
        for lane_count in lane_counts
    }


def _lane_rates(lanes: SampledLanes) -> Loads:
    """Return the loads as keylane measures them: half bytes, half records."""
    partition_count = lanes.records.shape[0]
    sizes: dict[Lane, float] = {}
    records: dict[Lane, float] = {}
    for (partition, lane), count in np.ndenumerate(lanes.records):
        index = (TOPIC, lane * partition_count + partition)
        records[index] = float(count)
        sizes[index] = float(lanes.size_bytes[partition, lane])
    return join_rates(sizes, records)


def _owners(plan: Plan, shape: tuple[int, int]) -> NDArray[np.int64]:
    owners = np.zeros(shape, np.int64)
    for number, name in enumerate(sorted(plan)):
        for _, index in plan[name]:
            lane, partition = divmod(index, shape[0])
            owners[partition, lane] = number
    return owners
