"""Is this process alive, and may clients be sent to it: `/livez` and `/readyz`.

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


@dataclass(slots=True)
class Health:
    """Progress of the node: it starts, serves, stops; never back."""

    state: str = STARTING
    missing: str | None = None
    """Reason why something cannot be served yet; clients get it in Kafka's own words."""

    notes: list[Callable[[], Iterable[str]]] = field(default_factory=list)
    """What does not keep the node from serving, and somebody should look at: lines, when asked."""

    @property
    def is_ready(self) -> bool:
        """Return whether all listeners serve, and go on to."""
        return self.state == READY

    def serves(self) -> None:
        """All listeners serve."""
        self.state = READY

    def stops(self) -> None:
        """No new client should come."""
        self.state = STOPPING

    def routes(self) -> list[web.RouteDef]:
        """`GET /livez`: 200 while the event loop turns. `GET /readyz`: 200 or 503, and why.

        A node that serves all but groups is ready: it says what is missing.
        """
        return [web.get("/livez", self._livez), web.get("/readyz", self._readyz)]

    async def _livez(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        missing = "" if self.missing is None else f"missing: {self.missing}\n"
        notes = "".join(f"{line}\n" for note in self.notes for line in note())
        text = f"{self.state}\n{missing}{notes}"
        return web.Response(text=text, status=200 if self.is_ready else 503)
