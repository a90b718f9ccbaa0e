"""Bytes of connections in buffers, added up at every change, so that no bound is passed unseen.

Source: decision 035; `buffered_bytes_max`, `buffered_bytes_per_principal_max`.

Connections that have not logged in where a login is required share a pool of their own: they can
neither use up the room of those that have, nor be many with little each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from keylane.proxy.net.admission import find_heavy

Connection = TypeVar("Connection")
LOGIN_REASON: Final = "connections without a login hold too much, login_bytes_max {} is reached"


class Held(NamedTuple):
    """Bytes that one connection holds."""

    size_bytes: int
    principal: str | None
    is_logged_in: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingBounds:
    """Bytes."""

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
        """Of connections that need no login any more; of the others."""
        self._held: dict[Connection, Held] = {}
        self._by_principal: Counter[str] = Counter()

    def change(
        self, connection: Connection, size_bytes: int, principal: str | None, *, is_logged_in: bool
    ) -> list[tuple[Connection, str]]:
        """Note what a connection holds, or is about to; those that have to go for it.

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
        """It holds nothing any more."""
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
        return find_heavy(
            self._holdings(is_logged_in=True),
            per_principal_max=self.bounds.per_principal_max,
            in_all_max=self.bounds.in_all_max,
        )

    def _heavy_logins(self) -> list[tuple[Connection, str]]:
        logins_max = self.bounds.logins_max
        found = find_heavy(
            ((each, None, size) for each, _, size in self._holdings(is_logged_in=False)),
            per_principal_max=logins_max,
            in_all_max=logins_max,
        )
        return [(each, LOGIN_REASON.format(logins_max)) for each, _ in found]

    def _holdings(self, *, is_logged_in: bool) -> Iterator[tuple[Connection, str | None, int]]:
        for connection, held in self._held.items():
            if held.is_logged_in == is_logged_in:
                yield connection, held.principal, held.size_bytes
