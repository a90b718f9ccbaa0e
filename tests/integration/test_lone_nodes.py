"""Nodes without a number: one at a time serves a cluster; the others end or are fenced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from keylane.embedded.child import ChildEnded
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.test_offset_retention import COMMIT, Connection

LANES, GROUP = 4, "split"
DEFAULTS = {"group.initial.rebalance.delay.ms": "3000"}
"""Brokers' default, which an embedded one shortens to be fast."""
MakeNode = Callable[..., KeylaneProcess]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker whose groups take as long to form as anywhere."""
    with EmbeddedKafka(tmp_path / "kafka", properties=DEFAULTS) as running:
        yield running


@pytest.fixture
def orders(broker: EmbeddedKafka) -> str:
    """A topic of one partition with 100 records, seen as four lanes."""
    name = make_topic_factory(AdminClient({"bootstrap.servers": broker.bootstrap}), "lone")()
    produce(broker.bootstrap, name, [f"key-{number}" for number in range(20)], rounds=5)
    return name


@pytest.fixture
def make_node(broker: EmbeddedKafka, orders: str, tmp_path: Path) -> Iterator[MakeNode]:
    """Return a factory of nodes in front of the broker, each on its own ports."""
    made: list[KeylaneProcess] = []

    def make(*args: str) -> KeylaneProcess:
        log_path = tmp_path / f"keylane-{len(made)}.log"
        rules = [f"{orders}={LANES}"]
        made.append(KeylaneProcess(broker.bootstrap, rules, log_path=log_path, args=args))
        return made[-1]

    yield make
    for node in made:
        if node.running:
            node.kill()


def consumer_at(*nodes: KeylaneProcess) -> Consumer:
    """A stock consumer that commits by hand."""
    return Consumer(
        {
            "bootstrap.servers": ",".join(node.listen for node in nodes),
            "group.id": GROUP,
            "enable.auto.commit": False,
            "socket.timeout.ms": 20_000,
        }
    )


def commit(node: KeylaneProcess, topic: str, offsets: dict[int, int]) -> None:
    """Commit lanes as an administrator would, without being a member. Raises: KafkaException."""
    consumer = consumer_at(node)
    try:
        wanted = [TopicPartition(topic, lane, offset) for lane, offset in offsets.items()]
        for place in consumer.commit(offsets=wanted, asynchronous=False):
            if place.error is not None:
                raise KafkaException(place.error)
    finally:
        consumer.close()


def committed(node: KeylaneProcess, topic: str) -> list[int]:
    """Return the group's committed offsets, by lane."""
    consumer = consumer_at(node)
    try:
        places = [TopicPartition(topic, lane) for lane in range(LANES)]
        return [place.offset for place in consumer.committed(places, timeout=30)]
    finally:
        consumer.close()


def test_a_second_lone_node_refuses_to_start(make_node: MakeNode, orders: str) -> None:
    """It names the process and the address of the first, which goes on undisturbed."""
    first, second = make_node().start(), make_node()
    commit(first, orders, {0: 50, 2: 40})
    first.wait_for_log("nodes agreed")

    with pytest.raises(ChildEnded) as ended:
        second.start()

    assert f"process {first.pid}, at {first.bootstrap} serves this cluster" in str(ended.value)
    assert "exit 2" in str(ended.value)
    commit(first, orders, {1: 30})
    assert committed(first, orders)[:3] == [50, 30, 40]
    assert "nodes agreed generation_id=2" not in first.log


def test_a_push_of_a_replaced_node_that_comes_late_moves_no_lane(
    make_node: MakeNode, broker: EmbeddedKafka, orders: str
) -> None:
    """The broker has it behind those of the next node, as if it had lain at a slow one."""
    first, second = make_node().start(), make_node()
    commit(first, orders, dict.fromkeys(range(LANES), 40))
    late = kafkas_own(broker, orders)
    assert late.offset == 40 and late.metadata
    first.kill()
    second.start()
    commit(second, orders, dict.fromkeys(range(LANES), 60))

    put_at_kafka(broker, late)

    assert committed(second, orders) == [60] * LANES
    second.wait_for_log(f"or is of a replaced node group={GROUP}")
    commit(second, orders, {0: 70})
    assert kafkas_own(broker, orders).offset == 60
    put_at_kafka(broker, TopicPartition(orders, 0, 20))
    assert committed(second, orders) == [20] * LANES, "an admin's reset is one"


def kafkas_own(broker: EmbeddedKafka, topic: str) -> TopicPartition:
    """The group's offset at the broker, with its metadata."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(topic, 0)])
    (found,) = admin.list_consumer_group_offsets([wanted])[GROUP].result(30).topic_partitions
    return found


def put_at_kafka(broker: EmbeddedKafka, place: TopicPartition) -> None:
    """Set the group's offset past keylane; confluent-kafka would add a zero byte to metadata."""
    entry = {
        "partition_index": place.partition,
        "committed_offset": place.offset,
        "committed_leader_epoch": -1,
        "committed_metadata": place.metadata or "",
    }
    with Connection(broker.bootstrap) as direct:
        answer = direct.call(
            COMMIT, 7, group_id=GROUP, member_id="", generation_id_or_member_epoch=-1,
            topics=[{"name": place.topic, "partitions": [entry]}],
        )  # fmt: skip
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0


def test_of_two_that_start_at_the_same_moment_one_serves(make_node: MakeNode, orders: str) -> None:
    """The other ends with a line; what was committed is seen by the one that is left."""
    nodes = [make_node(), make_node()]

    for node in nodes:
        node.launch()
    outcomes = [outcome_of(node) for node in nodes]

    (winner,) = [node for node, outcome in zip(nodes, outcomes, strict=True) if outcome is None]
    (reason,) = [outcome for outcome in outcomes if outcome is not None]
    assert "exit 2" in reason
    assert winner.listen in reason
    commit(winner, orders, {3: 77})
    assert committed(winner, orders)[3] == 77


def outcome_of(node: KeylaneProcess) -> str | None:
    """Why a node that was launched did not become ready, or ended then; None: it serves."""
    try:
        node.await_ready()
    except ChildEnded as error:
        return str(error)
    return None


def test_a_node_that_was_killed_is_replaced_at_once(make_node: MakeNode, orders: str) -> None:
    """Its session is not waited for, since its process has ended; also right after its start."""
    long = ("--set", "node_session_timeout_ms=200000")
    first = make_node(*long).start()
    commit(first, orders, {0: 50})
    first.kill()

    second = make_node(*long).start()
    second.kill()
    third = make_node(*long).start()

    assert committed(third, orders)[0] == 50
    for node in (second, third):
        node.wait_for_log("seat of a process that has ended is taken")
        assert "it is waited for" not in node.log


def test_a_node_that_hung_and_was_replaced_ends_and_writes_nothing(
    make_node: MakeNode, orders: str
) -> None:
    """A client of it is refused there, finds the second, and commits where it is seen."""
    nodes = [make_node("--set", "node_session_timeout_ms=6000") for _ in range(2)]
    first, second = nodes[0].start(), nodes[1]
    commit(first, orders, {0: 50, 1: 40})
    late = consumer_at(first, second)
    late.committed([TopicPartition(orders, 0)], timeout=30)  # by way of the first: it is alone
    first.pause()
    second.start()
    commit(second, orders, {0: 60, 1: 70, 2: 80})

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            late.commit, offsets=[TopicPartition(orders, 3, 90)], asynchronous=False
        )
        first.resume()
        (place,) = answer.result(120)
    late.close()

    assert place.error is None
    first.wait_for_log("node is not let in")
    assert first.await_end() == 2
    assert second.bootstrap in first.log.splitlines()[-1]
    assert committed(second, orders) == [60, 70, 80, 90]
    # The journal's state, by either node.
    assert committed(second.restart(), orders) == [60, 70, 80, 90]


@pytest.mark.long
def test_a_numbered_node_does_not_start_beside_a_lone_one(make_node: MakeNode, orders: str) -> None:
    """Nor the other way round, also when both start at the same moment: one of them is left."""
    lone = make_node().start()

    with pytest.raises(ChildEnded, match=f"the node at {lone.bootstrap} has no number"):
        make_node("--node", "3").start()
    commit(lone, orders, {0: 50})
    lone.stop()
    numbered = make_node("--node", "3").start()
    with pytest.raises(ChildEnded, match=f"already, such as {numbered.bootstrap}"):
        make_node().start()
    numbered.stop()
    both = [make_node("--node", "3"), make_node()]
    for node in both:
        node.launch()

    assert [outcome_of(node) is None for node in both].count(True) == 1


def test_two_that_may_stand_beside_each_other(make_node: MakeNode) -> None:
    """What an operator has asked for: neither keeps the other out."""
    make_node().start()

    beside = make_node("--set", "beside_others=true").start()

    assert beside.running


def test_it_serves_where_brokers_have_no_transactions(
    tmp_path: Path, make_node_at: MakeNode
) -> None:
    """A broker alone cannot make their topic of three replicas: no fence, a warning, the seat."""
    properties = {"transaction.state.log.replication.factor": "3"}
    with EmbeddedKafka(tmp_path / "poor", properties=properties) as poor:
        name = make_topic_factory(AdminClient({"bootstrap.servers": poor.bootstrap}), "lone")()
        node = make_node_at(poor.bootstrap, name).start()

        commit(node, name, {0: 5})

        assert committed(node, name)[0] == 5
        node.wait_for_log("journal is not fenced")
        node.stop()


@pytest.fixture
def make_node_at(tmp_path: Path) -> Iterator[MakeNode]:
    """A node in front of another broker."""
    made: list[KeylaneProcess] = []

    def make(bootstrap: str, topic: str) -> KeylaneProcess:
        log_path = tmp_path / f"elsewhere-{len(made)}.log"
        made.append(KeylaneProcess(bootstrap, [f"{topic}={LANES}"], log_path=log_path))
        return made[-1]

    yield make
    for node in made:
        node.stop()
