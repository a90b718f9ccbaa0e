"""Time of planning for 1,000 members over 10,000 lanes, in several states of a group.

python -m bench.micro.assignor [--members 1000]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping
from dataclasses import replace

from keylane.assignor.checks import find_faults
from keylane.assignor.model import Lane, LaneTopic, Member, Plan
from keylane.assignor.sticky import plan_sticky

TOPICS = [LaneTopic(name="orders", partition_count=10, lane_count=1000)]
REPEATS = 1


def make_members(first: int, count: int, owned: Plan) -> list[Member]:
    """Members that own what they were given."""
    return [
        Member(member_id=name, topics=frozenset({"orders"}), owned=owned.get(name, ()))
        for name in (f"member-{number:05}" for number in range(first, first + count))
    ]


def measure(name: str, members: list[Member], loads: Mapping[Lane, float]) -> Plan:
    """Plan it three times, print a line."""
    runs_s: list[float] = []
    plan: Plan = {}
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        plan = plan_sticky(members, TOPICS, loads)
        runs_s.append(time.perf_counter() - started_s)
    assert not find_faults(plan, members, TOPICS)
    lost = sum(len(set(m.owned) - set(plan[m.member_id])) for m in members)
    pairs = sum(len({index % 10 for _, index in lanes}) for lanes in plan.values())
    held = [sum(loads.get(lane, 1.0) for lane in lanes) for lanes in plan.values()]
    print(
        f"{name:34} {min(runs_s):6.3f} s   {lost:5} moved   {pairs / len(members):4.2f} partitions"
        f" each   busiest {max(held) * len(held) / sum(held):6.2f} x mean",
        flush=True,
    )
    return plan


def main() -> None:
    """Run every state of each load."""
    parser = argparse.ArgumentParser(description="measure the assignor")
    parser.add_argument("--members", type=int, default=1000)
    count: int = parser.parse_args().members
    rng = random.Random(7)
    lanes = [("orders", index) for index in range(TOPICS[0].index_count)]
    shuffled = rng.sample(range(1, len(lanes) + 1), len(lanes))
    kinds: dict[str, dict[Lane, float]] = {
        "unknown": {},
        "uneven": {lane: rng.uniform(0.5, 1.5) for lane in lanes},
        "zipf": {lane: 1e9 / rank**1.1 for lane, rank in zip(lanes, shuffled, strict=True)},
    }
    for kind, loads in kinds.items():
        plan = measure(f"{kind}, first generation", make_members(0, count, {}), loads)
        living = make_members(0, count, plan)
        measure(f"{kind}, nothing changed", living, loads)
        measure(f"{kind}, one left", living[1:], loads)
        measure(f"{kind}, a tenth left", living[count // 10 :], loads)
        measure(f"{kind}, a tenth joined", living + make_members(count, count // 10, {}), loads)
        doubled = {lane: load * rng.choice((1, 2)) for lane, load in loads.items()}
        measure(f"{kind}, half the lanes doubled", living, doubled)
        mixed = [
            replace(member, topics=frozenset({"orders", f"own-{place % 50}"}))
            for place, member in enumerate(living)
        ]
        measure(f"{kind}, other topics beside", mixed, loads)


if __name__ == "__main__":
    main()
