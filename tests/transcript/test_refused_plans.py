"""A topic whose plan is for another partition count: refused by name, never taken for plain."""

from __future__ import annotations

import pytest

from keylane.config.node import LaneRule
from keylane.errors import ConfigInvalid
from keylane.keyrange.key_split import LaneCuts
from keylane.proxy.topics.registry import TopicRegistry
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, call, versions
from tests.transcript.test_metadata import answer, topic

METADATA, OFFSET_FETCH, DESCRIBE, LIST_OFFSETS = 3, 9, 75, 2
REFUSED = 29


def planned() -> FakeContext:
    """`orders` has two partitions, its plan three; `plain` is plain."""
    context = FakeContext()
    context.registry = TopicRegistry(
        (LaneRule(topic="orders", plan="plan.json"),),
        lane_name_pattern="{topic}.lanes-{lanes}",
        plans={"orders": LaneCuts.of([(5,)] * 3)},
    )
    context.registry.learn("orders", ORDERS, 2)
    context.registry.learn("plain", PLAIN, 3)
    return context


@pytest.mark.parametrize("version", versions(METADATA))
async def test_metadata_shows_clients_that_they_get_nothing(version) -> None:
    """An error that all clients report to their application; other topics are there."""
    context = planned()
    context.expect(METADATA, {}, answer(topic("orders", ORDERS, 2), topic("plain", PLAIN, 3)))

    asked = {"topics": [{"name": "orders"}, {"name": "plain"}]}
    seen = await call(context, METADATA, version, asked)

    reported = [(one["name"], one["error_code"], len(one["partitions"])) for one in seen["topics"]]
    assert reported == [("orders", REFUSED, 0), ("plain", 0, 3)]


async def test_a_description_says_the_same() -> None:
    """DescribeTopicPartitions, which kafka-topics asks."""
    context = planned()
    entry = {"name": "orders", "topic_id": ORDERS, "error_code": 0, "partitions": []}
    context.expect(DESCRIBE, {}, {"topics": [entry]})

    seen = await call(context, DESCRIBE, 0, {"topics": [{"name": "orders"}]})

    assert [one["error_code"] for one in seen["topics"]] == [REFUSED]


@pytest.mark.parametrize("version", [7, 9, 10])
async def test_all_offsets_of_a_group_leave_it_out(version) -> None:
    """What the broker holds for its partitions is no lane's."""
    context = planned()
    entries = [{"partition_index": 0, "committed_offset": 4, "error_code": 0}]
    topics = [
        {**({"topic_id": topic_id} if version >= 10 else {"name": name}), "partitions": entries}
        for name, topic_id in (("orders", ORDERS), ("plain", PLAIN))
    ]
    group = {"group_id": "g", "topics": topics}
    context.expect(OFFSET_FETCH, {}, group if version < 8 else {"groups": [group]})

    asked = {"group_id": "g", "topics": None}
    seen = await call(context, OFFSET_FETCH, version, asked if version < 8 else {"groups": [asked]})

    shown = (seen if version < 8 else seen["groups"][0])["topics"]
    assert [one.get("name", one.get("topic_id")) for one in shown] in (["plain"], [PLAIN])


async def test_a_request_that_names_it_all_the_same_is_not_relayed() -> None:
    """The session ends with the reason in its log line; the broker is not asked."""
    context = planned()
    partitions = [{"partition_index": 0, "timestamp": -1}]
    asked = {"topics": [{"name": "orders", "partitions": partitions}]}

    with pytest.raises(ConfigInvalid, match="plan of orders is for 3 partitions"):
        await call(context, LIST_OFFSETS, 7, asked)
