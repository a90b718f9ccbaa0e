"""SyncGroup: members and topics that do not share, and members near their partitions."""

from __future__ import annotations

import uuid

import pytest

from keylane.assignor.protocol import SHARE_MARK
from keylane.config.node import GroupRule, LaneRule
from tests.transcript.consumer_protocol import subscription
from tests.transcript.coordinator import (
    COOPERATIVE,
    ORDERS_LANES,
    Coordinator,
    all_of,
    partitions_of,
    world,
)
from tests.transcript.fake import FakeContext


async def test_a_member_may_say_that_it_does_not_share() -> None:
    """`allowKeyShare` false in its user data: a whole partition, not a part."""
    group = Coordinator(world())
    alone = subscription("orders", user_data=SHARE_MARK + b"\x00")
    said = subscription("orders", user_data=SHARE_MARK + b"\x01")

    dealt = await group.deal({"a": alone, "b": said, "c": subscription("orders")})

    assert len(dealt["a"]) == 4
    assert len(partitions_of(dealt["a"])) == 1
    assert sorted(len(dealt[name]) for name in "bc") == [2, 2]
    assert all_of(dealt) == ORDERS_LANES


async def test_a_switch_may_say_that_a_client_does_not_share() -> None:
    """Known by the client id that the broker made the member id of."""
    group = Coordinator(world(refuse_individual_commit=("audit-*",)))
    said = subscription("orders")
    audit = f"audit-1-{uuid.UUID(int=5)}"

    dealt = await group.deal({"b": said, "c": said, audit: said})

    assert len(dealt[audit]) == 4
    assert len(partitions_of(dealt[audit])) == 1
    assert all_of(dealt) == ORDERS_LANES


@pytest.mark.parametrize("protocol", ["range", COOPERATIVE])
async def test_a_topic_that_is_not_split_goes_in_whole_partitions(protocol) -> None:
    """With `accept.range.fetch` off a member has all lanes of a partition, or none."""
    rule = GroupRule(group="billing-*", assignor="key-range")
    lanes = LaneRule(topic="orders", lanes=4, accept_range_fetch=False)
    group = Coordinator(FakeContext(lanes, groups=(rule,)))
    said = subscription("orders", version=1)
    first = await group.deal({"a": said}, protocol=protocol)
    owned = subscription("orders", version=1, owned=first["a"])

    second = await group.deal({"a": owned, "b": said, "c": said}, protocol=protocol)

    assert sorted(first["a"]) == ORDERS_LANES
    counts = sorted(len(lanes) for lanes in second.values())
    assert counts == ([0, 4, 4] if protocol == "range" else [0, 0, 4])
    assert all(len(partitions_of(lanes)) <= 1 for lanes in second.values())


async def test_members_read_what_is_led_in_their_rack() -> None:
    """KIP-881: a rack said in subscription v3, the racks of leaders: each reads what is near."""
    context = world()
    context.world.racks["orders"] = ("east", "west")
    group = Coordinator(context)
    in_rack = {rack: subscription("orders", version=3, rack=rack) for rack in ("east", "west")}

    dealt = await group.deal({"a": in_rack["west"], "b": in_rack["east"]})

    assert partitions_of(dealt["a"]) == {1}
    assert partitions_of(dealt["b"]) == {0}
    assert all_of(dealt) == ORDERS_LANES


async def test_load_comes_before_racks() -> None:
    """All partitions are led in one rack: a member in another one gets as many lanes."""
    context = world()
    context.world.racks["orders"] = ("east", "east")
    group = Coordinator(context)
    in_rack = {rack: subscription("orders", version=3, rack=rack) for rack in ("east", "west")}

    dealt = await group.deal({"a": in_rack["west"], "b": in_rack["east"]})

    assert [len(lanes) for lanes in dealt.values()] == [4, 4]
