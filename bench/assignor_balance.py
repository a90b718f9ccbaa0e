"""Balance of a skewed topic's load among members: keylane's assignor beside Kafka's own.

    python -m bench.assignor_balance [--seeds 20]

Kafka's assignors are aiokafka's, over the lanes as plain partitions; cooperative-sticky deals out
by count as sticky does. Hash-even deals members to partitions and cuts the hash space of each
evenly. keylane's is the second generation: the first was dealt without knowing any load.
"""

from __future__ import annotations

import argparse
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from keylane.assignor.key_range import ROUND_ROBIN, assign_key_ranges
from keylane.assignor.model import Lane, LaneTopic, Member
from keylane.assignor.sticky import plan_sticky
from keylane.keyrange.hash import key_hash
from keylane.keyrange.space import HASH_MAX

TOPIC = "orders"
ZIPF_KEYS = 100_000
EVEN_KEYS = 1_000


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the topic has it: where it is, and its share of the bytes."""

    partition: int
    key_hash: int
    share: float


@dataclass(frozen=True, slots=True)
class Case:
    """One block of the table."""

    name: str
    weights: Sequence[float]
    partition_count: int
    lane_count: int
    member_count: int


def make_keys(case: Case, seed: int) -> list[Key]:
    """Keys under names of this seed, heaviest first."""
    total = sum(case.weights)
    names = (b"customer-%d-%d" % (seed, number) for number in range(len(case.weights)))
    return [
        Key(zlib.crc32(name) % case.partition_count, key_hash(name), weight / total)
        for name, weight in zip(names, case.weights, strict=True)
    ]


def sum_lanes(case: Case, keys: Sequence[Key]) -> dict[Lane, float]:
    """Share of the bytes by lane."""
    loads = {(TOPIC, index): 0.0 for index in range(case.partition_count * case.lane_count)}
    for key in keys:
        lane = min(case.lane_count - 1, key.key_hash * case.lane_count // HASH_MAX)
        loads[TOPIC, lane * case.partition_count + key.partition] += key.share
    return loads


def make_members(case: Case) -> list[Member]:
    """Members that subscribe to the topic."""
    return [
        Member(member_id=f"m{number:04}", topics=frozenset({TOPIC}))
        for number in range(case.member_count)
    ]


def deal_stock(assignor: Any, case: Case, loads: Mapping[Lane, float]) -> list[float]:
    """Load of each member with a stock assignor over lanes."""
    partitions = set(range(len(loads)))
    cluster = SimpleNamespace(
        partitions_for_topic=lambda _topic: partitions, topics=lambda: {TOPIC}
    )
    metadata = {
        member.member_id: assignor.metadata(frozenset({TOPIC})) for member in make_members(case)
    }
    dealt = assignor.assign(cluster, metadata)
    return [
        sum(loads[topic, index] for topic, indexes in one.assignment for index in indexes)
        for one in dealt.values()
    ]


def deal_hash_even(case: Case, keys: Sequence[Key]) -> list[float]:
    """Load of each member when the hash space is cut evenly by members."""
    members = make_members(case)
    plan = assign_key_ranges(
        ROUND_ROBIN,
        {TOPIC: case.partition_count},
        {TOPIC: True},
        members,
        coordinator_allows_ic=True,
    )
    counts = [0] * case.partition_count
    for parts in plan[TOPIC].values():
        for partition, _ in parts:
            counts[partition] += 1
    shares: dict[tuple[int, int], float] = {}
    for key in keys:
        count = counts[key.partition]
        slot = (key.partition, min(count - 1, key.key_hash * count // HASH_MAX))
        shares[slot] = shares.get(slot, 0.0) + key.share
    return list(shares.values())


def deal_keylane(case: Case, loads: Mapping[Lane, float]) -> list[float]:
    """Load of each member in the second generation."""
    topic = LaneTopic(name=TOPIC, partition_count=case.partition_count, lane_count=case.lane_count)
    members = make_members(case)
    first = plan_sticky(members, [topic], {})
    again = [replace(member, owned=first[member.member_id]) for member in members]
    second = plan_sticky(again, [topic], loads)
    return [sum(loads[lane] for lane in lanes) for lanes in second.values()]


def measure(case: Case, seed: int) -> dict[str, tuple[float, float]]:
    """Return the busiest member's share, and its ratio to the ideal, by strategy."""
    keys = make_keys(case, seed)
    loads = sum_lanes(case, keys)
    ideal = max(1 / case.member_count, *loads.values())
    dealers: dict[str, Callable[[], list[float]]] = {
        "Kafka range": lambda: deal_stock(RangePartitionAssignor, case, loads),
        "Kafka round robin": lambda: deal_stock(RoundRobinPartitionAssignor, case, loads),
        "Kafka sticky": lambda: deal_stock(StickyPartitionAssignor, case, loads),
        "hash-even": lambda: deal_hash_even(case, keys),
        "keylane": lambda: deal_keylane(case, loads),
    }
    return {
        "the lanes' ideal": (ideal, 1.0),
        **{name: (busiest := max(deal()), busiest / ideal) for name, deal in dealers.items()},
    }


def report(case: Case, seeds: int) -> None:
    """Print one block of the table."""
    print(f"{case.name}, {case.partition_count} x {case.lane_count} lanes, "
          f"{case.member_count} members (mean {100 / case.member_count:.1f}%)")  # fmt: skip
    runs = [measure(case, seed) for seed in range(seeds)]
    for name in runs[0]:
        shares = [run[name][0] * 100 for run in runs]
        ratios = [run[name][1] for run in runs]
        print(
            f"  {name:18} busiest {statistics.median(shares):5.1f}% (worst {max(shares):5.1f}%)"
            f"   x ideal {statistics.median(ratios):5.2f} (worst {max(ratios):5.2f})",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="balance of assignors on skewed keys")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    zipf = [1 / (rank + 1) ** 1.1 for rank in range(ZIPF_KEYS)]
    for lane_count in (8, 32):
        report(Case("Zipf(1.1), 100,000 keys", zipf, 2, lane_count, 8), options.seeds)
    skewed = [1 / (rank + 1) for rank in range(EVEN_KEYS)]
    for lane_count in (32, 128):
        report(Case("Zipf(1.0), 1,000 keys", skewed, 2, lane_count, 32), options.seeds)
    for lane_count in (32, 64, 256, 1024):
        even = [1.0] * EVEN_KEYS
        report(Case("1,000 even keys", even, 1, lane_count, 32), options.seeds)


if __name__ == "__main__":
    main()
