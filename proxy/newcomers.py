"""Connections whose clients have not logged in yet: they are few, and they have little time.

In:    connections that come, send, prove themselves (`proof`) and go.
Out:   which one makes room for another, which have had their time.
Next:  `entrance` closes those.
Pure:  no I/O; the time is an argument.

A stranger can open connections and be silent. At the bound the one that has been silent longest
goes, so that strangers take room from each other and not from clients, which log in at once.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

Connection = TypeVar("Connection")
SILENT_S: Final = 1.0
"""A client that logs in answers sooner, as a rule; one that was heard since then is not closed."""


class Newcomers(Generic[Connection]):
    """Invariants: at most `count_max`; in the order in which they were last heard."""

    def __init__(self, *, count_max: int, timeout_s: float) -> None:
        self._count_max, self._timeout_s = count_max, timeout_s
        self._times: OrderedDict[Connection, tuple[float, float]] = OrderedDict()
        """When each came, and when it was last heard, in seconds."""

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, connection: object) -> bool:
        return connection in self._times

    @property
    def is_full(self) -> bool:
        """There is no room for another one."""
        return len(self._times) >= self._count_max

    def find_silent(self, now_s: float) -> Connection | None:
        """The one that has been silent longest; None: all were heard a moment ago."""
        connection, (_, heard_s) = next(iter(self._times.items()), (None, (0.0, now_s)))
        return connection if now_s - heard_s >= SILENT_S else None

    def enter(self, connection: Connection, now_s: float) -> None:
        """It has come, and there is room."""
        assert not self.is_full, "room is made before"
        self._times[connection] = now_s, now_s

    def heard(self, connection: Connection, now_s: float) -> None:
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
        heard = [heard_s for _, heard_s in self._times.values()]
        assert len(heard) <= self._count_max
        assert heard == sorted(heard)
        assert all(came_s <= heard_s for came_s, heard_s in self._times.values())
