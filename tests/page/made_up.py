"""Invented figures of a live page, of any size: healthy, a member stuck, brokers away, uneven."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from keylane.keyrange.space import split_even
from tests.page.made_up_shares import made_up_shares

Topic = tuple[str, int, int]
"""Name, partitions, lanes."""
ORDERS: tuple[Topic, ...] = (("orders", 3, 16), ("payments", 2, 32), ("clicks.lanes-64", 1, 64))
NOW_MS = 1_795_795_331_000
"""The time of the first state; each further one is two seconds later."""
POINTS = 60
AT_ANOTHER_NODE: dict[str, Any] = {
    "node": "keylane-1:9100", "kind": None, "member_count": None, "topics": None, "lag": None,
    "lag_is_exact": False, "lag_s": None, "stuck_members": None,
}  # fmt: skip
"""What the list has of a group whose offsets are at another node: next to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the invented cluster is like."""

    topics: tuple[Topic, ...] = ORDERS
    members: int = 12
    group_count: int = 3
    """Groups of the cluster; the first, `billing`, has the members."""
    stuck: int | None = None
    """Place of the member that is stuck in `billing`."""
    balance: float = 1.1
    broker_away: int | None = None
    is_kafka_away: bool = False
    has_shares: bool = False
    is_stopped: bool = False
    """The group has lag and no members."""
    role: str = "admin"
    plan: dict[str, Any] = field(default_factory=dict)
    """What a rebalance would do, over what it would do here."""


SCENES: dict[str, Scene] = {
    "healthy": Scene(has_shares=True),
    "member-stuck": Scene(stuck=3),
    "broker-away": Scene(broker_away=2),
    "kafka-away": Scene(is_kafka_away=True, broker_away=0),
    "uneven": Scene(balance=2.6),
    "many": Scene(
        topics=tuple((f"topic-{number:03}", 2, 10) for number in range(500)),
        members=40, group_count=200, has_shares=True,
    ),
    "wide": Scene(topics=(("orders", 10, 1000),), members=40),
    "reader": Scene(role="reader", balance=2.6),
    "stopped": Scene(is_stopped=True),
}  # fmt: skip


def made_up_layout(scene: Scene) -> list[dict[str, Any]]:
    """Return a layout with equal key ranges."""
    return [
        {
            "name": name,
            "partitions": partitions,
            "lanes": lanes,
            "borders": [[str(key_range.lo) for key_range in split_even(lanes)[1:]]],
            "range_of": None,
        }
        for name, partitions, lanes in scene.topics
    ]


def made_up_state(scene: Scene, *, seed: int) -> dict[str, Any]:
    """Loads of a power law; lanes dealt out in blocks, as a balanced plan looks."""
    chance = random.Random(seed)
    loads = {
        name: [round(chance.paretovariate(1.1) * 2_000) for _ in range(partitions * lanes)]
        for name, partitions, lanes in scene.topics
    }
    return {
        "at_ms": NOW_MS + 2_000 * seed,
        "node": {
            "version": "1.2.3",
            "sessions": 2 * scene.members + seed,
            "readers": len(scene.topics),
            "cache_bytes": 12_300_000 + 1000 * seed,
            "cache_bytes_max": 209_715_200,
            "filtering_bytes": 1_000_000,
            "filtering_bytes_max": 104_857_600,
            "records_per_s": 41_000.0 + seed,
            "upstream_bytes_per_s": 21_000_000.0,
            "lane_bytes_per_s": 44_000_000.0,
        },
        "topics": [{"name": name, "bytes_per_s": loads[name]} for name, *_ in scene.topics],
        "groups": [_billing(scene, chance, NOW_MS + 2_000 * seed)],
        "groups_left_out": 0,
        "cluster": made_up_cluster(scene),
        "shares": made_up_shares(seed=seed) if scene.has_shares else [],
        "shares_left_out": 2 if scene.has_shares else 0,
    }


def _billing(scene: Scene, chance: random.Random, now_ms: int) -> dict[str, Any]:
    members = [_member(scene, place, chance, now_ms) for place in range(scene.members)]
    topics = [_lanes(scene, topic, chance) for topic in scene.topics]
    for place, member in enumerate(members):
        member["lanes"] = sum(topic["owner"].count(place) for topic in topics)
    return {
        "name": "billing",
        "state": "Empty" if scene.is_stopped else "Stable",
        "assignor": "key-range",
        "balance": {"busiest": scene.balance, "is_by_keylane": True},
        "lag": sum(member["lag"] for member in members),
        "lag_is_exact": True,
        "lag_s": max(member["lag_s"] for member in members),
        "last_commit_ms": now_ms - 400,
        "bytes_per_s": 36_000_000,
        "records_per_s": 41_000,
        "consumed_per_s": 40_900,
        "members": [] if scene.is_stopped else members,
        "topics": topics,
        **({"is_old": True, "as_of_ms": now_ms - 95_000} if scene.is_kafka_away else {}),
    }


def _member(scene: Scene, place: int, chance: random.Random, now_ms: int) -> dict[str, Any]:
    is_stuck = place == scene.stuck
    busy = scene.balance if place == 0 else (scene.members - scene.balance) / (scene.members - 1)
    return {
        "id": f"m-{place}",
        "label": f"billing-{place}",
        "host": f"/10.0.0.{place + 1}",
        "lanes": 0,
        "bytes_per_s": round(3e6 * busy * chance.uniform(0.95, 1.05)),
        "lag": 35_600 if is_stuck else chance.randrange(900),
        "lag_s": 252.0 if is_stuck else round(chance.uniform(0.1, 1.9), 1),
        "lag_is_exact": not is_stuck,
        "consumed_per_s": 0.0 if is_stuck else round(3_400 * busy),
        "last_commit_ms": now_ms - (252_000 if is_stuck else chance.randrange(300, 4_000)),
        "is_stuck": is_stuck,
        "stuck_s": 252.0 if is_stuck else None,
        "gained": chance.choice([0, 0, 3]),
        "lost": chance.choice([0, 0, 1]),
        "bypasses_keylane": False,
    }


def _lanes(scene: Scene, topic: Topic, chance: random.Random) -> dict[str, Any]:
    name, partitions, lanes = topic
    owner = [
        (index // partitions * scene.members // lanes + index % partitions) % scene.members
        for index in range(partitions * lanes)
    ]
    lag = [2_000 if place == scene.stuck else chance.randrange(200) for place in owner]
    return {
        "name": name,
        "owner": [-1] * len(owner) if scene.is_stopped else owner,
        "lag": lag,
        "lag_is_exact": [chance.randrange(2) for _ in owner],
        "lag_s": [252.0 if place == scene.stuck else 0.7 for place in owner],
    }


def made_up_cluster(scene: Scene) -> dict[str, Any]:
    """Three brokers, two nodes, and the problems that the scene has."""
    since_ms = NOW_MS - 95_000
    away = {1, 2, 3} if scene.is_kafka_away else {scene.broker_away}
    problems = []
    if scene.is_kafka_away:
        problems.append(_problem("kafka-away", "No broker of Kafka can be reached", since_ms))
    elif scene.broker_away:
        text = f"Broker {scene.broker_away} (kafka-{scene.broker_away}:9092) cannot be reached"
        problems.append(_problem("broker-away", text, since_ms))
    return {
        "node": {
            "version": "1.2.3", "number": 0, "control": "keylane-0:9100",
            "started_ms": NOW_MS - 86_400_000, "cluster_id": "5L6g3nShT-eMCtK--X86sw",
        },
        "kafka": {
            "is_reachable": not scene.is_kafka_away,
            "unreachable_since_ms": since_ms if scene.is_kafka_away else None,
            "reason": "connection refused" if scene.is_kafka_away else None,
        },
        "brokers": [
            {
                "id": number, "address": f"kafka-{number}:9092", "rack": f"zone-{number}",
                "is_reachable": number not in away,
                "unreachable_since_ms": since_ms if number in away else None,
                "reason": "connection refused" if number in away else None,
            }
            for number in (1, 2, 3)
        ],
        "nodes": [
            {
                "number": number, "address": f"keylane-{number}:9092",
                "control": f"keylane-{number}:9100", "is_self": number == 0, "state": "serving",
                "partitions": 12, "groups": None if number else 3,
            }
            for number in (0, 1)
        ],
        "journal": {
            "unserved_partitions": 0, "disputed_topics": 0, "records_set_aside": 0,
            "resting_tasks": 0,
        },
        "problems": problems,
    }  # fmt: skip


def _problem(code: str, text: str, since_ms: int) -> dict[str, Any]:
    remedy = "Look at the broker's log, and at the network between it and keylane."
    return {
        "code": code, "severity": "error", "since_ms": since_ms, "text": text, "remedy": remedy,
    }  # fmt: skip


def made_up_groups(scene: Scene) -> dict[str, Any]:
    """`GET /groups`: `billing`, then groups of all kinds, some at another node."""
    chance = random.Random(7)
    groups = [_listed("billing", "lanes", scene.members, 0, 0.0)]
    groups[0]["lag"] = groups[0]["lag_s"] = None  # the feed has the figures
    for number in range(1, scene.group_count):
        lag = chance.choice([0, 0, chance.randrange(20_000)])
        kind = chance.choice(["lanes", "plain", "plain"])
        group = _listed(f"team-{number:03}", kind, chance.randrange(9), lag, lag / 900)
        if kind == "lanes":
            group |= AT_ANOTHER_NODE
        groups.append(group)
    return {"at_ms": NOW_MS, "groups": groups, "left_out": 0}


def _listed(name: str, kind: str, members: int, lag: int, lag_s: float) -> dict[str, Any]:
    return {
        "group": name, "kind": kind, "protocol": "classic", "state": "Stable",
        "member_count": members, "lane_count": None, "topics": [], "lag": lag,
        "lag_is_exact": True, "lag_s": round(lag_s, 1), "last_commit_ms": None,
        "bytes_per_s": None, "records_per_s": None, "consumed_per_s": None, "balance": None,
        "stuck_members": 0, "refusal": None, "node": None,
    }  # fmt: skip


def made_up_history(scene: Scene) -> dict[str, Any]:
    """Ten minutes: a member that is stuck piles up, the others go up and down."""
    chance = random.Random(11)

    def line(place: int) -> list[int | None]:
        if place == scene.stuck:
            return [chance.randrange(600) if at < 34 else 1_300 * (at - 33) for at in range(POINTS)]
        return [None if at < 3 else chance.randrange(900) for at in range(POINTS)]

    members = [
        {"member_id": f"m-{place}", "label": f"billing-{place}", "lag": line(place)}
        for place in range(scene.members)
    ]
    flow = [round(2e6 * chance.uniform(0.7, 1.3)) for _ in range(POINTS)]
    return {
        "step_s": 10, "from_ms": NOW_MS - 600_000, "points": POINTS, "members": members,
        "group": {"lag": [None] * POINTS}, "topic": {"bytes_per_s": flow, "records_per_s": flow},
    }  # fmt: skip


def made_up_events(scene: Scene) -> list[dict[str, Any]]:
    """What led to the scene, oldest first."""
    happened = [
        (1_900, "node", "info", None, "Node 0 started."),
        (1_500, "join", "info", "billing", "billing-11 joined from /10.0.0.12."),
        (1_499, "rebalance", "info", "billing", "Generation 7: 12 members, 9 lanes moved."),
        (1_200, "move", "info", "team-001", "3 lanes moved from w-1 to w-2: load."),
        (640, "move", "info", "billing", "Lane 12 of orders moved from billing-2 to billing-5."),
    ]
    if scene.stuck is not None:
        text = f"billing-{scene.stuck} has made no progress for a minute, with lag."
        happened.append((190, "error", "warning", "billing", text))
    if scene.broker_away:
        text = f"Broker {scene.broker_away} cannot be reached: connection refused."
        happened.append((95, "broker", "error", None, text))
    return [
        {
            "id": number, "at_ms": NOW_MS - 1000 * ago_s, "kind": kind, "severity": severity,
            "group": group, "topic": None, "member": None, "text": text,
        }
        for number, (ago_s, kind, severity, group, text) in enumerate(happened, 1)
    ]  # fmt: skip
