"""Strangers in the nodes' group, at a real broker: nodes start, and keep their partitions."""

from __future__ import annotations

import re
import secrets
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from keylane.embedded.child import ChildEnded
from keylane.proxy.topics.node_values import GROUP
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.made_topics import make_topic
from tests.integration.nodes import Nodes
from tests.integration.strangers import EVIL, PlainClient, Stranger, claim_all, evil_hello

pytestmark = pytest.mark.timeout(400)
TOPIC, LANES, JOURNAL_PARTITIONS = "orders", 4, 5
KEYS = [f"key-{number}" for number in range(20)]
SESSION = ("--set", "node_session_timeout_ms=6000")
LONG_SESSION = ("--set", "node_session_timeout_ms=60000")
WAIT_S = 120.0
FIND_COORDINATOR, JOIN_GROUP, LEAVE_GROUP = 10, 11, 13


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """A broker of the test's own, with a topic of two partitions and some records."""
    with EmbeddedKafka(tmp_path / "kafka") as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        make_topic(admin, NewTopic(TOPIC, 2, 1))
        yield running.bootstrap


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The file that all nodes have."""
    path = tmp_path / "node-secret"
    path.write_text(f"{secrets.token_hex(32)}\n")
    return path


def make_nodes(
    broker: str,
    folder: Path,
    secret: Path | None,
    *,
    count: int = 2,
    session: tuple[str, ...] = SESSION,
) -> Nodes:
    args = [*session, *(("--set", f"node_secret_file={secret}") if secret else ())]
    return Nodes(broker, [f"{TOPIC}={LANES}"], folder=folder, count=count, args=args)


def metric(node: KeylaneProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{node.control}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name} "))
    return float(line.split()[1])


def read_all(nodes: Nodes, values: list[str], group: str) -> None:
    """A stock consumer gets every record."""
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
        }
    )
    seen: set[str] = set()
    try:
        consumer.subscribe([TOPIC])
        while len(seen) < len(values):
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                seen.add((message.value() or b"").decode())
        commit(consumer)
    finally:
        consumer.close()
    assert seen == set(values)


def commit(consumer: Consumer) -> None:
    """Commit, again while nodes agree anew: librdkafka gives a commit up after two repeats."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._NO_OFFSET:
                return  # its timer was faster
            if time.monotonic() > deadline_s:
                raise
            consumer.poll(0.2)  # a rebalance ends in here
        else:
            return


def expect_only_nodes(nodes: Nodes) -> None:
    """Expect the stranger's address in no metadata, and every partition at one of the nodes."""
    for node in nodes.processes:
        reported = AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=30)
        ports = {broker.port for broker in reported.brokers.values()}
        assert EVIL[1] not in ports
        with PlainClient(node.bootstrap) as client:
            keys = [f"group-{number}" for number in range(30)]
            codes: set[int] = set()
            while codes != {0}:  # nodes that agree anew have no coordinator for a moment
                found = client.ask_values(FIND_COORDINATOR, 4, coordinator_keys=keys).coordinators
                assert EVIL[1] not in {one.port for one in found}
                codes = {int(one.error_code) for one in found}
    wait_until_shared(nodes)
    assert not any("Traceback" in node.log for node in nodes.processes)


def test_strangers_beside_nodes_are_put_out(broker, secret, tmp_path) -> None:
    """One as a node without a secret, one with a node's own words, one with two protocols."""
    values = produce(broker, TOPIC, KEYS, rounds=5)
    with make_nodes(broker, tmp_path, secret) as nodes, PlainClient(broker) as onlooker:
        copied = bytes(onlooker.members()[0].member_metadata)
        for metadata, protocols in (
            (evil_hello(), ("keylane-nodes",)),
            (copied, ("keylane-nodes",)),
            (evil_hello(), ("range", "keylane-nodes")),
        ):
            with Stranger(broker, metadata, protocols=protocols, rejoins=False) as stranger:
                assert stranger.is_out.wait(WAIT_S)
        with Stranger(broker, evil_hello()) as stranger:  # one that comes back again and again
            assert stranger.is_out.wait(WAIT_S)
            read_all(nodes, values, "beside")
        for node in nodes.processes:
            # The system may give a client's end of a connection any port.
            said = re.sub(r"peer=\S+", "", node.log)
            assert re.search(rf"\b{EVIL[1]}\b", said) is None
        assert sum(metric(node, "keylane_node_strangers_total") for node in nodes.processes) >= 4
        reported = "".join(node.log for node in nodes.processes)
        assert "host=/127.0.0.1" in reported and "kafka-acls --add --deny-principal" in reported
        nodes[0].wait_for_log("nodes agreed")
        wait_until_shared(nodes)
        expect_only_nodes(nodes)


def wait_until_shared(nodes: Nodes) -> None:
    """Wait until each journal partition is served by a node; each round asks them."""
    while True:
        owned = [metric(node, "keylane_node_partitions_owned") for node in nodes.processes]
        if sum(owned) == JOURNAL_PARTITIONS and min(owned) > 0:
            return


@pytest.mark.long
def test_a_stranger_that_leads_does_not_keep_nodes_from_starting(broker, secret, tmp_path) -> None:
    """It was there first, claims all, and repeats what a real leader said before."""
    values = produce(broker, TOPIC, KEYS, rounds=5)
    with make_nodes(broker, tmp_path, secret) as nodes, PlainClient(broker) as onlooker:
        before = [bytes(one.member_assignment) for one in onlooker.members()]
    replays = iter([*before, *before])

    def say(joined: object) -> dict[str, bytes]:
        said = claim_all(joined)
        return {to: next(replays, what) for to, what in said.items()}

    with Stranger(broker, evil_hello(), say=say, rejoins=False) as stranger:
        assert stranger.joined.wait(WAIT_S)
        with nodes.start():
            assert stranger.is_out.wait(WAIT_S) and stranger.led >= 1
            wait_until_shared(nodes)
            read_all(nodes, values, "led")
            expect_only_nodes(nodes)


@pytest.mark.parametrize(
    ("protocol", "count"),
    [
        ("consumer", 2),
        pytest.param("classic", 1, marks=pytest.mark.long),
        pytest.param("classic", 2, marks=pytest.mark.long),
        pytest.param("consumer", 1, marks=pytest.mark.long),
    ],
)
def test_a_consumer_in_the_group_keeps_no_node_from_starting(
    broker, secret, tmp_path, count: int, protocol: str
) -> None:
    """A consumer of another assignor, or of the newer protocol (KIP-848), is put out."""
    values = produce(broker, TOPIC, KEYS, rounds=2)
    squatter = Consumer(
        {"bootstrap.servers": broker, "group.id": GROUP, "group.protocol": protocol}
    )
    squatter.subscribe([TOPIC])
    while not squatter.assignment():
        squatter.poll(0.2)

    with make_nodes(broker, tmp_path, None if count == 1 else secret, count=count) as nodes:
        read_all(nodes, values, "squatted")
        if count > 1:
            wait_until_shared(nodes)
            expect_only_nodes(nodes)
    squatter.close()


def test_a_node_with_another_secret_ends_and_the_others_go_on(broker, secret, tmp_path) -> None:
    """Its exit code is 2, and a line names the key."""
    values = produce(broker, TOPIC, KEYS, rounds=2)
    other = tmp_path / "other-secret"
    other.write_text(secrets.token_hex(32))
    with make_nodes(broker, tmp_path, secret) as nodes:
        args = [*SESSION, "--node", "5", "--set", f"node_secret_file={other}"]
        wrong = KeylaneProcess(
            broker, [f"{TOPIC}={LANES}"], log_path=tmp_path / "wrong.log", args=args
        )
        with pytest.raises(ChildEnded) as ended:
            wrong.start()

        assert "node_secret_file" in str(ended.value) and "exit 2" in str(ended.value)
        wait_until_shared(nodes)
        read_all(nodes, values, "wrong")
        expect_only_nodes(nodes)
        assert not any(other.read_text() in node.log for node in (*nodes.processes, wrong))


AGREED = re.compile(r"nodes agreed generation_id=(\d+) nodes=(\S+) node=\d+ partitions=(\d+)")


@pytest.mark.long
def test_a_secret_is_rotated_under_three_nodes(broker, secret, tmp_path) -> None:
    """Second, first, alone; at each step one node starts anew, and no generation lacks an owner."""
    old, new = secret.read_text().strip(), secrets.token_hex(32)
    with make_nodes(broker, tmp_path, secret, count=3) as nodes:
        for number, lines in enumerate(([old, new], [new, old], [new])):
            secret.write_text("".join(f"{line}\n" for line in lines))
            nodes[number].restart()
            wait_until_shared(nodes)
        expect_only_nodes(nodes)
        logs = [node.log for node in nodes.processes]

    owned: Counter[int] = Counter()
    for log in logs:
        owned.update({int(found[1]): int(found[3]) for found in AGREED.finditer(log)})
    assert len(owned) >= 4 and min(owned.values()) > 0
    assert not any("is no node" in log or "was expelled" in log for log in logs)


def test_the_group_is_refused_at_keylanes_listeners(broker, secret, tmp_path) -> None:
    """Every client is refused, and no request reaches the broker."""
    # A node that is held up for a session would come back under another id.
    with make_nodes(broker, tmp_path, secret, session=LONG_SESSION) as nodes:
        wait_until_shared(nodes)
        with PlainClient(broker) as onlooker:
            before = {str(one.member_id) for one in onlooker.members()}
        for node in nodes.processes:
            with PlainClient(node.bootstrap) as client:
                protocols = [{"name": "keylane-nodes", "metadata": evil_hello()}]
                joined = client.ask_values(
                    JOIN_GROUP, 5, group_id=GROUP, protocol_type="consumer", protocols=protocols
                )
                leaving = [{"member_id": member_id} for member_id in sorted(before)]
                left = client.ask_values(LEAVE_GROUP, 4, group_id=GROUP, members=leaving)
            assert (int(joined.error_code), int(left.error_code)) == (30, 30)
        with PlainClient(broker) as onlooker:
            assert {str(one.member_id) for one in onlooker.members()} == before
        expect_only_nodes(nodes)
