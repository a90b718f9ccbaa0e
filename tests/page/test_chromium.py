"""The live page in a real Chromium: sizes, schemes, keyboard, accessibility, many lanes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, async_playwright

from tests.page.made_up import Topic, made_up_app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH"),
    pytest.mark.timeout(120),
]
TOPICS: tuple[Topic, ...] = (("orders", 3, 16), ("payments", 2, 32), ("clicks.lanes-64", 1, 64))
MEMBERS = 12


@dataclass(slots=True)
class Looker:
    """A browser tab on the page, and the errors in it."""

    page: Page
    next_state: asyncio.Semaphore
    errors: list[str] = field(default_factory=list)

    async def text(self, selector: str) -> str:
        """Text of the first element that fits."""
        return (await self.page.locator(selector).first.text_content()) or ""

    async def move_on(self) -> None:
        """Let the server send one more state, and wait until it is shown."""
        before = await self.text("#node")
        self.next_state.release()
        await self.page.wait_for_function(
            "before => document.querySelector('#node').textContent !== before", arg=before
        )


@asynccontextmanager
async def looking(
    topics: tuple[Topic, ...] = TOPICS,
    members: int = MEMBERS,
    *,
    has_shares: bool = False,
    **options: Any,
) -> AsyncIterator[Looker]:
    """The page with made-up states in a new browser; `options` are those of a browser context."""
    next_state = asyncio.Semaphore(0)
    app = made_up_app(topics, members, step=next_state.acquire, has_shares=has_shares)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(**options)
        looker = Looker(page, next_state)
        page.on("console", lambda message: looker.errors.append(message.text))
        page.on("pageerror", lambda error: looker.errors.append(str(error)))
        # A page that works without internet asks no other server.
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith((f"http://127.0.0.1:{port}/", "data:"))
                else looker.errors.append(asked.url)
            ),
        )
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.wait_for_selector("#link.live")
        yield looker
        await browser.close()
    await runner.cleanup()
    assert looker.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
async def test_the_page_fits_and_is_accessible(scheme, width) -> None:
    """On a phone and a screen, light and dark: no sideways scroll, no finding of axe-core."""
    size = {"width": width, "height": 900}
    async with looking(has_shares=True, color_scheme=scheme, viewport=size) as looker:
        await looker.page.locator(".keys summary").first.click()
        wide = await looker.page.evaluate("document.documentElement.scrollWidth")
        found = await Axe().run(looker.page)

        assert wide <= width
        assert found.violations_count == 0, found.generate_report()


async def test_it_shows_the_member_of_each_lane() -> None:
    """Three topics, twelve members, lags, loads and moves; a further state replaces the last."""
    async with looking() as looker:
        assert await looker.page.locator(".topic").count() == len(TOPICS)
        assert await looker.page.locator("#members tr").count() == MEMBERS
        assert "3 partitions, 16 lanes each" in await looker.text(".figures")
        assert "Stable" in await looker.text("#group-state")
        lag = await looker.text(".figures")

        await looker.move_on()

        assert await looker.text(".figures") != lag
        assert await looker.page.locator("#members tr").count() == MEMBERS


async def test_it_works_by_keyboard() -> None:
    """Arrow keys go from lane to lane and partition to partition; a member's button marks it."""
    async with looking() as looker:
        canvas = looker.page.locator("canvas").first
        await canvas.focus()
        for key, index in (("ArrowRight", 3), ("ArrowDown", 4), ("End", 46), ("Home", 1)):
            await looker.page.keyboard.press(key)
            assert await canvas.get_attribute("aria-valuenow") == str(index)
            assert (await canvas.get_attribute("aria-valuetext") or "").startswith(f"Lane {index} ")
            assert (await looker.text(".lane")).startswith(f"Lane {index} ")

        button = looker.page.locator("button.member").nth(2)
        await button.focus()
        await looker.page.keyboard.press("Enter")
        await looker.move_on()

        assert await button.get_attribute("aria-pressed") == "true"
        assert await button.evaluate("button => button === document.activeElement")


async def test_a_lane_is_found_by_pointing_at_it() -> None:
    """The lane under the pointer is shown with its range, member, load and lag."""
    async with looking() as looker:
        box = await looker.page.locator("canvas").first.bounding_box()
        assert box is not None
        row = box["height"] / 3

        await looker.page.mouse.move(box["x"] + box["width"] * 0.999, box["y"] + 1.5 * row)

        text = await looker.text(".lane")
        assert text.startswith("Lane 46 (partition 1): billing-")
        assert text.endswith("to 9223372036854775807")


async def test_ten_thousand_lanes_stay_usable() -> None:
    """The busiest are in a table; a key press still finds its lane while states go on."""
    async with looking((("orders", 10, 1000),), 40) as looker:
        await looker.page.locator("summary").first.click()
        await looker.move_on()
        canvas = looker.page.locator("canvas").first
        await canvas.focus()
        await looker.page.keyboard.press("End")

        assert await canvas.get_attribute("aria-valuenow") == "9990"
        assert await looker.page.locator("details tbody tr").count() == 20


async def test_it_shows_what_holds_a_key_up() -> None:
    """Of an ordered share group: errors, the longest wait, the fullest window, the hottest keys."""
    async with looking(has_shares=True) as looker:
        held_up = looker.page.locator(".share-group").nth(0)
        found = await held_up.locator(".findings li").all_inner_texts()
        rows = await held_up.locator(".partitions tbody tr").all_inner_texts()
        await held_up.locator("summary").click()
        await looker.move_on()

        assert found == [
            "Members of partition 3 of payments get the error CORRUPT_MESSAGE.",
            "Nothing of partition 1 of payments is handed out: earlier records may be missing.",
            "A record is held for 12 min 48 s: partition 0 of payments, offset 120400. 213 records "
            + "of its key wait behind it.",
            "The window of partition 0 of payments is 94 % full; one key soon holds up all others "
            + "there.",
        ]
        assert "540 behind their key" in rows[2]
        assert "1.6 k (3 %)" in rows[2]
        assert "at another node" in rows[4]
        assert await held_up.locator(".keys").get_attribute("open") is not None
        assert await held_up.locator(".keys tbody tr").count() == 3


async def test_a_share_group_that_is_well_says_so() -> None:
    """One sentence; the share groups that are too many are counted."""
    async with looking(has_shares=True) as looker:
        calm = looker.page.locator(".share-group").nth(1)
        found = await calm.locator(".findings li").all_inner_texts()

        assert len(found) == 1
        assert found[0].startswith("No key is held up: the oldest record is here for 0.")
        assert not await calm.locator(".keys").is_visible()
        assert await looker.text("#shares-more") == "2 more groups not shown"


async def test_a_node_without_share_groups_shows_no_section() -> None:
    """Lanes have the page for themselves."""
    async with looking() as looker:
        assert not await looker.page.locator("#shares-section").is_visible()
