"""proxy/control/cluster_report.py: brokers, nodes and the journal, and what is wrong with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keylane.proxy.cluster.cluster import Broker
from keylane.proxy.cluster.pulse import Away
from keylane.proxy.control.cluster_report import ClusterDescriber, report_of
from keylane.proxy.topics.node_roll import AwayNode
from keylane.proxy.topics.node_values import NO_NODE, Membership, NodeInfo
from tests.reference.overview import FACTS

NODES = tuple(
    NodeInfo(number=number, bootstrap=("node", 9092 + number), control=f"http://node-{number}")
    for number in (1, 2)
)
MANY = replace(
    FACTS,
    number=2,
    membership=Membership(generation_id=3, nodes=NODES, owners=(1, 2, 2, NO_NODE)),
    away_nodes=(AwayNode(NodeInfo(number=3, bootstrap=("node", 9095)), since_ms=7),),
)


def test_all_is_well() -> None:
    """The only node serves all of the journal."""
    report = report_of(FACTS, {})

    assert (report.kafka.is_reachable, report.problems) == (True, ())
    (node,) = report.nodes
    assert (node.number, node.is_self, node.state, node.partitions) == (None, True, "serving", 50)
    (broker,) = report.brokers
    assert (broker.id, broker.address, broker.is_reachable) == (1, "kafka:9092", True)


def test_each_node_has_its_state() -> None:
    """What another node serves is not invented; one that went is shown for a while."""
    report = report_of(replace(MANY, states={1: "draining"}), {})

    assert [
        (node.number, node.is_self, node.state, node.partitions, node.groups)
        for node in report.nodes
    ] == [
        (1, False, "draining", 1, None),
        (2, True, "serving", 2, 1),
        (3, False, "away", 0, None),
    ]
    assert report.journal.unserved_partitions == 1
    assert [problem.code for problem in report.problems] == ["journal-unserved", "node-away"]


def test_a_broker_that_is_away_is_a_problem() -> None:
    """All of them are one problem, and the report says that Kafka is not reachable."""
    brokers = {
        number: Broker(node_id=number, host="kafka", port=9090 + number, rack=None)
        for number in (1, 2)
    }
    facts = replace(FACTS, brokers=brokers, away={2: Away(5, "refused")})

    one = report_of(facts, {})
    both = report_of(replace(facts, kafka_away=Away(9, "refused")), {})

    assert [(each.code, each.since_ms) for each in one.problems] == [("broker-away", 5)]
    assert "Broker 2 at kafka:9092" in one.problems[0].text
    assert (one.brokers[1].unreachable_since_ms, one.kafka.is_reachable) == (5, True)
    assert [(each.code, each.since_ms) for each in both.problems] == [("kafka-away", 9)]
    assert (both.kafka.unreachable_since_ms, both.kafka.reason) == (9, "refused")


@pytest.mark.parametrize(
    ("code", "facts", "named"),
    [
        ("not-serving", {"missing": "groups on lanes: no topic"}, "groups on lanes: no topic"),
        ("topics-disputed", {"disputes": dict.fromkeys("abcde", "why")}, "a, b, c and 2 more"),
        ("records-set-aside", {"set_aside": {"t": 2, "u": 0}}, "2 of t."),
        ("task-failed", {"resting": ["sweep"]}, "sweep"),
    ],
)
def test_faults_inside_are_problems(code, facts, named) -> None:
    """Each names the thing, says since when, and what to do."""
    now_ms, current = [10], [FACTS]
    describer = ClusterDescriber(lambda: current[0], lambda: now_ms[0])
    assert describer.describe().problems == ()
    current[0] = replace(FACTS, **facts)

    describer.describe()
    now_ms[0] = 20
    (problem,) = describer.describe().problems

    assert (problem.code, problem.since_ms) == (code, 10)
    assert named in problem.text and problem.remedy
    current[0] = FACTS
    assert describer.describe().problems == ()
    current[0] = replace(FACTS, **facts)
    assert describer.describe().problems[0].since_ms == 20
