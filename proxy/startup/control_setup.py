"""The control server of a node, put together of the node's parts."""

from __future__ import annotations

import uuid
from collections import Counter
from functools import partial

from keylane.proxy.apis.shared.context import Shared
from keylane.proxy.control.api.actions import ActionHandlers
from keylane.proxy.control.api.assignments import ClusterTopics
from keylane.proxy.control.api.config import ConfigHandlers
from keylane.proxy.control.api.drains import DrainedNode, DrainHandlers
from keylane.proxy.control.api.operations import ControlOperation
from keylane.proxy.control.auth import ControlGuard
from keylane.proxy.control.describe import GroupDescriber
from keylane.proxy.control.door import make_door
from keylane.proxy.control.gauges import GroupGauges, NodeGauges
from keylane.proxy.control.live_feed import LiveFeed
from keylane.proxy.control.metrics import Exposition, Look, Source
from keylane.proxy.control.server import Access, ControlServer, Shown
from keylane.proxy.control.shares.gauges import ShareGauges
from keylane.proxy.control.shares.windows import look_at_windows
from keylane.proxy.control.topics import TopicDescriber
from keylane.proxy.control.watch.gauges import SampledGauges
from keylane.proxy.net.security.tls_listener import TlsDoor
from keylane.proxy.nodes.group import NodeGroup
from keylane.proxy.runtime.event_log import Kind
from keylane.proxy.startup.control_base import ControlBase, now_ms
from keylane.proxy.startup.group_actions import OwnActions
from keylane.proxy.startup.overview_setup import Watch, groups_with_offsets, joined_groups
from keylane.proxy.topics.settings_store import SettingsStore

HANDSHAKE_S_MAX = 10.0


def make_control(
    base: ControlBase,
    shared: Shared,
    settings: SettingsStore,
    nodes: NodeGroup | None,
    describer: GroupDescriber,
    watch: Watch,
    node: DrainedNode,
) -> ControlServer:
    """Return the control server of a node that has one. Raises: ConfigInvalid."""
    config, stats, cluster = base.config, base.stats, base.cluster
    assert config.control is not None, "asked for a control port"
    door = None
    if cluster.security.control is not None:
        door = TlsDoor(  # as many handshakes at once as connections
            cluster.security.control,
            stats=stats,
            connections_max=base.connections_max,
            per_address_max=config.control_connections_per_address_max,
            timeout_s=min(config.frame_timeout_s, HANDSHAKE_S_MAX),
        )

    cluster_topics = ClusterTopics(cluster)
    topics = make_topics(describer, cluster_topics, shared)
    live = LiveFeed(
        describer,
        shared.loads,
        stats,
        views=cluster.registry.views.values,
        groups=lambda: lane_groups(shared),
        share_groups=describer.shares.groups,
        overview=watch.overview,
    )
    base.health.notes.append(base.upkeep.lines)
    return ControlServer(
        config.control,
        Shown(
            make_exposition(base, shared, nodes, watch),
            base.health,
            describer,
            topics,
            live,
            watch.overview,
        ),
        settings,
        cluster_topics,
        elsewhere=shared.placement.control_of_group,
        more=more_operations(base, shared, node),
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


def more_operations(base: ControlBase, shared: Shared, node: DrainedNode) -> list[ControlOperation]:
    """Return the operations of parts that the server knows nothing of."""

    def note(text: str, group: str | None) -> None:
        base.event_log.note(Kind.ACTION, text, group=group)

    elsewhere = shared.placement.control_of_group
    return [
        *ConfigHandlers(base.loaded, base.config, shared.switches).operations(),
        *ActionHandlers(OwnActions(shared), elsewhere=elsewhere, note=note).operations(),
        *DrainHandlers(node, note).operations(),
    ]


def lane_groups(shared: Shared) -> list[str]:
    """Return groups that have joined here, then those that have offsets of lanes."""
    joined = joined_groups(shared)
    return sorted(joined) + sorted(groups_with_offsets(shared) - joined)


def make_exposition(
    base: ControlBase, shared: Shared, nodes: NodeGroup | None, watch: Watch
) -> Exposition:
    """Return the metrics of a node."""
    config, fetcher, ordered = base.config, shared.fetcher, shared.ordered
    gauges = GroupGauges(shared.groups.states, fetcher.log_ends, fetcher.lane_count)
    sampled = SampledGauges(lambda: watch.sampler.summaries, now_ms)
    sources: list[Source] = [
        base.stats.samples,
        gauges.samples,
        sampled.samples,
        base.upkeep.samples,
    ]
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
        joined = sorted(joined_groups(shared) - known)
        return dict.fromkeys(sorted(known), True) | dict.fromkeys(joined, False)

    def group_counts() -> Counter[uuid.UUID]:
        """Numbers of groups that have offsets of a topic's lanes: one walk for all topics."""
        pairs = {(key.topic_id, key.group) for key, _ in shared.groups.states()}
        return Counter(topic_id for topic_id, _ in pairs)

    return TopicDescriber(
        shared.cluster.registry,
        topics,
        misplaced=shared.fetcher.misplaced.of,
        groups=topic_groups,
        group_counts=group_counts,
        loads=shared.loads,
        ask=describer.holders,
    )
