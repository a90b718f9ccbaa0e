"""The parts of a node, made in the order in which they need each other.

Nothing is opened here and nothing is asked of a broker: `server` starts the parts, and stops them.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec

from keylane.config.origins import LoadedConfig
from keylane.errors import KeylaneError
from keylane.journal.epochs import next_epoch
from keylane.journal.own_topic import OwnTopicClients
from keylane.journal.set_aside import SetAside
from keylane.keyrange.key_split import PartitionSplit
from keylane.proxy.apis.shared.context import Shared
from keylane.proxy.cluster.cluster import Broker, Cluster
from keylane.proxy.cluster.partition_source import UpstreamSource
from keylane.proxy.commits.forgetting import Forgetting, KeptElsewhere
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.control.describe import GroupDescriber
from keylane.proxy.control.health import Health
from keylane.proxy.control.lane_reports import LaneMeasures
from keylane.proxy.control.server import ControlServer
from keylane.proxy.control.shares.describe import ShareDescriber
from keylane.proxy.control.watch.log_ends import LogEndBook
from keylane.proxy.control.watch.progress import ProgressBook
from keylane.proxy.lanes.fetcher import FetchLimits, LaneFetcher
from keylane.proxy.lanes.split_io import ScannedBlock, ScanSeams
from keylane.proxy.net.listeners import Listeners
from keylane.proxy.net.security.tls_listener import TlsDoor
from keylane.proxy.runtime.descriptors import Descriptors, budget_of, raise_limit
from keylane.proxy.runtime.heap import give_back
from keylane.proxy.runtime.memory_limit import fit_memory
from keylane.proxy.runtime.memory_plan import GATHERING_PART
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.scans.feed import ScanFeed
from keylane.proxy.scans.lag import LaneTallies
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.scans.waits import ScanWaits
from keylane.proxy.session.entrance import Entrance
from keylane.proxy.session.hooks import SessionHooks
from keylane.proxy.session.memory_watch import MemoryWatch
from keylane.proxy.session.session import ClientSession
from keylane.proxy.share.dead_letters import LetterWriter
from keylane.proxy.share.groups import OrderedGroups
from keylane.proxy.share.handovers import HandOvers
from keylane.proxy.share.held_bytes import HeldBytes
from keylane.proxy.share.kit import ShareKit
from keylane.proxy.share.lease_view import LeaseView
from keylane.proxy.startup.control_base import ControlBase, Upkeep, note_faults
from keylane.proxy.startup.control_setup import make_control
from keylane.proxy.startup.group_start import GroupStart
from keylane.proxy.startup.node_drain import OwnNode
from keylane.proxy.startup.node_parts import NodeParts
from keylane.proxy.startup.overview_setup import Tasks, make_watch
from keylane.proxy.topics.placement import Placement, is_placed_here
from keylane.proxy.topics.settings_store import SettingsStore
from keylane.proxy.topics.switches import SwitchBoard
from keylane.tasks import Watched

P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCalls:
    """Calls of the parts to their server."""

    on_failed: Callable[[KeylaneError], None]
    on_closed: Callable[[ClientSession], None]
    on_brokers: Callable[[Iterable[Broker]], Awaitable[None]]
    bind_broker: Callable[[int], Awaitable[tuple[str, int]]]
    rejoin: Callable[[], None]
    """Publish what this node is to the others, which has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts that `server` starts, asks and stops."""

    base: ControlBase
    memory: MemoryWatch
    files: Descriptors
    entrance: Entrance
    hooks: SessionHooks[ClientSession]
    door: TlsDoor
    nodes: NodeParts
    feed: ScanFeed | None
    """None: there are no other nodes."""
    brokers: Listeners
    shared: Shared
    settings: SettingsStore
    forgetting: Forgetting
    group_start: GroupStart
    control: ControlServer | None
    """None: there is no control port."""
    watch: Tasks
    """Tasks that sample for the control port, by name."""


def build(loaded: LoadedConfig, calls: ServerCalls) -> Parts:
    """Make the parts of a node. Raises: ConfigInvalid."""
    stats, health, upkeep = ProxyStats(), Health(), Upkeep(SetAside(time.monotonic), Watched())
    config, plan = fit_memory(loaded.config)
    cluster = Cluster(config, stats, on_brokers=calls.on_brokers, on_grown=calls.rejoin)
    budget = budget_of(raise_limit(), config)
    base = ControlBase(loaded, config, stats, cluster, health, upkeep, budget.control)
    note_faults(upkeep, base.event_log)
    memory = MemoryWatch(config, plan, stats)
    entrance = Entrance(config, stats, connections_max=budget.clients)
    # A seat is asked for the rights of groups, and publishes what stands on them.
    nodes = NodeParts(
        base, shared=lambda: shared, control=lambda: control, on_failed=calls.on_failed
    )
    own_topics = own_topic_clients(base)
    groups = build_groups(base, own_topics, nodes)
    loads, tallies, placement = LaneLoads(time.monotonic), LaneTallies(), Placement(config.node)
    fetcher, feed = build_readers(base, own_topics, groups, loads, tallies)
    brokers = Listeners(calls.bind_broker, stats, on_bound=calls.rejoin)
    shared: Shared = Shared(
        config=config,
        addresses=brokers.addresses,
        cluster=cluster,
        fetcher=fetcher,
        groups=groups,
        loads=loads,
        stats=stats,
        admission=entrance.admission,
        switches=SwitchBoard(config),
        ordered=build_ordered(base, fetcher, own_topics, placement, nodes.lease_view(), feed),
        clock=time.monotonic,
        placement=placement,
        event_log=base.event_log,
    )
    settings = SettingsStore(
        own_topics,
        assignments=shared.assignments,
        switches=shared.switches,
        next_epoch=partial(next_epoch, cluster),
    )
    control, watch = build_control(base, shared, tallies, settings, nodes, entrance.count)
    return Parts(
        base=base,
        memory=memory,
        files=Descriptors(stats, time.monotonic),
        entrance=entrance,
        hooks=entrance.hooks(on_held=memory.note, on_closed=calls.on_closed),
        door=build_door(base, budget.clients),
        nodes=nodes,
        feed=feed,
        brokers=brokers,
        shared=shared,
        settings=settings,
        forgetting=build_forgetting(shared, tallies),
        group_start=GroupStart(
            cluster, groups, settings, lone=nodes.seat, health=health, on_failed=calls.on_failed
        ),
        control=control,
        watch=watch,
    )


def build_control(
    base: ControlBase,
    shared: Shared,
    tallies: LaneTallies,
    settings: SettingsStore,
    nodes: NodeParts,
    connections: Callable[[], int],
) -> tuple[ControlServer | None, Tasks]:
    """Return the control server, and the tasks that sample for it; none without a control port.

    connections: gives the number of clients' connections.
    """
    if base.config.control is None:
        return None, {}
    log_ends, misplaced = LogEndBook(base.cluster), shared.fetcher.misplaced.of
    measures = LaneMeasures(shared.loads, tallies, misplaced, log_ends, ProgressBook())
    describer = build_describer(shared, measures)
    watch = make_watch(describer, measures, base, shared, nodes)
    node = OwnNode(nodes, shared, connections)
    return make_control(base, shared, settings, nodes.group, describer, watch, node), watch.tasks


def own_topic_clients(base: ControlBase) -> OwnTopicClients:
    """Clients of keylane's own topics."""
    return OwnTopicClients(
        base.config.bootstrap,
        base.config.client_id,
        base.cluster.links.client_options,
        base.upkeep.set_aside,
        base.upkeep.watched,
    )


def build_groups(base: ControlBase, own_topics: OwnTopicClients, nodes: NodeParts) -> GroupOffsets:
    """Offsets of groups, with the right to serve them by the node's seat."""
    return GroupOffsets(
        base.config,
        base.cluster,
        own_topics,
        wall_clock=time.time,  # noqa: TID251
        clock=time.monotonic,
        ownership=nodes.group or nodes.seat,
        on_append=base.stats.journaled,
    )


def build_door(base: ControlBase, connections_max: int) -> TlsDoor:
    """Handshakes of clients."""
    return TlsDoor(
        base.cluster.security.listener,
        stats=base.stats,
        connections_max=connections_max,
        per_address_max=base.config.connections_per_address_max,
        timeout_s=base.config.frame_timeout_s,
        clock=time.monotonic,
    )


def build_readers(
    base: ControlBase,
    own_topics: OwnTopicClients,
    groups: GroupOffsets,
    loads: LaneLoads,
    tallies: LaneTallies,
) -> tuple[LaneFetcher, ScanFeed | None]:
    """Readers of partitions, and what listens to their scans, here and on other nodes."""
    on_scanned = in_turn(groups.on_scanned, loads.on_scanned, tallies.on_scanned)
    on_truncated = in_turn(groups.on_truncated, loads.on_truncated, tallies.on_truncated)
    feed = None
    if base.config.node is not None:
        # A cut that another node has met is one for this node's readers, too.
        def cut_readers(topic_id: uuid.UUID, partition: int, end: int) -> None:
            fetcher.forget_cut(topic_id, partition, end)

        feed = ScanFeed(
            own_topics,
            number=base.config.node,
            on_scanned=on_scanned,
            on_truncated=in_turn(cut_readers, on_truncated),
            on_past=partial(note_past, groups, base.cluster),
            wall_clock=time.time,  # noqa: TID251
        )
        groups.scan_waits = ScanWaits(hurry=feed.hurry)
        on_scanned = in_turn(on_scanned, feed.note_scanned)
        on_truncated = in_turn(on_truncated, feed.note_truncated)
    config, cluster = base.config, base.cluster
    fetcher = LaneFetcher(
        partial(UpstreamSource.open, cluster),
        FetchLimits(
            cache_bytes_max=config.cache_bytes_max,
            filtering_bytes_max=config.filtering_bytes_max,
            batch_bytes_max=config.batch_bytes_max,
            read_bytes_max=config.read_bytes_max,
            gathering_bytes_max=config.buffered_bytes_max // GATHERING_PART,
            lane_names_max=config.lane_names_per_principal_max,
            lane_name_lanes_max=config.lane_name_lanes_max,
            threads=config.filter_threads,
        ),
        ScanSeams(
            on_scanned=on_scanned,
            on_truncated=on_truncated,
            remote_scanned_end=(lambda *_: -1) if feed is None else feed.remote_scanned_end,
            lineages=groups.lineages,
        ),
        clock=time.monotonic,
        stats=base.stats,
    )
    cluster.on_leader.append(fetcher.note_leader)
    return fetcher, feed


def build_ordered(
    base: ControlBase,
    fetcher: LaneFetcher,
    own_topics: OwnTopicClients,
    placement: Placement,
    lease: LeaseView,
    feed: ScanFeed | None,
) -> OrderedGroups:
    """Make the share groups in key order."""
    cluster, hand_overs = base.cluster, None
    if feed is not None and base.config.node is not None:
        hand_overs = HandOvers(
            base.config.node,
            feed.publish,
            has_others=lambda: placement.has_others,
            clock=time.monotonic,
        )
        feed.on_note = hand_overs.take_in
    kit = ShareKit(
        cluster=cluster,
        reader_kit=fetcher.kit,
        held_bytes=HeldBytes(fetcher.cache),
        letters=LetterWriter(own_topics),
        clock=time.monotonic,
        is_here=lambda place: is_placed_here(
            placement, cluster.registry, cluster.leaders, place.topic, place[2:]
        ),
        is_known=lambda topic: cluster.registry.count_of(topic) > 0,
        lease=lease,
        hand_overs=hand_overs,
    )
    ordered = OrderedGroups(kit, base.config.share_groups)
    if hand_overs is not None:
        hand_overs.on_offer = ordered.take_offer
        hand_overs.count = ordered.tallies.note_hand_over
    return ordered


def in_turn(*functions: Callable[P, None]) -> Callable[P, None]:
    """Return a function that calls all of these in order."""

    def call(*args: P.args, **named: P.kwargs) -> None:
        for function in functions:
            function(*args, **named)

    return call


def note_past(groups: GroupOffsets, cluster: Cluster, block: ScannedBlock) -> None:
    """Note a block that another node published before this one began."""
    groups.on_scanned(block)
    led = cluster.leaders.get(block.at.place)
    if led is not None:
        groups.scans.note_past(block, led[1])


def build_describer(shared: Shared, measures: LaneMeasures) -> GroupDescriber:
    """Return what describes groups on their lanes."""
    return GroupDescriber(
        shared.cluster,
        shared.groups,
        measures,
        shared.generations,
        shared.consumer_groups,
        ShareDescriber(shared.cluster, shared.ordered, shared.placement),
        rule_of=shared.config.group_rule,
    )


def build_forgetting(shared: Shared, tallies: LaneTallies) -> Forgetting:
    """The end of what Kafka has forgotten."""

    def forget_split(key: PartitionSplit) -> None:
        shared.loads.forget(key)
        tallies.forget(key)

    def forget_group(group: str) -> None:
        shared.refreshes.forget(group)
        shared.consumer_groups.forget(group)

    return Forgetting(
        shared.cluster,
        shared.groups,
        shared.stats,
        KeptElsewhere(
            splits_read=shared.fetcher.splits_read,
            is_configured=shared.cluster.registry.is_configured,
            on_split=forget_split,
            on_group=forget_group,
            on_deserted=shared.consumer_groups.forget,
            on_freed=partial(asyncio.to_thread, give_back),
        ),
        interval_s=shared.config.forget_interval_s,
    )
