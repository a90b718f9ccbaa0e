"""`keylane proxy --workers 2`: two nodes behind one bootstrap address, under one parent."""

from __future__ import annotations

import os
import re
import signal
import urllib.request

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.harness import Group, produce

KEYS = [f"key-{number}" for number in range(40)]
STARTED = re.compile(r"worker started worker=(\d) pid=(\d+)")


def sessions_opened(control: str, worker: int) -> int:
    """Return how many clients have come to a worker, by its own control port."""
    host, port = control.split(":")
    with urllib.request.urlopen(f"http://{host}:{int(port) + worker}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(r"^keylane_sessions_opened_total (\S+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(float(found[1]))


def test_workers_share_the_work_and_one_that_is_killed_comes_back(own_broker, keylane) -> None:
    """Both serve; kill -9 of one loses nothing and repeats nothing that was committed."""
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    admin.create_topics([NewTopic("orders", 4, 1)])["orders"].result(60)
    options = ["--set", "node_session_timeout_ms=6000"]
    proxy = keylane("orders=4", bootstrap=own_broker.bootstrap, args=options, workers=2)
    pids = {int(worker): int(pid) for worker, pid in STARTED.findall(proxy.log)}
    # Above the time of a take-over on a slow machine: a member that is put out meanwhile reads on
    # until its next heartbeat, also what others have committed.
    with Group(proxy.bootstrap, "orders", "g-workers", session_timeout_ms=30_000) as group:
        group.add("aiokafka", 2)
        group.add("confluent", 2)
        group.wait_for_lanes(16, timeout_s=60)
        values = produce(own_broker.bootstrap, "orders", KEYS, 10)
        group.wait_for_values(values)
        group.wait_for_commits()
        assert all(sessions_opened(proxy.control, worker) > 0 for worker in (0, 1))
        group.seen.assert_keys_in_order()

        os.kill(pids[1], signal.SIGKILL)
        values += produce(own_broker.bootstrap, "orders", KEYS, 10, first=10)
        group.wait_for_values(values, timeout_s=90)
        proxy.wait_for_log("worker ready worker=1", count=2)
        values += produce(own_broker.bootstrap, "orders", KEYS, 10, first=20)
        group.wait_for_values(values, timeout_s=90)
        group.wait_for_commits(timeout_s=60)

    group.seen.assert_nothing_committed_again()
    # A member that is slow to come to the other worker is expelled: what it had not committed comes
    # again, at another one.
    group.seen.assert_first_sightings_in_order()
    assert proxy.stop() == 0
