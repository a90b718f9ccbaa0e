"""A control port without a Kafka: the page's files, and invented answers in its form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import web

from keylane.proxy.control.live_feed import BEAT_S, HEADERS, PAGES, TYPES, _read
from tests.page.made_up import (
    NOW_MS,
    Scene,
    made_up_events,
    made_up_groups,
    made_up_history,
    made_up_layout,
    made_up_state,
)


@dataclass(slots=True)
class FakePort:
    """Serves one scene; `step()` is awaited before each further state.

    Beats come as from keylane: without, the page of a slow test says that its connection is lost.
    """

    scene: Scene
    step: Callable[[], Awaitable[object]]
    changes: list[tuple[str, str, Any]] = field(default_factory=list)
    """Method, path with query, and body of what was asked for beside GET."""
    refusal: str | None = None
    """Text of the 409 that changes get."""

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application()
        get, post = web.get, web.post
        app.add_routes(
            [
                get("/", self._page),
                get("/page/events", self._feed),
                get("/page/caller", self._caller),
                get("/page/{name}", self._page),
                get("/groups", self._json(lambda: made_up_groups(self.scene))),
                get("/history", self._json(lambda: made_up_history(self.scene))),
                get("/events", self._json(self._events)),
                get("/switches", self._json(self._switches)),
                get("/groups/{group}", self._group),
                post("/groups/{group}/rebalance", self._changing(self._plan)),
                post("/groups/{group}/reset-offsets", self._changing(self._reset)),
                post("/nodes/{number}/drain", self._changing(self._drain)),
                web.delete("/nodes/{number}/drain", self._changing(self._drain)),
                web.put("/switches", self._changing(self._switches)),
                web.put("/switches/{kind}/{name}", self._changing(self._switches)),
            ]
        )
        return app

    async def _page(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        if name not in PAGES:
            raise web.HTTPNotFound
        kind = TYPES[name.rpartition(".")[2]]
        return web.Response(body=_read(name), content_type=kind, charset="utf-8", headers=HEADERS)

    async def _feed(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(name: str, value: Any) -> None:
            await response.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())

        await send("layout", made_up_layout(self.scene))
        for seed in count(1):
            await send("state", made_up_state(self.scene, seed=seed))
            while not await self._has_stepped():
                await send("beat", {})
        return response

    async def _has_stepped(self) -> bool:
        """Wait for the next step, or for the time of a beat: False."""
        try:
            async with asyncio.timeout(BEAT_S):
                await self.step()
        except TimeoutError:
            return False
        return True

    async def _caller(self, _request: web.Request) -> web.Response:
        may_write = self.scene.role == "admin"
        reason = None if may_write else "Your token only reads: changes need the admin's role."
        return web.json_response({"name": "ops", "may_write": may_write, "reason": reason})

    async def _group(self, _request: web.Request) -> web.Response:
        return web.json_response({"detail": "no broker can be reached"}, status=503)

    @staticmethod
    def _json(make: Callable[[], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(_request: web.Request) -> web.Response:
            return web.json_response(make())

        return handler

    def _changing(
        self, make: Callable[[], Any]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            body = await request.json() if request.can_read_body else None
            self.changes.append((request.method, request.path_qs, body))
            if self.refusal is not None:
                return web.json_response({"detail": self.refusal}, status=409)
            return web.json_response(make())

        return handler

    def _events(self) -> dict[str, Any]:
        events = made_up_events(self.scene)
        return {"events": events, "last_id": events[-1]["id"]}

    def _plan(self) -> dict[str, Any]:
        moves = [
            {
                "topic": "orders", "lane_index": 3 * number, "from_member": "m-0",
                "to_member": f"m-{number + 1}", "bytes_per_s": 900_000 - 9_000 * number,
            }
            for number in range(5)
        ]  # fmt: skip
        answer = {"dry_run": True, "balance": self.scene.balance, "balance_after": 1.08}
        return answer | {"moves": moves, "is_asked": False, "reason": None} | self.scene.plan

    def _reset(self) -> dict[str, Any]:
        partitions = [
            {
                "topic": "orders", "partition": number, "from_offset": 90_000, "to_offset": 80_000,
                "lanes": 16, "offsets_again": 10_000, "offsets_skipped": 0,
            }
            for number in range(3)
        ]  # fmt: skip
        return {"dry_run": True, "partitions": partitions}

    def _drain(self) -> dict[str, Any]:
        return {
            "dry_run": True, "node": 1, "state": "draining", "partitions": 12,
            "groups": ["shipping"], "connections": 31,
        }  # fmt: skip

    def _switches(self) -> dict[str, Any]:
        return {
            "version": 4, "accept.individual.commit": None, "accept.range.fetch": {"orders": False},
            "allow.individual.commit": {}, "configured": {"accept.individual.commit": True},
        }  # fmt: skip


def clock_script() -> str:
    """Have the browser's clock stand at the scene's time, so that texts of times are the same."""
    return f"const real = Date.now, start = real(); Date.now = () => {NOW_MS} + real() - start;"
