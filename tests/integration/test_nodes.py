"""Several nodes in front of one cluster: they share a group's work, and one may die."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from keylane.embedded.child import ChildEnded
from tests.integration.harness import Group, produce
from tests.integration.keylane_process import PATIENCE, KeylaneProcess
from tests.integration.made_topics import make_topic
from tests.integration.nodes import (
    NODE_ID_STEP,
    Nodes,
    TimedGroup,
    coordinator_node,
    leading_nodes,
)
from tests.long.group_book import judge

KEYS = [f"key-{number}" for number in range(100)]
PARTITIONS, LANES = 4, 4
MEMBERS = {"aiokafka": 3, "confluent": 3}
OPTIONS = {"assignor": "roundrobin", "session_timeout_ms": 6000, "request_timeout_ms": 8000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker for this module: all nodes of one cluster form one group."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running.bootstrap


def create(cluster: str, topic: str) -> str:
    wanted = NewTopic(topic, PARTITIONS, 1)
    admin = AdminClient({"bootstrap.servers": cluster})
    make_topic(admin, wanted)
    return topic


def lane_fetches(node: KeylaneProcess) -> float:
    """Return how many lanes this node was asked for."""
    with urllib.request.urlopen(f"http://{node.control}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith("keylane_lane_fetches_total "))
    return float(line.split()[1])


def test_a_group_goes_on_when_one_of_two_nodes_is_killed(cluster, tmp_path, java) -> None:
    """Both serve; kill -9 of the group's node loses and repeats nothing; it comes back."""
    topic = create(cluster, "orders")
    with (
        Nodes(cluster, [f"{topic}={LANES}"], folder=tmp_path, count=2) as nodes,
        TimedGroup(nodes.bootstrap, topic, "g", log_folder=tmp_path, **OPTIONS) as group,
    ):
        for library, count in MEMBERS.items():
            group.add(library, count)
        group.wait_for_lanes(PARTITIONS * LANES, timeout_s=90)
        values = produce(cluster, topic, KEYS, rounds=10)
        group.wait_for_values(values)
        group.wait_for_commits()
        assert set(leading_nodes(nodes.bootstrap, topic).values()) == {0, 1}
        assert all(lane_fetches(node) > 0 for node in nodes.processes)

        victim = coordinator_node(nodes.bootstrap, "g")
        nodes[victim].kill()
        values += produce(cluster, topic, KEYS, rounds=10, first=10)
        group.wait_for_values(values, timeout_s=90)
        group.wait_for_commits(timeout_s=60)
        assert coordinator_node(nodes[1 - victim].bootstrap, "g") == 1 - victim

        nodes.start()
        values += produce(cluster, topic, KEYS, rounds=10, first=20)
        group.wait_for_values(values, timeout_s=90)
        group.wait_for_commits(timeout_s=60)
        described = "--bootstrap-server", nodes.bootstrap, "--describe", "--group", "g"
        deadline_s = time.monotonic() + 60 * PATIENCE
        while True:  # offsets that carry no record of a lane follow with heartbeats
            lanes_shown = lags(java.run("kafka-consumer-groups", *described).stdout, topic)
            if not any(lanes_shown.values()) or time.monotonic() > deadline_s:
                break

    # Members are put out while no node serves their group. One that does not know it yet may
    # report records that the next owner has committed: `late` of the verdict, which is no breach.
    assert judge(group.reported).breaches == []
    assert set(group.seen.values()) == set(values)
    assert lanes_shown == dict.fromkeys(range(PARTITIONS * LANES), 0)
    assert not any("Traceback" in node.log for node in nodes.processes)


def lags(printed: str, topic: str) -> dict[int, int]:
    """Lag by lane index, as kafka-consumer-groups prints it."""
    header = next(line.split() for line in printed.splitlines() if "LAG" in line)
    rows = [line.split() for line in printed.splitlines() if topic in line.split()]
    return {int(row[header.index("PARTITION")]): int(row[header.index("LAG")]) for row in rows}


def test_brokers_are_known_once_per_node(cluster, tmp_path) -> None:
    """Metadata names each broker at each node; any node names all of them."""
    with Nodes(cluster, [], folder=tmp_path, count=2) as nodes:
        found = [wait_for_both(node.bootstrap) for node in nodes.processes]

    assert found[0] == found[1]
    assert {broker_id for broker_id, _ in found[0]} == {1, NODE_ID_STEP + 1}


def wait_for_both(bootstrap: str) -> set[tuple[int, int]]:
    """Wait until clients see the broker at two nodes; return its ids and ports.

    A node that has just started may serve a moment before another one knows it.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    while len(brokers := admin.list_topics(timeout=30).brokers) < 2:
        pass
    return {(broker.id, broker.port) for broker in brokers.values()}


def test_nodes_that_disagree_refuse_the_topic(cluster, tmp_path) -> None:
    """Another lane count at one node: clients are refused, the log says which nodes and what."""
    topic = create(cluster, "disputed")
    with Nodes(cluster, [f"{topic}=4"], folder=tmp_path, count=2) as nodes:
        odd = KeylaneProcess(
            cluster, [f"{topic}=8"], log_path=tmp_path / "odd.log", args=("--node", "2")
        ).start()
        try:
            with Group(odd.bootstrap, topic, "g-disputed", **OPTIONS) as group:
                group.add("confluent")
                group.wait(lambda seen: bool(seen.events), timeout_s=60, what="a refusal")
            odd.wait_for_log("disputed")
            agreed = [f"nodes=0,1 node={number} " for number in range(2)]
            seen = [
                node.log.count(text) for node, text in zip(nodes.processes, agreed, strict=True)
            ]
        finally:
            odd.stop()
        for node, text, count in zip(nodes.processes, agreed, seen, strict=True):
            # librdkafka asks again after minutes for a topic that it was refused once.
            node.wait_for_log(text, count=count + 1)
        said = [line for line in odd.log.splitlines() if topic in line and "lanes" in line]
        with Group(nodes.bootstrap, topic, "g-agreed", **OPTIONS) as group:
            group.add("confluent")
            group.wait_for_lanes(PARTITIONS * 4, timeout_s=60)  # they agree again

    assert said, odd.log[-2000:]


def test_a_number_that_is_taken_is_refused(cluster, tmp_path) -> None:
    """A second node 0 ends at once and says so; the first one serves on."""
    with Nodes(cluster, [], folder=tmp_path, count=2) as nodes:
        second = KeylaneProcess(cluster, [], log_path=tmp_path / "second.log", args=("--node", "0"))
        with pytest.raises(ChildEnded, match="node: 0 is the number of the node at"):
            second.start()
        assert all(node.running for node in nodes.processes)
        assert len(wait_for_both(nodes.bootstrap)) == 2


def test_a_node_that_was_killed_comes_back_at_once(cluster, tmp_path: Path) -> None:
    """Its predecessor's session still runs: the same number at the same place is no other node."""
    with Nodes(cluster, [], folder=tmp_path, count=2) as nodes:
        nodes[1].kill()
        nodes.start()
        assert len(wait_for_both(nodes.bootstrap)) == 2
