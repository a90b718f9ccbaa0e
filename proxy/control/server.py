"""The control port: health, statistics, groups, assignments, switches, and the live page.

Source: docs/control-api.md; `exposition`, `health` and `control_api` have what it serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from http import HTTPStatus

from aiohttp import web

from keylane.config.node import split_address
from keylane.config.security import SecurityConfig
from keylane.errors import ConfigInvalid
from keylane.proxy.control.api.assignments import AssignmentHandlers, Topics
from keylane.proxy.control.api.openapi import describe
from keylane.proxy.control.api.operations import (
    ControlOperation,
    assignment_operations,
    status_operations,
    switch_operations,
)
from keylane.proxy.control.api.problems import Problem, answer_problems
from keylane.proxy.control.api.requests import BODY_BYTES_MAX
from keylane.proxy.control.api.settings import Settings
from keylane.proxy.control.api.switches import SwitchHandlers
from keylane.proxy.control.auth import ControlGuard
from keylane.proxy.control.describe import GroupDescriber
from keylane.proxy.control.door import BACKLOG, ControlDoor, make_door
from keylane.proxy.control.health import Health
from keylane.proxy.control.live_feed import LiveFeed
from keylane.proxy.control.metrics import CONTENT_TYPE, Exposition
from keylane.proxy.net.security.tls_listener import TlsDoor
from keylane.proxy.runtime.stats import ProxyStats

CONNECTIONS_MAX = 256


@dataclass(frozen=True, slots=True)
class Shown:
    """Parts that the control port shows."""

    exposition: Exposition
    health: Health
    describer: GroupDescriber
    live: LiveFeed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Bounds and rights of the control port's clients."""

    guard: ControlGuard = field(default_factory=lambda: ControlGuard(SecurityConfig()))
    door: TlsDoor | None = None
    """Makes TLS handshakes; None: without TLS."""
    connections: ControlDoor = field(
        default_factory=lambda: make_door(
            ProxyStats(), connections_max=CONNECTIONS_MAX, per_address_max=CONNECTIONS_MAX
        )
    )
    """Bounds what comes after a handshake."""


class ControlServer:
    """Serves one proxy. Use: `start`, then `stop`; both are awaited once."""

    def __init__(
        self,
        address: str,
        shown: Shown,
        settings: Settings,
        topics: Topics,
        *,
        elsewhere: Callable[[str], str | None] = lambda _group: None,
        access: Access | None = None,
    ) -> None:
        """`elsewhere` gives the address of the node that serves a group; None: here."""
        access = access or Access()
        self._connections, self._door = access.connections, access.door
        self._host, self._port = split_address(address)
        self._elsewhere = elsewhere
        self._describer, self._live = shown.describer, shown.live
        self._exposition, health, live = shown.exposition, shown.health, shown.live
        probes = {route.path: route.handler for route in health.routes()}
        self.operations: list[ControlOperation] = [
            *status_operations(
                health=self._health,
                alive=probes["/livez"],
                ready=probes["/readyz"],
                metrics=self._metrics,
                group=self._group,
                description=self._describe,
            ),
            *assignment_operations(AssignmentHandlers(settings, topics)),
            *switch_operations(SwitchHandlers(settings)),
        ]
        self._document = describe(self.operations)
        app = web.Application(
            middlewares=[self._connections.middleware, answer_problems, access.guard.middleware],
            client_max_size=BODY_BYTES_MAX,
        )
        app.on_response_prepare.append(self._connections.prepare)
        for operation in self.operations:
            app.router.add_route(operation.method, operation.path, operation.handler)
        if live is not None:
            app.add_routes(live.routes())
        self._runner = web.AppRunner(app, access_log=None)

    @property
    def address(self) -> str:
        """`host:port` that it listens on."""
        return f"{self._host}:{self._port}"

    @property
    def scheme(self) -> str:
        """Return how it is spoken to."""
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
            await _Site(self._runner, make, self._host, self._port).start()
        except OSError as error:
            raise ConfigInvalid(f"control: {self.address}: {error}") from None
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close."""
        if self._live is not None:
            await self._live.stop()
        await self._runner.cleanup()
        self._connections.stop()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _describe(self, _request: web.Request) -> web.Response:
        return web.json_response(self._document)

    async def _group(self, request: web.Request) -> web.Response:
        group = request.match_info["group"]
        elsewhere = self._elsewhere(group)
        if elsewhere is not None:
            raise Problem(
                HTTPStatus.TEMPORARY_REDIRECT,
                f"another node serves group {group}",
                headers={"Location": f"{elsewhere}{request.path_qs}"},
            )
        report = await self._describer.describe(group)
        if report is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no group {group}", field="group")
        return web.json_response(asdict(report))

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = self._exposition.text()
        return web.Response(text=text, headers={"Content-Type": CONTENT_TYPE})


class _Site(web.BaseSite):
    """As `web.TCPSite`, with protocols of our own."""

    def __init__(
        self,
        runner: web.AppRunner,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
    ) -> None:
        super().__init__(runner)
        self._make, self._host, self._port = make, host, port

    @property
    def name(self) -> str:
        """Return where it listens."""
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Bind. Raises: OSError."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self._make, self._host, self._port, backlog=BACKLOG
        )
