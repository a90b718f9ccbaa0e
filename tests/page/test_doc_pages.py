"""The site of docs/ in a real Chromium, opened as files: sizes, schemes, search, no server."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, ViewportSize, async_playwright

from tools.doc_site import build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH"),
    pytest.mark.timeout(120),
]
PHONE: ViewportSize = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("manual") / "site"
    build(folder)
    return folder


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """A tab of a phone at night."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield await browser.new_page(viewport=PHONE, color_scheme="dark")
        await browser.close()


async def test_a_file_is_searched_without_a_server(site: Path, page: Page) -> None:
    """The search of a page that was opened as a file finds a word, and asks no other machine."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto((site / "index.html").as_uri())

    # Not by its key: the page listens to that only when the index is there, some time later.
    await page.locator("label.md-header__button[for=__search]").click()
    await page.locator("input:focus").wait_for()
    await page.keyboard.type("settings of the client matter")

    await page.get_by_text("Which settings of the client matter").first.wait_for()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("name", ["index", "concepts", "comparison", "guarantees", "reference/api"])
async def test_a_phone_shows_the_whole_width(name: str, site: Path, page: Page) -> None:
    """Wide tables scroll by themselves, and no page is wider than the screen."""
    await page.goto((site / f"{name}.html").as_uri())

    width = await page.evaluate("document.documentElement.scrollWidth")
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert width <= PHONE["width"]
    assert all(int(part) < 60 for part in ground.strip("rgba()").split(",")[:3])
