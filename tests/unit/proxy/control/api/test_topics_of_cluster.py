"""proxy/control/api/assignments.py: partition counts are believed until they do not suffice."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any, cast

from keylane.config.node import LaneRule
from keylane.proxy.control.api.assignments import ClusterTopics
from keylane.proxy.topics.registry import TopicRegistry


class FakeCluster:
    """A registry, and what the brokers would say when they are asked."""

    def __init__(self) -> None:
        rules = (LaneRule(topic="orders", lanes=4),)
        self.registry = TopicRegistry(rules, lane_name_pattern="{topic}.lanes-{lanes}")
        self.counts = {"orders": 2, "shop": 1}
        self.asked: list[str] = []

    async def refresh_topic(self, name: str) -> None:
        self.asked.append(name)
        if name in self.counts:
            self.registry.learn(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), self.counts[name])


async def test_a_count_is_asked_when_it_is_unknown_or_too_small() -> None:
    """Partitions that were added are seen, also where lanes keep to the count they began with."""
    cluster = FakeCluster()
    topics = ClusterTopics(cast("Any", cluster))

    assert await topics.partition_count("orders", at_least=1) == 2
    assert await topics.partition_count("orders", at_least=2) == 2
    assert cluster.asked == ["orders"]
    assert await topics.partition_count("orders", at_least=3) == 2
    cluster.counts["orders"] = 5
    assert await topics.partition_count("orders", at_least=5) == 5
    assert await topics.partition_count("nix", at_least=1) is None
    assert cluster.asked == ["orders", "orders", "orders", "nix"]


def test_lane_names_are_no_topics() -> None:
    """`orders.lanes-4` is no separate topic; `orders` is one, with lanes or without."""
    topics = ClusterTopics(cast("Any", SimpleNamespace(registry=FakeCluster().registry)))

    assert topics.is_lane_name("orders.lanes-4")
    assert not topics.is_lane_name("orders")
