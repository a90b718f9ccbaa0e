"""Groups that another node serves: a client that asks here looks for the coordinator anew."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.offsets.pushes import Push, TransactionWriter
from keylane.offsets.records.journal import StateKey
from tests.transcript.fake import ORDERS, FakeContext, call, make_request, serve, versions

COMMIT, FETCH, TXN_COMMIT, DELETE_GROUPS, OFFSET_DELETE = 8, 9, 28, 42, 47
NOT_COORDINATOR = 16
NOT_OURS = "g"


def away() -> FakeContext:
    """A node that does not serve the group."""
    context = FakeContext()
    context.groups.lose(NOT_OURS)
    return context


def commit(version: int, *, topic: str = "orders") -> dict[str, Any]:
    """Two lanes of a topic."""
    named = {"topic_id": ORDERS} if version >= 10 else {"name": topic}
    entries = [{"partition_index": i, "committed_offset": 5} for i in (0, 3)]
    return {"group_id": NOT_OURS, "topics": [{**named, "partitions": entries}]}


def error_codes(answer: dict[str, Any]) -> dict[int, int]:
    (topic,) = answer["topics"]
    return {entry["partition_index"]: entry["error_code"] for entry in topic["partitions"]}


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_a_commit(version) -> None:
    """Per partition; nothing is sent to the broker."""
    context = away()

    answer = await call(context, COMMIT, version, commit(version))

    assert error_codes(answer) == {0: NOT_COORDINATOR, 3: NOT_COORDINATOR}
    assert context.events == []


@pytest.mark.parametrize("version", versions(TXN_COMMIT))
async def test_offsets_in_a_transaction(version) -> None:
    """Per partition, lanes and plain topics; the transaction stays as it is."""
    context = away()
    wanted = {
        "transactional_id": "t",
        "group_id": NOT_OURS,
        "producer_id": 9,
        "producer_epoch": 1,
        "topics": [
            {"name": name, "partitions": [{"partition_index": 1, "committed_offset": 5}]}
            for name in ("orders", "plain")
        ],
    }

    answer = await call(context, TXN_COMMIT, version, wanted)

    codes = {
        topic["name"]: [entry["error_code"] for entry in topic["partitions"]]
        for topic in answer["topics"]
    }
    assert codes == {"orders": [NOT_COORDINATOR], "plain": [NOT_COORDINATOR]}
    assert context.events == [] and context.groups.pushes.is_idle


@pytest.mark.parametrize("version", versions(FETCH))
async def test_positions(version) -> None:
    """Per partition in v1; up to v7 at the top, too; then per group.

    aiokafka looks at partitions only: one that is not named has no commit, and starts anew.
    """
    context = away()
    named = {"topic_id": ORDERS} if version >= 10 else {"name": "orders"}
    topics = [{**named, "partition_indexes": [0, 3]}]
    wanted: dict[str, Any] = {"group_id": NOT_OURS, "topics": topics}
    if version >= 8:
        wanted = {"groups": [wanted]}

    answer = await call(context, FETCH, version, wanted)

    if version < 8:
        assert error_codes(answer) == {0: NOT_COORDINATOR, 3: NOT_COORDINATOR}
        assert version < 2 or answer["error_code"] == NOT_COORDINATOR
    else:
        (group,) = answer["groups"]
        assert (group["group_id"], group["error_code"]) == (NOT_OURS, NOT_COORDINATOR)
    assert context.events == []


@pytest.mark.parametrize("version", [2, 7])
async def test_positions_of_all_topics(version) -> None:
    """Only the states show which lanes they name."""
    answer = await call(away(), FETCH, version, {"group_id": NOT_OURS, "topics": None})

    assert answer["error_code"] == NOT_COORDINATOR


async def test_deleted_lanes() -> None:
    """At the top."""
    context = away()
    wanted = {
        "group_id": NOT_OURS,
        "topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}],
    }

    answer = await call(context, OFFSET_DELETE, 0, wanted)

    assert (answer["error_code"], answer["topics"]) == (NOT_COORDINATOR, [])
    assert context.events == []


@pytest.mark.parametrize("version", versions(DELETE_GROUPS))
async def test_deleted_groups(version) -> None:
    """Each by itself: the broker is not asked to delete one whose states another node has."""
    context = away()
    answered = {"results": [{"group_id": "ours", "error_code": 0}]}
    context.expect(DELETE_GROUPS, {"groups_names": ["ours"]}, answered)

    answer = await call(context, DELETE_GROUPS, version, {"groups_names": [NOT_OURS, "ours"]})

    codes = {result["group_id"]: result["error_code"] for result in answer["results"]}
    assert codes == {"ours": 0, NOT_OURS: NOT_COORDINATOR}


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_plain_topics_pass_at_any_node(version) -> None:
    """Without lanes the request goes to the broker as it came."""
    context = away()
    wanted = commit(version, topic="plain")
    if version >= 10:
        wanted["topics"][0]["topic_id"] = context.registry.topics["plain"].topic_id
    request = make_request(COMMIT, version, wanted)
    context.expect(COMMIT, bytes(request.body), {"topics": []})

    await serve(context, request)

    assert context.events == ["send OffsetCommit", "release"]


async def test_a_commit_that_is_overtaken_before_its_push_sends_none() -> None:
    """Between the question and the push the group was lost, as when the process was stopped."""
    context = FakeContext()
    entry = {"partition_index": 0, "committed_offset": 100, "metadata": "", "error_code": 0}

    context.expect(FETCH, None, {"topics": [{"name": "orders", "partitions": [entry]}]})
    context.world.on_answer = lambda: context.groups.lose(NOT_OURS)
    values = commit(8)
    values["topics"][0]["partitions"] = values["topics"][0]["partitions"][:1]

    answer = await call(context, COMMIT, 8, values)

    assert error_codes(answer) == {0: NOT_COORDINATOR}
    assert context.events == ["send OffsetFetch"]
    assert not context.groups.pushes.is_sure(StateKey(NOT_OURS, ORDERS, 0))


async def test_a_push_that_is_answered_after_the_loss_is_not_noted() -> None:
    """It is in the transaction, and the answer says so; the node of the group asks the broker."""
    context = FakeContext()
    writer, key = TransactionWriter(9, 1), StateKey(NOT_OURS, ORDERS, 0)

    context.groups.pushes.note_push(key, Push(writer, ()))
    context.groups.lose(NOT_OURS)
    context.groups.pushes.settle_push(key, Push(writer, ()))

    assert not context.groups.pushes.is_known(key) and context.groups.pushes.is_idle
