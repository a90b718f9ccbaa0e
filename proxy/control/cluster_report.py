"""The cluster as this node sees it: brokers, nodes, the journal, and what is wrong with them.

In:    what the parts know now, without a question to any broker. Out: `ClusterReport`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import keylane
from keylane.proxy.cluster.cluster import Broker
from keylane.proxy.cluster.pulse import Away
from keylane.proxy.topics.node_roll import AWAY_KEPT_MS, AwayNode
from keylane.proxy.topics.node_values import NO_NODE, Membership, NodeInfo

SERVING: Final = "serving"
AWAY: Final = "away"
MS_PER_MIN: Final = 60_000
NAMED_MAX: Final = 3
"""Topics or tasks that one text names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfReport:
    """The node that answers."""

    version: str
    number: int | None
    """None: it is the only node."""
    control: str
    """`host:port` of its control port."""
    started_ms: int
    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReport:
    """Reachability of the cluster: it is there while any broker answers this node."""

    is_reachable: bool
    unreachable_since_ms: int | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """One broker, as it advertises itself."""

    id: int
    address: str
    rack: str | None
    is_reachable: bool
    unreachable_since_ms: int | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One keylane node."""

    number: int | None
    address: str
    """`host:port` of its bootstrap listener."""
    control: str | None
    """URL of its control port; None: it has none."""
    is_self: bool
    state: str
    """`serving`, `draining`, `drained` or `away`."""
    partitions: int
    """Partitions of the journal whose groups it serves."""
    groups: int | None
    """Groups with offsets of lanes that it serves; None: only that node knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalReport:
    """Faults of keylane's own topics, and of what follows them."""

    unserved_partitions: int
    disputed_topics: int
    records_set_aside: int
    resting_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemReport:
    """Something that an operator should look at."""

    code: str
    """`kafka-away`, `broker-away`, `node-away`, `not-serving`, `journal-unserved`,
    `topics-disputed`, `records-set-aside` or `task-failed`."""
    severity: str
    """`warning` or `error`."""
    since_ms: int | None
    """None: not known."""
    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """The cluster as this node sees it."""

    node: SelfReport
    kafka: KafkaReport
    brokers: tuple[BrokerReport, ...]
    nodes: tuple[NodeReport, ...]
    journal: JournalReport
    problems: tuple[ProblemReport, ...]
    """Errors first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The input of the report, at one moment."""

    number: int | None
    control: str
    bootstrap: str
    started_ms: int
    cluster_id: str
    brokers: Mapping[int, Broker]
    away: Mapping[int, Away]
    kafka_away: Away | None
    membership: Membership | None
    """None: the only node."""
    away_nodes: Sequence[AwayNode]
    partition_count: int
    """Of the journal."""
    groups: int
    """Groups with offsets of lanes that this node serves."""
    disputes: Mapping[str, str]
    set_aside: Mapping[str, int]
    resting: Sequence[str]
    missing: str | None
    """A part that this node cannot serve yet, with the reason."""
    states: Mapping[int | None, str]
    """Of nodes that do not simply serve."""


class Firsts:
    """Times at which problems were first seen; those that have ended are forgotten."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._since: dict[str, int] = {}

    def note(self, present: Mapping[str, bool]) -> Mapping[str, int]:
        """Return since when each problem is there, by its code."""
        now_ms = self._now_ms()
        codes = [code for code, is_there in present.items() if is_there]
        self._since = {code: self._since.get(code, now_ms) for code in codes}
        return self._since


class ClusterDescriber:
    """Makes reports. Cost: microseconds per broker and node, and that of the facts."""

    def __init__(self, facts: Callable[[], ClusterFacts], now_ms: Callable[[], int]) -> None:
        self._facts = facts
        self._firsts = Firsts(now_ms)

    def describe(self) -> ClusterReport:
        """Return the report of this moment."""
        facts = self._facts()
        unserved = _unserved(facts)
        since = self._firsts.note(
            {
                "not-serving": facts.missing is not None,
                "journal-unserved": unserved > 0,
                "topics-disputed": bool(facts.disputes),
                "records-set-aside": any(facts.set_aside.values()),
                "task-failed": bool(facts.resting),
            }
        )
        return report_of(facts, since)


def report_of(facts: ClusterFacts, since: Mapping[str, int]) -> ClusterReport:
    """Put a report together. since: times at which problems inside were first seen, by code."""
    lost = facts.kafka_away
    problems = [*_outer_problems(facts), *_inner_problems(facts, since)]
    return ClusterReport(
        node=SelfReport(
            version=keylane.__version__,
            number=facts.number,
            control=facts.control,
            started_ms=facts.started_ms,
            cluster_id=facts.cluster_id,
        ),
        kafka=KafkaReport(
            is_reachable=lost is None,
            unreachable_since_ms=None if lost is None else lost.since_ms,
            reason=None if lost is None else lost.reason,
        ),
        brokers=tuple(_broker(facts.brokers[key], facts.away) for key in sorted(facts.brokers)),
        nodes=tuple(_nodes(facts)),
        journal=JournalReport(
            unserved_partitions=_unserved(facts),
            disputed_topics=len(facts.disputes),
            records_set_aside=sum(facts.set_aside.values()),
            resting_tasks=len(facts.resting),
        ),
        problems=tuple(sorted(problems, key=lambda each: each.severity != "error")),
    )


def _unserved(facts: ClusterFacts) -> int:
    known = facts.membership
    return known.owners.count(NO_NODE) if known is not None else 0


def _broker(broker: Broker, away: Mapping[int, Away]) -> BrokerReport:
    lost = away.get(broker.node_id)
    return BrokerReport(
        id=broker.node_id,
        address=f"{broker.host}:{broker.port}",
        rack=broker.rack,
        is_reachable=lost is None,
        unreachable_since_ms=None if lost is None else lost.since_ms,
        reason=None if lost is None else lost.reason,
    )


def _nodes(facts: ClusterFacts) -> list[NodeReport]:
    known = facts.membership
    me = NodeReport(
        number=facts.number,
        address=facts.bootstrap,
        control=facts.control,
        is_self=True,
        state=facts.states.get(facts.number, SERVING),
        partitions=facts.partition_count,
        groups=facts.groups,
    )
    if facts.number is None or known is None:
        return [me]
    nodes = []
    for node in known.nodes:
        owned = len(known.owned_by(node.number))
        is_self = node.number == facts.number
        state = facts.states.get(node.number, SERVING)
        nodes.append(_node(node, state, owned, facts.groups if is_self else None, is_self=is_self))
    nodes += [_node(each.info, AWAY, 0, None, is_self=False) for each in facts.away_nodes]
    return sorted(nodes, key=lambda each: each.number or 0)


def _node(
    info: NodeInfo, state: str, partitions: int, groups: int | None, *, is_self: bool
) -> NodeReport:
    return NodeReport(
        number=info.number,
        address=info.place,
        control=info.control or None,
        is_self=is_self,
        state=state,
        partitions=partitions,
        groups=groups,
    )


def _outer_problems(facts: ClusterFacts) -> list[ProblemReport]:
    """Return brokers and nodes that are away."""
    if facts.kafka_away is not None:
        found = [
            ProblemReport(
                code="kafka-away",
                severity="error",
                since_ms=facts.kafka_away.since_ms,
                text=f"No broker of Kafka answers this node: {facts.kafka_away.reason}.",
                remedy="Check that the brokers run, and that this node reaches their addresses; "
                "groups go on by themselves when a broker is back.",
            )
        ]
    else:
        found = [
            ProblemReport(
                code="broker-away",
                severity="error",
                since_ms=away.since_ms,
                text=f"Broker {key} at {facts.brokers[key].host}:{facts.brokers[key].port} does "
                f"not answer: {away.reason}.",
                remedy="Start it, or check the network between it and this node. If it was taken "
                "out of the cluster for good, this line ends when keylane is restarted.",
            )
            for key, away in sorted(facts.away.items())
            if key in facts.brokers
        ]
    found += [
        ProblemReport(
            code="node-away",
            severity="warning",
            since_ms=each.since_ms,
            text=f"Node {each.info.number} at {each.info.place} is away; the other nodes serve its "
            "groups.",
            remedy="Start it again. If it was stopped for good, this line ends after "
            f"{AWAY_KEPT_MS // MS_PER_MIN} minutes.",
        )
        for each in facts.away_nodes
    ]
    return found


def _inner_problems(facts: ClusterFacts, since: Mapping[str, int]) -> list[ProblemReport]:
    """Return what is wrong with the journal, topics and tasks."""
    set_aside = {topic: count for topic, count in facts.set_aside.items() if count}
    damaged = [f"{count} of {topic}" for topic, count in sorted(set_aside.items())]
    unserved = _unserved(facts)
    texts = (
        (
            "not-serving", "error", facts.missing is not None,
            f"This node cannot serve {facts.missing}.",
            "The log has the reason; keylane tries again by itself.",
        ),
        (
            "journal-unserved", "error", unserved > 0,
            f"No node serves {unserved} partitions of the journal, so the groups there wait.",
            "Wait some seconds for the nodes to agree; then look for one that cannot join.",
        ),
        (
            "topics-disputed", "error", bool(facts.disputes),
            f"Nodes do not agree on the lanes of {_named(sorted(facts.disputes))}.",
            "Give all nodes the same lanes and lane_name_pattern.",
        ),
        (
            "records-set-aside", "warning", bool(set_aside),
            f"Damaged records are left out: {_named(damaged)}.",
            "Find the program that wrote them; /readyz has their places.",
        ),
        (
            "task-failed", "error", bool(facts.resting),
            f"Background tasks failed and wait for their restart: {_named(facts.resting)}.",
            "The log has the trace; please report it.",
        ),
    )  # fmt: skip
    return [
        ProblemReport(
            code=code, severity=severity, since_ms=since.get(code), text=text, remedy=remedy
        )
        for code, severity, is_there, text, remedy in texts
        if is_there
    ]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED_MAX])
    more = len(names) - NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
