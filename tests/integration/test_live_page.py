"""The live page of a real proxy: three topics, twelve members, changes as they happen."""

from __future__ import annotations

import re
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
        # Without a group of this test's the page might select another one that is gone by now.
        page.goto(f"http://{proxy.control}/#group=g-{names[1]}")

        expect(page.locator("#link")).to_contain_text("Cluster well", timeout=TIMEOUT_MS)
        page.locator("#topics-tab").click()
        for name in names:
            page.locator("#search").fill(name)  # the document has only the rows in view
            topic_row = page.locator("#topics-box a", has_text=name)
            expect(topic_row).to_have_count(1, timeout=TIMEOUT_MS)
        page.locator("#groups-tab").click()
        page.locator("#search").fill(f"g-{names[0]}")
        page.locator("#groups-box a", has_text=f"g-{names[0]}").click(timeout=TIMEOUT_MS)
        expect(page.locator("#members tr")).to_have_count(6, timeout=TIMEOUT_MS)
        group.wait_for_commits()
        page.locator(".topic").scroll_into_view_if_needed()
        figures = page.locator(".topic", has_text=names[0]).locator(".figures")
        expect(figures).to_contain_text("lag 0", timeout=TIMEOUT_MS)

        (joined,) = group.add("aiokafka")
        group.wait_for_lanes(48)
        expect(page.locator("#members tr")).to_have_count(7, timeout=TIMEOUT_MS)
        row = page.locator("#members tr", has_text=joined)
        # Not what it gained: a client of aiokafka may join once more, and then it gained nothing.
        expect(row.locator(".held")).to_have_text(re.compile("[1-9]"), timeout=TIMEOUT_MS)
        expect(page.locator("#events")).to_contain_text(joined, timeout=TIMEOUT_MS)
        page.screenshot(path=tmp_path / "live.png", full_page=True)
        browser.close()
    assert errors == []


def test_a_proxy_with_an_open_page_stops_at_once(kafka, keylane, topic) -> None:
    """A stream of events ends with the proxy, and does not hold it."""
    import urllib.request

    proxy = keylane("lanes16-*=16")
    with urllib.request.urlopen(f"http://{proxy.control}/page/events", timeout=30) as stream:
        assert b"event: layout\n" in iter(stream.readline, b"")
        proxy.stop()
        while stream.read(65536):
            pass


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_offsets_are_reset_on_the_page(kafka, keylane, topic) -> None:
    """A group without members goes back to the start, after a preview; the action is an event."""
    name = topic("lanes16", partitions=2)
    proxy = keylane("lanes16-*=16")
    values = produce(kafka, name, KEYS, rounds=5)
    with Group(proxy.bootstrap, name, f"g-{name}") as group:
        group.add("aiokafka", 2)
        group.wait_for_values(values)
        group.wait_for_commits()
        for member in list(group.living):
            group.leave(member)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"http://{proxy.control}/#group=g-{name}")
        expect(page.locator("#selected-state")).to_contain_text("Empty", timeout=TIMEOUT_MS)

        page.locator("#reset").click(timeout=TIMEOUT_MS)
        page.locator("#action-again").click()
        preview = page.locator("#action-preview")
        expect(preview).to_contain_text("offsets would be read again", timeout=TIMEOUT_MS)
        page.locator("#action-run").click(timeout=TIMEOUT_MS)

        expect(preview).to_contain_text("Offsets of 2 partitions are reset.", timeout=TIMEOUT_MS)
        page.locator("#action-cancel").click()
        expect(page.locator("#events")).to_contain_text("reset", timeout=TIMEOUT_MS)
        page.locator("#search").fill(f"g-{name}")  # the document has only the rows in view
        lag = page.locator("#groups-box li", has_text=f"g-{name}").locator(".value")
        expect(lag).to_have_text(str(len(values)), timeout=TIMEOUT_MS)
        browser.close()
