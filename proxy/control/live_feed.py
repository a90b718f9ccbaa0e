"""The live page and its server-sent events.

Source: WHATWG HTML, server-sent events.

While there are viewers, one task puts a state together for all of them. It takes at most a fiftieth
of the event loop's time: the more lanes and groups, the rarer the states.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from aiohttp import web

from keylane.errors import KeylaneError
from keylane.proxy.control.api.problems import Problem
from keylane.proxy.control.describe import GroupDescriber, GroupReport
from keylane.proxy.control.live import Rates, layout_of, state_of
from keylane.proxy.control.shares.live import shares_of
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.view import View
from keylane.tasks import spawn

log = logging.getLogger("keylane.live")

INTERVAL_S: Final = 2.0
LOOP_SHARE: Final = 1 / 50
VIEWERS_MAX: Final = 16
TAKEN_S: Final = 30.0
"""A page that takes nothing for this time is closed: others may want its place."""
GROUPS_MAX: Final = 32
"""Each group costs two questions to brokers per state."""
TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
PAGES: Final = ("index.html", "live.css", "live.js", "shares.js", "strips.js", "text.js")
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; style-src 'self' 'unsafe-inline'"
    "; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
}
"""Beside those of every answer (`door.HEADERS`)."""


class LiveFeed:
    """Serves the page, and publishes what changes to its viewers.

    Invariants: the task runs while there are viewers; a slow viewer gets the last state only, and
    one that takes nothing is closed.
    """

    def __init__(
        self,
        describer: GroupDescriber,
        loads: LaneLoads,
        stats: ProxyStats,
        *,
        views: Callable[[], Iterable[View]],
        groups: Callable[[], Sequence[str]],
        share_groups: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """groups: groups to look at, those first that are to be shown where there are too many.

        share_groups: those in the order of keys, which are shown beside lanes.
        """
        self._describer, self._loads, self._stats = describer, loads, stats
        self._views, self._groups, self._share_groups = views, groups, share_groups
        self._rates = Rates(time.monotonic)
        self._viewers: set[asyncio.Queue[Mapping[str, bytes]]] = set()
        self._task: asyncio.Task[None] | None = None
        self._pages = {name: _read(name) for name in PAGES}

    def routes(self) -> list[web.RouteDef]:
        """Return what the control port adds."""
        return [
            web.get("/", self._page),
            web.get("/page/events", self._events),
            web.get("/page/{name}", self._page),
        ]

    async def stop(self) -> None:
        """End the task and all streams."""
        if self._task is not None:
            self._task.cancel()
        for viewer in self._viewers:
            _put(viewer, {})

    async def _page(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", PAGES[0])
        if name not in self._pages:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no page {name}")
        kind = TYPES[name.rpartition(".")[2]]
        return web.Response(
            body=self._pages[name], content_type=kind, charset="utf-8", headers=HEADERS
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if len(self._viewers) >= VIEWERS_MAX:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{VIEWERS_MAX} pages are open already")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        viewer: asyncio.Queue[Mapping[str, bytes]] = asyncio.Queue(maxsize=1)
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = spawn(self._run(), "live page")
        reported: dict[str, bytes] = {}
        try:
            while events := await viewer.get():
                async with asyncio.timeout(TAKEN_S):
                    # A comment where nothing changed: only a write says that the page was closed.
                    await response.write(_changes(reported, events) or b":\n\n")
                reported.update(events)
        except ConnectionError:
            pass  # the page was closed
        except TimeoutError:
            log.info("live page closed peer=%s reason=nothing taken", request.remote)
            if request.transport is not None:
                request.transport.abort()  # else what waits would be sent first
        finally:
            self._viewers.discard(viewer)
        return response

    async def _run(self) -> None:
        while self._viewers:
            started_s = time.perf_counter()
            events = await self._look()
            for viewer in self._viewers:
                _put(viewer, events)
            took_s = time.perf_counter() - started_s
            await asyncio.sleep(max(INTERVAL_S, took_s / LOOP_SHARE))

    async def _look(self) -> dict[str, bytes]:
        views = list(self._views())
        names = self._groups()
        shared = self._share_groups()
        reports = [report for name in names[:GROUPS_MAX] if (report := await self._report(name))]
        shares = [report for name in shared[:GROUPS_MAX] if (report := await self._report(name))]
        state = state_of(
            views,
            [report for report in reports if report.lanes],
            loads=self._loads,
            stats=self._stats,
            rates=self._rates,
            groups_left_out=max(0, len(names) - GROUPS_MAX),
        )
        state["shares"] = shares_of(shares)
        state["shares_left_out"] = max(0, len(shared) - GROUPS_MAX)
        return {"layout": _json(layout_of(views)), "state": _json(state)}

    async def _report(self, name: str) -> GroupReport | None:
        """None: there is no such group, or it cannot be described just now; the next look may."""
        try:
            return await self._describer.describe(name)
        except KeylaneError as error:
            log.info("group cannot be described group=%s reason=%s", name, error)
            return None


def _put(viewer: asyncio.Queue[Mapping[str, bytes]], events: Mapping[str, bytes]) -> None:
    """The last one counts; layout and state go together, so nothing is missed."""
    if viewer.full():
        viewer.get_nowait()
    viewer.put_nowait(events)


def _changes(reported: Mapping[str, bytes], events: Mapping[str, bytes]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (name.encode(), data)
        for name, data in events.items()
        if reported.get(name) != data
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _read(name: str) -> bytes:
    return files("keylane.proxy.control").joinpath("page", name).read_bytes()
