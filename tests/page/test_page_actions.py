"""Actions on the live page: each shows first what it would do, and a reader gets none."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Route, async_playwright, expect

from keylane.config.security import SecurityConfig
from keylane.proxy.control.auth import ControlGuard
from tests.page.looking import CHROMIUM, Looker, looking
from tests.page.made_up import SCENES
from tests.reference.control_port import control_port

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH"),
    pytest.mark.timeout(120),
]
TIMEOUT_MS = 30_000
"""As Playwright waits for an element that is to be clicked."""


async def previewed(looker: Looker) -> str:
    """Wait for the preview, and return it."""
    await looker.page.wait_for_selector("#action-run:enabled")
    return await looker.page.locator("#action-preview").inner_text()


async def confirmed(looker: Looker) -> str:
    """Confirm, and return what the dialog says then."""
    await looker.page.locator("#action-run").click()
    await looker.page.wait_for_selector("#action-preview .done")
    return await looker.text("#action-preview .done")


async def test_a_rebalance_shows_its_moves_first() -> None:
    """The dry run names lanes and members; only the confirmation asks for the change."""
    async with looking(SCENES["uneven"]) as looker:
        await looker.page.locator("#rebalance").click()
        preview = await previewed(looker)
        before = list(looker.port.changes)
        await confirmed(looker)

        assert "5 lanes would move." in preview
        assert "2.60 \u00d7 mean now, and 1.08 \u00d7 mean after it" in preview
        assert "billing-0" in preview
        assert {path for _, path, _ in before} == {"/groups/billing/rebalance?dry_run=true"}
        assert ("POST", "/groups/billing/rebalance", None) in looker.port.changes


async def test_a_late_plan_does_not_show_in_the_next_dialog() -> None:
    """What comes for a dialog that was closed must not be confirmed in that of another action."""
    async with looking(SCENES["healthy"], at="#group=billing") as looker:
        page = looker.page
        was_opened = asyncio.Event()

        async def answer_late(route: Route) -> None:
            await was_opened.wait()
            await route.continue_()

        await page.route("**/groups/billing/rebalance?dry_run=true", answer_late)
        async with page.expect_response("**/rebalance?dry_run=true"):
            await page.locator("#rebalance").click()
            await page.locator("#action-cancel").click()
            await page.locator("#switches").click()
            was_opened.set()
        await looker.move_on()

        assert await looker.text("#action-preview") == ""
        assert await page.locator("#action-run").is_disabled()


async def test_a_reset_by_time_shows_what_is_read_again() -> None:
    """A change of a field takes the preview back; partitions are numbers."""
    async with looking(SCENES["stopped"], at="#group=billing") as looker:
        page = looker.page
        await page.wait_for_selector(".topic")  # the list of groups may come before the topics
        await page.locator("#reset").click()
        await page.locator("[name=to]").select_option("datetime")
        await page.locator("[name=value]").fill("2026-11-28T14:00:00Z")
        await page.locator("[name=topic]").select_option("orders")
        await page.locator("[name=partitions]").fill("0, x")
        await page.locator("#action-again").click()
        await page.wait_for_selector("#action-error:visible")
        assert await looker.text("#action-error") == "x is no whole number"
        await page.locator("[name=partitions]").fill("0, 2")
        assert await page.locator("#action-run").is_disabled()
        await page.keyboard.press("Enter")
        preview = await previewed(looker)
        found = await Axe().run(page)
        said = await confirmed(looker)

        body = {
            "topics": [{"topic": "orders", "partitions": [0, 2]}],
            "to": "datetime",
            "value": "2026-11-28T14:00:00Z",
        }
        assert "30.0 k offsets would be read again, and 0 never read." in preview
        assert said == "Offsets of 3 partitions are reset."
        assert looker.port.changes == [
            ("POST", "/groups/billing/reset-offsets?dry_run=true", body),
            ("POST", "/groups/billing/reset-offsets", body),
        ]
        assert found.violations_count == 0, found.generate_report()


async def test_offsets_of_a_group_with_members_are_not_reset() -> None:
    """The button is off, and the reason stands beside it."""
    async with looking(SCENES["healthy"], at="#group=billing") as looker:
        # It may come later than the list of groups: the caller's rights are asked for apart.
        await expect(looker.page.locator("#why-not")).to_have_text(
            "Reset offsets: stop the group first, it has 12 members.", timeout=TIMEOUT_MS
        )
        assert await looker.page.locator("#reset").is_disabled()


async def test_a_node_is_drained_after_a_look() -> None:
    """Its groups and connections are named first."""
    async with looking(SCENES["healthy"]) as looker:
        await looker.page.get_by_role("button", name="Drain node 1").click()
        preview = await previewed(looker)
        said = await confirmed(looker)

        assert "12 partitions and 1 group: shipping. It has 31 connections." in preview
        assert said == "Node 1 is draining."
        assert looker.port.changes == [
            ("POST", "/nodes/1/drain?dry_run=true", None),
            ("POST", "/nodes/1/drain", None),
        ]


async def test_a_drained_node_that_is_alone_can_be_taken_back() -> None:
    """The others have gone since; a node that serves alone is not drained."""
    show = """async state => {
      const {showCluster} = await import('/page/cluster.js');
      const node = {number: 1, state, is_self: true, address: "node-1:19092", partitions: 0};
      showCluster({nodes: [node]}, {mayWrite: true, why: "", onDrain: () => {}});
      const button = document.querySelector("#nodes button");
      return [button.textContent, button.disabled]; }"""
    async with looking(SCENES["healthy"]) as looker:
        assert await looker.page.evaluate(show, "drained") == ["Take back", False]
        assert await looker.page.evaluate(show, "serving") == ["Drain", True]


async def test_a_switch_is_changed_in_the_version_that_was_seen() -> None:
    """The present value and the new one are named; If-Match keeps others' changes."""
    async with looking(SCENES["healthy"]) as looker:
        page = looker.page
        sent = []
        page.on("request", lambda asked: sent.append((asked.method, asked.headers)))
        await page.locator("#switches").click()
        await page.locator("[name=name]").select_option("accept.range.fetch")
        await page.locator("[name=of]").fill("orders")
        await page.locator("[name=value]").select_option("true")
        await page.locator("#action-again").click()
        preview = await previewed(looker)
        await confirmed(looker)

        assert preview.startswith("accept.range.fetch of orders: off → on.")
        changed = ("PUT", "/switches/topics/orders", {"accept.range.fetch": True})
        assert looker.port.changes == [changed]
        assert [headers["if-match"] for method, headers in sent if method == "PUT"] == ['"4"']


async def test_a_refusal_is_shown_in_the_dialog() -> None:
    """The answer's own words; nothing can be confirmed then."""
    async with looking(SCENES["healthy"], expects_errors=True) as looker:
        looker.port.refusal = "it is the only node that serves"
        await looker.page.get_by_role("button", name="Drain node 1").click()
        await looker.page.wait_for_selector("#action-error:visible")

        assert await looker.text("#action-error") == "it is the only node that serves"
        assert await looker.page.locator("#action-run").is_disabled()
        await looker.page.keyboard.press("Escape")
        await expect(looker.page.locator("#action")).to_be_hidden(timeout=TIMEOUT_MS)


async def test_a_change_without_an_answer_is_not_called_undone() -> None:
    """Only of a look it is said that keylane cannot be reached; a change may have been made."""
    async with looking(SCENES["uneven"], expects_errors=True) as looker:
        await looker.page.route("**/groups/billing/rebalance", lambda route: route.abort())
        await looker.page.route("**/nodes/1/drain?dry_run=true", lambda route: route.abort())
        await looker.page.locator("#rebalance").click()
        await previewed(looker)
        await looker.page.locator("#action-run").click()
        await looker.page.wait_for_selector("#action-error:visible")
        of_change = await looker.text("#action-error")
        await looker.page.locator("#action-cancel").click()
        await looker.page.get_by_role("button", name="Drain node 1").click()
        await looker.page.wait_for_selector("#action-error:visible")

        assert of_change == (
            "no answer came: it is not known whether the change was made; look before you ask again"
        )
        assert await looker.text("#action-error") == "keylane cannot be reached"


async def test_only_looks_have_a_time_limit() -> None:
    """A dry run is one, as GET is; a change is waited for, however long it takes."""
    watch = """async () => {
      const {ask} = await import('/page/api.js');
      const real = window.fetch, limited = {};
      window.fetch = (path, options) => {
        limited[path] = options.signal !== undefined;
        return real(path, options);
      };
      await ask('switches');
      await ask('nodes/1/drain?dry_run=true', {method: 'DELETE'});
      await ask('nodes/1/drain', {method: 'POST'});
      window.fetch = real;
      return ['switches', 'nodes/1/drain?dry_run=true', 'nodes/1/drain'].map(one => limited[one]);
    }"""
    async with looking(SCENES["healthy"]) as looker:
        assert await looker.page.evaluate(watch) == [True, True, False]


async def test_a_reader_sees_the_reason_and_asks_for_nothing() -> None:
    """All buttons are off; not even a dry run is asked for."""
    async with looking(SCENES["reader"]) as looker:
        await expect(looker.page.locator("#caller")).to_have_text(
            "read only, as ops", timeout=TIMEOUT_MS
        )
        for name in ("#rebalance", "#reset", "#switches", "#nodes button >> nth=1"):
            assert await looker.page.locator(name).is_disabled()
        await looker.move_on()

        assert "changes need the admin's role" in await looker.text("#why-not")
        assert looker.port.changes == []


async def test_a_page_of_another_site_changes_nothing() -> None:
    """A browser that is logged in, or on this machine, is asked to send a change: refused."""

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="<title>evil</title>", content_type="text/html")

    evil = web.Application()
    evil.add_routes([web.get("/", page)])
    runner = web.AppRunner(evil)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ask = """async url => { await fetch(url, {
      method: "POST", mode: "no-cors", credentials: "include", body: "{}",
      headers: {"Content-Type": "text/plain"}}); }"""
    guard = ControlGuard(SecurityConfig())
    async with control_port(guard=guard) as port, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = await browser.new_page()
        await tab.goto(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        url = f"http://{port.server.address}/switches"
        async with tab.expect_response(url) as waiting:
            await tab.evaluate(ask, url)
        answer = await waiting.value
        seen = answer.request.method, answer.status
        await browser.close()
    await runner.cleanup()

    assert seen == ("POST", 403)
