"""Schedules of share groups in the order of keys: seeds of their own, with faults of their own.

Source: docs/decisions/048, and `scenario` for all that is alike.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import CLOCKS, LOAD_S, Fault, Scenario, SharePlan

SHARE_FAULTS = (
    "node_kill", "node_hang", "node_suspend", "node_stop", "node_cut_kafka", "node_cut_broker",
    "node_cut_clients", "broker_crash", "broker_hang", "broker_slow", "elect", "elect",
    "move_coordinator", "member_kill", "member_stop", "member_hang", "member_cut",
    "share_writes_slow", "share_writes_fail", "lost_share_answer", "share_kill_at",
    "share_hang_at", "share_elect_at", "share_crash_at", "node_away", "connections_lost",
)  # fmt: skip
HAND_OVER_FAULTS = (
    "node_kill", "node_kill", "node_hang", "node_cut_kafka", "broker_crash", "elect",
    "share_kill_at", "share_kill_at", "share_hang_at", "share_elect_at", "share_crash_at",
    "share_writes_slow", "share_writes_fail", "lost_share_answer", "connections_lost", "node_stop",
)  # fmt: skip
CALM_SHARE = 0.15
"""Share of schedules with one fault at most: what needs no fault to go wrong is found there."""


def draw_shares(seed: int) -> Scenario:
    """A scenario of a seed, with share groups."""
    rng = random.Random(f"shares {seed}")
    plans = tuple(_draw_plan(rng, number) for number in range(rng.choice((1, 1, 1, 2))))
    kinds = rng.sample(SHARE_FAULTS, rng.randint(1, 6))
    count = rng.randint(0, 1) if rng.random() < CALM_SHARE else rng.randint(1, 9)
    faults = [
        Fault(
            round(rng.uniform(0.5, LOAD_S), 3), rng.choice(kinds), rng.randrange(12),
            round(rng.random(), 3),
        )
        for _ in range(count)
    ]  # fmt: skip
    return Scenario(
        seed,
        rng.choice((0, 0, 2, 2, 3)),
        3,
        (),
        (),
        tuple(sorted(faults, key=lambda fault: fault.at_s)),
        node_session_s=6.0,
        rates=tuple(rng.choice(CLOCKS) for _ in range(3)),
        shares=plans,
    )


def draw_received(seed: int) -> Scenario:
    """Schedules of groups whose outcomes are taken before brokers have written them."""
    drawn = draw_hand_overs(seed) if seed % 3 == 0 else draw_shares(seed)
    return replace(drawn, shares=tuple(replace(plan, is_received=True) for plan in drawn.shares))


def draw_hand_overs(seed: int) -> Scenario:
    """Nodes that stop and join while records wait behind each other, and what may happen then."""
    rng = random.Random(f"hand-overs {seed}")
    drawn = draw_shares(seed)
    plans = tuple(
        replace(
            plan, partitions=2, keys=rng.choice((1, 2)), batches_per_s=5.0, locks=200,
            work_s=rng.choice((0.01, 0.05)), slow_share=0.05, look_ahead=rng.choice((40, 2000)),
        )
        for plan in drawn.shares[:1]
    )  # fmt: skip
    faults = []
    for number in range(rng.randint(2, 4)):
        at_s, which = 3.0 + 5.0 * number + 2.0 * rng.random(), rng.randrange(12)
        kind = rng.choice(("node_stop", "node_stop", "node_away"))
        which += kind == "node_away" and which % 2 == 0  # an odd one stops, an even one is killed
        faults.append(Fault(round(at_s, 3), kind, which, round(0.3 * rng.random(), 3)))
        if rng.random() < 0.6:  # while the partition is on its way
            then_s = at_s + rng.choice((0.0, 0.3, 1.0)) + 0.6 * rng.random()
            faults.append(
                Fault(
                    round(then_s, 3), rng.choice(HAND_OVER_FAULTS), rng.randrange(12),
                    round(rng.random(), 3),
                )
            )  # fmt: skip
    ordered = tuple(sorted(faults, key=lambda fault: fault.at_s))
    return replace(drawn, nodes=rng.choice((2, 2, 3)), faults=ordered, shares=plans)


def _draw_plan(rng: random.Random, number: int) -> SharePlan:
    is_explicit = rng.random() < 0.7
    release, reject = rng.choice(((0.0, 0.0), (0.05, 0.02), (0.15, 0.05), (0.4, 0.0)))
    members = rng.randint(2, 4)
    return SharePlan(
        name=f"s{number}",
        topic=f"st{number}",
        partitions=rng.choice((1, 1, 2)),
        keys=rng.choice((1, 3, 8, 30)),
        batches_per_s=rng.choice((0.5, 2.0, 5.0)),
        transactions=rng.choice((0.0, 0.0, 0.3)),
        members=members,
        records_max=rng.choice((1, 3, 10)),
        is_exact=rng.random() < 0.6,
        is_explicit=is_explicit,
        is_synchronous=rng.random() < 0.3,
        outcomes=(1.0 - release - reject, release, reject),
        work_s=rng.choice((0.0, 0.01, 0.05)),
        slow_share=rng.choice((0.0, 0.02, 0.05)),
        renews=is_explicit and rng.random() < 0.5,
        blocks_s=rng.choice((0.0, 0.0, 300.0)),
        lock_s=rng.choice((3.0, 5.0)),
        # A record that is archived holds its key up for two seconds.
        deliveries=rng.choice((2 if release < 0.1 else 5, 5, 5, 10)),
        locks=rng.choice((30, 200, 200)),
        look_ahead=rng.choice((5, 40, 2000)),
    )
