"""Pictures of the live page, of real groups: one with members in trouble, one on 500 topics.

KEYLANE_PICTURES=docs/images renews those of docs/live-page.md.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser, sync_playwright

from keylane.embedded import EmbeddedKafka
from tests.integration.harness import Group
from tests.integration.keylane_process import PATIENCE, KeylaneProcess
from tests.integration.made_topics import make_topic
from tests.pictures import keep_picture, picture_folder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH"),
    pytest.mark.timeout(1500),
]
KEYS = [f"customer-{number}" for number in range(300)]
VALUE = b"x" * 400
RECORDS_PER_S = 300
MEMBERS = 6
CALM_S = 110.0
"""Time of quiet before the first picture, for some points of the lines."""
LONG = "600000"
PROPERTIES = {
    # A member that is stopped stays in its group, stuck, and is not thrown out after 45 s.
    "group.consumer.max.session.timeout.ms": LONG,
    "group.consumer.session.timeout.ms": LONG,
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
}
PICTURES = 7
MANY = [f"events-{number:03}" for number in range(500)]
MANY_LANES = 20
MANY_GROUPS = 200
TOPICS_EACH = len(MANY) * 2 // MANY_GROUPS
"""Half of the groups are on lanes: together on all topics."""
ELEMENTS_MAX = 2_000
"""In the document at any time, as in tests/page/test_many.py."""
DESKTOP, PHONE = {"width": 1440, "height": 1130}, {"width": 390, "height": 844}
ANSWERS = """() => Object.fromEntries([...document.querySelectorAll('#answers li')].map(tile => [
  tile.dataset.answer, tile.querySelector('.value').textContent + ' | '
  + tile.querySelector('.detail').textContent]))"""


class Billing(Group):
    """Members with names of a real application."""

    def _start_member(
        self, library: str, name: str, options: dict[str, Any]
    ) -> subprocess.Popen[str]:
        return super()._start_member(library, name.replace(library, self.group), options)


class Load:
    """Records at a steady rate; `hot` keys get most of them."""

    def __init__(self, bootstrap: str, topics: Sequence[str] = ("orders",)) -> None:
        """`running` produces until its end."""
        self.hot: list[str] = []
        self._topics = topics
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "linger.ms": 20,
                "partitioner": "murmur2_random",
            }
        )
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Produce inside the block."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        chance = random.Random(5)
        while not self._ended.wait(0.1):
            for _ in range(RECORDS_PER_S // 10):
                keys = self.hot if self.hot and chance.random() < 0.75 else KEYS
                topic = chance.choice(self._topics)
                self._producer.produce(topic, VALUE, chance.choice(keys))
            self._producer.poll(0)
        self._producer.purge()


def ask(proxy: KeylaneProcess, path: str) -> Any:
    """Return an answer of the control port."""
    with urllib.request.urlopen(f"http://{proxy.control}/{path}", timeout=60) as answer:
        return json.load(answer)


class Camera:
    """Waits for what a page says, and takes pictures of it."""

    def __init__(self, browser: Browser, proxy: KeylaneProcess, folder: Path) -> None:
        self._browser, self._url, self._folder = browser, f"http://{proxy.control}/", folder
        self.answers: dict[str, dict[str, str]] = {}
        """Of each picture."""
        self.is_away = False
        """True: Kafka is away, so that no record comes."""
        self.elements: dict[str, int] = {}
        """In the document of each picture."""

    def take(
        self,
        name: str,
        until: str,
        *,
        timeout_s: float = 120,
        phone: bool = False,
        dark: bool = False,
    ) -> dict[str, str]:
        """Open the page, wait until a script holds, and keep it; return its five answers."""
        page = self._browser.new_page(
            viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            device_scale_factor=1.5 if phone else 1,
        )
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{self._url}#group=billing")
        page.wait_for_function(f"() => {until}", timeout=1000 * timeout_s * PATIENCE)
        if not self.is_away:  # the first state has no rates yet
            page.wait_for_function(
                "() => /records(?!0 )\\d/.test(document.querySelector('#node').textContent)",
                timeout=1000 * timeout_s * PATIENCE,
            )
        page.wait_for_function(
            "() => [...document.querySelectorAll('svg.spark path')]"
            ".some(line => line.getAttribute('d')?.includes('L'))",
            timeout=1000 * timeout_s * PATIENCE,
        )
        self.answers[name] = page.evaluate(ANSWERS)
        self.elements[name] = page.evaluate("document.querySelectorAll('*').length")
        keep_picture(page.screenshot(), self._folder / f"page-{name}.png")
        page.close()
        assert errors == []
        return self.answers[name]


def wait_until(holds: Callable[[], bool], *, timeout_s: float = 120) -> None:
    """The control port has no event for it; the deadline bounds it."""
    deadline_s = time.monotonic() + timeout_s * PATIENCE
    while True:
        with suppress(urllib.error.HTTPError):  # a group that joins or moves is not there yet
            if holds():
                return
        assert time.monotonic() < deadline_s
        time.sleep(0.5)


def answer(name: str, text: str) -> str:
    """Return a script that holds once an answer has a text."""
    return f"document.querySelector('[data-answer={name}]')?.textContent.includes('{text}')"


def keys_of(proxy: KeylaneProcess, member: str) -> list[str]:
    """Return keys of lanes that a member has, of up to five lanes."""
    found: dict[int, str] = {}
    for key in KEYS:
        place = ask(proxy, f"topics/orders/keys/{key}")
        if place["groups"] and place["groups"][0]["client_id"] == member:
            found.setdefault(place["lane_index"], key)
        if len(found) == 5:
            break
    return list(found.values())


@pytest.mark.long
def test_pictures_of_a_real_group(tmp_path, keylane) -> None:
    """Healthy, a member stuck, out of balance, a broker down, Kafka away: each answers at once."""
    folder = picture_folder(tmp_path)
    kafka = EmbeddedKafka(tmp_path / "kafka", node_count=3, heap_mb=320, properties=PROPERTIES)
    with kafka as cluster, sync_playwright() as playwright:
        make_topic(AdminClient({"bootstrap.servers": cluster.bootstrap}), NewTopic("orders", 2, 3))
        proxy = keylane("orders=16", bootstrap=cluster.bootstrap)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        camera, load = Camera(browser, proxy, folder), Load(cluster.bootstrap)
        group = Billing(proxy.bootstrap, "orders", "billing", protocol="consumer")
        with group, load.running():
            group.add("confluent", MEMBERS)
            group.wait_for_lanes(32, timeout_s=120)
            threading.Event().wait(CALM_S)
            healthy = camera.take("healthy", answer("well", "Well"))
            camera.take("healthy-dark", answer("well", "Well"), dark=True)
            assert healthy["stuck"].startswith("Nothing")

            stopped = group.processes["confluent-2"]
            os.kill(stopped.pid, signal.SIGSTOP)
            try:
                stuck = camera.take("member-stuck", answer("stuck", "billing-2"), timeout_s=180)
                camera.take("phone", answer("stuck", "billing-2"), phone=True)
            finally:
                os.kill(stopped.pid, signal.SIGCONT)
            assert stuck["behind"].startswith("✕ billing-2")
            assert ask(proxy, "groups/billing")["group"] == "billing"
            wait_until(lambda: (ask(proxy, "groups/billing")["lag_s"] or 0) < 5)

            load.hot = keys_of(proxy, "billing-1")
            uneven = camera.take("uneven", answer("balance", "would move"), timeout_s=180)
            assert "billing-1" in uneven["balance"]

            cluster.nodes[1].kill()
            # The group may have lost its coordinator, and its figures are old until it has another.
            down = camera.take(
                "broker-down",
                "document.querySelector('#banners li.bad') && !document.querySelector('main.old')",
            )
            assert down["well"].startswith("✕")

            cluster.kill()
            camera.is_away = True
            away = camera.take("kafka-away", "document.querySelector('main.old')")
            assert away["well"].startswith("✕ Kafka is away")
            for name in group.living:
                group.kill(name)  # it would wait for a broker, to commit
        browser.close()
    (tmp_path / "answers.json").write_text(json.dumps(camera.answers, indent=1))
    assert len(camera.answers) == PICTURES


def commit_for_groups(lanes: str, plain: str) -> None:
    """Have half of the other groups an offset on lanes, and half of them one at Kafka itself."""
    for number in range(MANY_GROUPS):
        bootstrap = lanes if number % 2 else plain
        config = {"bootstrap.servers": bootstrap, "group.id": f"team-{number:03}"}
        consumer = Consumer(config)
        own = number // 2 * TOPICS_EACH
        places = [TopicPartition(name, 0, number % 7) for name in MANY[own : own + TOPICS_EACH]]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()


@pytest.mark.long
def test_a_picture_of_500_topics(tmp_path, keylane) -> None:
    """Ten of 500 topics with 10,000 lanes, one of 201 groups: only what is in view is drawn."""
    folder = picture_folder(tmp_path)
    with EmbeddedKafka(tmp_path / "kafka", heap_mb=768) as cluster, sync_playwright() as playwright:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = [NewTopic(name, 1, 1) for name in MANY]
        for made in admin.create_topics(wanted, operation_timeout=120).values():
            made.result(240)
        load = Load(cluster.bootstrap, MANY)
        proxy = keylane(f"events-*={MANY_LANES}", bootstrap=cluster.bootstrap)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        camera = Camera(browser, proxy, folder)
        group = Billing(proxy.bootstrap, "^events-00.", "billing", protocol="consumer")
        with load.running(), group:
            commit_for_groups(proxy.bootstrap, cluster.bootstrap)
            group.add("confluent", MEMBERS)

            def has_all() -> bool:
                if all(one["group"] != "billing" for one in ask(proxy, "groups")["groups"]):
                    return False
                report = ask(proxy, "groups/billing")
                owners = [lane["member_id"] for lane in report["lanes"] if lane["member_id"]]
                return len(set(owners)) == MEMBERS and len(owners) == MANY_LANES * 10

            wait_until(has_all, timeout_s=240)
            wait_until(lambda: (ask(proxy, "groups/billing")["lag_s"] or 0) < 10)
            threading.Event().wait(CALM_S)
            camera.take("many", f"{answer('stuck', 'Nothing')} && {answer('well', 'Well')}")
        browser.close()
    print(camera.answers, camera.elements)
    assert camera.answers["many"]["well"].startswith("Well")
    assert camera.elements["many"] < ELEMENTS_MAX
