"""The proxy: one listener for bootstrap, one per upstream broker; start, sweep, drain.

In:    `ProxyConfig`.  Out: a running proxy; `run` returns when it has stopped.
Shell: asyncio, signals.

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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from keylane import __version__
from keylane.config import ProxyConfig, split_address
from keylane.errors import ConfigInvalid, KeylaneError
from keylane.kernel.warmup import warm_up
from keylane.offsets.epochs import next_epoch
from keylane.offsets.lineage import Lineages
from keylane.proxy.admission import Admission
from keylane.proxy.cluster import Broker, Cluster
from keylane.proxy.context import SessionContext, Shared
from keylane.proxy.control import ControlServer, open_control_door
from keylane.proxy.control_api.settings import Settings
from keylane.proxy.control_api.topics import ClusterTopics
from keylane.proxy.control_auth import ControlGuard
from keylane.proxy.describe import GroupDescriber
from keylane.proxy.dialer import Dialer
from keylane.proxy.exposition import Exposition, Source
from keylane.proxy.group_gauges import GroupGauges
from keylane.proxy.group_start import GroupStart
from keylane.proxy.groups import GroupOffsets
from keylane.proxy.health import Health
from keylane.proxy.heap import keep_freed_memory
from keylane.proxy.hearers import Hearers
from keylane.proxy.lag import LaneTallies
from keylane.proxy.lane_fetch import LaneFetcher
from keylane.proxy.live_feed import LiveFeed
from keylane.proxy.loads import LaneLoads
from keylane.proxy.memory_limit import fit_memory
from keylane.proxy.memory_plan import GATHERING_PART
from keylane.proxy.memory_watch import MemoryWatch
from keylane.proxy.nodes.gauges import NodeGauges
from keylane.proxy.nodes.group import NodeGroup
from keylane.proxy.nodes.lone import LoneSeat, is_guarded
from keylane.proxy.nodes.node_rights import expect_rights
from keylane.proxy.nodes.placement import Placement
from keylane.proxy.nodes.process_mark import make_mark
from keylane.proxy.nodes.scan_feed import ScanFeed
from keylane.proxy.nodes.scan_waits import ScanWaits
from keylane.proxy.nodes.tenure import Alone
from keylane.proxy.nodes.values import Membership, NodeInfo
from keylane.proxy.read_behind import read_behind
from keylane.proxy.retention import follow_retention
from keylane.proxy.session import ClientSession
from keylane.proxy.settings_store import SettingsStore
from keylane.proxy.source import UpstreamSource
from keylane.proxy.stats import ProxyStats
from keylane.proxy.switches import SwitchBoard
from keylane.proxy.tasks import running_count, spawn
from keylane.proxy.tls_door import TlsDoor
from keylane.proxy.upstream import UpstreamLink

log = logging.getLogger("keylane.server")

SWEEP_INTERVAL_S: Final = 1.0
ANY_HOST: Final = ("0.0.0.0", "::")  # noqa: S104 - what to tell in its place
AGE_JITTER: Final = 0.1
BACKLOG: Final = 1024
"""Connections that wait to be accepted: a large group reconnects all at once."""

Connect = Callable[[], Awaitable[UpstreamLink]]


class ProxyServer:
    """One node. Use: `start`, then `stop`; both are awaited once."""

    def __init__(self, config: ProxyConfig) -> None:
        self.stats = ProxyStats()
        self.health = Health()
        config, plan = fit_memory(config)
        self.config, self._memory = config, MemoryWatch(config, plan, self.stats)
        self._cluster = Cluster(config)
        self._security = self._cluster.security
        self._dialer = Dialer(config, self._cluster)
        self._admission, self._door = self._make_entrance(config)
        self._listeners: dict[int | None, asyncio.Server] = {}
        self._sessions: set[ClientSession] = set()
        self._all_closed = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None
        self._refused: str | None = None
        self._nodes = None if config.node is None else self._make_nodes(config)
        self._lone = self._make_lone_seat(config) if is_guarded(config) else None
        self.failure: asyncio.Future[KeylaneError] = asyncio.Future()
        groups = GroupOffsets(
            config,
            self._cluster,
            wall_clock=time.time,  # noqa: TID251
            tenure=self._nodes or self._lone or Alone(),
            on_append=self.stats.journaled,
        )
        loads, tallies = LaneLoads(time.monotonic), LaneTallies()
        here = Hearers(
            (groups.on_scanned, loads.on_scanned, tallies.on_scanned),
            (groups.on_truncated, loads.on_truncated, tallies.on_truncated),
        )
        self._feed = None if config.node is None else self._make_feed(config.node, here, groups)
        if self._feed is not None:
            here = Hearers(
                (here.on_scanned, self._feed.note_scanned),
                (here.on_truncated, self._feed.note_truncated),
            )
        fetcher = self._make_fetcher(here, groups.lineages)
        self._shared = Shared(
            config=config,
            cluster=self._cluster,
            fetcher=fetcher,
            groups=groups,
            loads=loads,
            stats=self.stats,
            admission=self._admission,
            switches=SwitchBoard(config),
            placement=Placement(config.node),
        )
        self._settings = self._make_settings(self._shared)
        self._group_start = GroupStart(
            self._cluster,
            groups,
            self._settings,
            lone=self._lone,
            health=self.health,
            on_failed=self._fail,
        )
        describer = GroupDescriber(self._cluster, groups, loads, tallies, self._shared.generations)
        self.control = None
        if config.control is not None:
            self.control = self._make_control(config.control, describer)

    def _make_entrance(self, config: ProxyConfig) -> tuple[Admission, TlsDoor]:
        admission = Admission(
            connections_max=config.connections_max,
            per_address_max=config.connections_per_address_max,
            per_principal_max=config.connections_per_principal_max,
            groups_per_principal_max=config.groups_per_principal_max,
        )
        door = TlsDoor(
            self._security.listener,
            stats=self.stats,
            connections_max=config.connections_max,
            per_address_max=config.connections_per_address_max,
            timeout_s=config.frame_timeout_s,
        )
        return admission, door

    def _make_settings(self, shared: Shared) -> SettingsStore:
        return SettingsStore(
            self.config.bootstrap,
            assignments=shared.assignments,
            switches=shared.switches,
            next_epoch=partial(next_epoch, self._cluster),
            client_id=self.config.client_id,
            options=self._security.aiokafka_options,
        )

    def _make_nodes(self, config: ProxyConfig) -> NodeGroup:
        return NodeGroup(
            self._cluster,
            session_timeout_ms=config.node_session_timeout_ms,
            describe=self._node_info,
            on_membership=self._on_membership,
        )

    def _make_lone_seat(self, config: ProxyConfig) -> LoneSeat:
        return LoneSeat(
            self._cluster,
            session_timeout_ms=config.node_session_timeout_ms,
            describe=self._lone_info,
            on_membership=lambda _: self._shared.groups.drop_lost(),
            on_refused=self._fail,
        )

    def _make_feed(self, number: int, here: Hearers, groups: GroupOffsets) -> ScanFeed:
        # A cut that another node has met is one for this node's readers, too.
        # The fetcher is made after the feed, so it is looked up when it is needed.
        readers = lambda *cut: self._shared.fetcher.forget_cut(*cut)  # noqa: E731, PLW0108
        cut = Hearers((), (readers, *here.truncated))
        feed = ScanFeed(
            self.config.bootstrap,
            number=number,
            on_scanned=here.on_scanned,
            on_truncated=cut.on_truncated,
            on_past=groups.on_scanned,
            wall_clock=time.time,  # noqa: TID251
            client_id=self.config.client_id,
            options=self._security.aiokafka_options,
        )
        groups.scan_waits = ScanWaits(hurry=feed.hurry)
        return feed

    def _make_fetcher(self, hearers: Hearers, lineages: Lineages) -> LaneFetcher:
        config = self.config
        return LaneFetcher(
            lambda topic, topic_id, partition: UpstreamSource.open(
                self._cluster, topic, topic_id, partition
            ),
            cache_bytes_max=config.cache_bytes_max,
            filtering_bytes_max=config.filtering_bytes_max,
            batch_bytes_max=config.batch_bytes_max,
            read_bytes_max=config.read_bytes_max,
            gathering_bytes_max=config.buffered_bytes_max // GATHERING_PART,
            threads=config.filter_threads or os.cpu_count() or 1,
            clock=time.monotonic,
            on_scanned=hearers.on_scanned,
            on_truncated=hearers.on_truncated,
            told_end=None if self._feed is None else self._feed.told_end,
            lineages=lineages,
            stats=self.stats,
        )

    def _make_control(self, address: str, describer: GroupDescriber) -> ControlServer:
        shared = self._shared
        gauges = GroupGauges(
            shared.groups.states, shared.fetcher.log_ends, shared.fetcher.lane_count
        )
        live = LiveFeed(
            describer,
            shared.loads,
            self.stats,
            views=self._cluster.registry.views.values,
            groups=self._lane_groups,
        )
        return ControlServer(
            address,
            Exposition([self.stats.samples, gauges.samples, *self._node_gauges()]),
            self.health,
            describer,
            Settings(self._settings, shared.assignments, shared.switches),
            ClusterTopics(self._cluster),
            live=live,
            elsewhere=shared.placement.control_of_group,
            guard=ControlGuard(self.config),
            door=open_control_door(self._security.control, self.stats, self.config),
        )

    def _node_gauges(self) -> list[Source]:
        nodes, number = self._nodes, self.config.node
        if nodes is None or number is None:
            return []
        disputes = self._cluster.registry.disputes
        return [NodeGauges(number, lambda: nodes.membership, nodes.holds, disputes).samples]

    def _lane_groups(self) -> list[str]:
        """Groups that have joined here, then those that have offsets of lanes."""
        joined = sorted(self._shared.generations.groups())
        known = sorted({key.group for key, _ in self._shared.groups.states()}.difference(joined))
        return joined + known

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
        warming = asyncio.get_running_loop().run_in_executor(None, warm_up)
        port = await self._listen(
            None, split_address(self.config.listen)[1], self._dialer.any_broker
        )
        self._shared.bootstrap = self.config.advertised_bootstrap(port)
        self._cluster.on_broker = self._bind_broker
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
        self._sweeper = spawn(self._sweep(), "sweep")
        retention = spawn(follow_retention(self._cluster, self._shared.refreshes), "retention")
        self._sweeper.add_done_callback(lambda _: retention.cancel())
        if self._nodes is not None:
            await expect_rights(self._cluster)
            # Last: from now on the others send clients here.
            await self._nodes.start(self._shared.groups.partition_count)
        self.health.serves()

    async def stop(self) -> None:
        """Take no more requests, answer those under way, close."""
        self.health.stops()
        await self._group_start.stop()
        if self._nodes is not None:
            # First: the others take over at once, while what is under way here is answered.
            await self._nodes.stop()
        for server in self._listeners.values():
            server.close()
        for session in list(self._sessions):
            session.drain("proxy stops")
        if self._sessions:
            self._all_closed.clear()
            try:
                async with asyncio.timeout(self.config.drain_timeout_s):
                    await self._all_closed.wait()
            except TimeoutError:
                log.warning("drain timed out sessions=%d", len(self._sessions))
        for session in list(self._sessions):
            session.close("proxy stops")
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
        self._cluster.stop()

    # Other nodes.
    def _fail(self, error: KeylaneError) -> None:
        """Groups are served by others by now, or cannot be: this node has to end."""
        if not self.failure.done():
            self.failure.set_result(error)

    def _lone_info(self) -> NodeInfo:
        """What a node that comes later is told of the only one."""
        return NodeInfo(
            number=0,
            bootstrap=self._shared.bootstrap,
            version=__version__,
            lone=True,
            process=make_mark(),
        )

    def _node_info(self) -> NodeInfo:
        """What the others are told of this node."""
        number, control = self.config.node, self.control
        assert number is not None, "asked for among many nodes"
        url = ""
        if control is not None:
            host, port = split_address(control.address)
            host = self.config.advertised_host if host in ANY_HOST else host
            host = self.config.control_advertise or host
            url = f"{control.scheme}://{host}:{port}"
        return NodeInfo(
            number=number,
            bootstrap=self._shared.bootstrap,
            brokers=dict(self._shared.addresses),
            rules=self._cluster.node_rules,
            pinned=self._cluster.pins,
            lane_name_pattern=self.config.lane_name_pattern or "",
            control=url,
            version=__version__,
        )

    def _on_membership(self, membership: Membership) -> None:
        """The nodes have agreed anew on who is there, and who serves which groups."""
        self._shared.hear_nodes(membership)
        self.stats.node_generations += 1
        self._shared.groups.drop_lost()

    # Listeners.
    async def _bind_broker(self, broker: Broker) -> None:
        """Listen for a broker that has become known, before any client is told of it."""
        if broker.node_id in self._listeners:
            return  # its address has changed; connections made from now on go there
        wanted = self.config.broker_port(broker.node_id)
        port = await self._listen(
            broker.node_id,
            wanted,
            lambda: self._dialer.broker(broker.node_id),
        )
        self._shared.addresses[broker.node_id] = self._advertised(broker.node_id, port)
        log.info("listening broker=%d port=%d", broker.node_id, port)
        if self._nodes is not None:
            self._nodes.rejoin()

    def _advertised(self, broker_id: int, port: int) -> tuple[str, int]:
        try:
            return self.config.advertised_broker(broker_id, port)
        except ValueError as error:
            raise ConfigInvalid(str(error)) from None

    async def _listen(self, key: int | None, port: int, connect: Connect) -> int:
        host = split_address(self.config.listen)[0]
        serving = self._sweeper is not None
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: self._door.protocol(lambda: self._accept(connect)),
                host,
                port,
                backlog=BACKLOG,
                start_serving=serving,
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
            make_context=lambda session: SessionContext(session, self._shared),
            stats=self.stats,
            request_bytes_max=self.config.request_bytes_max,
            on_closed=self._closed,
            admit=self._admit,
            admit_principal=self._admit_principal,
            is_login_required=self._security.is_login_required,
            age_s_max=self._age_s_max(),
            on_held=self._memory.note,
        )

    def _age_s_max(self) -> float:
        """When a connection made now is to end, in seconds: not all at once."""
        age_s = self.config.connection_max_age_s
        return age_s * random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER) if age_s else math.inf

    def _admit(self, session: ClientSession) -> str | None:
        """Count a session that is connected, its TLS handshake done; why it is refused."""
        refused = self._admission.enter(session.address)
        if refused is not None:
            self.stats.sessions_refused += 1
            self._refused = refused
            return refused
        self._sessions.add(session)
        self.stats.sessions = len(self._sessions)
        self.stats.sessions_opened += 1
        return None

    def _admit_principal(self, principal: str) -> str | None:
        """Count a session that has logged in; why it is refused."""
        refused = self._admission.log_in(principal)
        if refused is not None:
            self.stats.sessions_refused += 1
            self._refused = refused
        return refused

    def _closed(self, session: ClientSession) -> None:
        self._memory.leave(session)
        if session not in self._sessions:
            return  # it was never let in
        self._sessions.discard(session)
        self._admission.leave(session.address, session.principal)
        self.stats.sessions = len(self._sessions)
        self._shared.fetcher.release(session.session_id)
        session.context.member_lanes.clear()
        if not self._sessions:
            self._all_closed.set()

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
            self._security.poll()
            if self._refused is not None:
                log.warning("connections are refused reason=%s", self._refused)
                self._refused = None
            for session in list(self._sessions):
                session.check_timeouts(
                    now_s,
                    frame_s=self.config.frame_timeout_s,
                    idle_s=self.config.idle_timeout_s,
                    unread_s=self.config.unread_timeout_s,
                )
            for session in self._sessions:
                session.note_held()
            for late in self._shared.groups.late.overdue(time.monotonic()):
                spawn(read_behind(late, self._shared.fetcher), "read behind a stable offset")
            self._shared.fetcher.sweep(now_s)
