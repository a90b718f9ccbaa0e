"""One seed, one run: what there is, what is done to it, and when."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

LOAD_S = 15.0
"""Seconds in which producers write and faults come."""
SAFE, UNSAFE = "safe", "unsafe"
FAULTS = (
    "node_kill", "node_hang", "node_suspend", "node_cut_kafka", "node_cut_broker",
    "node_cut_clients", "node_stop", "node_kill_at", "node_hang_at", "late_append",
    "broker_crash", "broker_hang", "broker_slow", "elect", "elect_with_loss", "loss_while_down",
    "lose_disk", "delete_records", "move_coordinator", "lost_commit_answer", "late_commit",
    "lost_ack", "compact", "member_kill", "member_stop", "member_hang", "member_cut", "wall_clock",
    "member_seek", "seek_kill", "seek_hang", "seek_while_silent", "reset_offset", "admin_reset",
    "admin_delete", "delete_group", "expire_group",
)  # fmt: skip
CUTS_SHARE = 0.15
"""Share of the scenarios without an emphasis in which logs are cut."""
LAYOUTS_SHARE = 0.1
"""Share of all scenarios in which a topic's lane count changes."""
CONSUMERS_SHARE = 0.35
"""Share of all scenarios with consumer groups (KIP-848)."""
CONSUMER_FAULTS = (
    "lost_beat", "node_kill_at_beat", "nodes_away", "member_kill", "member_stop", "member_hang",
    "member_cut", "move_coordinator",
)  # fmt: skip
"""Faults that are drawn besides where there are such groups."""
LANES_LATER = {2: 4, 3: 6, 4: 2}
MIXED = (3.0, 90.0)
"""Some members look elsewhere while others still wait."""
CLOCKS = (1.0, 1.0, 0.9, 1.1)
"""A lease allows for a clock that is slower by a fifth."""


@dataclass(frozen=True)
class Fault:
    """A fault, or an operator's change, at a moment."""

    at_s: float
    kind: str
    which: int
    """Number of the node, broker, member or partition, modulo their count."""
    amount: float
    """Seconds, records, or what the kind makes of it; between 0 and 1."""


@dataclass(frozen=True)
class About:
    """Emphasis of a scenario: faults that go together are drawn together."""

    faults: tuple[str, ...]
    nodes: tuple[int, ...]
    timeouts: tuple[tuple[float, ...], ...]


ANYTHING = About((), (0, 0, 2, 3), ())
ZOMBIES = About(
    ("node_hang", "node_suspend", "node_hang_at", "seek_hang", "seek_hang", "node_cut_kafka"),
    (2, 2, 3),
    (MIXED, MIXED[::-1]),
)  # fmt: skip
"""A node is replaced while its clients wait for it, and goes on."""
DEATHS = About(
    ("node_kill_at", "seek_kill", "late_append", "lost_ack", "late_commit"), (0, 0, 2),
    (MIXED, (30.0,)),
)  # fmt: skip
"""Nodes die at the worst moment, and what they sent arrives later."""
SILENCE = About(
    ("broker_hang", "node_cut_broker", "seek_while_silent"), (0, 2), ((90.0,), MIXED)
)  # fmt: skip
"""Brokers do not answer, for long."""


@dataclass(frozen=True)
class TopicPlan:
    """A topic, and its producers."""

    name: str
    partitions: int
    lanes: int
    is_safe: bool
    keys: int
    batches_per_s: float
    transactions: float = 0.0
    """Share of batches that are in a transaction."""
    lanes_later: int = 0
    """Lane count after `change_lanes`; 0: it stays."""

    @property
    def lanes_most(self) -> int:
        """Lanes of the finest layout that it ever has; the others' are unions of those."""
        return max(self.lanes, self.lanes_later)


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
    """Time-outs of its members' requests, in turns."""
    is_patient: bool = False
    """Its members keep their lanes when they lose their coordinator."""
    says_epochs: bool = False
    """Its members' fetches name the epoch of the leader that they know."""
    is_consumer: bool = False
    """It is a group of KIP-848."""
    is_static: bool = False
    """Its members have places, and leave for a while."""
    heartbeat_s: float = 1.0
    """Of consumer groups, as what follows."""
    assignment_s: float = 1.0
    """Least time between two assignments of the broker."""
    rebalance_s: float = 300.0
    revoke_s: tuple[float, ...] = (0.0,)
    """Seconds in which its members' applications give lanes up, in turns."""
    keeps_epochs: bool = False
    """The broker judges older epochs by partition."""
    watched_s: float = 0.0
    """Seconds between a tool's questions for its lanes' offsets; 0: none."""

    def lane_topic(self, lanes: int) -> str:
        """Return what its members call the topic while it has so many lanes."""
        return f"{self.topic}.lanes-{lanes}" if self.by_lane_name else self.topic


@dataclass(frozen=True)
class SharePlan:
    """A share group in the order of keys, its topic, and its members."""

    name: str
    topic: str
    partitions: int
    keys: int
    batches_per_s: float
    transactions: float
    """Share of batches that are in a transaction."""
    members: int
    records_max: int
    """`max.poll.records`."""
    is_exact: bool
    """Acquire mode: `record_limit`."""
    is_explicit: bool
    is_synchronous: bool
    """It acknowledges each record by itself."""
    outcomes: tuple[float, float, float]
    """Weights of ACCEPT, RELEASE and REJECT, of explicit members."""
    work_s: float
    slow_share: float
    """Share of records whose work takes about as long as a lock."""
    renews: bool
    blocks_s: float
    """Work of the first member on its first record; 0: it is as any other."""
    lock_s: float
    deliveries: int
    locks: int
    look_ahead: int
    is_received: bool = False
    """`confirm: received`."""

    @property
    def blocks_from_s(self) -> float:
        """Work from this duration on is not renewed: its application has stopped."""
        return 10 * self.lock_s


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
    """Rights of clients are asked for once."""
    rates: tuple[float, ...] = (1.0,)
    """Rates of nodes' clocks, in turns."""
    writes_steps: bool = False
    """The journal has steps (decision 038), also of groups with few lanes."""
    forget_s: float = 0.0
    """Seconds between nodes' questions for expired groups; 0: none in a run."""
    shares: tuple[SharePlan, ...] = ()


def draw(seed: int) -> Scenario:
    """A scenario of a seed."""
    rng = random.Random(f"scenario {seed}")
    about = rng.choices((ANYTHING, ZOMBIES, DEATHS, SILENCE), (6, 2, 2, 1))[0]
    topics = tuple(_draw_topic(rng, number, about) for number in range(rng.choice((1, 1, 2))))
    groups = tuple(
        _draw_group(rng, number, topics, about) for number in range(rng.choice((1, 1, 2)))
    )
    own = random.Random(f"epochs {seed}")
    groups = tuple(replace(each, says_epochs=own.random() < 0.5) for each in groups)
    kinds = rng.sample(FAULTS, rng.randint(1, 6))
    faults = [
        Fault(
            round(rng.uniform(0.5, LOAD_S), 3), rng.choice(kinds), rng.randrange(12),
            round(rng.random(), 3),
        )
        for _ in range(rng.randint(1, 10 if about is ANYTHING else 3))
    ]  # fmt: skip
    faults += [
        Fault(
            round(rng.uniform(0.5, 6.0), 3), rng.choice(about.faults), rng.randrange(12),
            round(rng.uniform(0.6, 1.0), 3),
        )
        for _ in range(rng.randint(1, 2))
        if about.faults
    ]  # fmt: skip
    scenario = Scenario(
        seed,
        rng.choice(about.nodes),
        3,
        topics,
        groups,
        tuple(sorted(faults, key=lambda fault: fault.at_s)),
        node_session_s=rng.choice((6.0, 10.0)) if about is ANYTHING else 6.0,
        keeps_rights=rng.random() < 0.5 or about is SILENCE,
        rates=tuple(rng.choice(CLOCKS) for _ in range(3)),
        writes_steps=rng.random() < 0.5,
        forget_s=rng.choice((0.0, 0.0, 0.0, 6.0)),
    )
    if about is ANYTHING and own.random() < CUTS_SHARE:
        scenario = _with_cuts(own, scenario)
    scenario = _with_consumers(random.Random(f"consumers {seed}"), scenario)
    layouts = random.Random(f"layouts {seed}")
    return _with_other_lanes(layouts, scenario) if layouts.random() < LAYOUTS_SHARE else scenario


def _with_cuts(rng: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario with logs that lose their ends repeatedly, while lags are watched."""
    cuts = tuple(
        Fault(
            round(rng.uniform(0.5, LOAD_S), 3),
            rng.choice(("elect_with_loss", "elect_with_loss", "loss_while_down", "elect")),
            rng.randrange(12),
            round(rng.random(), 3),
        )
        for _ in range(rng.randint(3, 8))
    )
    faults = sorted((*scenario.faults, *cuts), key=lambda fault: fault.at_s)
    return replace(
        scenario,
        topics=tuple(replace(each, is_safe=False) for each in scenario.topics),
        groups=tuple(replace(each, watched_s=0.3) for each in scenario.groups),
        faults=tuple(faults),
    )


def _with_consumers(rng: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario with some of its groups as consumer groups, and faults for these."""
    if rng.random() >= CONSUMERS_SHARE:
        return scenario
    faults = [
        Fault(
            round(rng.uniform(0.5, LOAD_S), 3), rng.choice(CONSUMER_FAULTS), rng.randrange(12),
            round(rng.random(), 3),
        )
        for _ in range(rng.randint(0, 3))
    ]  # fmt: skip
    return replace(
        scenario,
        groups=tuple(
            replace(
                each,
                is_consumer=True,
                is_transactional=False,
                is_patient=True,
                members=each.members + rng.choice((0, 0, 1)),
                is_static=rng.random() < 0.2,
                heartbeat_s=rng.choice((1.0, 1.0, 3.0)),
                assignment_s=rng.choice((0.0, 1.0)),
                session_s=rng.choice((6.0, 10.0, 10.0, 30.0)),
                rebalance_s=rng.choice((5.0, 300.0, 300.0)),
                revoke_s=rng.choice(((0.0,), (0.0, 0.4), (0.0, 8.0))),
                keeps_epochs=rng.random() < 0.5,
            )
            if rng.random() < 0.8
            else each
            for each in scenario.groups
        ),
        faults=tuple(sorted((*scenario.faults, *faults), key=lambda fault: fault.at_s)),
    )


def _with_other_lanes(rng: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario with another lane count for a topic from some moment on."""
    changed = scenario.groups[0].topic
    fault = Fault(round(rng.uniform(1.0, LOAD_S), 3), "change_lanes", 0, round(rng.random(), 3))
    return replace(
        scenario,
        topics=tuple(
            replace(each, lanes_later=LANES_LATER[each.lanes]) if each.name == changed else each
            for each in scenario.topics
        ),
        faults=tuple(sorted((*scenario.faults, fault), key=lambda fault: fault.at_s)),
    )


def _draw_group(
    rng: random.Random, number: int, topics: tuple[TopicPlan, ...], about: About
) -> GroupPlan:
    is_any = about is ANYTHING
    return GroupPlan(
        name=f"g{number}",
        topic=rng.choice(topics).name,
        members=rng.randint(1 if is_any else 2, 3),
        commit_s=rng.choice((0.3, 1.0, 3.0)),
        work_s=rng.choice((0.0, 0.002, 0.05)),
        is_committed=rng.random() < 0.3,
        by_lane_name=rng.random() < 0.3,
        by_record=rng.random() < 0.5,
        is_transactional=rng.random() < (0.25 if is_any else 0.1),
        session_s=rng.choice((10.0, 10.0, 30.0)) if is_any else 30.0,
        timeouts_s=rng.choice(((30.0,), MIXED, MIXED[::-1], (90.0,)) if is_any else about.timeouts),
        is_patient=rng.random() < (0.7 if is_any else 0.95),
        watched_s=rng.choice((0.0, 0.0, 0.5, 2.0) if is_any else (0.0, 0.3)),
    )


def _draw_topic(rng: random.Random, number: int, about: About) -> TopicPlan:
    is_any = about is ANYTHING
    return TopicPlan(
        name=f"t{number}",
        partitions=rng.randint(1, 2),
        lanes=rng.choice((2, 3, 4)),
        is_safe=rng.random() < (0.6 if is_any else 0.9),
        keys=rng.choice((1, 5, 20) if is_any else (5, 20)),
        batches_per_s=rng.choice((0.5, 2.0, 6.0)),
        transactions=rng.choice((0.0, 0.0, 0.5)),
    )
