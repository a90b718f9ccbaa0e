"""proxy/startup/preflight.py: rights that are missing, with the command that gives each."""

from __future__ import annotations

import asyncio
import socket
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.config.node import LaneRule, ProxyConfig
from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Broker, Cluster
from keylane.proxy.startup.preflight import Finding, Status, _look, look_at_ports, worst

ALL = 0xFFF8
"""All operations, as a cluster without an authorizer gives them."""
NONE = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition
RULES = (LaneRule(topic="orders", lanes=16), LaneRule(topic="shop-*", lanes=2))


class Secured(Cluster):
    """A cluster with made-up rights: of topics, groups and ids, all where none is named."""

    def __init__(self, config: ProxyConfig) -> None:
        super().__init__(config)
        self.cluster_id = "c1"
        self.brokers[1] = Broker(node_id=1, host="k", port=9092, rack=None)
        self.registry.learn("orders", uuid.uuid4(), 2)
        self.topics: dict[str, tuple[ErrorCode, int]] = {}
        self.groups: dict[str, int] = {}
        self.may_make = True
        self.id_error = NONE
        self.coordinators = [ErrorCode.coordinator_not_available]
        self.loss: UpstreamLost | None = None
        self.made: list[bool] = []

    async def request(self, entity: Any) -> Any:
        """Answer Metadata, CreateTopics and FindCoordinator."""
        if hasattr(entity, "validate_only"):
            self.made.append(entity.validate_only)
            error = NONE if self.may_make else ErrorCode.topic_authorization_failed
            topics = [SimpleNamespace(name=each.name, error_code=error) for each in entity.topics]
            return SimpleNamespace(topics=topics)
        if hasattr(entity, "key"):
            error = self.coordinators.pop() if self.coordinators else NONE
            return SimpleNamespace(error_code=error, node_id=1, host="k", port=9092)
        if self.loss is not None:
            raise self.loss
        topics = []
        for each in entity.topics:
            error, operations = self.topics.get(each.name, (NONE, ALL))
            topics.append(
                SimpleNamespace(
                    name=each.name, error_code=error, topic_authorized_operations=operations
                )
            )
        return SimpleNamespace(topics=topics)

    async def ask_broker(self, node_id: int, entity: Any) -> Any:
        """Answer DescribeGroups and InitProducerId."""
        if hasattr(entity, "groups"):
            operations = self.groups.get(entity.groups[0], ALL)
            group = SimpleNamespace(error_code=NONE, authorized_operations=operations)
            return SimpleNamespace(groups=[group])
        return SimpleNamespace(error_code=self.id_error, producer_id=1, producer_epoch=0)

    async def versions_of(self, node_id: int) -> Any:
        """No share groups."""
        return {3: 13}


async def look(cluster: Secured, config: ProxyConfig) -> list[Finding]:
    """Return all findings."""
    return [finding async for finding in _look(config, cluster)]


def config_of(**keys: Any) -> ProxyConfig:
    """Return a configuration."""
    return ProxyConfig(bootstrap="k:9092", lanes=RULES, **keys)


async def test_all_is_well() -> None:
    """Cluster, rights and rules; a glob without a topic is a warning, and no error."""
    config = config_of()
    cluster = Secured(config)

    found = await look(cluster, config)

    assert [(each.status.value, each.subject, each.text) for each in found] == [
        ("ok", "kafka", "cluster c1, 1 brokers"),
        ("ok", "right", "keylane's principal has its rights"),
        ("ok", "rule", "orders: 2 partitions x 16 lanes"),
        ("warning", "rule", "shop-*: matches no topic"),
    ]
    assert worst(found) is Status.WARNING
    assert not cluster.made


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (
            {"topics": {"orders": (NONE, ALL & ~(1 << 3))}},
            "--operation Read --topic orders",
        ),
        (
            {"topics": {"orders": (ErrorCode.topic_authorization_failed, -(2**31))}},
            "--operation Read --topic orders",
        ),
        (
            {"topics": {"__individual_commit_offsets": (NONE, ALL & ~(1 << 4 | 1 << 11))}},
            "--operation Write --operation AlterConfigs --topic __individual_commit_offsets",
        ),
        (
            {"topics": {"__keylane_settings": (UNKNOWN, -(2**31))}, "may_make": False},
            (
                "--operation Create --operation Read --operation Write --operation DescribeConfigs "
                "--operation AlterConfigs --topic __keylane_settings"
            ),
        ),
        (
            {"topics": {"__consumer_offsets": (NONE, ALL & ~(1 << 10))}},
            "--operation DescribeConfigs --topic __consumer_offsets",
        ),
        ({"groups": {"__keylane_nodes": 0}}, "--operation Read --group __keylane_nodes"),
        (
            {"coordinators": [ErrorCode.group_authorization_failed]},
            "--operation Read --group __keylane_nodes",
        ),
        (
            {"id_error": ErrorCode.transactional_id_authorization_failed},
            (
                "--operation Describe --operation Write --transactional-id keylane-ic- "
                "--resource-pattern-type prefixed"
            ),
        ),
    ],
)
async def test_a_missing_right_has_its_command(change: dict[str, Any], remedy: str) -> None:
    """The exact ACL, for the principal that the configuration names."""
    config = config_of(login_mechanism="PLAIN", login_username="keylane")
    cluster = Secured(config)
    for name, value in change.items():
        setattr(cluster, name, value)

    found = [each for each in await look(cluster, config) if each.status is Status.ERROR]

    assert [each.remedy for each in found] == [
        f"kafka-acls --add --allow-principal 'User:keylane' {remedy}"
    ]


async def test_a_topic_that_is_not_there_is_not_made() -> None:
    """The right to make it is asked for by a request that only validates."""
    config = config_of(node=1)
    cluster = Secured(config)
    cluster.topics["__keylane_scans"] = UNKNOWN, -(2**31)

    found = await look(cluster, config)

    assert cluster.made == [True]
    assert worst(found) is Status.WARNING


async def test_rights_that_cannot_be_asked_for_are_a_warning() -> None:
    """With the reason, and without the line that all is well."""
    config = config_of()
    cluster = Secured(config)
    cluster.loss = UpstreamLost("broker at k:9092: closed")

    found = [each for each in await look(cluster, config) if each.subject == "right"]

    assert [(each.status, each.text) for each in found] == [
        (
            Status.WARNING,
            "the rights of keylane's principal are not known: broker at k:9092: closed",
        )
    ]


async def test_share_groups_need_brokers_that_serve_them() -> None:
    """Kafka 4.2 or later."""
    config = config_of(share_groups=[{"group": "s"}])

    found = [each for each in await look(Secured(config), config) if each.status is Status.ERROR]

    assert [each.remedy for each in found] == ["use Kafka 4.2 or later"]


async def test_brokers_that_hang_are_waited_for_together(monkeypatch) -> None:
    """A firewall that drops packets costs the time of one broker, however many there are."""
    config = config_of()
    cluster = Secured(config)
    cluster.brokers[2] = Broker(node_id=2, host="k2", port=9092, rack=None)
    together = asyncio.Barrier(2)

    async def hang(node_id: int) -> Any:
        async with asyncio.timeout(30):
            await together.wait()
        raise UpstreamLost("timed out")

    monkeypatch.setattr(cluster, "versions_of", hang)
    found = [each.text for each in await look(cluster, config) if each.status is Status.ERROR]

    assert found == [
        "broker 1 at k:9092 cannot be reached: timed out",
        "broker 2 at k2:9092 cannot be reached: timed out",
    ]


async def test_a_port_in_use_names_the_key_that_chooses_it() -> None:
    """For brokers' listeners that is `broker_ports_from`."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = config_of(listen="127.0.0.1:0", broker_ports_from=port - 1)
        (found,) = await look_at_ports(config, [1])

    assert found.status is Status.ERROR and found.remedy is not None
    assert found.text.startswith(f"listener of broker 1 127.0.0.1:{port}: ")
    assert found.remedy.endswith("by broker_ports_from")
