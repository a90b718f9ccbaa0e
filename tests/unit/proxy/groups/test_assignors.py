"""proxy/groups/assignors.py: the assignors in whose place keylane deals out lanes."""

from __future__ import annotations

import pytest

from keylane.config.node import GroupRule
from keylane.proxy.groups.assignors import is_foreign, is_replaced, keeps_topics_together

STOCK = ["range", "roundrobin", "sticky", "cooperative-sticky", "RoundRobinAssigner"]
CLIENT = GroupRule(group="g", assignor="client")
KEY_RANGE = GroupRule(group="g", assignor="key-range")
NOT_NAMED = GroupRule(group="g", rebalance_by_load=False)


@pytest.mark.parametrize("name", STOCK)
def test_assignors_of_client_libraries_are_replaced(name) -> None:
    """Without a rule, with one that names none, and not with `client`."""
    replaced = [is_replaced(name, rule) for rule in (None, NOT_NAMED, KEY_RANGE, CLIENT)]

    assert replaced == [True, True, True, False]


def test_an_unknown_assignor_is_replaced_by_rule_only() -> None:
    """It was written for a plan that keylane does not know."""
    rules = (None, NOT_NAMED, KEY_RANGE, CLIENT)

    assert [is_replaced("own", rule) for rule in rules] == [False, False, True, False]
    assert [is_foreign("own", rule) for rule in rules] == [True, True, False, False]
    assert not is_foreign("range", None)


@pytest.mark.parametrize("name", ["stream", None])
def test_assignments_with_more_than_partitions_are_never_replaced(name) -> None:
    """Kafka Streams has its tasks in them."""
    assert not any(is_replaced(name, rule) for rule in (None, KEY_RANGE, CLIENT))
    assert not is_foreign(name, None)


def test_topics_are_together_where_range_has_them_together() -> None:
    """A rule decides otherwise in both directions."""
    apart, together = (GroupRule(group="g", co_partitioned=value) for value in (False, True))

    assert [keeps_topics_together("range", rule) for rule in (None, NOT_NAMED, apart)] == [
        True, True, False,
    ]  # fmt: skip
    assert [keeps_topics_together("sticky", rule) for rule in (None, together)] == [False, True]
