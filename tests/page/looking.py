"""A browser tab on the live page of a fake control port, and the errors in it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from playwright.async_api import Page, async_playwright

from tests.page.fake_port import FakePort, clock_script
from tests.page.made_up import Scene

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

VIEWPORT = {"width": 1440, "height": 1600}
"""High enough for all strips: those out of view are not drawn."""


@dataclass(slots=True)
class Looker:
    """A browser tab on the page. `errors` has what the browser complained of."""

    page: Page
    port: FakePort
    runner: web.AppRunner
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

    async def answers(self) -> dict[str, tuple[str, str]]:
        """Return of each of the five answers its grade, and its value with its detail."""
        tiles: dict[str, list[str]] = await self.page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('#answers li')].map(tile => ["
            "tile.dataset.answer, [tile.className, tile.querySelector('.value').textContent + ': '"
            " + tile.querySelector('.detail').textContent]]))"
        )
        return {name: (grade, text) for name, (grade, text) in tiles.items()}

    async def node_count(self) -> int:
        """Return how many elements the document has."""
        count: int = await self.page.evaluate("document.querySelectorAll('*').length")
        return count

    async def lose_the_port(self) -> None:
        """End the server under the page."""
        await self.runner.cleanup()


@asynccontextmanager
async def looking(
    scene: Scene, *, at: str = "", expects_errors: bool = False, **options: Any
) -> AsyncIterator[Looker]:
    """The page of a scene in a new browser. `options` are those of a browser context."""
    next_state = asyncio.Semaphore(0)
    port = FakePort(scene, next_state.acquire)
    runner = web.AppRunner(port.app(), shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    number = runner.addresses[0][1]
    async with AsyncExitStack() as ends:
        ends.push_async_callback(runner.cleanup)
        playwright = await ends.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        ends.push_async_callback(browser.close)
        page = await browser.new_page(**{"viewport": VIEWPORT, **options})
        looker = Looker(page, port, runner, next_state)
        page.on("console", lambda message: looker.errors.append(message.text))
        page.on("pageerror", lambda error: looker.errors.append(str(error)))
        # A page that works without internet asks no other server.
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith((f"http://127.0.0.1:{number}/", "data:"))
                else looker.errors.append(asked.url)
            ),
        )
        await page.add_init_script(clock_script())
        await page.goto(f"http://127.0.0.1:{number}/{at}")
        await page.wait_for_selector("#answers li")
        await page.wait_for_function("() => document.querySelector('#events').children.length > 0")
        await page.wait_for_function(
            "() => Number(document.querySelector('#groups-count').textContent) > 1"
        )
        # The feed's first state, and what the caller may do: buttons wait for both.
        await page.wait_for_selector("#node div", state="attached")
        await page.wait_for_function(
            "() => document.querySelector('#caller').textContent.includes('ops')"
        )
        yield looker
    assert expects_errors or looker.errors == []
