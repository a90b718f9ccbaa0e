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
from dataclasses import asdict
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final, NamedTuple

from aiohttp import web

from keylane.errors import KeylaneError, NotCoordinator
from keylane.proxy.control.api.overview import Overview
from keylane.proxy.control.api.problems import Problem
from keylane.proxy.control.describe import GroupDescriber, GroupReport
from keylane.proxy.control.live import Rates, layout_of, state_of
from keylane.proxy.control.shares.live import shares_of
from keylane.proxy.control.watch.sampler import LANE_COST_S
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.view import View
from keylane.tasks import spawn

log = logging.getLogger("keylane.live")

INTERVAL_S: Final = 2.0
LOOP_SHARE: Final = 1 / 50
VIEWERS_MAX: Final = 16
BEAT_S: Final = 10.0
"""A page that got nothing for three times this says that its connection is lost."""
BEAT: Final = b"event: beat\ndata: {}\n\n"
TAKEN_S: Final = 30.0
"""A page that takes nothing for this time is closed: others may want its place."""
GROUPS_MAX: Final = 32
"""Each group costs two questions to brokers per state."""
GROUPS_AT_ONCE: Final = 4
REPORT_S_MAX: Final = 5.0
"""A group that takes longer stays as it was, so that the others are shown."""
EVENTS_AT_ONCE: Final = 200
TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
PAGES: Final = (
    *("index.html", "live.css", "parts.css"),
    *("actions.js", "api.js", "cluster.js", "feed.js", "line.js", "lists.js", "live.js"),
    *("members.js", "model.js", "shares.js", "side.js", "spark.js", "strips.js", "text.js"),
    "topics.js",
)
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; object-src 'none'"
    "; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    "; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
"""Beside those of every answer (`door.HEADERS`)."""


class _Seen(NamedTuple):
    """A report, and the time when it was of."""

    report: GroupReport
    at_ms: int
    is_old: bool


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
        overview: Overview | None = None,
    ) -> None:
        """groups: groups to look at, those first that are to be shown where there are too many.

        share_groups: those in the order of keys, which are shown beside lanes. overview: knows
        the cluster and events.
        """
        self._describer, self._loads, self._stats = describer, loads, stats
        self._views, self._groups, self._share_groups = views, groups, share_groups
        self._overview = overview
        self._rates = Rates(time.monotonic)
        self._last: dict[str, _Seen] = {}
        """The last report of each group that is shown."""
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
        event_id = 0
        try:
            while (events := await _next(viewer)) != {}:
                line, event_id = self._new_events(event_id)
                async with asyncio.timeout(TAKEN_S):
                    # A beat where nothing changed: only a write says that the page was closed, and
                    # only an event that the server is alive.
                    await response.write(_changes(reported, events or {}) + line or BEAT)
                reported.update(events or {})
        except ConnectionError:
            pass  # the page was closed
        except TimeoutError:
            log.info("live page closed peer=%s reason=nothing taken", request.remote)
            if request.transport is not None:
                request.transport.abort()  # else what waits would be sent first
        finally:
            self._viewers.discard(viewer)
        return response

    def _new_events(self, event_id: int) -> tuple[bytes, int]:
        """Return events behind the last one that a viewer has, and the id of the newest."""
        if self._overview is None or self._overview.event_log.last_id == event_id:
            return b"", event_id
        log = self._overview.event_log
        found = [asdict(event) for event in log.after(event_id, limit=EVENTS_AT_ONCE)]
        data = _json({"events": found, "last_id": log.last_id})
        return _changes({}, {"events": data}), log.last_id

    async def _run(self) -> None:
        self._rates = Rates(time.monotonic)  # the last look may be of hours ago
        while self._viewers:
            events, cost_s = await self._look()
            for viewer in self._viewers:
                _put(viewer, events)
            # However many lanes there are: clients come before viewers.
            await asyncio.sleep(max(INTERVAL_S, cost_s / LOOP_SHARE))

    async def _look(self) -> tuple[dict[str, bytes], float]:
        """Return a state, and the seconds of the event loop that it took."""
        views = list(self._views())
        names, shared = self._groups(), self._share_groups()
        cluster = None if self._overview is None else self._overview.cluster.describe()
        if cluster is None or cluster.kafka.is_reachable:
            await self._describe([*names[:GROUPS_MAX], *shared[:GROUPS_MAX]])
        else:
            self._last = {name: seen._replace(is_old=True) for name, seen in self._last.items()}
        reports = [self._last[name].report for name in names[:GROUPS_MAX] if name in self._last]
        shares = [self._last[name].report for name in shared[:GROUPS_MAX] if name in self._last]
        started_s = time.perf_counter()
        old = {name: seen.at_ms for name, seen in self._last.items() if seen.is_old}
        state = state_of(
            views,
            [report for report in reports if report.lanes],
            loads=self._loads,
            stats=self._stats,
            rates=self._rates,
            groups_left_out=max(0, len(names) - GROUPS_MAX),
            old=old,
        )
        state["shares"] = [
            {**share, "is_old": share["name"] in old, "as_of_ms": old.get(share["name"])}
            for share in shares_of(shares)
        ]
        state["shares_left_out"] = max(0, len(shared) - GROUPS_MAX)
        events = {"layout": _json(layout_of(views))}
        if self._overview is not None and cluster is not None:
            state["at_ms"], state["cluster"] = self._overview.now_ms(), asdict(cluster)
        events["state"] = _json(state)
        lanes = sum(len(report.lanes) for report in reports)
        return events, time.perf_counter() - started_s + LANE_COST_S * lanes

    async def _describe(self, names: Sequence[str]) -> None:
        """Look at groups; one that cannot be looked at just now stays as it was, marked as old."""
        gate = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def describe(name: str) -> _Seen | None:
            async with gate:
                return await self._report(name)

        found = await asyncio.gather(*map(describe, names))
        seen = zip(names, found, strict=True)
        self._last = {name: one for name, one in seen if one is not None}

    async def _report(self, name: str) -> _Seen | None:
        """Return a report; None: there is no such group, or nothing was ever known of it here."""
        try:
            async with asyncio.timeout(REPORT_S_MAX):
                report = await self._describer.describe(name)
        except NotCoordinator:
            return None  # another node serves it
        except (KeylaneError, TimeoutError) as error:
            known = self._last.get(name)
            if known is None or not known.is_old:
                reason = str(error) or "no answer in time"
                log.info("group cannot be described group=%s reason=%s", name, reason)
            return None if known is None else known._replace(is_old=True)
        now_ms = 0 if self._overview is None else self._overview.now_ms()
        return None if report is None else _Seen(report, now_ms, is_old=False)


async def _next(viewer: asyncio.Queue[Mapping[str, bytes]]) -> Mapping[str, bytes] | None:
    """Return the next events; None: there are none yet; empty: the feed has ended."""
    try:
        async with asyncio.timeout(BEAT_S):
            return await viewer.get()
    except TimeoutError:
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
