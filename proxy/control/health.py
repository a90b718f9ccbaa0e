"""Probes of a node: `/livez` (the process is alive), `/readyz` (clients may be sent to it).

Source: Kubernetes API server's /livez and /readyz.

Neither asks a broker. A restart brings no broker back, and a node that is not ready because the
cluster is down would refuse its clients where it can as well answer them in Kafka's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aiohttp import web

STARTING = "starting"
READY = "ok"
STOPPING = "stopping"
DRAINING = "draining"


@dataclass(slots=True)
class Health:
    """Progress of the node: it starts, serves, stops; never back."""

    state: str = STARTING
    missing: str | None = None
    """Reason why something cannot be served yet; clients get it in Kafka's own words."""

    is_draining: Callable[[], bool] = lambda: False
    """Says whether other nodes have the clients of this one, by an operator's wish.

    Not of a drain alone: where all nodes drain, or the others have gone, this one serves.
    """

    notes: list[Callable[[], Iterable[str]]] = field(default_factory=list)
    """Give lines on faults that an operator should see, and that do not keep it from serving."""

    def serves(self) -> None:
        """Note that all listeners serve."""
        self.state = READY

    def stops(self) -> None:
        """Note that no new client should come."""
        self.state = STOPPING

    async def livez(self, _request: web.Request) -> web.Response:
        """`GET /livez`: 200 while the event loop turns."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """`GET /readyz`: 200 or 503, and the reason.

        A node that serves all but groups is ready: the answer names what is missing.
        """
        missing = "" if self.missing is None else f"missing: {self.missing}\n"
        notes = "".join(f"{line}\n" for note in self.notes for line in note())
        state = DRAINING if self.state == READY and self.is_draining() else self.state
        text = f"{state}\n{missing}{notes}"
        return web.Response(text=text, status=200 if state == READY else 503)
