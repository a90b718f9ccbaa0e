"""TLS handshakes of clients: counted, bounded, and logged when they fail.

Source: RFC 8446.

asyncio reports neither a handshake that fails nor its peer. So a connection is accepted without
TLS, and a transport with TLS gets its socket, whose handshake can be awaited. Before that it can be
refused at no cost. Nor does asyncio send the alert that says what is wrong, an expired certificate
for example; without it Java's client tries without end, where a broker makes it give up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final, cast

from keylane.bounded import BoundedDict
from keylane.proxy.net.admission import Admission
from keylane.proxy.net.security.tls import last_alerts
from keylane.proxy.runtime.log_pace import LogPace
from keylane.proxy.runtime.stats import ProxyStats
from keylane.tasks import spawn

log = logging.getLogger("keylane.tls")

LOG_INTERVAL_S: Final = 10.0
"""One line for each reason in so many seconds: any stranger can make handshakes fail."""
LINGER_S: Final = 2.0
"""Time for which a client has to take the alert."""
LINGER_BYTES: Final = 4096
REASONS_MAX: Final = 100
"""Reasons that are logged one by one; OpenSSL has a few dozen that clients can cause."""

MakeSession = Callable[[], asyncio.BaseProtocol]
"""Owner of the connection when the handshake is done: a session, or one of the control port."""


class TlsDoor:
    """Makes handshakes for all listeners of a node."""

    def __init__(
        self,
        context: ssl.SSLContext | None,
        *,
        stats: ProxyStats,
        connections_max: int,
        per_address_max: int,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """context: None for listeners without TLS, whose sessions begin at once.

        connections_max, per_address_max: of handshakes under way; sessions are counted apart.
            Above them the first handshake under way gives way to the new one, of that address if
            it has too many: one that takes long is a stranger's sooner than a client's.
        """
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._context, self._stats = context, stats
        self._admission = Admission(
            connections_max=connections_max, per_address_max=per_address_max
        )
        self._timeout_s, self._clock = timeout_s, clock
        self._paces: BoundedDict[str, LogPace] = BoundedDict(REASONS_MAX)
        """Pace of the lines about each reason."""

    def protocol(self, make_session: MakeSession) -> asyncio.BaseProtocol:
        """Return the protocol of a connection that a listener has accepted."""
        return make_session() if self._context is None else _Handshake(self, make_session)

    def enter(self, address: str, peer: str) -> bool:
        """Count a handshake that begins; False: there are too many, it is not counted."""
        refused = self._admission.enter(address)
        if refused is not None:
            self.failed(peer, "too many connections")
            refused = self._admission.enter(address) if self._make_way(address) else refused
        return refused is None

    def begin(self, task: asyncio.Task[None], connection: socket.socket, address: str) -> None:
        """Keep the task of a handshake that was counted; it leaves when the task ends."""
        self._under_way[task] = address
        task.add_done_callback(self._ended)
        # One that gave way before its first step has given the connection to no transport.
        task.add_done_callback(lambda ended: connection.close() if ended.cancelled() else None)

    def _make_way(self, address: str) -> bool:
        """End the first handshake of an address, or of all; False: there is none."""
        same = (task for task, other in self._under_way.items() if other == address)
        task = next(same, None) or next(iter(self._under_way), None)
        if task is None:
            return False
        task.cancel()
        self._ended(task)
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        address = self._under_way.pop(task, None)
        if address is not None:
            self.leave(address)

    def leave(self, address: str) -> None:
        """Count a handshake no more: it is over."""
        self._admission.leave(address)

    async def open(self, connection: socket.socket, make_session: MakeSession) -> None:
        """Make the handshake, then begin the session. Raises: OSError (ssl.SSLError is one)."""
        alerts: list[bytes] = []
        last_alerts.set(alerts)  # of this task alone
        with connection.dup() as reply:
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    make_session,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=self._timeout_s,
                )
            except ssl.SSLError:
                await _send_alert(reply, b"".join(alerts))
                raise

    def failed(self, peer: str, reason: str) -> None:
        """Count and log a handshake that did not succeed."""
        self._stats.tls_handshakes_failed += 1
        pace = self._paces.get(reason)
        if pace is None:
            pace = self._paces[reason] = LogPace(lines_max=1, interval_s=LOG_INTERVAL_S)
        left_out = pace.let(self._clock())
        if left_out is not None:
            count = left_out + 1
            log.warning("TLS handshake failed peer=%s reason=%s count=%d", peer, reason, count)


class _Handshake(asyncio.Protocol):
    """One connection as it was accepted: it goes to another transport before it is read.

    uvloop begins to read a connection after `connection_made`, even if that has paused it:
    `start_tls` would lose the client's first bytes. So the socket is duplicated, and the first
    transport ended.
    """

    def __init__(self, door: TlsDoor, make_session: MakeSession) -> None:
        self._door, self._make_session = door, make_session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, unless there are too many."""
        # uvloop's transports are none of asyncio's classes.
        accepted = cast("asyncio.Transport", transport)
        peer = accepted.get_extra_info("peername")
        address, name = (str(peer[0]), f"{peer[0]}:{peer[1]}") if peer else ("?", "?")
        if self._door.enter(address, name):
            try:
                descriptor = os.dup(accepted.get_extra_info("socket").fileno())
            except OSError as error:  # too many open files
                self._door.leave(address)
                self._door.failed(name, str(error))
            else:
                connection = socket.socket(fileno=descriptor)
                handshake = self._shake_hands(connection, name)
                task = spawn(handshake, f"TLS handshake {name}")
                self._door.begin(task, connection, address)
        accepted.abort()  # this transport only; the connection has another descriptor

    async def _shake_hands(self, connection: socket.socket, peer: str) -> None:
        try:
            await self._door.open(connection, self._make_session)
        except OSError as error:
            self._door.failed(peer, _reason(error))


async def _send_alert(connection: socket.socket, alert: bytes) -> None:
    """Send the alert, and read on; else the system takes it back by a reset."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    try:
        async with asyncio.timeout(LINGER_S):
            await loop.sock_sendall(connection, alert)
            connection.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(connection, LINGER_BYTES):
                pass
    except (OSError, TimeoutError) as error:
        log.debug("TLS alert not taken reason=%s", error)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error) or "closed by the client"
