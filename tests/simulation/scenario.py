"""One seed, one run: what there is, what is done to it, and when.

In:    a seed.  Out: a `Scenario`, as values: the same again, or less of it.
Next:  `run` plays it, `shrink` looks for a smaller one that fails as well.
Pure:  chance is the seed's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LOAD_S = 15.0
"""How long producers write and faults come."""
SAFE, UNSAFE = "safe", "unsafe"
FAULTS = (
    "node_kill", "node_hang", "node_suspend", "node_cut_kafka", "node_cut_broker",
    "node_cut_clients", "node_stop", "node_kill_at", "node_hang_at", "late_append",
    "broker_crash", "broker_hang", "broker_slow", "elect", "elect_with_loss", "lose_disk",
    "delete_records", "move_coordinator", "lost_commit_answer", "late_commit", "lost_ack",
    "compact", "member_kill", "member_stop", "member_hang", "member_cut", "wall_clock",
    "member_seek", "seek_at", "reset_offset", "admin_reset", "admin_delete", "delete_group",
    "expire_group",
)  # fmt: skip
CLOCKS = (1.0, 1.0, 0.9, 1.1)
"""A lease allows for a clock that is slower by a fifth."""


@dataclass(frozen=True)
class Fault:
    """Something goes wrong, or somebody does something, at a moment."""

    at_s: float
    kind: str
    which: int
    """Of the nodes, brokers, members or partitions: this one, modulo how many there are."""
    amount: float
    """Seconds, records, or what the kind makes of it; between 0 and 1."""


@dataclass(frozen=True)
class TopicPlan:
    """A topic, and who writes to it."""

    name: str
    partitions: int
    lanes: int
    is_safe: bool
    keys: int
    batches_per_s: float
    transactions: float = 0.0
    """So many batches are in a transaction."""


@dataclass(frozen=True)
class GroupPlan:
    """A group, and its members."""

    name: str
    topic: str
    members: int
    commit_s: float
    work_s: float
    is_committed: bool
    by_lane_name: bool
    by_record: bool = False
    """Its members commit behind the last record they were given."""
    is_transactional: bool = False
    """Its members send their offsets to transactions."""
    session_s: float = 10.0
    timeouts_s: tuple[float, ...] = (30.0,)
    """Of its members' requests, in turns."""
    is_patient: bool = False
    """Its members keep their lanes when they lose their coordinator."""
    watched_s: float = 0.0
    """So often a tool asks where its lanes stand; 0: never."""

    def lane_topic(self, topic: TopicPlan) -> str:
        """What its members call the topic."""
        return f"{topic.name}.lanes-{topic.lanes}" if self.by_lane_name else topic.name


@dataclass(frozen=True)
class Scenario:
    """A whole run."""

    seed: int
    nodes: int
    """0: one without a number."""
    brokers: int
    topics: tuple[TopicPlan, ...]
    groups: tuple[GroupPlan, ...]
    faults: tuple[Fault, ...]
    node_session_s: float = 10.0
    keeps_rights: bool = False
    """What clients may do is asked once."""
    rates: tuple[float, ...] = (1.0,)
    """Of nodes' clocks, in turns."""


def draw(seed: int) -> Scenario:
    """A scenario of a seed."""
    rng = random.Random(f"scenario {seed}")
    nodes = rng.choice((0, 0, 2, 3))
    topics = tuple(_draw_topic(rng, number) for number in range(rng.choice((1, 1, 2))))
    groups = tuple(
        GroupPlan(
            name=f"g{number}",
            topic=rng.choice(topics).name,
            members=rng.randint(1, 3),
            commit_s=rng.choice((0.3, 1.0, 3.0)),
            work_s=rng.choice((0.0, 0.002, 0.05)),
            is_committed=rng.random() < 0.3,
            by_lane_name=rng.random() < 0.3,
            by_record=rng.random() < 0.5,
            is_transactional=rng.random() < 0.25,
            session_s=rng.choice((10.0, 10.0, 30.0)),
            timeouts_s=rng.choice(((30.0,), (5.0, 90.0), (90.0, 5.0), (90.0,))),
            is_patient=rng.random() < 0.7,
            watched_s=rng.choice((0.0, 0.0, 0.5, 2.0)),
        )
        for number in range(rng.choice((1, 1, 2)))
    )
    kinds = rng.sample(FAULTS, rng.randint(1, 6))
    faults = tuple(
        sorted(
            (
                Fault(
                    round(rng.uniform(0.5, LOAD_S), 3), rng.choice(kinds), rng.randrange(12),
                    round(rng.random(), 3),
                )
                for _ in range(rng.randint(1, 10))
            ),
            key=lambda fault: fault.at_s,
        )
    )  # fmt: skip
    return Scenario(
        seed, nodes, 3, topics, groups, faults,
        node_session_s=rng.choice((6.0, 10.0)),
        keeps_rights=rng.random() < 0.5,
        rates=tuple(rng.choice(CLOCKS) for _ in range(3)),
    )  # fmt: skip


def _draw_topic(rng: random.Random, number: int) -> TopicPlan:
    return TopicPlan(
        name=f"t{number}",
        partitions=rng.randint(1, 2),
        lanes=rng.choice((2, 3, 4)),
        is_safe=rng.random() < 0.6,
        keys=rng.choice((1, 5, 20)),
        batches_per_s=rng.choice((0.5, 2.0, 6.0)),
        transactions=rng.choice((0.0, 0.0, 0.5)),
    )
