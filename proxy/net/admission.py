"""Admission of connections, and the share of a node that each principal may use.

Source: Kafka's `max.connections` and `max.connections.per.ip`.

A principal is a name that a broker has taken a login of (`login_watch`). A client that does not log
in, or whose name is not known, is bounded by address and in all.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Final

from keylane.bounded import BoundedDict

PRINCIPALS_MAX: Final = 10_000
"""Principals whose groups are remembered; those that began none for longest are forgotten first."""


class Admission:
    """Counts connections by address and by principal, and groups by principal.

    Groups are remembered beyond connections, else a new one would begin with none.
    Invariants: `count` is the sum of the counts of all addresses, none of which is 0; no count of
    a principal is 0, and all of them together are at most `count`; groups of at most
    PRINCIPALS_MAX principals are remembered.
    """

    def __init__(
        self,
        *,
        connections_max: int,
        per_address_max: int,
        per_principal_max: int = sys.maxsize,
        groups_per_principal_max: int = sys.maxsize,
    ) -> None:
        self._connections_max, self._per_address_max = connections_max, per_address_max
        self._per_principal_max = per_principal_max
        self._groups_max = groups_per_principal_max
        self._by_address: Counter[str] = Counter()
        self._by_principal: Counter[str] = Counter()
        self._groups: BoundedDict[str, set[str]] = BoundedDict(PRINCIPALS_MAX)
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Return whether there is no room for another connection of any address."""
        return self.count >= self._connections_max

    def enter(self, address: str) -> str | None:
        """Count a connection, or return why it is refused."""
        if self.is_full:
            return f"connections_max {self._connections_max} is reached"
        if self._by_address[address] >= self._per_address_max:
            if not self._by_address[address]:
                del self._by_address[address]
            return f"connections_per_address_max {self._per_address_max} is reached by {address}"
        self._by_address[address] += 1
        self.count += 1
        return None

    def log_in(self, principal: str) -> str | None:
        """Count a connection that entered for its principal, or return why it is refused."""
        if self._by_principal.get(principal, 0) >= self._per_principal_max:
            bound = f"connections_per_principal_max {self._per_principal_max}"
            return f"{bound} is reached by {principal!r}"
        self._by_principal[principal] += 1
        return None

    def leave(self, address: str, principal: str | None = None) -> None:
        """End a connection that was counted; `principal` if it was counted for one."""
        self.count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if principal is None:
            return
        self._by_principal[principal] -= 1
        if not self._by_principal[principal]:
            del self._by_principal[principal]

    def may_begin_group(
        self, principal: str | None, group: str, has_offsets: Callable[[str], bool]
    ) -> bool:
        """Return whether the principal may have offsets of lanes in a group that has none yet.

        It counts from then on, while the group has some (`has_offsets`).
        """
        if principal is None or has_offsets(group):
            return True
        begun = self._groups.use(principal)
        if begun is None:
            begun = self._groups[principal] = set()
        if group not in begun and len(begun) >= self._groups_max:
            begun.intersection_update([each for each in begun if has_offsets(each)])
            if len(begun) >= self._groups_max:
                return False
        begun.add(group)
        return True

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert self.count == sum(self._by_address.values()) >= sum(self._by_principal.values())
        assert all(count > 0 for count in self._by_address.values())
        assert all(count > 0 for count in self._by_principal.values())
        assert len(self._groups) <= PRINCIPALS_MAX
        assert all(len(begun) <= self._groups_max for begun in self._groups.values())
