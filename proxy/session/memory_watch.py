"""Closes connections that hold more than there is room for, at the moment that they would.

Source: docs/decisions/035; `buffered_bytes_max`, `buffered_bytes_per_principal_max`.

Bytes in buffers are added up at every change, so that no bound is passed unseen. Connections that
have not logged in where a login is required share their own pool: they can neither use up the room
of those that have, nor be many with little each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from keylane.config.node import ProxyConfig
from keylane.proxy.runtime.memory_plan import MemoryPlan
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.session.session import ClientSession

Connection = TypeVar("Connection")
LOGIN_REASON: Final = "connections without a login hold too much, login_bytes_max {} is reached"


class MemoryWatch:
    """Bytes that all sessions hold, and their bounds."""

    def __init__(self, config: ProxyConfig, plan: MemoryPlan, stats: ProxyStats) -> None:
        """`config` is as the plan has made it."""
        self._stats = stats
        self._holdings: Holdings[ClientSession] = Holdings(
            HoldingBounds(
                in_all_max=config.buffered_bytes_max,
                per_principal_max=config.buffered_bytes_per_principal_max,
                logins_max=plan.login_bytes_max,
            )
        )
        stats.memory_max_bytes, stats.batch_bytes_max = plan.memory_max, config.batch_bytes_max
        stats.buffered_bytes_max = config.buffered_bytes_max
        stats.login_bytes_max = plan.login_bytes_max

    def note(self, session: ClientSession, held_bytes: int) -> None:
        """Note what a session holds, or is about to; close what has to go for it first."""
        heavy = self._holdings.change(
            session, held_bytes, session.principal, is_logged_in=session.is_logged_in
        )
        for each, reason in heavy:
            self._stats.sessions_heavy += 1
            each.close(reason, warn=True)
        self._publish()

    def leave(self, session: ClientSession) -> None:
        """Forget a session that has ended."""
        self._holdings.leave(session)
        self._publish()

    def _publish(self) -> None:
        self._stats.buffered_bytes = self._holdings.bytes_used
        self._stats.login_bytes = self._holdings.login_bytes_used


class Held(NamedTuple):
    """Bytes that one connection holds."""

    size_bytes: int
    principal: str | None
    is_logged_in: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingBounds:
    """Bytes that connections may hold."""

    in_all_max: int
    per_principal_max: int
    logins_max: int


class Holdings(Generic[Connection]):
    """Sums by principal, of all, and of those without a login.

    Invariants: the sums are those of what is held; what holds nothing is not kept.
    """

    def __init__(self, bounds: HoldingBounds) -> None:
        self.bounds = bounds
        self.bytes_used = self.login_bytes_used = 0
        """Bytes of connections that need no login any more; of the others."""
        self._held: dict[Connection, Held] = {}
        self._by_principal: Counter[str] = Counter()

    def change(
        self, connection: Connection, size_bytes: int, principal: str | None, *, is_logged_in: bool
    ) -> list[tuple[Connection, str]]:
        """Note what a connection holds, or is about to; return those that have to go for it.

        Cost: a few additions, unless a bound is passed.
        """
        self.leave(connection)
        if not size_bytes:
            return []
        self._held[connection] = Held(size_bytes, principal, is_logged_in)
        if not is_logged_in:
            self.login_bytes_used += size_bytes
            return self._heavy_logins() if self.login_bytes_used > self.bounds.logins_max else []
        self.bytes_used += size_bytes
        is_heavy = self.bytes_used > self.bounds.in_all_max
        if principal is not None:
            self._by_principal[principal] += size_bytes
            is_heavy |= self._by_principal[principal] > self.bounds.per_principal_max
        return self._heavy() if is_heavy else []

    def leave(self, connection: Connection) -> None:
        """Forget a connection, which holds nothing any more."""
        held = self._held.pop(connection, None)
        if held is None:
            return
        if not held.is_logged_in:
            self.login_bytes_used -= held.size_bytes
            return
        self.bytes_used -= held.size_bytes
        if held.principal is not None:
            self._by_principal[held.principal] -= held.size_bytes
            if not self._by_principal[held.principal]:
                del self._by_principal[held.principal]

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        logins = [each for each in self._held.values() if not each.is_logged_in]
        others = [each for each in self._held.values() if each.is_logged_in]
        assert self.login_bytes_used == sum(each.size_bytes for each in logins)
        assert self.bytes_used == sum(each.size_bytes for each in others)
        sums: Counter[str] = Counter()
        for each in others:
            if each.principal is not None:
                sums[each.principal] += each.size_bytes
        assert sums == self._by_principal
        assert all(each.size_bytes > 0 for each in self._held.values())

    def _heavy(self) -> list[tuple[Connection, str]]:
        held = self._held.items()
        return find_heavy(
            ((each, it.principal, it.size_bytes) for each, it in held if it.is_logged_in),
            per_principal_max=self.bounds.per_principal_max,
            in_all_max=self.bounds.in_all_max,
        )

    def _heavy_logins(self) -> list[tuple[Connection, str]]:
        logins = [(it.size_bytes, each) for each, it in self._held.items() if not it.is_logged_in]
        gone, _ = _heaviest(logins, self.bounds.logins_max)
        return [(each, LOGIN_REASON.format(self.bounds.logins_max)) for each in gone]


def find_heavy(
    holdings: Iterable[tuple[Connection, str | None, int]],
    *,
    per_principal_max: int,
    in_all_max: int,
) -> list[tuple[Connection, str]]:
    """Return connections that have to go, and why, so that the others are within the bounds.

    holdings: per connection its principal, and the bytes in its buffers. Of a principal that
    holds too much those go that hold most: they are the slowest.
    """
    by_principal: defaultdict[str | None, list[tuple[int, Connection]]] = defaultdict(list)
    for connection, principal, held_bytes in holdings:
        by_principal[principal].append((held_bytes, connection))
    found: list[tuple[Connection, str]] = []
    kept: list[tuple[int, Connection]] = []
    for principal, held in by_principal.items():
        bound = in_all_max if principal is None else per_principal_max
        gone, left = _heaviest(held, bound)
        reason = (
            f"buffered_bytes_max {bound} is reached"
            if principal is None
            else f"buffered_bytes_per_principal_max {bound} is reached by {principal!r}"
        )
        found += [(connection, reason) for connection in gone]
        kept += left
    gone, _ = _heaviest(kept, in_all_max)
    return found + [(each, f"buffered_bytes_max {in_all_max} is reached") for each in gone]


def _heaviest(
    held: list[tuple[int, Connection]], bytes_max: int
) -> tuple[list[Connection], list[tuple[int, Connection]]]:
    """Return the largest, without which the others are within the bound, and the others."""
    left = sorted(held, key=itemgetter(0))
    total, gone = sum(size for size, _ in left), []
    while total > bytes_max:
        size, connection = left.pop()
        total -= size
        gone.append(connection)
    return gone, left
