"""Broker ids that clients send, and that answers bring, among many nodes."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.proxy.topics.node_values import NO_NODE
from keylane.wire.messages import read_response
from tests.transcript.fake import (
    PLAIN,
    FakeContext,
    call,
    check,
    is_relayed,
    make_request,
    serve,
    versions,
)
from tests.transcript.test_metadata import answer, topic
from tests.transcript.test_nodes import among_nodes, group_of

FETCH, METADATA, LIST_GROUPS, CREATE, CONFIGS, ALTER, CREATE_PARTITIONS = 1, 3, 16, 19, 32, 33, 37
INCREMENTAL, REASSIGN, REASSIGNMENTS, UNREGISTER = 44, 45, 46, 64


@pytest.mark.parametrize("api_key", [LIST_GROUPS, UNREGISTER])
def test_the_lone_node_relays_them(api_key) -> None:
    """As bytes, whatever is in them."""
    for version in versions(api_key):
        assert is_relayed(FakeContext(), make_request(api_key, version, b"\xff"))
        assert not is_relayed(among_nodes(), make_request(api_key, version, b"\xff"))


@pytest.mark.parametrize("version", versions(CREATE))
async def test_replicas_of_a_new_topic(version) -> None:
    """Of any node, or the broker's own id; topics without a wish stay as they are."""
    context = among_nodes()

    def request(*ids: int) -> dict[str, Any]:
        chosen = {"name": "a", "assignments": [{"partition_index": 0, "broker_ids": list(ids)}]}
        return {"topics": [chosen, {"name": "b", "num_partitions": 3, "assignments": []}]}

    context.expect(CREATE, request(1, 2, 3), {"topics": []}, version=version)

    await call(context, CREATE, version, request(1_000_001, 2_000_002, 3))


@pytest.mark.parametrize("version", versions(CREATE))
async def test_a_new_topic_without_a_wish_passes_as_it_is(version) -> None:
    """Byte for byte."""
    context = among_nodes()
    asked = make_request(CREATE, version, {"topics": [{"name": "b", "num_partitions": 3}]})
    context.expect(CREATE, bytes(asked.body), {"topics": []})

    await serve(context, asked)


@pytest.mark.parametrize("version", versions(CREATE_PARTITIONS))
async def test_replicas_of_new_partitions(version) -> None:
    """And none where none were chosen."""
    context = among_nodes()

    def request(broker_id: int) -> dict[str, Any]:
        chosen = {"name": "a", "count": 4, "assignments": [{"broker_ids": [broker_id]}]}
        return {"topics": [chosen, {"name": "b", "count": 4, "assignments": None}]}

    context.expect(CREATE_PARTITIONS, request(2), {"results": []})
    await call(context, CREATE_PARTITIONS, version, request(1_000_002))

    bare = {"topics": [{"name": "b", "count": 4, "assignments": None}]}
    context.expect(CREATE_PARTITIONS, bare, {"results": []})
    await call(context, CREATE_PARTITIONS, version, bare)


@pytest.mark.parametrize("version", versions(REASSIGN))
async def test_a_reassignment(version) -> None:
    """To brokers by any of their ids; a cancellation has none."""
    context = among_nodes()

    def request(*ids: int) -> dict[str, Any]:
        moved = {"partition_index": 0, "replicas": list(ids)}
        cancelled = {"partition_index": 1, "replicas": None}
        return {"topics": [{"name": "orders", "partitions": [moved, cancelled]}]}

    context.expect(REASSIGN, request(3, 1), {"responses": []}, version=version)

    await call(context, REASSIGN, version, request(2_000_003, 1_000_001))


async def test_reassignments_under_way_are_shown_as_metadata_shows_them() -> None:
    """With the ids of the node that the partition is placed on, by the topic's whole count."""
    context = among_nodes()
    context.expect(METADATA, None, answer(topic("plain", PLAIN, 3)))
    seen = await call(context, METADATA, 12, {"topics": [{"name": "plain"}]})
    under_way = {
        "partition_index": 1,
        "replicas": [1, 2, 3],
        "adding_replicas": [3],
        "removing_replicas": [],
    }
    context.expect(REASSIGNMENTS, None, {"topics": [{"name": "plain", "partitions": [under_way]}]})

    found = await call(context, REASSIGNMENTS, 0, {"topics": None})

    one = found["topics"][0]["partitions"][0]
    shown = seen["topics"][0]["partitions"][1]["replica_nodes"]
    assert one["replicas"][:2] == shown and one["adding_replicas"] == [shown[0] + 2]
    assert one["removing_replicas"] == []


def resources(field: str, *names: tuple[int, str], **more: Any) -> dict[str, Any]:
    entries = [{"resource_type": kind, "resource_name": name, **more} for kind, name in names]
    return {field: entries}


ASKED = ((4, "1000002"), (8, "2000001"), (4, ""), (2, "1000002"), (4, "x"), (4, "9" * 5000))
REAL = ((4, "2"), (8, "1"), (4, ""), (2, "1000002"), (4, "x"), (4, "9" * 5000))


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(key, version) for key in (CONFIGS, ALTER, INCREMENTAL) for version in versions(key)],
)
async def test_configuration_of_brokers(api_key, version) -> None:
    """And of their loggers, by name; the answer names what was asked for. Topics are left alone."""
    context = among_nodes()
    field = "results" if api_key == CONFIGS else "responses"
    context.expect(
        api_key,
        resources("resources", *REAL),
        resources(field, *REAL, error_code=0, error_message=None),
        version=version,
    )

    found = await call(context, api_key, version, resources("resources", *ASKED))

    check(resources(field, *ASKED), found)


@pytest.mark.parametrize("api_key", [ALTER, INCREMENTAL])
async def test_configuration_of_topics_passes_as_it_is(api_key) -> None:
    """Byte for byte."""
    context = among_nodes()
    asked = make_request(api_key, 1, resources("resources", (2, "plain")))
    context.expect(api_key, bytes(asked.body), resources("responses", (2, "plain")))

    await serve(context, asked)


async def test_a_broker_that_is_taken_out() -> None:
    """The broker itself, whichever node's id it is."""
    context = among_nodes()
    context.expect(UNREGISTER, {"broker_id": 3}, {"error_code": 0, "error_message": None})

    await call(context, UNREGISTER, 0, {"broker_id": 2_000_003})


@pytest.mark.parametrize("version", versions(LIST_GROUPS))
async def test_a_group_is_listed_once(version) -> None:
    """By the node that serves it; by the first node, while none does."""
    names = [group_of(owner) for owner in (1, 2, NO_NODE)]
    seen = []
    for number in (1, 2):
        context = among_nodes(number)
        groups = [{"group_id": name, "protocol_type": "consumer"} for name in names]
        context.expect(LIST_GROUPS, None, {"groups": groups, "error_code": 0}, version=version)

        found = await call(context, LIST_GROUPS, version, {})
        seen.append([entry["group_id"] for entry in found["groups"]])

    assert seen == [[names[0], names[2]], [names[1]]]


LEADER = {"leader_id": 2, "leader_epoch": 7}
MOVED = {"node_endpoints": [{"node_id": 2, "host": "kafka2", "port": 9092, "rack": "r"}]}
OWN = {"node_endpoints": [{"node_id": 1_000_002, "host": "lane.example", "port": 20_002}]}


@pytest.mark.parametrize(
    ("api_key", "version", "partitions"),
    [
        (0, 12, "partition_responses"),
        (0, 13, "partition_responses"),
        (FETCH, 16, "partitions"),
        (FETCH, 17, "partitions"),
        (78, 1, "partitions"),
        (79, 2, "partitions"),
    ],
)
async def test_a_new_leader_is_this_nodes_pair(api_key, version, partitions) -> None:
    """KIP-951: Metadata lists that very id and address."""
    context = among_nodes()
    entry = {"error_code": 6, "current_leader": LEADER}
    reply = {"responses": [{"topic_id": PLAIN, "name": "plain", partitions: [entry]}]}
    context.expect(api_key, None, {**reply, **MOVED})

    found = await call(context, api_key, version, {"acks": 1} if api_key == 0 else {})

    check(OWN, found)
    leader = {**LEADER, "leader_id": 1_000_002}
    check({"responses": [{partitions: [{"error_code": 6, "current_leader": leader}]}]}, found)


@pytest.mark.parametrize("version", range(11, 18))
async def test_a_replica_to_read_from_is_this_nodes_pair(version) -> None:
    """KIP-392: to a client that says its rack; else the answer passes as it is."""
    partition = {"partition_index": 0, "preferred_read_replica": 2, "records": b""}
    replies = {"responses": [{"topic": "plain", "topic_id": PLAIN, "partitions": [partition]}]}
    seen = {}
    for rack in ("r1", ""):
        context = among_nodes()
        context.expect(FETCH, None, replies)
        request = make_request(FETCH, version, {"rack_id": rack})
        frame = await serve(context, request)
        found = read_response(FETCH, version, request.answer_body(frame))
        seen[rack] = int(found.responses[0].partitions[0].preferred_read_replica)

    assert seen == {"r1": 1_000_002, "": 2}


async def test_a_replica_of_a_plain_topic_beside_lanes() -> None:
    """A request that is answered from both sides."""
    context = among_nodes()
    partition = {"partition_index": 0, "preferred_read_replica": 2, "records": b""}
    context.expect(FETCH, None, {"responses": [{"topic": "plain", "partitions": [partition]}]})
    context.world.lane_answers.append([])
    topics = [
        {"topic": "plain", "partitions": [{"partition": 0}]},
        {"topic": "orders", "partitions": [{"partition": 99}]},
    ]

    seen = await call(context, FETCH, 12, {"topics": topics, "rack_id": "r1"})

    replicas = {
        entry["topic"]: entry["partitions"][0]["preferred_read_replica"]
        for entry in seen["responses"]
    }
    assert replicas == {"plain": 1_000_002, "orders": -1}
