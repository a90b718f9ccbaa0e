"""Topics that mean lanes and cannot be resolved now: clients ask again, the broker is not asked."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from keylane.config.node import LaneRule
from keylane.keyrange.key_split import LaneCuts
from keylane.offsets.records.journal import StateKey
from keylane.proxy.topics.registry import TopicRegistry
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, call, versions

FETCH_RECORDS, COMMIT, FETCH, ADD_PARTITIONS, TXN_COMMIT, DELETE = 1, 8, 9, 24, 28, 47
GROUP = "g"
UNKNOWN, BUSY, DENIED, UNSTABLE, UNKNOWN_ID = 3, 14, 29, 88, 100
NEVER_SEEN = uuid.UUID(int=0xFF)
BY_NAME = range(1, 10)


def later(version: int) -> int:
    """What makes clients of an OffsetFetch version ask again."""
    return UNSTABLE if version >= 7 else BUSY


def asked(version: int, *topics: Any) -> dict[str, Any]:
    entries = [
        {"name": name, "topic_id": topic_id, "partition_indexes": indexes}
        for name, topic_id, indexes in topics
    ]
    question = {"group_id": GROUP, "topics": entries or None}
    return question if version < 8 else {"groups": [question]}


def reported(version: int, topics: list[dict[str, Any]]) -> dict[str, Any]:
    group = {"group_id": GROUP, "topics": topics, "error_code": 0}
    return group if version < 8 else {"groups": [group]}


def shown(version: int, answer: Any) -> dict[Any, list[tuple[int, int, int]]]:
    """By topic: partition, offset and error of each entry."""
    topics = answer["topics"] if version < 8 else answer["groups"][0]["topics"]
    return {
        topic.get("name", topic.get("topic_id")): [
            (entry["partition_index"], entry["committed_offset"], entry["error_code"])
            for entry in topic["partitions"]
        ]
        for topic in topics
    }


async def offsets(context: FakeContext, version: int, *topics: Any) -> Any:
    return shown(version, await call(context, FETCH, version, asked(version, *topics)))


def nothing_asked(version: int) -> dict[str, Any]:
    """The broker is asked about the group only, as it may refuse it as a whole."""
    question = {"group_id": GROUP, "topics": []}
    return question if version < 8 else {"groups": [question]}


@pytest.mark.parametrize("version", BY_NAME)
@pytest.mark.parametrize("name", ["orders", "orders.lanes-16", "gone.lanes-2"])
async def test_a_topic_that_the_broker_does_not_know_now(version, name) -> None:
    """By its own name or a lane name: each lane is to be asked for again; none has no offset."""
    context = FakeContext()
    context.registry.forget("orders")
    context.expect(FETCH, nothing_asked(version), reported(version, []))

    found = await offsets(context, version, (name, None, [0, 5]))

    assert found == {name: [(0, -1, later(version)), (5, -1, later(version))]}


@pytest.mark.parametrize("version", BY_NAME)
async def test_a_topic_that_is_not_ready(version) -> None:
    """It was made a moment ago: asked again as well, and the connection stays."""
    context = FakeContext()
    context.world.unready["orders"] = 5
    context.expect(FETCH, nothing_asked(version), reported(version, []))

    found = await offsets(context, version, ("orders", None, [1]))

    assert found == {"orders": [(1, -1, later(version))]}


@pytest.mark.parametrize("version", BY_NAME)
async def test_a_topic_that_is_not_shown_to_the_client(version) -> None:
    """The missing right is said, which clients report to their application."""
    context = FakeContext()
    context.registry.forget("orders")
    context.world.hidden.add("orders")
    context.expect(FETCH, nothing_asked(version), reported(version, []))

    found = await offsets(context, version, ("orders.lanes-16", None, [1]))

    assert found == {"orders.lanes-16": [(1, -1, DENIED)]}


@pytest.mark.parametrize("version", BY_NAME)
async def test_a_topic_whose_plan_does_not_fit(version) -> None:
    """A refused view is refused; the plain topic beside it is answered."""
    context = FakeContext()
    context.registry = TopicRegistry(
        (LaneRule(topic="orders", plan="plan.json"),),
        lane_name_pattern=None,
        plans={"orders": LaneCuts.of([(5,)] * 3)},
    )
    context.registry.learn("orders", ORDERS, 2)
    plain = {"name": "plain", "partitions": [
        {"partition_index": 2, "committed_offset": 7, "error_code": 0}
    ]}  # fmt: skip
    context.expect(FETCH, None, reported(version, [plain]))

    found = await offsets(context, version, ("orders", None, [3]), ("plain", None, [2]))

    assert found == {"orders": [(3, -1, DENIED)], "plain": [(2, 7, 0)]}
    asked_of = context.world.sent[0]
    topics = asked_of["topics"] if version < 8 else asked_of["groups"][0]["topics"]
    assert [topic["name"] for topic in topics] == ["plain"]


async def test_an_unknown_id() -> None:
    """v10: it may be that of lanes; the code is the one that a broker has for it."""
    context = FakeContext()
    context.expect(FETCH, nothing_asked(10), reported(10, []))

    found = await offsets(context, 10, ("", NEVER_SEEN, [0, 1]))

    assert found == {NEVER_SEEN: [(0, -1, UNKNOWN_ID), (1, -1, UNKNOWN_ID)]}


@pytest.mark.parametrize("version", versions(FETCH))
async def test_an_answer_that_lacks_what_was_asked(version) -> None:
    """A partition that the broker leaves out has no offset that is known, so not "none"."""
    context = FakeContext()
    entry = {"partition_index": 0, "committed_offset": 5, "error_code": 0}
    key = {"topic_id": ORDERS} if version >= 10 else {"name": "orders"}
    context.expect(FETCH, None, reported(version, [{**key, "partitions": [entry]}]))

    found = await offsets(context, version, ("orders", ORDERS, [0, 1]))

    assert list(found.values()) == [[(0, -1, later(version)), (1, -1, later(version))]]


@pytest.mark.parametrize("version", [7, 9, 10])
async def test_all_topics_with_one_that_cannot_be_resolved(version) -> None:
    """Offsets of its partitions would pass for those of lanes: they are not shown."""
    context = FakeContext()
    context.registry.forget("orders")
    entries = [{"partition_index": 0, "committed_offset": 4, "error_code": 0}]
    topics = [
        {**({"topic_id": topic_id} if version >= 10 else {"name": name}), "partitions": entries}
        for name, topic_id in (("orders", ORDERS), ("plain", PLAIN))
    ]
    context.expect(FETCH, None, reported(version, topics))

    found = await offsets(context, version)

    lanes, plain = (ORDERS, PLAIN) if version >= 10 else ("orders", "plain")
    code = UNKNOWN_ID if version >= 10 else later(version)
    assert found == {lanes: [(0, -1, code)], plain: [(0, 4, 0)]}


@pytest.mark.parametrize("version", versions(FETCH))
async def test_a_leader_that_cannot_be_asked_holds_up_its_own_lanes(version) -> None:
    """The group has a state and no offset at Kafka: where to begin is asked of the leader."""
    context = FakeContext()
    context.group_names.note_empty(GROUP)  # its offset at Kafka was deleted, and not expired
    view = context.lanes("orders")
    async with context.groups.lock(GROUP):
        for partition in (0, 1):
            state = (await context.groups.adopt(GROUP, view, partition, 50)).copy()
            await context.groups.save(GROUP, [(view, partition, state)])
            context.groups.pushes.note_sure(StateKey(GROUP, ORDERS, partition))
    context.groups.leaderless.add(("orders", 1))
    entries = [
        {"partition_index": 0, "committed_offset": 50, "error_code": 0},
        {"partition_index": 1, "committed_offset": -1, "error_code": 0},
    ]
    key = {"topic_id": ORDERS} if version >= 10 else {"name": "orders"}
    context.expect(FETCH, None, reported(version, [{**key, "partitions": entries}]))

    found = await offsets(context, version, ("orders", ORDERS, [0, 1, 2, 3]))

    code = later(version)
    assert list(found.values()) == [[(0, 50, 0), (1, -1, code), (2, 50, 0), (3, -1, code)]]
    assert context.state(GROUP, "orders", 1).position_of(*view.key_ranges(1)).offset == 50


async def test_the_first_commit_of_a_group_waits_for_a_leader_lane_by_lane() -> None:
    """Lanes of the partition without a leader are to be committed again; the others stand."""
    context = FakeContext()
    context.groups.leaderless.add(("orders", 1))
    entries = [{"partition_index": i, "committed_offset": -1, "error_code": 0} for i in (0, 1)]
    context.expect(FETCH, None, {"topics": [{"name": "orders", "partitions": entries}]})
    context.expect(
        COMMIT,
        {"topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}]},
        {"topics": [
            {"name": "orders", "partitions": [{"partition_index": 0, "error_code": 0}]}
        ]},
    )  # fmt: skip
    committed = [{"partition_index": i, "committed_offset": 9} for i in (0, 1, 3)]
    wanted = {"group_id": GROUP, "generation_id_or_member_epoch": 1, "member_id": "m",
              "topics": [{"name": "orders", "partitions": committed}]}  # fmt: skip

    answer = await call(context, COMMIT, 8, wanted)

    codes = [entry["error_code"] for entry in answer["topics"][0]["partitions"]]
    assert codes == [0, BUSY, BUSY]


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_commits_of_a_topic_that_cannot_be_resolved(version) -> None:
    """They are refused as a broker refuses them, so that nothing of lanes lands in partitions."""
    context = FakeContext()
    context.registry.forget("orders")
    wanted = {"group_id": GROUP, "generation_id_or_member_epoch": 1, "member_id": "m", "topics": [
        {"name": "orders", "topic_id": ORDERS,
         "partitions": [{"partition_index": 1, "committed_offset": 9}]}
    ]}  # fmt: skip

    answer = await call(context, COMMIT, version, wanted)

    codes = [entry["error_code"] for entry in answer["topics"][0]["partitions"]]
    assert codes == [UNKNOWN_ID if version >= 10 else UNKNOWN]
    assert context.events == [] and not len(context.groups.table)


@pytest.mark.parametrize("version", versions(TXN_COMMIT))
async def test_transactional_offsets_of_a_topic_that_cannot_be_resolved(version) -> None:
    """As commits; UNKNOWN_TOPIC_OR_PARTITION is what producers retry."""
    context = FakeContext()
    context.registry.forget("orders")
    entry = {"partition_index": 1, "committed_offset": 9}
    wanted = {"transactional_id": "t", "group_id": GROUP, "producer_id": 1, "producer_epoch": 0,
              "topics": [{"name": "orders.lanes-3", "partitions": [entry]}]}  # fmt: skip

    answer = await call(context, TXN_COMMIT, version, wanted)

    codes = [entry["error_code"] for entry in answer["topics"][0]["partitions"]]
    assert codes == [UNKNOWN] and context.events == []


async def test_partitions_added_to_a_transaction() -> None:
    """AddPartitionsToTxn: lanes of an unknown topic reach no broker either."""
    context = FakeContext()
    context.registry.forget("orders")
    wanted = {"v3_and_below_transactional_id": "t", "v3_and_below_producer_id": 1,
              "v3_and_below_producer_epoch": 0,
              "v3_and_below_topics": [{"name": "orders", "partitions": [5]}]}  # fmt: skip

    answer = await call(context, ADD_PARTITIONS, 3, wanted)

    results = answer["results_by_topic_v3_and_below"][0]["results_by_partition"]
    assert [entry["partition_error_code"] for entry in results] == [UNKNOWN]
    assert context.events == []


async def test_deleted_offsets_of_a_topic_that_cannot_be_resolved() -> None:
    """OffsetDelete of a lane index would delete the offset of a partition."""
    context = FakeContext()
    context.registry.forget("orders")
    wanted = {"group_id": GROUP, "topics": [
        {"name": "orders", "partitions": [{"partition_index": 0}]}
    ]}  # fmt: skip
    context.expect(DELETE, {"topics": []}, {"error_code": 0, "topics": []})

    answer = await call(context, DELETE, 0, wanted)

    codes = [entry["error_code"] for entry in answer["topics"][0]["partitions"]]
    assert codes == [UNKNOWN]


@pytest.mark.parametrize("version", range(4, 13))
async def test_records_of_a_topic_that_cannot_be_resolved(version) -> None:
    """A fetch of lane 0 by name is no fetch of partition 0."""
    context = FakeContext()
    context.registry.forget("orders")
    partitions = [{"partition": 0}, {"partition": 4}]

    answer = await call(
        context, FETCH_RECORDS, version, {"topics": [{"topic": "orders", "partitions": partitions}]}
    )

    codes = [entry["error_code"] for entry in answer["responses"][0]["partitions"]]
    assert codes == [UNKNOWN, UNKNOWN] and context.events == []
