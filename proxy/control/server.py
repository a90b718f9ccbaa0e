"""The control port: health, statistics, groups, assignments, switches, and the live page.

Source: docs/control-api.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web

from keylane.config.node import split_address
from keylane.errors import ConfigInvalid, reason_of
from keylane.proxy.control.api.assignments import AssignmentHandlers, ClusterTopics
from keylane.proxy.control.api.keys import KeyHandlers
from keylane.proxy.control.api.openapi import describe
from keylane.proxy.control.api.operations import READ, ControlOperation
from keylane.proxy.control.api.overview import Overview, OverviewHandlers
from keylane.proxy.control.api.problems import Problem, answer_problems
from keylane.proxy.control.api.requests import BODY_BYTES_MAX
from keylane.proxy.control.api.switches import SwitchHandlers
from keylane.proxy.control.auth import ControlGuard
from keylane.proxy.control.caller import CallerHandler
from keylane.proxy.control.describe import GroupDescriber, GroupReport
from keylane.proxy.control.door import BACKLOG, ControlDoor
from keylane.proxy.control.health import Health
from keylane.proxy.control.live_feed import LiveFeed
from keylane.proxy.control.metrics import CONTENT_TYPE, Exposition
from keylane.proxy.control.topics import TopicDescriber
from keylane.proxy.net.security.tls_listener import TlsDoor
from keylane.proxy.topics.settings_store import SettingsStore


@dataclass(frozen=True, slots=True)
class Shown:
    """Parts that the control port shows."""

    exposition: Exposition
    health: Health
    describer: GroupDescriber
    topics: TopicDescriber
    live: LiveFeed
    overview: Overview


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Bounds and rights of the control port's clients."""

    guard: ControlGuard
    door: TlsDoor | None
    """Makes TLS handshakes; None: without TLS."""
    connections: ControlDoor
    """Bounds what comes after a handshake."""


class ControlServer:
    """Serves one proxy. Use: `start`, then `stop`; both are awaited once."""

    def __init__(
        self,
        address: str,
        shown: Shown,
        settings: SettingsStore,
        topics: ClusterTopics,
        *,
        elsewhere: Callable[[str], str | None],
        more: Sequence[ControlOperation] = (),
        access: Access,
    ) -> None:
        """`elsewhere` gives the address of the node that serves a group; None: here.

        more: operations beside those on groups, topics, assignments and switches.
        """
        self._connections, self._door = access.connections, access.door
        self._host, self._port = split_address(address)
        self._elsewhere, self._shown = elsewhere, shown
        self._listener: asyncio.Server | None = None
        self.operations: list[ControlOperation] = [
            *self._status_operations(),
            *OverviewHandlers(shown.overview).operations(),
            *KeyHandlers(shown.topics).operations(),
            *AssignmentHandlers(settings, topics).operations(),
            *SwitchHandlers(settings).operations(),
            *more,
        ]
        self._document = describe(self.operations)
        app = web.Application(
            middlewares=[self._connections.middleware, answer_problems, access.guard.middleware],
            client_max_size=BODY_BYTES_MAX,
        )
        app.on_response_prepare.append(self._connections.prepare)
        for operation in self.operations:
            app.router.add_route(operation.method, operation.path, operation.handler)
        app.add_routes([*CallerHandler(access.guard).routes(), *shown.live.routes()])
        self._runner = web.AppRunner(app, access_log=None)

    @property
    def address(self) -> str:
        """`host:port` that it listens on."""
        return f"{self._host}:{self._port}"

    @property
    def scheme(self) -> str:
        """Protocol that it speaks."""
        return "http" if self._door is None else "https"

    async def start(self) -> None:
        """Bind. Raises: ConfigInvalid."""
        await self._runner.setup()
        server, door = self._runner.server, self._door
        assert server is not None, "the runner was set up"
        self._connections.start(server)
        protocol = self._connections.protocol
        make = protocol if door is None else lambda: door.protocol(protocol)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                make, self._host, self._port, backlog=BACKLOG
            )
        except OSError as error:
            raise ConfigInvalid(f"control: {self.address}: {reason_of(error)}") from None
        self._port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close."""
        await self._shown.live.stop()
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()
        self._connections.stop()

    def _status_operations(self) -> list[ControlOperation]:
        """Return the operations that change nothing."""
        get, health = partial(ControlOperation, method="GET"), self._shown.health
        text = partial(get, answer=str, media_type="text/plain")
        return [
            text(
                path="/healthz", handler=health.livez, is_open=True,
                summary="Whether the proxy serves",
            ),
            text(
                path="/livez", handler=health.livez, is_open=True,
                summary="Whether the process is alive",
            ),
            text(
                path="/readyz", handler=health.readyz, is_open=True,
                summary="Whether clients may come", plain=(HTTPStatus.SERVICE_UNAVAILABLE,),
            ),
            text(path="/metrics", handler=self._metrics, summary="Statistics for Prometheus"),
            get(
                path="/openapi.json", handler=self._describe, answer=dict[str, Any],
                summary="This document",
            ),
            get(
                path="/groups/{group}", handler=self._group, answer=GroupReport,
                summary="Members of a group with lanes, pace and lag; partitions of a share group",
                problems=(*READ, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.SERVICE_UNAVAILABLE),
            ),
        ]  # fmt: skip

    async def _describe(self, _request: web.Request) -> web.Response:
        return web.json_response(self._document)

    async def _group(self, request: web.Request) -> web.Response:
        group = request.match_info["group"]
        elsewhere = self._elsewhere(group)
        if elsewhere is not None and not self._shown.describer.shares.is_open(group):
            raise Problem(
                HTTPStatus.TEMPORARY_REDIRECT,
                f"another node serves group {group}",
                headers={"Location": f"{elsewhere}{request.path_qs}"},
            )
        report = await self._shown.describer.describe(group)
        if report is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no group {group}", field="group")
        return web.json_response(asdict(report))

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = await self._shown.exposition.look()
        return web.Response(text=text, headers={"Content-Type": CONTENT_TYPE})
