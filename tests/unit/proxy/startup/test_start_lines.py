"""proxy/startup/start_lines.py: the log of a start names version, cluster, rules and listeners."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

import pytest

from keylane import __version__
from keylane.config.node import LaneRule, ProxyConfig
from keylane.proxy.cluster.cluster import Broker, Cluster
from keylane.proxy.startup import start_lines


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log from the level info on."""
    caplog.set_level(logging.INFO, logger="keylane.server")
    return caplog


def cluster_of(rules: Sequence[LaneRule], **topics: int) -> tuple[ProxyConfig, Cluster]:
    """A cluster that was learnt, with two brokers."""
    config = ProxyConfig(bootstrap="k:1", lanes=tuple(rules))
    cluster = Cluster(config)
    cluster.cluster_id = "c1"
    for number in (2, 1):
        cluster.brokers[number] = Broker(node_id=number, host=f"k{number}", port=9092, rack=None)
    for name, partitions in topics.items():
        cluster.registry.learn(name, uuid.uuid4(), partitions)
    return config, cluster


def test_a_start_names_itself_and_the_cluster(lines: pytest.LogCaptureFixture) -> None:
    """Version, addresses, the cluster's id and its brokers."""
    config, cluster = cluster_of(())

    start_lines.log_begin(config.model_copy(update={"node": 3}))
    start_lines.log_cluster(cluster)
    start_lines.log_listeners("h:1", [(2, ("h", 4)), (1, ("h", 3))])

    assert lines.messages == [
        f"starting version={__version__} bootstrap=k:1 listen=127.0.0.1:19092 node=3",
        "connected to Kafka cluster=c1 brokers=1=k1:9092,2=k2:9092",
        "clients connect to bootstrap=h:1 brokers=1=h:3,2=h:4",
    ]


def test_each_rule_names_its_topics(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule without a topic is a warning; of many topics the rest is counted."""
    monkeypatch.setattr(start_lines, "NAMED_MAX", 1)
    rules = [LaneRule(topic="a*", lanes=16), LaneRule(topic="none", lanes=2)]

    start_lines.log_rules(*cluster_of(rules, a1=2, a2=1))

    assert lines.messages[:2] == [
        "lanes of a1: 2 partitions x 16 lanes",
        "lanes of more topics rule=a* more=1",
    ]
    assert lines.records[2].levelno == logging.WARNING
    assert lines.messages[2].startswith("lane rule matches no topic rule=none remedy=")


@pytest.mark.parametrize("are_compiled", [True, False])
def test_a_long_first_start_is_explained(
    are_compiled: bool, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the kernels are compiled, and after; with compiled ones there is no line."""
    seen: list[int] = []
    monkeypatch.setattr(start_lines, "are_compiled", lambda: are_compiled)
    monkeypatch.setattr(start_lines, "warm_up", lambda: seen.append(len(lines.messages)))

    start_lines.warm_up_logged()

    assert seen == [0 if are_compiled else 1]
    assert len(lines.messages) == (0 if are_compiled else 2)
    if not are_compiled:
        assert lines.messages[1].startswith("kernels are compiled seconds=")


def test_brokers_are_named_by_number_and_those_of_a_large_cluster_are_counted(
    lines: pytest.LogCaptureFixture,
) -> None:
    """Kafka's own addresses and those for clients."""
    _, cluster = cluster_of(())
    for number in range(3, 13):
        cluster.brokers[number] = Broker(node_id=number, host=f"k{number}", port=9092, rack=None)

    start_lines.log_cluster(cluster)
    start_lines.log_listeners("h:1", [(number, ("h", number)) for number in range(12, 0, -1)])

    for line in lines.messages:
        named, more = line.split("brokers=")[1].split(" and ")
        assert [each.split("=")[0] for each in named.split(",")] == [*map(str, range(1, 11))]
        assert more == "2 more"
