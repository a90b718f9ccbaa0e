"""A broker for which keylane has no listener: no answer names it."""

from __future__ import annotations

import pytest

from tests.transcript.fake import PLAIN, FakeContext, call, versions
from tests.transcript.test_metadata import answer, topic
from tests.transcript.test_nodes import BROKERS, among_nodes, group_of

FIND, METADATA, CLUSTER = 10, 3, 60
LEADER_NOT_AVAILABLE, COORDINATOR_NOT_AVAILABLE = 5, 15


def without(broker: int) -> FakeContext:
    context = FakeContext()
    context.world.unlistened.add(broker)
    return context


@pytest.mark.parametrize("version", versions(METADATA))
async def test_a_leader_without_a_listener_is_none(version) -> None:
    """As brokers show one: no leader, ask again; partitions of others are as they were."""
    context = without(2)
    context.expect(METADATA, None, answer(topic("plain", PLAIN, 2)), version=version)

    seen = await call(context, METADATA, version, {"topics": [{"name": "plain"}]})

    assert [broker["node_id"] for broker in seen["brokers"]] == [1]
    assert [
        (entry["leader_id"], entry["error_code"]) for entry in seen["topics"][0]["partitions"]
    ] == [(1, 0), (-1, LEADER_NOT_AVAILABLE)]


@pytest.mark.parametrize("version", versions(METADATA))
async def test_lanes_of_such_a_leader(version) -> None:
    """All lanes of its partition."""
    context = without(2)
    asked = {"topics": [{"name": "orders"}]}
    context.expect(METADATA, None, answer(topic("orders", context.lanes("orders").topic_id, 2)))

    seen = await call(context, METADATA, version, asked)

    leaders = [entry["leader_id"] for entry in seen["topics"][0]["partitions"]]
    assert leaders == [1, -1] * 4


@pytest.mark.parametrize("version", versions(FIND))
async def test_a_coordinator_without_a_listener(version) -> None:
    """COORDINATOR_NOT_AVAILABLE, upon which clients ask again; any address would be another's."""
    context = without(2)
    found = {"node_id": 2, "host": "kafka2", "port": 9092, "error_code": 0}
    reported = {"coordinators": [{"key": "g", **found}]} if version >= 4 else found
    context.expect(FIND, None, reported, version=version)

    asked = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
    seen = await call(context, FIND, version, asked)

    entry = seen["coordinators"][0] if version >= 4 else seen
    assert (entry["node_id"], entry["host"]) == (-1, "")
    assert entry["error_code"] == COORDINATOR_NOT_AVAILABLE


async def test_brokers_of_the_cluster_without_a_listener() -> None:
    """They are left out."""
    context = without(1)
    brokers = [{"broker_id": n, "host": f"kafka{n}", "port": 9092, "rack": "r"} for n in (1, 2)]
    context.expect(CLUSTER, None, {"brokers": brokers, "cluster_id": "c"})

    seen = await call(context, CLUSTER, 1, {})

    assert [broker["broker_id"] for broker in seen["brokers"]] == [2]


async def test_another_node_has_a_listener() -> None:
    """Among many nodes clients are sent there, with partitions and groups that are there."""
    context = among_nodes(node1={1: ("node1", 9001)})
    context.world.unlistened.add(2)
    context.expect(METADATA, None, answer(topic("plain", PLAIN, 2)))
    seen = await call(context, METADATA, 12, {"topics": [{"name": "plain"}]})
    leaders = [entry["leader_id"] for entry in seen["topics"][0]["partitions"]]
    assert leaders[1] == 2_000_002
    assert 1_000_002 not in [broker["node_id"] for broker in seen["brokers"]]
    assert set(leaders) <= {broker["node_id"] for broker in seen["brokers"]}

    for owner, expected in ((1, -1), (2, 2_000_002)):
        found = {"node_id": 2, "host": "kafka2", "port": 9092, "error_code": 0}
        context.expect(FIND, None, found)
        reported = await call(context, FIND, 3, {"key": group_of(owner)})
        assert reported["node_id"] == expected


async def test_no_node_has_a_listener() -> None:
    """The partition has no leader that a client could reach."""
    context = among_nodes(node1={1: BROKERS[1][1]}, node2={1: BROKERS[2][1]})
    context.world.unlistened.add(2)
    context.expect(METADATA, None, answer(topic("plain", PLAIN, 2)))

    seen = await call(context, METADATA, 12, {"topics": [{"name": "plain"}]})

    leaders = [entry["leader_id"] for entry in seen["topics"][0]["partitions"]]
    assert leaders[1] == -1 and leaders[0] in (1_000_001, 2_000_001)
