"""The proxy: one listener for bootstrap, one per upstream broker; start, sweep, drain.

A client connection to the address of broker b is paired with one connection to b, so every
SASL mechanism, quota and ACL works on the real principal. All listeners of brokers that are known
at start are bound before the proxy says that it is ready.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final

from keylane.config.node import ProxyConfig, split_address
from keylane.config.origins import LoadedConfig, Origin
from keylane.errors import BrokerUnreachable, ConfigInvalid, KeylaneError, reason_of
from keylane.proxy.apis.shared.context import ANY_BROKER, Context
from keylane.proxy.cluster.cluster import Broker
from keylane.proxy.commits.late_pushes import read_behind
from keylane.proxy.commits.refreshes import follow_retention
from keylane.proxy.net.upstream import UpstreamLink
from keylane.proxy.runtime.heap import keep_freed_memory
from keylane.proxy.session.session import ClientSession
from keylane.proxy.startup.build import ServerCalls, build
from keylane.proxy.startup.node_rights import expect_rights
from keylane.proxy.startup.rights_advice import advise, own_principals
from keylane.proxy.startup.start_lines import (
    log_begin,
    log_cluster,
    log_listeners,
    log_rules,
    warm_up_logged,
)
from keylane.tasks import running_count, spawn

log = logging.getLogger("keylane.server")

SWEEP_INTERVAL_S: Final = 1.0
LEAD_AWAY_S: Final = 10.0
"""Time in which connections end, one after the other, of clients that are sent to other nodes."""
AGE_JITTER: Final = 0.1
BACKLOG: Final = 1024
"""Connections that wait to be accepted: a large group reconnects all at once."""

Connect = Callable[[], Awaitable[UpstreamLink]]


class ProxyServer:
    """One node. Use: `start`, then `stop`; both are awaited once."""

    def __init__(self, config: ProxyConfig, origins: Mapping[str, Origin] | None = None) -> None:
        """Make the parts. Raises: ConfigInvalid.

        origins: the place that set each key; None: the program that makes the node.
        """
        loaded = LoadedConfig.of(config) if origins is None else LoadedConfig(config, origins)
        parts = build(
            loaded,
            ServerCalls(
                on_failed=self._fail,
                on_closed=self._closed,
                on_brokers=self._learn_brokers,
                bind_broker=self._bind_broker,
                rejoin=self._rejoin,
            ),
        )
        self._parts, base = parts, parts.base
        self.config, self.stats, self.health = base.config, base.stats, base.health
        self.control, self._shared = parts.control, parts.shared
        self._cluster, self._security = base.cluster, base.cluster.security
        self._nodes, self._upkeep = parts.nodes.group, base.upkeep
        self._listeners: dict[int | None, asyncio.Server] = {}
        self._is_led_away = False
        self._sweeper: asyncio.Task[None] | None = None
        self.failure: asyncio.Future[KeylaneError] = asyncio.Future()

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
        log_begin(self.config)
        self._parts.files.watch(asyncio.get_running_loop())
        warming = asyncio.get_running_loop().run_in_executor(None, warm_up_logged)
        port = await self._listen(None, split_address(self.config.listen)[1], self._connect_any)
        self._shared.bootstrap = self.config.advertised_bootstrap(port)
        await self._cluster.start()
        log_cluster(self._cluster)
        log_rules(self.config, self._cluster)
        await self._parts.group_start.start()
        if self._parts.feed is not None:
            await self._parts.feed.start()
        if self.control is not None:
            await self.control.start()
        await warming
        log_listeners(self.bootstrap, self._parts.brokers.addresses.items())
        for server in self._listeners.values():
            await server.start_serving()
        self._sweeper = self._upkeep.watched.run(self._sweep, "sweep")
        follow = partial(follow_retention, self._cluster, self._shared.refreshes)
        retention = self._upkeep.watched.run(follow, "retention")
        forgetting = self._upkeep.watched.run(self._parts.forgetting.run, "forgetting")
        run = self._upkeep.watched.run
        watches = [run(make, name) for name, make in self._parts.watch.items()]
        beside = [retention, forgetting, *watches]
        self._sweeper.add_done_callback(lambda _: [task.cancel() for task in beside])
        if self._nodes is not None:
            await expect_rights(self._cluster)
            # Last: from now on the others send clients here.
            await self._nodes.start(self._shared.groups.partition_count)
        spawn(advise(self._cluster.request, own_principals(self.config)), "advice about rights")
        self.health.serves()
        self.health.is_draining = lambda: self._shared.placement.is_led_away

    async def stop(self) -> None:
        """Take no more requests, answer those under way, close."""
        self.health.stops()
        self._shared.ordered.drain()
        await self._shared.ordered.hand_over()
        await self._parts.group_start.stop()
        if self._nodes is not None:
            # First: the others take over at once, while what is under way here is answered.
            await self._nodes.stop()
        self._parts.brokers.stop()
        for server in self._listeners.values():
            server.close()
        await self._parts.entrance.drain("proxy stops", timeout_s=self.config.drain_timeout_s)
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._shared.ordered.stop()
        await self._shared.fetcher.stop()
        if self._parts.feed is not None:
            await self._parts.feed.stop()
        await self._shared.groups.stop()
        await self._parts.group_start.leave()
        if self.control is not None:
            await self.control.stop()
        await self._parts.settings.stop()
        self._shared.turns.stop()
        self._cluster.stop()

    # Other nodes.
    def _fail(self, error: KeylaneError) -> None:
        """End the node: its groups are served by others, or cannot be served."""
        if not self.failure.done():
            self.failure.set_result(error)

    # Listeners.
    async def _learn_brokers(self, brokers: Iterable[Broker]) -> None:
        """Listen for brokers that have become known, before an answer names them.

        Where the address of one has changed, connections made from now on go there.
        """
        await self._parts.brokers.learn(
            [broker.node_id for broker in brokers], strict=not self._serves
        )

    async def _bind_broker(self, broker_id: int) -> tuple[str, int]:
        """Listen for a broker. Raises: ConfigInvalid."""
        wanted = self.config.broker_port(broker_id)
        port = await self._listen(broker_id, wanted, lambda: self._connect_broker(broker_id))
        try:
            address = self.config.advertised_broker(broker_id, port)
        except ValueError as error:
            self._listeners.pop(broker_id).close()
            raise ConfigInvalid(str(error)) from None
        log.info("listening broker=%d port=%d", broker_id, port)
        return address

    def _rejoin(self) -> None:
        if self._nodes is not None:
            self._nodes.rejoin()

    @property
    def _serves(self) -> bool:
        return self._sweeper is not None

    async def _listen(self, key: int | None, port: int, connect: Connect) -> int:
        host = split_address(self.config.listen)[0]
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: self._parts.door.protocol(lambda: self._accept(connect, key)),
                host,
                port,
                backlog=BACKLOG,
                start_serving=self._serves,
                reuse_port=(key is None and self.config.share_port) or None,
            )
        except OSError as error:
            raise ConfigInvalid(f"listen: {host}:{port}: {reason_of(error)}") from None
        except OverflowError:
            raise ConfigInvalid(f"listen: {host}:{port}: no such port") from None
        self._listeners[key] = server
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    # Connections to brokers: each is paired with one of a client's own.
    async def _connect_any(self) -> UpstreamLink:
        """Connect to a bootstrap address, or known broker, that answers; else to any.

        A broker that hangs takes connections: a client that was paired with it would find
        nothing else behind the one address that it knows. Raises: BrokerUnreachable.
        """
        return await self._connect(await self._cluster.links.awake_first())

    async def _connect_broker(self, node_id: int) -> UpstreamLink:
        """Connect to one broker, where it is now. Raises: BrokerUnreachable."""
        broker = self._cluster.brokers[node_id]
        return await self._connect([(broker.host, broker.port)])

    async def _connect(self, addresses: list[tuple[str, int]]) -> UpstreamLink:
        """Connect to the first of these that can be reached; log the others."""
        links, reasons = self._cluster.links, []
        for host, port in addresses:
            opening = UpstreamLink.open(
                host,
                port,
                response_bytes_max=self.config.response_bytes_max,
                tls=self._security.upstream,
            )
            try:
                return await links.reach.watch(host, port, opening)
            except BrokerUnreachable as error:
                reasons.append(str(error))
        for host, port in addresses:
            links.reach.turn_away(host, port)
        raise BrokerUnreachable("; ".join(reasons))

    def _accept(self, connect: Connect, broker_id: int | None) -> ClientSession:
        return ClientSession(
            connect=connect,
            make_context=lambda session: Context(
                session, self._shared, broker_id=ANY_BROKER if broker_id is None else broker_id
            ),
            stats=self.stats,
            request_bytes_max=self.config.request_bytes_max,
            hooks=self._parts.hooks,
            is_login_required=self._security.is_login_required,
            age_s_max=self._age_s_max(),
        )

    def _age_s_max(self) -> float:
        """Return the age in seconds at which a new connection ends: not all end at once."""
        if self._shared.placement.is_led_away:
            return LEAD_AWAY_S
        age_s = self.config.connection_max_age_s
        return age_s * random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER) if age_s else math.inf

    def _closed(self, session: ClientSession) -> None:
        self._parts.memory.leave(session)
        if self._parts.entrance.left(session):
            self._shared.fetcher.release(session.session_id)
            self._shared.ordered.connection_closed(session.session_id)
            session.context.member_lanes.clear()

    def reload(self) -> None:
        """Read the certificates again: connections made from now on get them."""
        self._security.poll(force=True)

    def _lead_away(self, now_s: float) -> None:
        """End connections once the nodes have agreed that this one drains."""
        was_led_away, self._is_led_away = self._is_led_away, self._shared.placement.is_led_away
        if self._is_led_away and not was_led_away:
            log.info("clients are sent to other nodes: this one drains")
            self._parts.entrance.lead_away(now_s, within_s=LEAD_AWAY_S)

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
            self._parts.files.probe()
            self._lead_away(now_s)
            self._parts.entrance.sweep(now_s)
            shared = self._shared
            for late in shared.groups.late.overdue(time.monotonic()):
                reading = read_behind(late, shared.fetcher, shared.groups.log_start)
                spawn(reading, "read behind a stable offset")
            shared.fetcher.sweep(now_s)
