"""The live page of a real proxy: three topics, twelve members, changes as they happen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.integration.harness import Group, produce

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
KEYS = [f"key-{number}" for number in range(60)]
TIMEOUT_MS = 60_000


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_the_page_follows_a_group(kafka, keylane, topic, tmp_path: Path) -> None:
    """Members, lanes, load and lag come and go without a reload."""
    names = [topic("lanes16", partitions=count) for count in (3, 2, 1)]
    proxy = keylane("lanes16-*=16", args=("--assignor", "g-*=key-range"))
    for name in names:
        produce(kafka, name, KEYS, rounds=20, codecs=["lz4"])

    with (
        Group(proxy.bootstrap, names[0], f"g-{names[0]}") as group,
        Group(proxy.bootstrap, names[1], f"g-{names[1]}") as other,
        Group(proxy.bootstrap, names[2], f"g-{names[2]}") as third,
        sync_playwright() as playwright,
    ):
        for one, count in ((group, 6), (other, 4), (third, 2)):
            one.add("aiokafka", count)
        group.wait_for_lanes(48)
        other.wait_for_lanes(32)
        third.wait_for_lanes(16)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://{proxy.control}/")

        expect(page.locator("#link")).to_have_text("live", timeout=TIMEOUT_MS)
        for name in names:
            expect(page.locator(".topic h2", has_text=name)).to_have_count(1, timeout=TIMEOUT_MS)
            option = page.locator(f"#group option[value='g-{name}']")
            expect(option).to_have_count(1, timeout=TIMEOUT_MS)
        page.locator("#group").select_option(f"g-{names[0]}")
        expect(page.locator("#members tr")).to_have_count(6)
        group.wait_for_commits()
        figures = page.locator(".topic", has_text=names[0]).locator(".figures")
        expect(figures).to_contain_text("lag 0", timeout=TIMEOUT_MS)

        (joined,) = group.add("aiokafka")
        group.wait_for_lanes(48)
        expect(page.locator("#members tr")).to_have_count(7, timeout=TIMEOUT_MS)
        expect(page.locator("#members tr", has_text=joined)).not_to_contain_text("kept all")
        page.screenshot(path=tmp_path / "live.png", full_page=True)
        browser.close()
    assert errors == []


def test_a_proxy_with_an_open_page_stops_at_once(kafka, keylane, topic) -> None:
    """A stream of events ends with the proxy, and does not hold it."""
    import urllib.request

    proxy = keylane("lanes16-*=16")
    with urllib.request.urlopen(f"http://{proxy.control}/page/events", timeout=30) as stream:
        assert stream.readline() == b"event: layout\n"
        proxy.stop()
        while stream.read(65536):
            pass
