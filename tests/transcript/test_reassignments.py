"""AlterPartitionReassignments v0-1, ListPartitionReassignments v0 on lanes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import FakeContext, call, check, make_request, serve, versions

ALTER, LIST = 45, 46
UNKNOWN, CLUSTER_DENIED, CONFLICT = 3, 31, 39


def plan(*topics: tuple[str, dict[int, list[int] | None]]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": i, "replicas": ids} for i, ids in moves.items()],
            }
            for name, moves in topics
        ]
    }


def results(*topics: tuple[str, dict[int, int]], error_code: int = 0) -> dict[str, Any]:
    responses = [
        {
            "name": name,
            "partitions": [{"partition_index": i, "error_code": c} for i, c in codes.items()],
        }
        for name, codes in topics
    ]
    return {"error_code": error_code, "responses": responses}


@pytest.mark.parametrize("version", versions(ALTER))
async def test_lanes_that_agree_move_their_partition(version) -> None:
    """Each partition once, also where it is cancelled; each lane is answered its result."""
    context = FakeContext()
    context.expect(
        ALTER,
        plan(("orders", {0: [1, 2], 1: None}), ("plain", {2: [3]})),
        results(("orders", {0: 0, 1: 85}), ("plain", {2: 0})),
        version=version,
    )
    moves = {0: [1, 2], 2: [1, 2], 3: None, 9: [1]}

    found = await call(context, ALTER, version, plan(("orders", moves), ("plain", {2: [3]})))

    check(results(("orders", {0: 0, 2: 0, 3: 85, 9: UNKNOWN}), ("plain", {2: 0})), found)


async def test_lanes_of_a_partition_that_differ_are_refused_with_a_reason() -> None:
    """The broker is asked for the rest."""
    context = FakeContext()
    context.expect(ALTER, plan(("orders", {1: [2]})), results(("orders", {1: 0})))

    found = await call(context, ALTER, 1, plan(("orders", {0: [1], 1: [2], 2: [2]})))

    check(results(("orders", {0: CONFLICT, 1: 0, 2: CONFLICT})), found)
    reason = found["responses"][0]["partitions"][0]["error_message"]
    assert "lanes 0, 2 are one partition, 0" in reason


async def test_the_broker_refuses_a_client_that_may_not_alter_the_cluster() -> None:
    """Also where nothing is left to ask; no reason of keylane's is added."""
    context = FakeContext()
    denied = {"error_code": CLUSTER_DENIED, "error_message": "no", "responses": []}
    context.expect(ALTER, {"topics": []}, denied)

    found = await call(context, ALTER, 1, plan(("orders", {0: [1], 2: [2]})))

    check(denied, found)


@pytest.mark.parametrize(("api_key", "version"), [(ALTER, 0), (ALTER, 1), (LIST, 0)])
async def test_plain_topics_pass_as_they_are(api_key, version) -> None:
    """Byte for byte."""
    context = FakeContext()
    values: dict[str, Any] = plan(("plain", {0: [1]}))
    if api_key == LIST:
        values = {"topics": [{"name": "plain", "partition_indexes": [0, 0]}]}
    asked = make_request(api_key, version, values)
    context.expect(api_key, bytes(asked.body), {"error_code": 0})

    await serve(context, asked)


def moving(name: str, *indexes: int) -> dict[str, Any]:
    entries = [{"partition_index": i, "replicas": [1, 2], "adding_replicas": [2]} for i in indexes]
    return {"name": name, "partitions": entries}


async def test_what_moves_is_shown_as_lanes() -> None:
    """When all topics are asked for: by their own names."""
    context = FakeContext()
    context.expect(LIST, {"topics": None}, {"topics": [moving("orders", 1), moving("plain", 2)]})

    found = await call(context, LIST, 0, {"topics": None})

    check({"topics": [moving("orders", 1, 3, 5, 7), moving("plain", 2)]}, found)


async def test_of_named_lanes_those_that_move_are_shown() -> None:
    """Under the name that was asked for, and no others; nothing of what is no lane."""
    context = FakeContext()
    context.expect(
        LIST,
        {"topics": [{"name": "orders", "partition_indexes": [0, 1]}]},
        {"topics": [moving("orders", 1)]},
    )
    asked = [
        {"name": "orders", "partition_indexes": [0, 3, 99]},
        {"name": "orders.lanes-2", "partition_indexes": [2]},
    ]

    found = await call(context, LIST, 0, {"topics": asked})

    check({"topics": [moving("orders", 3)]}, found)
