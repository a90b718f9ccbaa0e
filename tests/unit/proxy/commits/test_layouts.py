"""A change of the key hash under a group's offsets: refused, or named in `accept_layout`."""

from __future__ import annotations

import uuid

import pytest

from keylane.config.node import LaneRule, ProxyConfig
from keylane.errors import ConfigInvalid
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.proxy.commits.layouts import Layouts
from keylane.proxy.topics.registry import TopicRegistry

TOPIC = uuid.UUID(int=7)
PLAIN = LaneRule(topic="orders", lanes=4)
HASHED = LaneRule(topic="orders", lanes=4, hash="murmur2")


def layouts(rule: LaneRule, **config: object) -> tuple[Layouts, TopicRegistry]:
    """Return the layouts of a node with one rule, of a topic with three partitions."""
    made = ProxyConfig.model_validate({"bootstrap": "kafka:9092", "lanes": [rule], **config})
    registry = TopicRegistry((rule,), lane_name_pattern=made.lane_name_pattern)
    registry.learn("orders", TOPIC, 3)
    return Layouts(made, registry), registry


def journal(rule: LaneRule, name: str) -> OffsetTable:
    """Return the table of a node with this rule, on which a group has committed."""
    made, registry = layouts(rule)
    table, view = OffsetTable(partition_count=1), registry.view(name)
    assert view is not None
    made.pin(table, made.unpinned(view, 1), None)
    table.put(StateKey("g", TOPIC, 0), OffsetState(committed=5))
    return table


@pytest.mark.parametrize("name", ["orders", "orders.lanes-8"])
@pytest.mark.parametrize(("before", "after"), [(PLAIN, HASHED), (HASHED, PLAIN)])
def test_another_hash_is_refused(before: LaneRule, after: LaneRule, name: str) -> None:
    """Commits under any name of the topic would mean other keys."""
    table = journal(before, name)
    made, _ = layouts(after)

    with pytest.raises(ConfigInvalid, match=r"whose keys had another hash.*accept_layout"):
        made.start(table)


@pytest.mark.parametrize("name", ["orders", "orders.lanes-8"])
def test_an_accepted_hash_takes_the_place_of_the_old_one(name: str) -> None:
    """The next commit pins it."""
    table = journal(PLAIN, name)
    made, registry = layouts(HASHED, accept_layout=["orders"])

    made.start(table)

    view = registry.view(name)
    assert view is not None
    assert made.unpinned(view, 2)[name].fingerprint == view.layout.fingerprint != b""


def test_the_same_hash_is_the_same_layout() -> None:
    """Nothing is pinned again."""
    table = journal(HASHED, "orders")
    made, registry = layouts(HASHED)

    made.start(table)

    view = registry.view("orders")
    assert view is not None
    assert made.unpinned(view, 2) == {}
