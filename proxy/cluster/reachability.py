"""Brokers that cannot be reached: logged once when it begins, and once when it has ended.

While a broker is away every client tries again and again, some tens of times a second. One
more that fails is no news, so sessions log it at the level debug only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from keylane.errors import BrokerUnreachable

log = logging.getLogger("keylane.brokers")
Link = TypeVar("Link")

PAUSE_S: Final = 10.0
"""Between two losses of one broker that are logged: it may come and go, as behind a balancer."""
ADDRESSES_MAX: Final = 1000
"""Brokers get new addresses, and the old ones are not used again."""


@dataclass(slots=True)
class _State:
    """State of one address; times are the clock's."""

    since_s: float | None = None
    """Time when it could not be reached any more; None: it can be."""
    is_logged: bool = False
    """True: this loss is in the log."""
    logged_s: float = float("-inf")
    reached_s: float = float("-inf")
    turned_away: int = 0
    """Clients, since the last line that counted them."""


class Reach:
    """Logs which brokers can be reached, by the tries that are made anyway."""

    def __init__(
        self,
        id_of: Callable[[str, int], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """id_of: gives the id of the broker at an address, if one is known."""
        self._id_of, self._clock = id_of, clock
        self._states: dict[tuple[str, int], _State] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when a broker is lost, or is reached again: as often as the log has it."""

    async def watch(self, host: str, port: int, opening: Awaitable[Link]) -> Link:
        """Await a connection and note how it ended. Raises: what it raises."""
        began_s = self._clock()
        try:
            link = await opening
        except BrokerUnreachable as error:
            self._failed(host, port, began_s, str(error))
            raise
        self._reached(host, port)
        return link

    def is_away(self, host: str, port: int) -> bool:
        """Return whether the last try to connect to an address has failed."""
        state = self._states.get((host, port))
        return state is not None and state.since_s is not None

    def turn_away(self, host: str, port: int) -> None:
        """Count a client that was not served, since this broker could not be reached."""
        self._state(host, port).turned_away += 1

    def _failed(self, host: str, port: int, began_s: float, reason: str) -> None:
        state = self._state(host, port)
        if began_s < state.reached_s:
            return  # a try that timed out is older than a later one that did not
        now_s = self._clock()
        if state.since_s is None:
            state.since_s = now_s
        if state.is_logged or now_s - state.logged_s < PAUSE_S:
            return
        state.is_logged, state.logged_s = True, now_s
        log.warning(
            "broker cannot be reached broker=%s address=%s:%d reason=%s",
            self._name(host, port), host, port, reason.removeprefix(f"broker at {host}:{port}: "),
        )  # fmt: skip
        self.on_change()

    def _reached(self, host: str, port: int) -> None:
        state = self._state(host, port)
        state.reached_s = self._clock()
        if state.is_logged and state.since_s is not None:
            log.warning(
                "broker can be reached again broker=%s address=%s:%d away_s=%.0f turned_away=%d",
                self._name(host, port), host, port,
                state.reached_s - state.since_s, state.turned_away,
            )  # fmt: skip
            state.turned_away = 0
            self.on_change()
        state.since_s, state.is_logged = None, False

    def _state(self, host: str, port: int) -> _State:
        if (host, port) not in self._states and len(self._states) >= ADDRESSES_MAX:
            self._states.clear()
        return self._states.setdefault((host, port), _State())

    def _name(self, host: str, port: int) -> str:
        found = self._id_of(host, port)
        return "?" if found is None else str(found)
