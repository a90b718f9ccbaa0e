"""The live page's server: files with safe headers, one state for all viewers, a bound of them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from keylane.config.node import LaneRule
from keylane.errors import UpstreamLost
from keylane.proxy.control import live_feed
from keylane.proxy.control.api.overview import Overview
from keylane.proxy.control.api.problems import answer_problems
from keylane.proxy.control.describe import GroupReport
from keylane.proxy.control.live_feed import GROUPS_MAX, PAGES, VIEWERS_MAX, LiveFeed
from keylane.proxy.control.shares.report import ShareReport
from keylane.proxy.runtime.event_log import Kind
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.scans.loads import LaneLoads
from tests.reference.overview import FakeOverview
from tests.transcript.fake import FakeContext


class FakeDescriber:
    """Describes all groups alike; counts how often it is asked."""

    def __init__(self, *, fails: bool = False, report: GroupReport | None = None) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._fails, self._report = fails, report

    async def describe(self, group: str) -> GroupReport | None:
        self.asked.append(group)
        await self.may_answer.wait()
        if self._fails:
            raise UpstreamLost("no broker")
        return self._report


@asynccontextmanager
async def serving(
    describer: FakeDescriber,
    *,
    groups: tuple[str, ...] = (),
    share_groups: tuple[str, ...] = (),
    overview: Overview | None = None,
) -> AsyncIterator[tuple[LiveFeed, ClientSession]]:
    context = FakeContext(LaneRule(topic="orders", lanes=4))
    feed = LiveFeed(
        describer,  # type: ignore[arg-type]
        LaneLoads(lambda: 0.0),
        ProxyStats(),
        views=lambda: [context.lanes("orders")],
        groups=lambda: groups,
        share_groups=lambda: share_groups,
        overview=overview,
    )
    app = web.Application(middlewares=[answer_problems])
    app.add_routes(feed.routes())
    async with TestServer(app) as server, ClientSession(server.make_url("")) as browser:
        yield feed, browser
        await feed.stop()


async def events(response: Any, count: int) -> list[tuple[str, Any]]:
    """The next events of a stream."""
    found: list[tuple[str, Any]] = []
    while len(found) < count:
        name = (await response.content.readline()).decode().removeprefix("event: ").strip()
        data = (await response.content.readline()).decode().removeprefix("data: ")
        await response.content.readline()
        found.append((name, json.loads(data)))
    return found


@pytest.mark.parametrize("name", ["", *(f"page/{page}" for page in PAGES)])
async def test_every_file_comes_with_headers_that_keep_others_out(name) -> None:
    """Scripts of other origins are refused by the browser, and none is asked for."""
    async with serving(FakeDescriber()) as (_, browser), browser.get(f"/{name}") as response:
        body = await response.text()

    assert response.status == 200
    assert response.headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert "http://" not in body and "https://" not in body


async def test_a_path_that_is_no_file_is_not_found() -> None:
    """Names are looked up in a list, so nothing else of the machine can be read."""
    async with serving(FakeDescriber()) as (_, browser):
        for name in ("nothing.js", "..%2F__init__.py", "%2e%2e/stats.py"):
            async with browser.get(f"/page/{name}") as response:
                assert response.status == 404


async def test_a_viewer_gets_layout_and_state(monkeypatch) -> None:
    """The layout once, then states; two pages cost one look."""
    monkeypatch.setattr(live_feed, "INTERVAL_S", 3600.0)  # no second look
    monkeypatch.setattr(live_feed, "REPORT_S_MAX", 3600.0)
    monkeypatch.setattr(live_feed, "BEAT_S", 3600.0)
    describer = FakeDescriber()
    describer.may_answer.clear()  # the look lasts until both pages are there
    async with (
        serving(describer, groups=("g",)) as (feed, browser),
        browser.get("/page/events") as first,
        browser.get("/page/events") as second,
    ):
        while len(feed._viewers) < 2:  # noqa: ASYNC110 - a set has no event
            await asyncio.sleep(0)
        describer.may_answer.set()
        (name, layout), (other, state) = await events(first, 2)
        assert (name, other) == ("layout", "state")
        assert [(t["name"], t["partitions"], t["lanes"]) for t in layout] == [("orders", 2, 4)]
        assert state["topics"] == [{"name": "orders", "bytes_per_s": [None] * 8}]
        assert await events(second, 2)
        assert describer.asked == ["g"]


async def test_a_group_that_cannot_be_described_is_left_out(caplog) -> None:
    """The rest of the page goes on."""
    caplog.set_level("INFO")
    async with (
        serving(FakeDescriber(fails=True), groups=("g",)) as (_, browser),
        browser.get("/page/events") as response,
    ):
        found = dict(await events(response, 2))

    assert found["state"]["groups"] == []
    assert "group=g reason=no broker" in caplog.text


async def test_a_group_that_was_described_stays_as_old(monkeypatch) -> None:
    """While it cannot be described it is shown as it was, with the time."""
    monkeypatch.setattr(live_feed, "INTERVAL_S", 0.01)
    report = GroupReport(
        group="s", state="Stable", assignor="simple", coordinator=1, generation_id=4, members=(),
        lanes=(), share=ShareReport(is_ordered=True, members=(), partitions=()),
    )  # fmt: skip
    describer = FakeDescriber(report=report)
    overview = FakeOverview()
    async with (
        serving(describer, share_groups=("s",), overview=overview.make()) as (_, browser),
        browser.get("/page/events") as response,
    ):
        first = dict(await events(response, 3))
        describer._fails = True
        second = first["state"]
        while not second["shares"][0]["is_old"]:
            second = dict(await events(response, 1)).get("state", second)

    assert (first["state"]["shares"][0]["is_old"], second["shares"][0]["name"]) == (False, "s")
    assert second["shares"][0]["as_of_ms"] == overview.now_ms


async def test_a_viewer_gets_the_cluster_and_new_events(monkeypatch) -> None:
    """Events come once each; those from before the page was opened as well."""
    monkeypatch.setattr(live_feed, "INTERVAL_S", 0.01)
    overview = FakeOverview()
    overview.event_log.note(Kind.NODE, "Node 1 joined.")
    async with (
        serving(FakeDescriber(), overview=overview.make()) as (_, browser),
        browser.get("/page/events") as response,
    ):
        found = dict(await events(response, 3))
        overview.event_log.note(Kind.NODE, "Node 2 joined.")
        name, later = "", cast("dict[str, Any]", {})
        while name != "events":
            ((name, later),) = await events(response, 1)

    assert found["state"]["cluster"]["brokers"][0]["address"] == "kafka:9092"
    assert [event["text"] for event in found["events"]["events"]] == ["Node 1 joined."]
    assert [event["text"] for event in later["events"]] == ["Node 2 joined."]


async def test_share_groups_stand_beside_lanes() -> None:
    """One that is described is shown; it has no lanes, so it is no group of lanes."""
    share = ShareReport(is_ordered=True, members=(), partitions=())
    report = GroupReport(
        group="s",
        state="Stable",
        assignor="simple",
        coordinator=1,
        generation_id=4,
        members=(),
        lanes=(),
        share=share,
    )
    names = tuple(f"s{number}" for number in range(GROUPS_MAX + 2))
    async with (
        serving(FakeDescriber(report=report), groups=("g",), share_groups=names) as (_, browser),
        browser.get("/page/events") as response,
    ):
        state = dict(await events(response, 2))["state"]

    assert state["groups"] == []
    assert [shown["name"] for shown in state["shares"]] == ["s"] * GROUPS_MAX
    assert state["shares_left_out"] == 2


async def test_more_pages_than_the_bound_are_refused() -> None:
    """A page that closes makes room."""
    async with serving(FakeDescriber()) as (_, browser):
        opened = [await browser.get("/page/events") for _ in range(VIEWERS_MAX)]
        async with browser.get("/page/events") as refused:
            assert refused.status == 503
        for response in opened:
            response.close()


async def test_a_page_that_takes_nothing_is_closed(monkeypatch, caplog) -> None:
    """A viewer that does not read gives its place back, beside one that does."""
    monkeypatch.setattr(live_feed, "INTERVAL_S", 0.001)
    monkeypatch.setattr(live_feed, "LOOP_SHARE", 1.0)
    monkeypatch.setattr(live_feed, "TAKEN_S", 0.5)
    numbers = itertools.count()

    # Less than what a transport takes before a write waits. So one to a viewer that reads never
    # waits, and a pause of the whole process does not count as time in which it took nothing.
    async def look(_feed: LiveFeed) -> tuple[dict[str, bytes], float]:
        return {"state": b"%06d" % next(numbers) * 10_000}, 0.0

    monkeypatch.setattr(LiveFeed, "_look", look)
    caplog.set_level("INFO", logger="keylane.live")
    async with serving(FakeDescriber()) as (feed, browser):
        port = browser._base_url.port  # type: ignore[union-attr]
        deaf_reader, deaf = await asyncio.open_connection("127.0.0.1", port, limit=1)
        deaf.write(b"GET /page/events HTTP/1.1\r\nHost: x\r\n\r\n")
        async with browser.get("/page/events") as good, asyncio.timeout(120):
            while "reason=nothing taken" not in caplog.text:
                await good.content.readany()
            assert len(feed._viewers) == 1
            assert await good.content.readany()
        with suppress(ConnectionError):
            while await deaf_reader.read(1 << 20):  # `read()` would take 1 byte at a time
                pass
        assert deaf_reader.at_eof() or deaf_reader.exception()
        deaf.close()


async def test_nothing_is_looked_at_without_a_viewer(monkeypatch) -> None:
    """The task ends with its last viewer, and a new one starts it again."""
    monkeypatch.setattr(live_feed, "INTERVAL_S", 0.0)
    describer = FakeDescriber()
    async with serving(describer, groups=("g",)) as (feed, browser):
        for _ in range(2):
            async with browser.get("/page/events") as response:
                await events(response, 2)
            task = feed._task
            assert task is not None
            async with asyncio.timeout(30):
                await task


async def test_of_many_groups_the_first_are_shown() -> None:
    """Each costs questions to brokers; the page shows how many are left out."""
    describer = FakeDescriber()
    groups = tuple(f"g{number}" for number in range(GROUPS_MAX + 5))
    async with (
        serving(describer, groups=groups) as (_, browser),
        browser.get("/page/events") as response,
    ):
        found = dict(await events(response, 2))

    assert found["state"]["groups_left_out"] == 5
    assert describer.asked[:GROUPS_MAX] == list(groups[:GROUPS_MAX])
