"""The broker's disk fills up under load: nothing acknowledged is lost, and keylane waits calmly."""

from __future__ import annotations

import re
import resource
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import Group
from tests.integration.test_load import metric, metrics, wait_until

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere no other process's files can be bounded"
)

KEYS = [f"key-{number}" for number in range(20)]
ROOM_BYTES = 512 * 1024
"""Bytes by which the broker's largest log may still grow: a second of the load."""
TURNED_AWAY = "keylane_sessions_turned_away_total"
PADDING = "x" * 5000
"""Much in few records, since each costs the clients time."""
LINES_MAX = 20
"""Log lines of keylane while the broker is away; clients try more often than that."""
TRIES_PER_S_MAX = 20
"""Reads by keylane itself that may fail: two partitions, a few tries each."""
SESSION_MS = 20_000
"""Longer than each outage. A member that lives, and is put out in one, may still read what it has
fetched, after others have committed that."""


class PatientProducer:
    """Numbered values per key, acks=all and idempotent, and those that were acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.values: list[str] = []
        self.acknowledged: set[str] = set()
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 100_000,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.max.ms": 1000,  # 10 s by default
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        """Stop, and wait until all is acknowledged."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(90) == 0, "records were never acknowledged"

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.1):
            for key in KEYS:
                self._send(key, f"{PADDING}{key}:{number}")
            self._producer.poll(0)
            number += 1

    def _send(self, key: str, value: str) -> None:
        def delivered(error: object, _message: object) -> None:
            if error is None:
                self.acknowledged.add(value)

        self._producer.produce(self._topic, key=key, value=value, on_delivery=delivered)
        self.values.append(value)


def test_a_broker_whose_disk_is_full_loses_nothing(own_broker: EmbeddedKafka, keylane) -> None:
    """It halts, is given room and started again: all goes on, and commits that were answered hold.

    Kafka takes a disk out of use when a write fails, and ends when it has no other; the limit of
    file sizes makes writes fail as a full disk does. Then a member and keylane are killed, so
    that what comes next is what the journal says.
    """
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    name = make_topic_factory(admin, "full-disk")("orders", partitions=2)
    proxy = keylane(
        f"{name}=4", bootstrap=own_broker.bootstrap, environment={"KEYLANE_LOG": "info"}
    )
    with Group(proxy.bootstrap, name, "g", session_timeout_ms=SESSION_MS) as group:
        members = group.add("aiokafka", 2) + group.add("confluent")
        group.wait_for_lanes(8)
        producer = PatientProducer(own_broker.bootstrap, name)
        group.wait(lambda seen: len(seen.commits) > 20, timeout_s=60, what="20 commits")

        said_at, started_s = len(proxy.log), time.monotonic()
        failed_at, away_at = metrics(proxy, "keylane_upstream_errors_total", TURNED_AWAY)
        fill_disk(own_broker)
        group.kill(members[0])
        wait_until(lambda: metric(proxy, TURNED_AWAY) > away_at + LINES_MAX)
        own_broker.start()
        said, lasted_s = proxy.log[said_at:], time.monotonic() - started_s
        failed = metric(proxy, "keylane_upstream_errors_total") - failed_at
        refused = metric(proxy, "keylane_sessions_refused_total")
        seen_before = len(group.seen.sightings)
        group.wait(
            lambda seen: len(seen.sightings) > seen_before + 200,
            timeout_s=60,
            what="200 records after the broker's return",
        )
        group.kill(members[1])
        proxy.kill()
        proxy.restart()
        group.add("confluent")
        producer.finish()
        group.wait_for_values(producer.values, timeout_s=120)
        group.wait_for_commits(timeout_s=60)

    failures = {
        reported["error"]
        for _, reported in group.seen.events
        if reported["event"] == "commit_failed"
    }
    lines = said.splitlines()
    print(f"{len(lines)} lines, {failed} tries in {lasted_s:.1f} s")
    print(f"records {len(group.seen.sightings)}; failed commits {failures}")
    assert producer.acknowledged == set(producer.values)
    group.seen.assert_nothing_committed_again()
    assert len(lines) < LINES_MAX, said
    assert refused == 0
    assert failed < TRIES_PER_S_MAX * (1 + lasted_s)
    proxy.wait_for_log("broker can be reached again")
    assert proxy.stop() == 0
    assert proxy.log.count("broker cannot be reached") == 1, proxy.log
    assert proxy.log.count("broker can be reached again") == 1, proxy.log
    assert "Traceback" not in proxy.log


def fill_disk(broker: EmbeddedKafka) -> None:
    """Let no log of the broker grow by more than ROOM_BYTES; wait until it has ended of it."""
    (node,) = broker.nodes
    assert node.pid is not None
    largest = max(path.stat().st_size for path in node.settings.data_path.rglob("*.log"))
    _, hard = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (largest + ROOM_BYTES, hard))
    assert broker.wait_any() is node
    said = Path(node.settings.log_path).read_text(errors="replace")
    assert re.search(r"File too large", said), node.log_tail()
