"""What names mean by each node's lane rules, and where nodes do not agree."""

from __future__ import annotations

import pytest

from keylane.config.node import LaneRule
from keylane.keyrange.key_split import LaneCuts
from keylane.proxy.topics.agreement import Disputes, LaneMeanings, Meaning, node_rules
from keylane.proxy.topics.node_values import NodeRule
from keylane.proxy.topics.registry import TopicRegistry

PATTERN = "{topic}.lanes-{lanes}"
CUTS = LaneCuts.of([(5,), (9,)])
RULES = (
    LaneRule(topic="orders", plan="plan.json"),
    LaneRule(topic="shop-*", lanes=3),
    LaneRule(topic="shop.lanes-2", plan="shop.json"),
)
PLANS = {"orders": CUTS, "shop.lanes-2": LaneCuts.of([(7,)])}


@pytest.mark.parametrize(
    ("name", "with_pattern", "without"),
    [
        ("orders", ("orders", 2), ("orders", 2)),
        ("orders.lanes-2", ("orders", 2), None),
        ("shop-a", ("shop-a", 3), ("shop-a", 3)),
        ("shop-a.lanes-8", ("shop-a", 8), ("shop-a.lanes-8", 3)),
        ("shop.lanes-2", ("shop", 2), ("shop.lanes-2", 2)),
        ("a.lanes-1024", ("a", 1024), None),
        *((name, None, None) for name in ("plain", "a.lanes-0", "a.lanes-1025")),
        *((name, None, None) for name in ("__consumer_offsets", "__offsets.lanes-4", "__shop-a")),
    ],
)
@pytest.mark.parametrize("pattern", [PATTERN, None])
def test_a_name_means_the_same_here_and_to_others(name, with_pattern, without, pattern) -> None:
    """Topic and lanes per partition, by the rules; cuts by the fingerprint of their plan."""
    registry = TopicRegistry(RULES, lane_name_pattern=pattern, plans=PLANS)

    meaning = LaneMeanings(node_rules(RULES, PLANS), pattern or "").of(name)

    expected = without if pattern is None else with_pattern
    assert registry.rule_of(name) == expected
    assert (meaning and (meaning.topic, meaning.lanes)) == expected
    if meaning is not None:
        cuts = PLANS.get(name)
        assert meaning.fingerprint == (cuts.fingerprint.hex() if cuts else "")


def test_rules_as_they_are_published() -> None:
    """Rules in their order, plans by their lane count and fingerprint."""
    assert node_rules(RULES[:2], PLANS) == (
        NodeRule(topic="orders", lanes=2, fingerprint=CUTS.fingerprint.hex()),
        NodeRule(topic="shop-*", lanes=3),
    )


def test_equal_rules_are_equal() -> None:
    """Their order counts, since the first that fits does."""
    one, other = NodeRule(topic="a*", lanes=2), NodeRule(topic="ab", lanes=3)

    assert LaneMeanings((one, other), PATTERN) == LaneMeanings((one, other), PATTERN)
    assert len({LaneMeanings((one, other)), LaneMeanings((one, other))}) == 1
    assert LaneMeanings((one, other)) != LaneMeanings((other, one))
    assert LaneMeanings((one,), PATTERN) != LaneMeanings((one,))
    text: object = "rules"
    assert LaneMeanings() != text


@pytest.mark.parametrize("pattern", ["{topic}{topic}", "{lanes}", "(", "{topic}.{lanes}.{lanes}"])
def test_a_pattern_that_no_node_can_have_names_nothing(pattern) -> None:
    """It came in a message, and is no reason to fail."""
    assert LaneMeanings((), pattern).of("a.1.1") is None


def test_a_disagreement_names_nodes_and_meanings() -> None:
    """Nodes that mean the same stand together; a node that agrees with this one is not named."""
    here = LaneMeanings((NodeRule(topic="orders", lanes=4),))
    plan = LaneMeanings((NodeRule(topic="orders", lanes=4, fingerprint="ab" * 32),))
    others = {7: LaneMeanings(), 2: plan, 9: plan, 5: here}

    disputes = Disputes(here)
    disputes.update(3, others)
    reported = disputes.reason_of("orders")

    assert reported == (
        "lanes: nodes do not agree on orders: 4 lanes per partition of orders at this node (3); "
        "4 lanes per partition of orders by the plan abababababab at nodes 2, 9; "
        "a plain topic at node 7"
    )
    assert disputes.reason_of("other") is None
    assert str(Meaning(topic="t", lanes=2)) == "2 lanes per partition of t"
