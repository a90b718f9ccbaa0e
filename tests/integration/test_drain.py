"""A node is drained under load: its groups and clients go to the other one, and nothing is lost."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.made_topics import make_topic
from tests.integration.nodes import Nodes, TimedGroup, coordinator_node, leading_nodes
from tests.long.group_book import judge

KEYS = [f"key-{number}" for number in range(100)]
PARTITIONS, LANES = 2, 4
PATIENCE_S = 120.0


def ask(node: KeylaneProcess, method: str, path: str) -> tuple[int, Any]:
    """Ask the control port; a redirect is reported, not followed."""
    request = urllib.request.Request(f"http://{node.control}{path}", method=method)
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, {**json.loads(error.read()), "location": error.headers["Location"]}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Leave it to the test."""


def readiness(node: KeylaneProcess) -> str:
    """By which a load balancer sends clients to it: `ok` or another word."""
    try:
        with urllib.request.urlopen(f"http://{node.control}/readyz", timeout=60) as answer:
            return str(answer.read().decode()).splitlines()[0]
    except urllib.error.HTTPError as error:
        return error.read().decode().splitlines()[0]


def wait_until_drained(node: KeylaneProcess, number: int) -> dict[str, Any]:
    """The report, once nothing is left."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        _, report = ask(node, "GET", f"/nodes/{number}/drain")
        if report["state"] == "drained":
            return dict(report)
        assert time.monotonic() < deadline_s, report
        time.sleep(0.2)  # the node has no event for it; the deadline bounds it


def test_a_drained_node_can_be_stopped(own_broker, tmp_path) -> None:
    """A group goes on without a repeat; the last node stays; a restart ends the drain."""
    topic = "orders"
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    make_topic(admin, NewTopic(topic, PARTITIONS, 1))
    values: list[str] = []
    stopping = threading.Event()

    def write() -> None:
        first = 0
        while not stopping.is_set():
            values.extend(produce(own_broker.bootstrap, topic, KEYS, rounds=1, first=first))
            first += 1

    writing = threading.Thread(target=write)
    with (
        Nodes(own_broker.bootstrap, [f"{topic}={LANES}"], folder=tmp_path, count=2) as nodes,
        TimedGroup(nodes.bootstrap, topic, "g", log_folder=tmp_path) as group,
    ):
        group.add("aiokafka", 2)
        group.add("confluent", 2)
        group.wait_for_lanes(PARTITIONS * LANES, timeout_s=90)
        writing.start()
        group.wait_for_more(500)
        drained = coordinator_node(nodes.bootstrap, "g")
        other, path = 1 - drained, f"/nodes/{drained}/drain"

        status, shown = ask(nodes[drained], "POST", f"{path}?dry_run=true")
        assert (status, shown["state"], shown["groups"]) == (200, "serving", ["g"])
        assert shown["partitions"] > 0 and shown["connections"] > 0
        status, elsewhere = ask(nodes[other], "POST", path)
        assert (status, elsewhere["location"]) == (307, f"http://{nodes[drained].control}{path}")
        status, _ = ask(nodes[drained], "POST", path)
        assert status == 200

        report = wait_until_drained(nodes[drained], drained)
        assert (report["partitions"], report["groups"], report["connections"]) == (0, [], 0)
        assert coordinator_node(nodes[drained].bootstrap, "g") == other
        assert set(leading_nodes(nodes[drained].bootstrap, topic).values()) == {other}
        status, refused = ask(nodes[other], "POST", f"/nodes/{other}/drain")
        assert (status, "the only one that serves" in refused["detail"]) == (409, True)
        group.wait_for_more(500)
        assert nodes[drained].stop() == 0
        group.wait_for_more(500)
        nodes.start()
        assert ask(nodes[drained], "GET", path)[1]["state"] == "serving"
        stopping.set()
        writing.join()
        group.wait_for_values(values, timeout_s=90)
        group.wait_for_commits(timeout_s=60)

    verdict = judge(group.reported)
    assert verdict.breaches == []
    group.seen.assert_nothing_committed_again()
    assert set(group.seen.values()) == set(values)
    assert not any("Traceback" in node.log for node in nodes.processes)


def test_a_drain_can_be_undone(own_broker, tmp_path) -> None:
    """DELETE brings groups and clients back; both nodes serve partitions of the journal again."""
    with Nodes(own_broker.bootstrap, [], folder=tmp_path, count=2) as nodes:
        ask(nodes[0], "POST", "/nodes/0/drain")
        assert wait_until_drained(nodes[0], 0)["partitions"] == 0
        status, _ = ask(nodes[0], "DELETE", "/nodes/0/drain")
        deadline_s = time.monotonic() + PATIENCE_S
        while not ask(nodes[0], "GET", "/nodes/0/drain")[1]["partitions"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)  # the nodes agree anew

        assert status == 200
        assert ask(nodes[0], "GET", "/nodes/0/drain")[1]["state"] == "serving"
        assert ask(nodes[0], "GET", "/nodes/7/drain")[0] == 404


def test_a_drained_node_that_is_left_alone_is_ready(own_broker, tmp_path) -> None:
    """It serves all that there is, so a load balancer has to send clients to it again."""
    with Nodes(own_broker.bootstrap, [], folder=tmp_path, count=2) as nodes:
        ask(nodes[0], "POST", "/nodes/0/drain")
        wait_until_drained(nodes[0], 0)
        assert [readiness(node) for node in nodes.processes] == ["draining", "ok"]

        assert nodes[1].stop() == 0

        deadline_s = time.monotonic() + PATIENCE_S
        while readiness(nodes[0]) != "ok":
            assert time.monotonic() < deadline_s
            time.sleep(0.2)  # the nodes agree anew
        assert ask(nodes[0], "GET", "/nodes/0/drain")[1]["partitions"] > 0
