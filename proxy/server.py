"""The proxy: one listener for bootstrap, one per upstream broker; start, sweep, drain.

In:    `ProxyConfig`.  Out: a running proxy; `run` returns when it has stopped.

A client connection to the address of broker b is paired with one connection to b, so every
SASL mechanism, quota and ACL works on the real principal. All listeners of brokers that are known
at start are bound before the proxy says that it is ready.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

from keylane.config.node import ProxyConfig, split_address
from keylane.errors import ConfigInvalid, KeylaneError
from keylane.journal.epochs import next_epoch
from keylane.journal.own_topic import OwnTopicClients
from keylane.journal.ownership import Alone
from keylane.journal.set_aside import SetAside
from keylane.kernel.warmup import warm_up
from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.lineage import Lineages
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.parts import Shared
from keylane.proxy.cluster.cluster import Broker, Cluster
from keylane.proxy.cluster.partition_source import UpstreamSource
from keylane.proxy.commits.forgetting import Forgetting
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.commits.read_behind import read_behind
from keylane.proxy.commits.retention import follow_retention
from keylane.proxy.control.describe import GroupDescriber
from keylane.proxy.control.health import Health
from keylane.proxy.control.server import ControlServer
from keylane.proxy.lanes.fetcher import LaneFetcher
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.net.listeners import Listeners
from keylane.proxy.net.security.tls_listener import TlsDoor
from keylane.proxy.net.upstream import UpstreamLink
from keylane.proxy.runtime.descriptors import Descriptors, budget_of, raise_limit
from keylane.proxy.runtime.heap import give_back, keep_freed_memory
from keylane.proxy.runtime.memory_limit import fit_memory
from keylane.proxy.runtime.memory_plan import GATHERING_PART
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.scans.feed import ScanFeed
from keylane.proxy.scans.lag import LaneTallies
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.scans.scan_listeners import ScanListeners
from keylane.proxy.scans.waits import ScanWaits
from keylane.proxy.session.entrance import Entrance
from keylane.proxy.session.memory_watch import MemoryWatch
from keylane.proxy.session.session import ClientSession
from keylane.proxy.startup.control_setup import Upkeep, make_control
from keylane.proxy.startup.dialer import Dialer
from keylane.proxy.startup.group_start import GroupStart
from keylane.proxy.startup.node_parts import NodeParts
from keylane.proxy.startup.node_rights import expect_rights
from keylane.proxy.startup.rights_advice import advise, own_principals
from keylane.proxy.topics.placement import Placement
from keylane.proxy.topics.settings_store import SettingsStore
from keylane.proxy.topics.switches import SwitchBoard
from keylane.tasks import Watched, running_count, spawn

log = logging.getLogger("keylane.server")

SWEEP_INTERVAL_S: Final = 1.0
AGE_JITTER: Final = 0.1
BACKLOG: Final = 1024
"""Connections that wait to be accepted: a large group reconnects all at once."""

Connect = Callable[[], Awaitable[UpstreamLink]]


class ProxyServer:
    """One node. Use: `start`, then `stop`; both are awaited once."""

    def __init__(self, config: ProxyConfig) -> None:
        self.stats = ProxyStats()
        self.health = Health()
        self._upkeep = Upkeep(SetAside(time.monotonic), Watched())
        config, plan = fit_memory(config)
        self.config, self._memory = config, MemoryWatch(config, plan, self.stats)
        self._cluster = Cluster(config, self.stats)
        self._security = self._cluster.security
        self._dialer = Dialer(config, self._cluster)
        self._files = Descriptors(self.stats, time.monotonic)
        self._budget = budget_of(raise_limit(), config)
        self._entrance = Entrance(config, self.stats, connections_max=self._budget.clients)
        self._hooks = self._entrance.hooks(on_held=self._memory.note, on_closed=self._closed)
        self._door = self._make_door(config)
        self._listeners: dict[int | None, asyncio.Server] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._parts = NodeParts(config, self._cluster, self.stats, on_failed=self._fail)
        self._nodes, self._lone = self._parts.group, self._parts.seat
        self.failure: asyncio.Future[KeylaneError] = asyncio.Future()
        groups = self._make_groups(config)
        loads, tallies = LaneLoads(time.monotonic), LaneTallies()
        scanned = groups.on_scanned, loads.on_scanned, tallies.on_scanned
        here = ScanListeners(
            scanned, (groups.on_truncated, loads.on_truncated, tallies.on_truncated)
        )
        self._feed = None if config.node is None else self._make_feed(config.node, here, groups)
        if (feed := self._feed) is not None:
            here = ScanListeners(
                (here.on_scanned, feed.note_scanned), (here.on_truncated, feed.note_truncated)
            )
        fetcher = self._make_fetcher(here, groups.lineages)
        self._brokers = Listeners(self._bind_broker, self.stats, on_bound=self._note_bound)
        self._shared = Shared(
            config=config,
            addresses=self._brokers.addresses,
            cluster=self._cluster,
            fetcher=fetcher,
            groups=groups,
            loads=loads,
            stats=self.stats,
            admission=self._entrance.admission,
            switches=SwitchBoard(config),
            clock=time.monotonic,
            placement=Placement(config.node),
        )
        self._cluster.on_leader.append(fetcher.note_leader)
        self._settings = self._make_settings(self._shared)
        self._forgetting = self._make_forgetting(self._shared, tallies)
        self._group_start = GroupStart(
            self._cluster,
            groups,
            self._settings,
            lone=self._lone,
            health=self.health,
            on_failed=self._fail,
        )
        describer = GroupDescriber(self._cluster, groups, loads, tallies, self._shared.generations)
        address = config.control
        self.control = None if address is None else self._make_control(address, describer)
        self._parts.share(self._shared, self.control)

    def _make_control(self, address: str, describer: GroupDescriber) -> ControlServer:
        return make_control(
            address,
            describer,
            self.config,
            self._shared,
            self._settings,
            self.health,
            self._upkeep,
            nodes=self._nodes,
            context=self._security.control,
            connections_max=self._budget.control,
        )

    def _make_groups(self, config: ProxyConfig) -> GroupOffsets:
        return GroupOffsets(
            config,
            self._cluster,
            wall_clock=time.time,  # noqa: TID251
            clock=time.monotonic,
            ownership=self._nodes or self._lone or Alone(),
            on_append=self.stats.journaled,
            set_aside=self._upkeep.set_aside,
        )

    def _make_door(self, config: ProxyConfig) -> TlsDoor:
        return TlsDoor(
            self._security.listener,
            stats=self.stats,
            connections_max=self._budget.clients,
            per_address_max=config.connections_per_address_max,
            timeout_s=config.frame_timeout_s,
            clock=time.monotonic,
        )

    def _make_settings(self, shared: Shared) -> SettingsStore:
        return SettingsStore(
            self._own_topics(),
            assignments=shared.assignments,
            switches=shared.switches,
            next_epoch=partial(next_epoch, self._cluster),
        )

    def _own_topics(self) -> OwnTopicClients:
        return OwnTopicClients(
            self.config.bootstrap,
            self.config.client_id,
            self._cluster.links.client_options,
            self._upkeep.set_aside,
            self._upkeep.watched,
        )

    def _make_forgetting(self, shared: Shared, tallies: LaneTallies) -> Forgetting:
        def forget_split(key: PartitionSplit) -> None:
            shared.loads.forget(key)
            tallies.forget(key)

        return Forgetting(
            self._cluster,
            shared.groups,
            self.stats,
            interval_s=self.config.forget_interval_s,
            splits_read=shared.fetcher.splits_read,
            is_configured=self._cluster.registry.is_configured,
            on_split=forget_split,
            on_group=shared.refreshes.forget,
            on_freed=partial(asyncio.to_thread, give_back),
        )

    def _make_feed(self, number: int, here: ScanListeners, groups: GroupOffsets) -> ScanFeed:
        # A cut that another node has met is one for this node's readers, too.
        # The fetcher is made after the feed, so it is looked up when it is needed.
        readers = lambda *cut: self._shared.fetcher.forget_cut(*cut)  # noqa: E731, PLW0108
        cut = ScanListeners((), (readers, *here.truncated))

        def on_past(block: ScannedBlock) -> None:
            groups.on_scanned(block)
            led = self._cluster.leaders.get((block.topic_id, block.partition))
            if led is not None:
                groups.scans.note_past(block, led[1])

        feed = ScanFeed(
            self._own_topics(),
            number=number,
            on_scanned=here.on_scanned,
            on_truncated=cut.on_truncated,
            on_past=on_past,
            wall_clock=time.time,  # noqa: TID251
        )
        groups.scan_waits = ScanWaits(hurry=feed.hurry)
        return feed

    def _make_fetcher(self, scan_listeners: ScanListeners, lineages: Lineages) -> LaneFetcher:
        config = self.config
        return LaneFetcher(
            lambda topic, topic_id, partition: UpstreamSource.open(
                self._cluster, topic, topic_id, partition
            ),
            cache_bytes_max=config.cache_bytes_max,
            filtering_bytes_max=config.filtering_bytes_max,
            batch_bytes_max=config.batch_bytes_max,
            read_bytes_max=config.read_bytes_max,
            lane_names_max=config.lane_names_per_principal_max,
            lane_name_lanes_max=config.lane_name_lanes_max,
            gathering_bytes_max=config.buffered_bytes_max // GATHERING_PART,
            threads=config.filter_threads or os.cpu_count() or 1,
            clock=time.monotonic,
            on_scanned=scan_listeners.on_scanned,
            on_truncated=scan_listeners.on_truncated,
            remote_scanned_end=None if self._feed is None else self._feed.remote_scanned_end,
            lineages=lineages,
            stats=self.stats,
        )

    @property
    def bootstrap(self) -> str:
        """Bootstrap address for clients, `host:port`."""
        host, port = self._shared.bootstrap
        return f"{host}:{port}"

    async def start(self) -> None:
        """Learn the cluster, load offsets, bind every listener.

        Raises: UpstreamLost (no broker), ConfigInvalid (names, ports).
        """
        keep_freed_memory()
        self._files.watch(asyncio.get_running_loop())
        warming = asyncio.get_running_loop().run_in_executor(None, warm_up)
        port = await self._listen(
            None, split_address(self.config.listen)[1], self._dialer.any_broker
        )
        self._shared.bootstrap = self.config.advertised_bootstrap(port)
        self._cluster.on_brokers = self._learn_brokers
        self._cluster.on_grown = None if self._nodes is None else self._nodes.rejoin
        await self._cluster.start()
        await self._group_start.start()
        if self._feed is not None:
            await self._feed.start()
        if self.control is not None:
            await self.control.start()
        await warming
        for server in self._listeners.values():
            await server.start_serving()
        self._sweeper = self._upkeep.watched.run(self._sweep, "sweep")
        follow = partial(follow_retention, self._cluster, self._shared.refreshes)
        retention = self._upkeep.watched.run(follow, "retention")
        forgetting = self._upkeep.watched.run(self._forgetting.run, "forgetting")
        self._sweeper.add_done_callback(lambda _: (retention.cancel(), forgetting.cancel()))
        if self._nodes is not None:
            await expect_rights(self._cluster)
            # Last: from now on the others send clients here.
            await self._nodes.start(self._shared.groups.partition_count)
        spawn(advise(self._cluster, own_principals(self.config)), "advice about rights")
        self.health.serves()

    async def stop(self) -> None:
        """Take no more requests, answer those under way, close."""
        self.health.stops()
        await self._group_start.stop()
        if self._nodes is not None:
            # First: the others take over at once, while what is under way here is answered.
            await self._nodes.stop()
        self._brokers.stop()
        for server in self._listeners.values():
            server.close()
        await self._entrance.drain("proxy stops", timeout_s=self.config.drain_timeout_s)
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._shared.fetcher.stop()
        if self._feed is not None:
            await self._feed.stop()
        await self._shared.groups.stop()
        await self._group_start.leave()
        if self.control is not None:
            await self.control.stop()
        await self._settings.stop()
        self._shared.turns.stop()
        self._cluster.stop()

    # Other nodes.
    def _fail(self, error: KeylaneError) -> None:
        """Groups are served by others by now, or cannot be: this node has to end."""
        if not self.failure.done():
            self.failure.set_result(error)

    # Listeners.
    async def _learn_brokers(self, brokers: Iterable[Broker]) -> None:
        """Listen for brokers that have become known, before an answer names them.

        Where the address of one has changed, connections made from now on go there.
        """
        await self._brokers.learn([broker.node_id for broker in brokers], strict=not self._serves)

    async def _bind_broker(self, broker_id: int) -> tuple[str, int]:
        """Listen for a broker. Raises: ConfigInvalid."""
        wanted = self.config.broker_port(broker_id)
        port = await self._listen(broker_id, wanted, lambda: self._dialer.broker(broker_id))
        try:
            address = self._advertised(broker_id, port)
        except ConfigInvalid:
            self._listeners.pop(broker_id).close()
            raise
        log.info("listening broker=%d port=%d", broker_id, port)
        return address

    def _note_bound(self) -> None:
        if self._nodes is not None:
            self._nodes.rejoin()

    @property
    def _serves(self) -> bool:
        return self._sweeper is not None

    def _advertised(self, broker_id: int, port: int) -> tuple[str, int]:
        try:
            return self.config.advertised_broker(broker_id, port)
        except ValueError as error:
            raise ConfigInvalid(str(error)) from None

    async def _listen(self, key: int | None, port: int, connect: Connect) -> int:
        host = split_address(self.config.listen)[0]
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: self._door.protocol(lambda: self._accept(connect)),
                host,
                port,
                backlog=BACKLOG,
                start_serving=self._serves,
                reuse_port=(key is None and self.config.share_port) or None,
            )
        except (OSError, OverflowError) as error:
            raise ConfigInvalid(f"listen: {host}:{port}: {error}") from None
        self._listeners[key] = server
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _accept(self, connect: Connect) -> ClientSession:
        return ClientSession(
            connect=connect,
            make_context=lambda session: Context(session, self._shared),
            stats=self.stats,
            request_bytes_max=self.config.request_bytes_max,
            hooks=self._hooks,
            is_login_required=self._security.is_login_required,
            age_s_max=self._age_s_max(),
        )

    def _age_s_max(self) -> float:
        """When a connection made now is to end, in seconds: not all at once."""
        age_s = self.config.connection_max_age_s
        return age_s * random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER) if age_s else math.inf

    def _closed(self, session: ClientSession) -> None:
        self._memory.leave(session)
        if self._entrance.left(session):
            self._shared.fetcher.release(session.session_id)
            session.context.member_lanes.clear()

    def reload(self) -> None:
        """Read the certificates again: connections made from now on get them."""
        self._security.poll(force=True)

    async def _sweep(self) -> None:
        """Close what is idle or too slow. The period is the precision of the time-outs."""
        while True:
            due_s = asyncio.get_running_loop().time() + SWEEP_INTERVAL_S
            await asyncio.sleep(SWEEP_INTERVAL_S)
            now_s = asyncio.get_running_loop().time()
            self.stats.loop_delay_seconds = max(0.0, now_s - due_s)
            self.stats.tasks = running_count()
            self.stats.topics = len(self._cluster.registry.topics)
            self._security.poll()
            self._files.probe()
            self._entrance.sweep(now_s)
            shared = self._shared
            for late in shared.groups.late.overdue(time.monotonic()):
                reading = read_behind(late, shared.fetcher, shared.groups)
                spawn(reading, "read behind a stable offset")
            shared.fetcher.sweep(now_s)
