"""Consumer groups that this node serves, in bounded memory."""

from __future__ import annotations

import uuid

from keylane.assignor.model import LaneTopic
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_groups import LANE_COST, MEMBER_COST, ConsumerGroups
from keylane.proxy.groups.consumer_members import GroupTopic

ID = uuid.UUID(int=1)
TABLE = object()


def with_lanes(count: int) -> ConsumerGroup:
    group = ConsumerGroup(0.0)
    lanes = LaneTopic(name="orders", partition_count=1, lane_count=count)
    group.set_topics({"orders": GroupTopic(lanes=lanes, topic_id=ID, view_id=ID)})
    return group


def test_a_group_of_another_table_is_unknown() -> None:
    """Its journal partition was loaded anew: another node may have served it meanwhile."""
    groups, group = ConsumerGroups(), with_lanes(1)

    groups.begin("g", TABLE, group)

    assert groups.get("g", TABLE) is group
    assert groups.get("g", object()) is None
    assert groups.find("g") is group


def test_the_group_that_was_not_served_for_longest_goes_first() -> None:
    """Costs are by lanes and members, as they are now."""
    groups = ConsumerGroups(cost_max=3 * (10 * LANE_COST + MEMBER_COST))
    for name in "abc":
        groups.begin(name, TABLE, with_lanes(10))
    groups.get("a", TABLE)
    growing = with_lanes(10)
    groups.begin("c", TABLE, growing)
    growing.set_topics(with_lanes(30).topics)

    groups.weigh("c")

    assert groups.names() == ["c"]
    groups.check()


def test_groups_of_another_node_are_forgotten() -> None:
    """What it changes is not seen here."""
    groups = ConsumerGroups()
    for name in "ab":
        groups.begin(name, TABLE, with_lanes(1))

    groups.forget_where(lambda name: name == "a")

    assert groups.names() == ["b"]
    assert groups.member("a", "m") is None
