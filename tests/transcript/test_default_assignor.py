"""JoinGroup, SyncGroup: groups whose lanes keylane deals out without a rule, and others."""

from __future__ import annotations

import logging
import uuid

import pytest

from keylane.config.node import GroupRule, LaneRule
from tests.transcript.consumer_protocol import assignment, subscription
from tests.transcript.coordinator import (
    COOPERATIVE,
    GROUP,
    JOIN,
    ORDERS_LANES,
    SYNC,
    Coordinator,
    all_of,
    kept,
    world,
)
from tests.transcript.fake import FakeContext, is_relayed, make_request, serve, versions


@pytest.mark.parametrize("api_key", [JOIN, SYNC])
async def test_groups_that_keep_their_clients_assignor_pass_as_bytes(api_key) -> None:
    """With `assignor: client` nothing is decoded, not even a leader's plan."""
    rules = (GroupRule(group="*", assignor="client"),)
    context = FakeContext(LaneRule(topic="orders", lanes=4), groups=rules)
    given = {"assignments": [{"member_id": "m", "assignment": assignment(ORDERS_LANES)}]}

    for version in versions(api_key):
        values = {"group_id": GROUP, "member_id": "m"} | (given if api_key == SYNC else {})
        request = make_request(api_key, version, values)
        body = bytes(request.body)
        context.expect(api_key, body, b"whatever")

        assert is_relayed(context, request)
        assert (await serve(context, request)).endswith(b"whatever")
    assert not list(context.generations.groups())


@pytest.mark.parametrize("protocol", ["range", "roundrobin", "sticky", COOPERATIVE])
@pytest.mark.parametrize("rules", [(), (GroupRule(group="other", assignor="client"),)])
async def test_stock_assignors_are_replaced_without_a_rule(protocol, rules) -> None:
    """One member has a lane as heavy as all others together, and nothing else."""
    context = FakeContext(LaneRule(topic="orders", lanes=4), groups=rules)
    context.loads.rates["orders"] = {index: 7000.0 if index == 3 else 1.0 for index in range(8)}
    said = subscription("orders")

    dealt = await Coordinator(context).deal({"a": said, "b": said}, protocol=protocol)

    assert [("orders", 3)] in dealt.values()
    assert all_of(dealt) == ORDERS_LANES


async def test_an_unknown_assignor_is_kept_without_a_rule(caplog) -> None:
    """It may have been written for its plan; the log says once how to get keylane's."""
    group = Coordinator(FakeContext(LaneRule(topic="orders", lanes=4)))

    passed = []
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            await group.join({"a": subscription("orders")}, protocol="own")
            passed.append(await kept(group))

    assert passed == [True, True]
    assert group.context.stats.assignments_unplanned == 0
    (line,) = [each.getMessage() for each in caplog.records if "lanes left" in each.getMessage()]
    assert f"group={GROUP} assignor=own remedy=" in line


async def test_a_group_of_plain_topics_is_not_looked_at() -> None:
    """Its leader's plan passes as bytes, and nothing of it is remembered."""
    context = FakeContext(LaneRule(topic="orders", lanes=4))
    group = Coordinator(context)
    await group.join({"a": subscription("plain"), "b": subscription("plain")})
    values = {"group_id": GROUP, "member_id": "a", "generation_id": 1,
              "assignments": [{"member_id": "a", "assignment": assignment([("plain", 0)])}],
    }  # fmt: skip

    assert is_relayed(context, make_request(SYNC, 3, values))
    assert not list(context.generations.groups())


async def test_a_group_that_leaves_its_lanes_is_left_alone() -> None:
    """Its newest generation is of plain topics: the one before says nothing about it."""
    group = Coordinator(FakeContext(LaneRule(topic="orders", lanes=4)))
    await group.deal({"a": subscription("orders")})
    await group.join({"a": subscription("plain")})
    plain = {"a": assignment([("plain", 0)])}

    assert await group.sync(plain) == plain
    assert group.context.stats.assignments_unplanned == 0


@pytest.mark.parametrize("metadata", [assignment([("plain", 0)]), b"\0\0\0\0\0\7"])
async def test_an_unseen_generation_without_lanes_is_no_fault(metadata) -> None:
    """keylane was started since, and the plan is of plain topics, or not of consumers."""
    group = Coordinator(FakeContext(LaneRule(topic="orders", lanes=4)))
    group.members = {"a": b""}

    assert await group.sync({"a": metadata}, generation_id=5) == {"a": metadata}
    assert group.context.stats.assignments_unplanned == 0


@pytest.mark.parametrize(
    ("protocol", "co_partitioned", "is_together"),
    [("range", None, True), ("range", False, False), ("roundrobin", None, False)],
)
async def test_range_keeps_topics_that_are_cut_alike_together(
    protocol, co_partitioned, is_together
) -> None:
    """Clients of `range` join by that; load alone would put the two hot lanes to two members."""
    rule = GroupRule(group="*", co_partitioned=co_partitioned)
    context = world(rule)
    context.registry.learn("bills", uuid.UUID(int=0xD4), 2)
    hot = {index: 900.0 if index == 3 else 100.0 for index in range(8)}
    context.loads.rates |= {"orders": hot, "bills.lanes-4": hot}
    said = subscription("orders", "bills.lanes-4")

    dealt = await Coordinator(context).deal({"a": said, "b": said}, protocol=protocol)

    alike = []
    for lanes in dealt.values():
        orders, bills = ({i for topic, i in lanes if topic == name}
                         for name in ("orders", "bills.lanes-4"))  # fmt: skip
        alike.append(orders == bills)
    assert all(alike) is is_together
