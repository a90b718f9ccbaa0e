"""Names and globs of rules, and the topics that no glob is of."""

from __future__ import annotations

import pytest

from keylane.config.node import LaneRule
from keylane.config.topic_rules import check_rule_topic, falls_under, is_left_out
from keylane.proxy.topics.agreement import LaneMeanings
from keylane.proxy.topics.node_values import NodeRule

STREAMS = [
    "app-counts-changelog",
    "app-KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition",
    "app-named-subscription-registration-topic",
    "app-named-subscription-response-topic",
    "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004-topic",
    "app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000012-topic",
]


@pytest.mark.parametrize(
    ("topic", "rule", "is_of_it"),
    [
        ("orders", "orders", True),
        ("orders", "ord*", True),
        ("orders", "?rders", True),
        ("orders", "[a-o]rders", True),
        ("orders", "shop*", False),
        ("orders2", "orders", False),
        ("__consumer_offsets", "*", False),
        ("__consumer_offsets", "__consumer_offsets", False),
        ("changelog", "*", True),
        ("changelog-2", "*", True),
        ("app-changelogs", "app-*", True),
        ("app-topic", "app-*", True),
    ],
)
def test_which_topics_a_rule_is_of(topic, rule, is_of_it) -> None:
    """By name or by glob, never a broker's own topics."""
    assert falls_under(topic, rule) is is_of_it


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "legal"), ("a b", "legal"), ("x" * 250, "legal"), ("__consumer*", "internal")],
)
def test_what_is_no_topic_of_a_rule(text, why) -> None:
    """A start with it is refused."""
    with pytest.raises(ValueError, match=why):
        check_rule_topic(text)


@pytest.mark.parametrize("topic", STREAMS)
def test_globs_leave_out_what_kafka_streams_has_made(topic) -> None:
    """Streams stops with "invalid partitions" there; a rule with the very name is obeyed."""
    glob, name = LaneRule(topic="*", lanes=4), LaneRule(topic=topic, lanes=4)

    assert is_left_out(topic)
    assert not glob.matches(topic)
    assert name.matches(topic)


@pytest.mark.parametrize("topic", [*STREAMS, "orders", "__consumer_offsets", "plain"])
@pytest.mark.parametrize("rule", ["*", "orders", STREAMS[0]])
def test_nodes_mean_the_same_by_a_rule(topic, rule) -> None:
    """What another node's rules mean is found as it finds it itself."""
    there = LaneMeanings((NodeRule(topic=rule, lanes=4, fingerprint=""),))

    assert (there.of(topic) is not None) is LaneRule(topic=rule, lanes=4).matches(topic)
