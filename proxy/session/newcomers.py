"""Connections whose clients have not logged in yet: they are few, and they have little time.

In:    connections that come, send, prove themselves (`proof`) and go.
Out:   which one makes room for another, which have had their time.

A stranger can open connections and be silent. At the bound the one that has been silent longest
goes, so that strangers take room from each other and not from clients, which log in at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final, Generic, TypeVar

Connection = TypeVar("Connection")
LOOKED_AT_MAX: Final = 100
"""Connections that are asked about for each that comes."""


class Newcomers(Generic[Connection]):
    """Invariants: at most `count_max`; in the order of their last bytes."""

    def __init__(self, *, count_max: int, timeout_s: float) -> None:
        self._count_max, self._timeout_s = count_max, timeout_s
        self._times: OrderedDict[Connection, tuple[float, float]] = OrderedDict()
        """When each came, and when its last bytes came, in seconds."""

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, connection: object) -> bool:
        return connection in self._times

    @property
    def is_full(self) -> bool:
        """There is no room for another one."""
        return len(self._times) >= self._count_max

    def find_silent(self, is_silent: Callable[[Connection], bool]) -> Connection | None:
        """Return the one that has been silent longest; None: all of them wait for us.

        is_silent: whether a connection has nothing under way, so that it is the client's turn.
        """
        return next((each for each in islice(self._times, LOOKED_AT_MAX) if is_silent(each)), None)

    def enter(self, connection: Connection, now_s: float) -> None:
        """It has come, and there is room."""
        assert not self.is_full, "room is made before"
        self._times[connection] = now_s, now_s

    def received(self, connection: Connection, now_s: float) -> None:
        """It has sent something."""
        found = self._times.get(connection)
        if found is not None:
            self._times[connection] = found[0], now_s
            self._times.move_to_end(connection)

    def leave(self, connection: Connection) -> None:
        """It has proved itself, or is gone."""
        self._times.pop(connection, None)

    def find_overdue(self, now_s: float) -> list[Connection]:
        """Those that have had `timeout_s`."""
        return [
            each for each, (came_s, _) in self._times.items() if now_s - came_s > self._timeout_s
        ]

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        received = [received_s for _, received_s in self._times.values()]
        assert len(received) <= self._count_max
        assert received == sorted(received)
        assert all(came_s <= received_s for came_s, received_s in self._times.values())
