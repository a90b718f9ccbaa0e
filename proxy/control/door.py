"""The control port's connections: bounded before a token is looked at, and closed when slow.

Source: `bounds` decides; RFC 9110, 10.2.4 (Server), the Fetch standard (nosniff).

aiohttp bounds the size of headers, not how long they take, nor how many connections there are.
It answers bad HTTP by itself, before any handler is chosen: that answer is made here as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web

from keylane.proxy.control.api.problems import Handler, Problem, render
from keylane.proxy.control.bounds import IDLE, KEEP_ALIVE_S, TOO_MANY, ControlBounds
from keylane.proxy.net.sockets import acknowledged_bytes
from keylane.proxy.runtime.log_pace import LogPace
from keylane.proxy.runtime.stats import ProxyStats

log = logging.getLogger("keylane.control")

BACKLOG: Final = 128
SWEEP_S: Final = 1.0
LOG_INTERVAL_S: Final = 10.0
"""One line at most in this time: any client can connect."""
LIMITS: Final[Mapping[str, Any]] = {
    "max_line_size": 8190,
    "max_field_size": 8190,
    "max_headers": 64,
    "lingering_time": 5.0,  # for the rest of a body that was answered without it
    "keepalive_timeout": KEEP_ALIVE_S,
    "access_log": None,
}
"""Bounds of aiohttp's parser in bytes and fields, and of its patience in seconds."""
SERVER: Final = "keylane"
"""Without versions; without this aiohttp says its own and Python's."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Server": SERVER,
}
"""Of every answer."""


class ControlDoor:
    """Holds the control port's connections. Use: `start`, `protocol` for each, `stop`."""

    def __init__(
        self,
        stats: ProxyStats,
        bounds: ControlBounds[ControlConnection],
    ) -> None:
        self._stats, self._bounds = stats, bounds
        self._server: web.Server | None = None
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._pace = LogPace(lines_max=1, interval_s=LOG_INTERVAL_S)

    def start(self, server: web.Server) -> None:
        """Look after the connections of `server` from now on."""
        self._server = server
        self._sweep()

    def stop(self) -> None:
        """Look no more."""
        if self._sweep_handle is not None:
            self._sweep_handle.cancel()

    def protocol(self) -> asyncio.BaseProtocol:
        """Make the protocol of a connection; with TLS its handshake is done by then."""
        server = self._server
        assert server is not None, "start comes first"
        loop = asyncio.get_running_loop()
        return ControlConnection(self, server, loop=loop, **LIMITS)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request that is whole, up to its body; the outermost middleware."""
        connection = request.protocol
        assert isinstance(connection, ControlConnection), "`protocol` makes them"
        self._bounds.note_request(connection)
        try:
            return await handler(request)
        finally:
            self._bounds.note_answered(connection, self._now_s())

    @staticmethod
    async def prepare(_request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add the headers of every answer; aiohttp calls it before it sends them."""
        response.headers.update(HEADERS)

    # Connections call these.
    def enter(self, connection: ControlConnection) -> None:
        """Hold a connection, and close the one that gives way: perhaps itself."""
        victim = self._bounds.enter(connection, connection.address, self._now_s())
        self._stats.control_connections = len(self._bounds)
        if victim is not None:
            self._close(victim, TOO_MANY)

    def leave(self, connection: ControlConnection) -> None:
        """Forget a connection that has ended."""
        self._bounds.leave(connection)
        self._stats.control_connections = len(self._bounds)

    def note_bytes(self, connection: ControlConnection) -> None:
        """Note that bytes came."""
        self._bounds.note_bytes(connection, self._now_s())

    def _close(self, connection: ControlConnection, reason: str) -> None:
        self._stats.control_connections_closed[reason] += 1
        if reason != IDLE:
            self._log(connection, reason)
        connection.abort()

    def _log(self, connection: ControlConnection, reason: str) -> None:
        left_out = self._pace.let(self._now_s())
        if left_out is not None:
            log.warning(
                "control connections are closed address=%s reason=%s count=%d",
                connection.address, reason, left_out + 1,
            )  # fmt: skip

    def _sweep(self) -> None:
        now_s = self._now_s()
        for connection in self._bounds.connections():
            self._bounds.note_untaken(connection, connection.untaken(), now_s)
        for connection, reason in self._bounds.overdue(now_s):
            self._bounds.leave(connection)
            self._close(connection, reason)
        self._sweep_handle = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


class ControlConnection(web.RequestHandler):
    """aiohttp's protocol, with bounds; it answers bad HTTP without a word of what came."""

    __slots__ = ("_door", "_raw", "address")

    def __init__(self, door: ControlDoor, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._door, self.address = door, "?"
        self._raw: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hold the connection, unless there are too many."""
        # uvloop's transports are none of asyncio's classes.
        self._raw = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.address = str(peer[0])
        super().connection_made(transport)
        self._door.enter(self)

    def data_received(self, data: bytes) -> None:
        """Note bytes, and parse them."""
        self._door.note_bytes(self)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._door.leave(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """End the connection now, whatever waits to be sent."""
        if self._raw is not None:
            self._raw.abort()

    def untaken(self) -> int | None:
        """Return a number that grows as the peer takes bytes; None: nothing waits for the peer."""
        transport = self._raw
        if transport is None or transport.is_closing() or not transport.get_write_buffer_size():
            return None
        taken = acknowledged_bytes(transport)
        return -transport.get_write_buffer_size() if taken is None else taken

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it has bytes of the request
    ) -> web.StreamResponse:
        """Return the answer to bad HTTP, or to a mistake outside of all handlers."""
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("control request failed error=%r", exc, exc_info=exc)
            detail = "a mistake of keylane; see its log"
        else:
            detail = "this is no HTTP that is served here"
        response = render(Problem(HTTPStatus(status), detail))
        response.headers.update(HEADERS)
        response.force_close()  # nothing that stands behind it is looked at
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was under way already")
        return response


def make_door(
    stats: ProxyStats, *, connections_max: int, per_address_max: int, **seconds: float
) -> ControlDoor:
    """Make a door with these bounds. seconds: as `ControlBounds` has them."""
    bounds = ControlBounds[ControlConnection](
        connections_max=connections_max, per_address_max=per_address_max, **seconds
    )
    return ControlDoor(stats, bounds)
