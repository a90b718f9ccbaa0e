"""The parts that know the whole cluster and its last minutes, put together."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keylane.proxy.apis.shared.context import Shared
from keylane.proxy.cluster.pulse import Pulse
from keylane.proxy.control.api.overview import Overview
from keylane.proxy.control.cluster_report import ClusterDescriber, ClusterFacts
from keylane.proxy.control.describe import GroupDescriber
from keylane.proxy.control.group_list import GroupLister
from keylane.proxy.control.lane_reports import CountedRecords, LaneMeasures
from keylane.proxy.control.watch.history import History
from keylane.proxy.control.watch.sampler import SampleBooks, Sampler
from keylane.proxy.control.watch.summary import GroupSummary
from keylane.proxy.startup.control_base import ControlBase, now_ms
from keylane.proxy.startup.node_parts import NodeParts
from keylane.proxy.topics.draining import state_of
from keylane.proxy.topics.node_values import Membership
from keylane.proxy.topics.view import View

Tasks = Mapping[str, Callable[[], Coroutine[Any, Any, None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The parts that look at the cluster by themselves."""

    overview: Overview
    sampler: Sampler
    pulse: Pulse

    @property
    def tasks(self) -> Tasks:
        """Return the tasks that run as long as the node does, by name."""
        return {"sampler": self.sampler.run, "pulse": self.pulse.run}


def joined_groups(shared: Shared) -> set[str]:
    """Return groups whose members have joined here, by either protocol."""
    return {*shared.generations.groups(), *shared.consumer_groups.names()}


def groups_with_offsets(shared: Shared) -> set[str]:
    """Return groups that have offsets of lanes here. Cost: 60 ns for each offset state."""
    return {key.group for key, _ in shared.groups.states()}


def group_names(describer: GroupDescriber, shared: Shared) -> tuple[Sequence[str], Sequence[str]]:
    """Return groups that have joined here, and others that have offsets of lanes here."""
    joined = joined_groups(shared) | set(describer.shares.groups())
    return sorted(joined), sorted(groups_with_offsets(shared) - joined)


class NodeKnowledge:
    """Facts of groups at this node; see `group_list.Knowledge`."""

    def __init__(self, sampler: Sampler, shared: Shared) -> None:
        self._sampler, self._shared = sampler, shared

    def summaries(self) -> Mapping[str, GroupSummary]:
        """Return the last look at each group that is sampled."""
        return self._sampler.summaries

    def lane_groups(self) -> frozenset[str]:
        """Return the groups on lanes that are known here."""
        return frozenset(groups_with_offsets(self._shared) | joined_groups(self._shared))

    def node_of(self, group: str) -> str | None:
        """Return the control address of another node that serves a group; None: none does."""
        return self._shared.placement.control_of_group(group)


def make_watch(
    describer: GroupDescriber,
    measures: LaneMeasures,
    base: ControlBase,
    shared: Shared,
    nodes: NodeParts,
) -> Watch:
    """Return the parts of a node."""
    registry = base.cluster.registry

    def find_view(name: str) -> View | None:
        return None if registry.is_refused(name) else registry.view(name)

    books = SampleBooks(
        progress=measures.progress,
        history=History(),
        loads=measures.loads,
        records=CountedRecords(find_view, measures.tallies),
        event_log=base.event_log,
    )
    sampler = Sampler(
        describer,
        books,
        names=lambda: group_names(describer, shared),
        views=registry.views.values,
        now_ms=now_ms,
    )
    pulse = Pulse(base.cluster, now_ms, base.event_log.note)
    facts = FactsFinder(base, shared, nodes, pulse)
    overview = Overview(
        cluster=ClusterDescriber(facts.find, now_ms),
        groups=GroupLister(base.cluster, NodeKnowledge(sampler, shared), now_ms),
        history=books.history,
        event_log=base.event_log,
        now_ms=now_ms,
    )
    return Watch(overview=overview, sampler=sampler, pulse=pulse)


class FactsFinder:
    """Asks the node's parts for what the report of the cluster is made of."""

    def __init__(
        self,
        base: ControlBase,
        shared: Shared,
        nodes: NodeParts,
        pulse: Pulse,
    ) -> None:
        self._base, self._shared, self._nodes = base, shared, nodes
        self._pulse = pulse
        self._started_ms = now_ms()

    def find(self) -> ClusterFacts:
        """Return the facts of this moment. Cost: 60 ns for each offset state, beside the rest."""
        base, shared, group = self._base, self._shared, self._nodes.group
        cluster, registry = base.cluster, base.cluster.registry
        membership = None if group is None else group.membership
        number = base.config.node
        count = shared.groups.partition_count if base.health.missing is None else 0
        if membership is not None and number is not None:
            count = len(membership.owned_by(number))
        return ClusterFacts(
            number=number,
            control=self._nodes.control_address(),
            bootstrap="{}:{}".format(*shared.bootstrap),
            started_ms=self._started_ms,
            cluster_id=cluster.cluster_id,
            brokers=cluster.brokers,
            away=self._pulse.away(),
            kafka_away=self._pulse.kafka_away(),
            membership=membership,
            away_nodes=self._nodes.roll.away(),
            partition_count=count,
            groups=len(groups_with_offsets(shared)),
            disputes=registry.disputes.among(registry.topics),
            set_aside=base.upkeep.set_aside.counts,
            resting=sorted(base.upkeep.watched.resting),
            missing=base.health.missing,
            states=self._states(membership),
        )

    def _states(self, membership: Membership | None) -> dict[int | None, str]:
        """Return the states of nodes: of others it is not known here how many clients they have."""
        if membership is None:
            return {}
        own = self._base.config.node
        return {
            node.number: state_of(
                is_draining=node.is_draining,
                partitions=len(membership.owned_by(node.number)),
                connections=self._base.stats.sessions if node.number == own else 0,
            )
            for node in membership.nodes
        }
