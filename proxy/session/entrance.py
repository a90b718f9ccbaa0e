"""Connections of clients from the handshake to the end: which get in, which have to go.

A stranger can open connections and be silent. Those whose clients have not logged in are few, and
have little time. At the bound the one that has been silent longest goes, so that strangers take
room from each other and not from clients, which log in at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

from keylane.config.node import ProxyConfig
from keylane.proxy.net.admission import Admission
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.session.hooks import SessionHooks
from keylane.proxy.session.session import ClientSession

log = logging.getLogger("keylane.server")

Connection = TypeVar("Connection")
NO_LOGIN: Final = "no login in time"
"""Reason for one that is silent, too: what it wanted is not known."""
LOOKED_AT_MAX: Final = 100
"""Connections that are asked about for each that comes."""


class Newcomers(Generic[Connection]):
    """Connections without a login. Invariants: at most `count_max`; ordered by their last bytes."""

    def __init__(self, *, count_max: int, timeout_s: float) -> None:
        self._count_max, self._timeout_s = count_max, timeout_s
        self._times: OrderedDict[Connection, tuple[float, float]] = OrderedDict()
        """Time when each came, and when its last bytes came, in seconds."""

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, connection: object) -> bool:
        return connection in self._times

    @property
    def is_full(self) -> bool:
        """Return whether there is no room for another one."""
        return len(self._times) >= self._count_max

    def find_silent(self, is_silent: Callable[[Connection], bool]) -> Connection | None:
        """Return the one that has been silent longest; None: each of them waits for keylane.

        is_silent: the connection has nothing under way, so that it is the client's turn.
        """
        return next((each for each in islice(self._times, LOOKED_AT_MAX) if is_silent(each)), None)

    def enter(self, connection: Connection, now_s: float) -> None:
        """Add one that has come; there is room."""
        assert not self.is_full, "room is made before"
        self._times[connection] = now_s, now_s

    def received(self, connection: Connection, now_s: float) -> None:
        """Note that it has sent something."""
        found = self._times.get(connection)
        if found is not None:
            self._times[connection] = found[0], now_s
            self._times.move_to_end(connection)

    def leave(self, connection: Connection) -> None:
        """Forget one that has proved itself, or is gone."""
        self._times.pop(connection, None)

    def find_overdue(self, now_s: float) -> list[Connection]:
        """Return those that have had `timeout_s`."""
        return [
            each for each, (came_s, _) in self._times.items() if now_s - came_s > self._timeout_s
        ]

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        received = [received_s for _, received_s in self._times.values()]
        assert len(received) <= self._count_max
        assert received == sorted(received)
        assert all(came_s <= received_s for came_s, received_s in self._times.values())


class Entrance:
    """Counts the sessions of one node. Invariant: those that are counted are in `sessions`."""

    def __init__(self, config: ProxyConfig, stats: ProxyStats, *, connections_max: int) -> None:
        """connections_max: as configured, or as open files allow (`descriptors`)."""
        self._config, self._stats = config, stats
        self.admission = Admission(
            connections_max=connections_max,
            per_address_max=config.connections_per_address_max,
            per_principal_max=config.connections_per_principal_max,
            groups_per_principal_max=config.groups_per_principal_max,
        )
        self._newcomers: Newcomers[ClientSession] = Newcomers(
            count_max=config.connections_before_login_max, timeout_s=config.login_timeout_s
        )
        self.sessions: dict[ClientSession, None] = {}
        """Sessions in the order in which they came, in which they are closed as well."""
        self._all_closed = asyncio.Event()
        self._refused: str | None = None
        self._closed_newcomers = 0

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self.sessions))

    def count(self) -> int:
        """Return the number of sessions."""
        return len(self.sessions)

    def hooks(
        self,
        *,
        on_held: Callable[[ClientSession, int], None],
        on_closed: Callable[[ClientSession], None],
    ) -> SessionHooks[ClientSession]:
        """Return what sessions of this node call."""
        return SessionHooks(
            admit=self.admit,
            admit_principal=self.admit_principal,
            on_received=self.received,
            on_proven=self.proven,
            on_held=on_held,
            on_closed=on_closed,
        )

    # Calls of sessions.
    def admit(self, session: ClientSession) -> str | None:
        """Count a session whose TLS handshake is done, or return why it is refused."""
        refused = self.admission.enter(session.address)
        if refused is not None:
            address = None if self.admission.is_full else session.address
            if self._close_silent(address):
                refused = self.admission.enter(session.address)
        if refused is None and self._newcomers.is_full and not self._close_silent():
            self.admission.leave(session.address)
            key = "connections_before_login_max"
            refused = f"{key} {self._config.connections_before_login_max} is reached"
        if refused is not None:
            self._refuse(refused)
            return refused
        self.sessions[session] = None
        self._newcomers.enter(session, session.clock())
        self._stats.sessions = len(self.sessions)
        self._stats.sessions_opened += 1
        return None

    def admit_principal(self, principal: str) -> str | None:
        """Count a session that has logged in, or return why it is refused."""
        refused = self.admission.log_in(principal)
        if refused is not None:
            self._refuse(refused)
        return refused

    def received(self, session: ClientSession) -> None:
        """Note that a session that has not proved itself has sent something."""
        self._newcomers.received(session, session.clock())

    def proven(self, session: ClientSession) -> None:
        """Note that its login is over or, where none is required, a request was answered."""
        self._newcomers.leave(session)

    def left(self, session: ClientSession) -> bool:
        """Forget a session that is closed; False: it was never let in."""
        if session not in self.sessions:
            return False
        del self.sessions[session]
        self._newcomers.leave(session)
        self.admission.leave(session.address, session.principal)
        self._stats.sessions = len(self.sessions)
        if not self.sessions:
            self._all_closed.set()
        return True

    # Calls of the server.
    def sweep(self, now_s: float) -> None:
        """Close what is idle, too slow, too late or too large; log what was refused since."""
        if self._refused is not None:
            log.warning("connections are refused reason=%s", self._refused)
            self._refused = None
        for session in self._newcomers.find_overdue(now_s):
            self._close_newcomer(session)
        if self._closed_newcomers:
            log.warning(
                "connections closed without a login count=%d login_timeout_s=%g "
                "connections_before_login_max=%d",
                self._closed_newcomers, self._config.login_timeout_s,
                self._config.connections_before_login_max,
            )  # fmt: skip
            self._closed_newcomers = 0
        for session in self:
            session.check_timeouts(
                now_s,
                frame_s=self._config.frame_timeout_s,
                idle_s=self._config.idle_timeout_s,
                unread_s=self._config.unread_timeout_s,
            )
            session.note_held()

    def lead_away(self, now_s: float, *, within_s: float) -> None:
        """Have all connections end between two requests, one after the other.

        Their clients look for brokers anew, and are sent to other nodes.
        """
        count = len(self.sessions)
        for index, session in enumerate(self):
            session.end_by(now_s + within_s * (index + 1) / count)

    async def drain(self, reason: str, *, timeout_s: float) -> None:
        """Take no more requests, answer those under way, close."""
        for session in self:
            session.drain(reason)
        if self.sessions:
            self._all_closed.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._all_closed.wait()
            except TimeoutError:
                log.warning(
                    "drain timed out, connections are closed sessions=%d", len(self.sessions)
                )
        for session in self:
            session.close(reason)

    # Inside.
    def _close_silent(self, address: str | None = None) -> bool:
        """Close a silent newcomer, of one address or of any; False: there is none."""
        silent = self._newcomers.find_silent(
            lambda each: each.is_idle and address in {None, each.address}
        )
        if silent is None:
            return False
        self._close_newcomer(silent)
        return True

    def _close_newcomer(self, session: ClientSession) -> None:
        self._closed_newcomers += 1
        self._stats.sessions_refused += 1
        session.close(NO_LOGIN)

    def _refuse(self, reason: str) -> None:
        self._stats.sessions_refused += 1
        self._refused = reason
