"""The control server of a node, put together of the node's parts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from keylane.config.node import ProxyConfig
from keylane.config.own_names import OWN_TOPICS
from keylane.journal.set_aside import SetAside
from keylane.proxy.apis.shared.context import Shared
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.control.api.assignments import ClusterTopics
from keylane.proxy.control.auth import ControlGuard
from keylane.proxy.control.describe import GroupDescriber
from keylane.proxy.control.door import make_door
from keylane.proxy.control.gauges import GroupGauges, NodeGauges
from keylane.proxy.control.health import Health
from keylane.proxy.control.live_feed import LiveFeed
from keylane.proxy.control.metrics import Exposition, Look, Source
from keylane.proxy.control.server import Access, ControlServer, Shown
from keylane.proxy.control.shares.gauges import ShareGauges
from keylane.proxy.control.shares.windows import look_at_windows
from keylane.proxy.control.topics import TopicDescriber
from keylane.proxy.net.security.tls_listener import TlsDoor
from keylane.proxy.nodes.group import NodeGroup
from keylane.proxy.runtime.stats import COUNTER, GAUGE, ProxyStats, Sample
from keylane.proxy.topics.settings_store import SettingsStore
from keylane.tasks import Watched

SET_ASIDE = "Records of keylane's own topics that were set aside since the start."
HANDSHAKE_S_MAX = 10.0
RESTARTS = "Times that a task of keylane failed and was restarted."
RESTING = "Failed tasks that wait for their restart."


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Faults inside that were survived: for `/readyz`, and for metrics."""

    set_aside: SetAside
    watched: Watched

    def lines(self) -> list[str]:
        """Return lines for `/readyz`."""
        return self.watched.lines() + self.set_aside.lines()

    def samples(self) -> Iterator[Sample]:
        """Yield samples for metrics."""
        for topic in sorted(OWN_TOPICS):
            labels, count = (("topic", topic),), self.set_aside.counts[topic]
            yield Sample("keylane_records_set_aside", GAUGE, SET_ASIDE, labels, count)
        for task, count in sorted(self.watched.restarts.items()):
            yield Sample(
                "keylane_tasks_restarted_total", COUNTER, RESTARTS, (("task", task),), count
            )
        yield Sample("keylane_tasks_resting", GAUGE, RESTING, (), len(self.watched.resting))


@dataclass(frozen=True, slots=True)
class ControlBase:
    """Parts of a node that the others stand on, and what its control port shows of them."""

    config: ProxyConfig
    stats: ProxyStats
    cluster: Cluster
    health: Health
    upkeep: Upkeep
    connections_max: int
    """On the control port."""


def make_control(
    address: str,
    describer: GroupDescriber,
    base: ControlBase,
    shared: Shared,
    settings: SettingsStore,
    nodes: NodeGroup | None,
) -> ControlServer:
    """Return the control server of a node. Raises: ConfigInvalid."""
    config, stats, cluster = base.config, base.stats, base.cluster
    door = None
    if cluster.security.control is not None:
        door = TlsDoor(  # as many handshakes at once as connections
            cluster.security.control,
            stats=stats,
            connections_max=base.connections_max,
            per_address_max=config.control_connections_per_address_max,
            timeout_s=min(config.frame_timeout_s, HANDSHAKE_S_MAX),
        )

    def lane_groups() -> list[str]:
        """Groups that have joined here, then those that have offsets of lanes."""
        joined = sorted({*shared.generations.groups(), *shared.consumer_groups.names()})
        known = sorted({key.group for key, _ in shared.groups.states()}.difference(joined))
        return joined + known

    cluster_topics = ClusterTopics(cluster)
    topics = make_topics(describer, cluster_topics, shared)
    live = LiveFeed(
        describer,
        shared.loads,
        stats,
        views=cluster.registry.views.values,
        groups=lane_groups,
        share_groups=describer.shares.groups,
    )
    base.health.notes.append(base.upkeep.lines)
    return ControlServer(
        address,
        Shown(make_exposition(base, shared, nodes), base.health, describer, topics, live),
        settings,
        cluster_topics,
        elsewhere=shared.placement.control_of_group,
        access=Access(
            guard=ControlGuard(config),
            door=door,
            connections=make_door(
                stats,
                connections_max=base.connections_max,
                per_address_max=config.control_connections_per_address_max,
            ),
        ),
    )


def make_exposition(base: ControlBase, shared: Shared, nodes: NodeGroup | None) -> Exposition:
    """Return the metrics of a node."""
    config, fetcher, ordered = base.config, shared.fetcher, shared.ordered
    gauges = GroupGauges(shared.groups.states, fetcher.log_ends, fetcher.lane_count)
    sources: list[Source] = [base.stats.samples, gauges.samples, base.upkeep.samples]
    looks: list[Look] = []
    if nodes is not None and config.node is not None:
        registry = base.cluster.registry
        disputes = lambda: registry.disputes.among(registry.topics)  # noqa: E731
        node_gauges = NodeGauges(config.node, lambda: nodes.membership, nodes.holds, disputes)
        sources.append(node_gauges.samples)
    if ordered.has_rules:
        share_gauges = ShareGauges(
            partial(look_at_windows, ordered), ordered.sessions, ordered.tallies, ordered.held_bytes
        )
        looks.append(share_gauges.look)
        sources.append(share_gauges.samples)
    return Exposition(sources, looks)


def make_topics(describer: GroupDescriber, topics: ClusterTopics, shared: Shared) -> TopicDescriber:
    """Return what describes topics with lanes, and finds the place of a key."""

    def topic_groups(topic_id: uuid.UUID) -> dict[str, bool]:
        """Groups that have offsets of the topic's lanes, then those that have joined here."""
        known = {key.group for key, _ in shared.groups.states() if key.topic_id == topic_id}
        met = {*shared.generations.groups(), *shared.consumer_groups.names()}
        joined = sorted(met - known)
        return dict.fromkeys(sorted(known), True) | dict.fromkeys(joined, False)

    return TopicDescriber(
        shared.cluster.registry,
        topics,
        misplaced=shared.fetcher.misplaced.of,
        groups=topic_groups,
        ask=describer.holders,
    )
