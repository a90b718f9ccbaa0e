"""Which connections get in: bounds on all of them, and on those of one address.

In:    addresses of clients that connect and leave.  Out: why one is refused, if it is.
Next:  `server` closes those that are refused.
Pure:  no I/O, no clock.
Source: Kafka's `max.connections` and `max.connections.per.ip`.
"""

from __future__ import annotations

from collections import Counter


class Admission:
    """Counts connections by address.

    Invariant: `count` is the sum of the counts of all addresses, none of which is 0.
    """

    def __init__(self, *, connections_max: int, per_address_max: int) -> None:
        self._connections_max, self._per_address_max = connections_max, per_address_max
        self._by_address: Counter[str] = Counter()
        self.count = 0

    def enter(self, address: str) -> str | None:
        """Count a connection; the reason when it is refused, and not counted."""
        if self.count >= self._connections_max:
            return f"connections_max {self._connections_max} is reached"
        if self._by_address[address] >= self._per_address_max:
            if not self._by_address[address]:
                del self._by_address[address]
            return f"connections_per_address_max {self._per_address_max} is reached by {address}"
        self._by_address[address] += 1
        self.count += 1
        return None

    def leave(self, address: str) -> None:
        """A connection that was counted has ended."""
        self.count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def check(self) -> None:
        """Assert the invariant; tests call it after every step."""
        assert self.count == sum(self._by_address.values())
        assert all(count > 0 for count in self._by_address.values())
