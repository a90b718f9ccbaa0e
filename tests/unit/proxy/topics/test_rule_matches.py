"""proxy/topics/rule_matches.py: the topics of each lane rule."""

from __future__ import annotations

import uuid

from keylane.assignor.range_plan import RangePlan
from keylane.config.node import LaneRule
from keylane.keyrange.key_split import LaneCuts
from keylane.proxy.topics.registry import TopicRegistry
from keylane.proxy.topics.rule_matches import match_rules


def registry_of(rules: tuple[LaneRule, ...], **topics: int) -> TopicRegistry:
    """A registry that knows these topics with their partitions."""
    registry = TopicRegistry(rules, lane_name_pattern=None, plans={})
    for name, partitions in topics.items():
        registry.learn(name, uuid.uuid4(), partitions)
    return registry


def test_the_first_rule_that_fits_has_the_topic() -> None:
    """In the order of the rules, topics by name; a rule without any stays empty."""
    rules = tuple(
        LaneRule(topic=topic, lanes=lanes) for topic, lanes in (("orders", 16), ("o*", 4), ("x", 2))
    )
    registry = registry_of(rules, orders=2, other=1, audit=3, oil=5)

    matched = match_rules(rules, registry)

    assert [(each.rule, [str(topic) for topic in each.topics]) for each in matched] == [
        ("orders", ["orders: 2 partitions x 16 lanes"]),
        ("o*", ["oil: 5 partitions x 4 lanes", "other: 1 partition x 4 lanes"]),
        ("x", []),
    ]


def test_a_plan_that_does_not_fit_is_a_refusal() -> None:
    """Its topic has another number of partitions."""
    rules = (LaneRule(topic="orders", plan="orders.json"),)
    plan = RangePlan(topic="orders", lane_count=3, cuts=((5, 9),), epoch=0)
    plans = {"orders": LaneCuts.of(plan.cuts)}
    registry = TopicRegistry(rules, lane_name_pattern=None, plans=plans)
    registry.learn("orders", uuid.uuid4(), 2)

    ((topic,),) = (each.topics for each in match_rules(rules, registry))

    assert topic.lanes == 3
    assert topic.refusal is not None
    assert "partitions" in topic.refusal
