"""Bounds of the control port: number and age of connections, and which of them give way.

Source: CWE-400 (slow requests, "Slowloris"); RFC 6585 and 9112 have no rule.

A probe sends its request at once, and a stranger may never send one. So when there are too many
connections, one that waits is closed: the oldest of the address that has most of them. A new
connection is let in, since it may be a probe. Where none waits, it is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)
TOO_MANY: Final = "too many"
SLOW_REQUEST: Final = "slow request"
SLOW_READER: Final = "slow reader"
IDLE: Final = "idle"
HEADERS_S: Final = 10.0
"""From the connection, or from the first byte of a later request, to the end of its headers."""
KEEP_ALIVE_S: Final = 75.0
"""Silence between two requests: Prometheus scrapes once a minute by default."""
UNREAD_S: Final = 30.0
"""Time for which a client may take nothing of an answer."""


@dataclass(slots=True)
class _Held:
    address: str
    due_s: float | None
    """Time when it is closed unless a whole request comes; None: it is being answered."""
    is_idle: bool = False
    """True: it was answered, and its next request may come."""
    taken: int | None = None
    """Bytes that its peer had taken at the last look; None: nothing waits for the peer."""
    taken_s: float = 0.0


class ControlBounds(Generic[Connection]):
    """Connections in the order in which they came, and what each of them waits for.

    Invariants: at most `connections_max` are held, of one address at most `per_address_max`.
    """

    def __init__(
        self,
        *,
        connections_max: int,
        per_address_max: int,
        headers_s: float = HEADERS_S,
        keep_alive_s: float = KEEP_ALIVE_S,
        unread_s: float = UNREAD_S,
    ) -> None:
        self._connections_max, self._per_address_max = connections_max, per_address_max
        self._headers_s, self._keep_alive_s, self._unread_s = headers_s, keep_alive_s, unread_s
        self._held: dict[Connection, _Held] = {}
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def enter(self, connection: Connection, address: str, now_s: float) -> Connection | None:
        """Hold a new connection; return the one to close for it, perhaps itself; None: none."""
        victim: Connection | None = None
        if self._by_address[address] >= self._per_address_max:
            victim = self._first_waiting(address)
        elif len(self._held) >= self._connections_max:
            victim = self._first_waiting(self._largest())
        else:
            self._hold(connection, address, now_s)
            return None
        if victim is None:
            return connection
        self.leave(victim)
        self._hold(connection, address, now_s)
        return victim

    def leave(self, connection: Connection) -> None:
        """Forget a connection that has ended; one that is not held is passed over."""
        held = self._held.pop(connection, None)
        if held is not None:
            self._by_address[held.address] -= 1
            if not self._by_address[held.address]:
                del self._by_address[held.address]

    def note_bytes(self, connection: Connection, now_s: float) -> None:
        """Note that bytes came: after an answer the next headers have begun."""
        held = self._held.get(connection)
        if held is not None and held.is_idle:
            held.is_idle, held.due_s = False, now_s + self._headers_s

    def note_request(self, connection: Connection) -> None:
        """Note that the headers of a request are whole: it is being answered."""
        held = self._held.get(connection)
        if held is not None:
            held.is_idle, held.due_s = False, None

    def note_answered(self, connection: Connection, now_s: float) -> None:
        """Note that a request is answered: the next one may come."""
        held = self._held.get(connection)
        if held is not None:
            held.is_idle, held.due_s = True, now_s + self._keep_alive_s

    def note_untaken(self, connection: Connection, taken: int | None, now_s: float) -> None:
        """Note the bytes that the peer has taken; None: nothing waits for the peer."""
        held = self._held.get(connection)
        if held is not None and held.taken != taken:
            held.taken, held.taken_s = taken, now_s

    def overdue(self, now_s: float) -> list[tuple[Connection, str]]:
        """Return connections to close, each with the reason."""
        found = []
        for connection, held in self._held.items():
            if held.taken is not None:
                if now_s - held.taken_s >= self._unread_s:
                    found.append((connection, SLOW_READER))
            elif held.due_s is not None and now_s >= held.due_s:
                reason = IDLE if held.is_idle else SLOW_REQUEST
                found.append((connection, reason))
        return found

    def connections(self) -> list[Connection]:
        """Return the connections that are held, the oldest first."""
        return list(self._held)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert len(self._held) <= self._connections_max
        assert self._by_address == Counter(held.address for held in self._held.values())
        assert all(0 < count <= self._per_address_max for count in self._by_address.values())

    def _hold(self, connection: Connection, address: str, now_s: float) -> None:
        self._held[connection] = _Held(address, now_s + self._headers_s)
        self._by_address[address] += 1

    def _largest(self) -> str:
        """Return the address with most connections that wait."""
        waiting = Counter(held.address for held in self._held.values() if held.due_s is not None)
        return max(waiting, key=lambda address: waiting[address]) if waiting else ""

    def _first_waiting(self, address: str) -> Connection | None:
        """Return the oldest of an address that waits: without a whole request, or else idle."""
        idle = None
        for connection, held in self._held.items():
            if held.address != address or held.due_s is None:
                continue
            if not held.is_idle:
                return connection
            idle = connection if idle is None else idle
        return idle
