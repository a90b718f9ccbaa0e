"""Many nodes: each pair of node and broker is a broker, partitions and groups have their node."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.config.node import LaneRule
from keylane.errors import ConfigInvalid
from keylane.offsets.records.journal import ic_partition
from keylane.proxy.topics.agreement import LaneMeanings, node_rules
from keylane.proxy.topics.node_values import NO_NODE, Address, Membership, NodeInfo
from keylane.proxy.topics.placement import Placement
from tests.transcript.fake import (
    ORDERS,
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

FIND, METADATA, PARTITIONS, CLUSTER = 10, 3, 75, 60
OWNERS = (1, 2, NO_NODE)
BROKERS = {
    number: {broker: (f"node{number}", 9000 + broker) for broker in (1, 2, 3, 4)}
    for number in (1, 2)
}


def among_nodes(number: int = 1, **brokers: dict[int, Address]) -> FakeContext:
    """Nodes 1 and 2, all brokers bound but where `node1` or `node2` says which."""
    context = FakeContext()
    context.placement = Placement(number)
    nodes = tuple(
        NodeInfo(
            number=n, bootstrap=(f"node{n}", 9000), brokers=brokers.get(f"node{n}", BROKERS[n])
        )
        for n in (1, 2)
    )
    context.placement.update(Membership(generation_id=1, nodes=nodes, owners=OWNERS))
    return context


def group_of(owner: int) -> str:
    """A group whose IC partition has this owner."""
    names = (f"g{n}" for n in range(100))
    return next(name for name in names if OWNERS[ic_partition(name, len(OWNERS))] == owner)


@pytest.mark.parametrize("version", versions(METADATA))
async def test_each_pair_is_a_broker(version) -> None:
    """Own pairs at the own address, others as those nodes published; the controller is here."""
    context = among_nodes()
    context.expect(METADATA, None, answer(topic("plain", PLAIN, 3)), version=version)

    seen = await call(context, METADATA, version, {"topics": [{"name": "plain"}]})

    shown = {entry["node_id"]: (entry["host"], entry["port"]) for entry in seen["brokers"]}
    assert shown == {
        1_000_001: ("lane.example", 20_001),
        1_000_002: ("lane.example", 20_002),
        2_000_001: ("node2", 9001),
        2_000_002: ("node2", 9002),
    }
    if version >= 1:
        assert seen["controller_id"] == 1_000_001
        assert {entry["rack"] for entry in seen["brokers"]} == {"r1"}
    assert context.world.brokers == [1, 2], "what is learnt are the brokers' own ids"


@pytest.mark.parametrize("version", versions(METADATA))
async def test_lanes_go_where_their_partition_goes(version) -> None:
    """Leader, replicas and ISR are that node's; every node answers the same."""
    seen = []
    for number in (1, 2):
        context = among_nodes(number)
        context.expect(METADATA, None, answer(topic("orders", ORDERS, 2), topic("plain", PLAIN, 3)))
        asked = {"topics": [{"name": name} for name in ("orders", "orders.lanes-3", "plain")]}
        seen.append((await call(context, METADATA, version, asked))["topics"])

    assert seen[0] == seen[1]
    for entry in (one for shown in seen[0] for one in shown["partitions"]):
        node = entry["leader_id"] // 1_000_000
        assert entry["replica_nodes"] == [node * 1_000_000 + broker for broker in (1, 2)]
        assert entry["isr_nodes"] == [entry["leader_id"]]
    places = {one["name"]: [entry["leader_id"] for entry in one["partitions"]] for one in seen[0]}
    partitions = places["orders"][:2]
    assert {leader // 1_000_000 for leader in partitions} == {1, 2}, "one partition at each"
    assert [leader % 1_000_000 for leader in partitions] == [1, 2]
    assert places["orders"] == partitions * 4 and places["orders.lanes-3"] == partitions * 3
    assert len({leader // 1_000_000 for leader in places["plain"]}) == 2


async def test_no_leader_stays_none() -> None:
    """And its replicas still have a node."""
    context = among_nodes()
    entry = {"partition_index": 0, "leader_id": -1, "replica_nodes": [1], "offline_replicas": [1]}
    shown = {"name": "plain", "topic_id": PLAIN, "partitions": [{**entry, "error_code": 5}]}
    context.expect(METADATA, None, answer(shown))

    seen = await call(context, METADATA, 12, {"topics": [{"name": "plain"}]})

    found = seen["topics"][0]["partitions"][0]
    assert found["leader_id"] == -1 and found["error_code"] == 5
    assert found["replica_nodes"] == found["offline_replicas"]
    assert found["replica_nodes"][0] in (1_000_001, 2_000_001)


async def test_a_node_without_a_listener_for_the_leader() -> None:
    """The pair is not listed, and nothing is placed there."""
    context = among_nodes(node2={1: ("node2", 9001)})
    context.expect(METADATA, None, answer(topic("plain", PLAIN, 3)))

    seen = await call(context, METADATA, 12, {"topics": [{"name": "plain"}]})

    listed = {entry["node_id"] for entry in seen["brokers"]}
    assert listed == {1_000_001, 1_000_002, 2_000_001}
    leaders = [entry["leader_id"] for entry in seen["topics"][0]["partitions"]]
    assert leaders[1:] == [1_000_002, 1_000_003]


async def test_what_keylane_itself_learns_are_real_ids() -> None:
    """Its readers connect to brokers, not to nodes."""
    context = among_nodes()
    learnt: list[Any] = []
    context.learn_topic = learnt.append  # type: ignore[method-assign, assignment]
    context.expect(METADATA, None, answer(topic("orders", ORDERS, 2)))

    await call(context, METADATA, 12, {"topics": [{"name": "orders"}]})

    assert [int(entry.leader_id) for entry in learnt[0].partitions] == [1, 2]


async def test_a_description_agrees_with_metadata() -> None:
    """DescribeTopicPartitions, also a page of it: the place goes by the topic's whole count."""
    context = among_nodes()
    context.expect(METADATA, None, answer(topic("plain", PLAIN, 3)))
    seen = await call(context, METADATA, 12, {"topics": [{"name": "plain"}]})
    entry = {
        "partition_index": 1,
        "leader_id": 2,
        "replica_nodes": [1, 2],
        "eligible_leader_replicas": [1],
        "last_known_elr": None,
        "offline_replicas": [],
    }
    described = {"name": "plain", "topic_id": PLAIN, "partitions": [entry], "error_code": 0}
    context.expect(PARTITIONS, None, {"topics": [described]})

    found = await call(context, PARTITIONS, 0, {"topics": [{"name": "plain"}]})

    one = found["topics"][0]["partitions"][0]
    assert one["leader_id"] == seen["topics"][0]["partitions"][1]["leader_id"]
    assert one["replica_nodes"] == seen["topics"][0]["partitions"][1]["replica_nodes"]
    assert one["eligible_leader_replicas"] == one["replica_nodes"][:1]
    assert one["last_known_elr"] is None and one["offline_replicas"] == []


@pytest.mark.parametrize("version", versions(CLUSTER))
async def test_the_cluster_described(version) -> None:
    """All pairs; the controller at this node."""
    context = among_nodes(2)
    brokers = [{"broker_id": n, "host": f"kafka{n}", "port": 9092, "rack": "r"} for n in (1, 2)]
    context.expect(CLUSTER, None, {"brokers": brokers, "controller_id": 2})

    seen = await call(context, CLUSTER, version, {"endpoint_type": 1})

    shown = {entry["broker_id"]: (entry["host"], entry["port"]) for entry in seen["brokers"]}
    assert shown == {
        1_000_001: ("node1", 9001),
        1_000_002: ("node1", 9002),
        2_000_001: ("lane.example", 20_001),
        2_000_002: ("lane.example", 20_002),
    }
    assert seen["controller_id"] == 2_000_002


def coordinators(version: int, *keys: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(request fields, answer): broker 2 coordinates them all."""
    found = {"node_id": 2, "host": "kafka2", "port": 9092, "error_code": 0}
    if version >= 4:
        return {"coordinator_keys": list(keys)}, {
            "coordinators": [{"key": k, **found} for k in keys]
        }
    return {"key": keys[0]}, found


HERE = {"node_id": 1_000_002, "host": "lane.example", "port": 20_002, "error_code": 0}
THERE = {"node_id": 2_000_002, "host": "node2", "port": 9002, "error_code": 0}
NOWHERE = {"node_id": -1, "host": "", "port": -1, "error_code": 15}


@pytest.mark.parametrize("version", versions(FIND))
@pytest.mark.parametrize(("owner", "expected"), [(1, HERE), (2, THERE), (NO_NODE, NOWHERE)])
async def test_a_group_is_sent_to_the_node_that_serves_it(version, owner, expected) -> None:
    """With its real coordinator there; clients ask again while no node serves it."""
    context = among_nodes()
    asked, found = coordinators(version, group_of(owner))
    context.expect(FIND, asked, found)

    seen = await call(context, FIND, version, asked)

    check(expected, seen["coordinators"][0] if version >= 4 else seen)
    assert context.world.brokers == [2]


@pytest.mark.parametrize("version", range(4, 7))
async def test_many_groups_at_once(version) -> None:
    """Each is sent to its own node; an error of the broker's stays."""
    context = among_nodes()
    keys = [group_of(owner) for owner in (NO_NODE, 2, 1)]
    asked, found = coordinators(version, *keys, "denied")
    found["coordinators"][3] = {"key": "denied", **NOWHERE, "error_code": 30}
    context.expect(FIND, asked, found)

    seen = await call(context, FIND, version, asked)

    expected = [NOWHERE, THERE, HERE, {**NOWHERE, "error_code": 30}]
    check({"coordinators": expected}, seen)


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_transaction_stays_at_the_node_that_is_asked(version) -> None:
    """Also where a group of that name would be served elsewhere."""
    context = among_nodes()
    asked, found = coordinators(version, group_of(2))
    context.expect(FIND, asked, found)

    seen = await call(context, FIND, version, {**asked, "key_type": 1})

    check(HERE, seen["coordinators"][0] if version >= 4 else seen)


async def test_a_share_partition_goes_with_its_group() -> None:
    """The key is group, topic id and partition; the group's name may have colons."""
    context = among_nodes()
    group = next(
        name
        for name in (f"a:b{n}" for n in range(100))
        if OWNERS[ic_partition(name, len(OWNERS))] == 2
    )
    asked, found = coordinators(6, f"{group}:tD_cKO0kQ5mGRzQGlhQCsQ:0")
    context.expect(FIND, asked, found)

    seen = await call(context, FIND, 6, {**asked, "key_type": 2})

    check(THERE, seen["coordinators"][0])


async def test_a_coordinator_that_its_node_cannot_reach_yet() -> None:
    """Is not available, instead of an address without a listener."""
    context = among_nodes(node2={1: ("node2", 9001)})
    asked, found = coordinators(6, group_of(2))
    context.expect(FIND, asked, found)

    seen = await call(context, FIND, 6, asked)

    check(NOWHERE, seen["coordinators"][0])


def disagreeing(rules: tuple[LaneRule, ...] = (LaneRule(topic="orders", lanes=16),)) -> FakeContext:
    """Node 2 sees other lanes: of `orders`, of which there are 4 here, unless given."""
    context = among_nodes()
    pattern = context.config.lane_name_pattern or ""
    context.registry.update_nodes(1, {2: LaneMeanings(node_rules(rules, {}), pattern)})
    return context


PLAIN_ELSEWHERE = (LaneRule(topic="orders", lanes=4), LaneRule(topic="plain", lanes=2))


@pytest.mark.parametrize("version", versions(METADATA))
async def test_a_topic_that_nodes_do_not_agree_on_is_refused(version) -> None:
    """By Metadata, with an error that all clients report; other topics are served."""
    context = disagreeing()
    context.expect(METADATA, None, answer(topic("orders", ORDERS, 2), topic("plain", PLAIN, 3)))
    asked = {"topics": [{"name": "orders"}, {"name": "plain"}]}

    seen = await call(context, METADATA, version, asked)

    reported = [(one["name"], one["error_code"], len(one["partitions"])) for one in seen["topics"]]
    assert reported == [("orders", 29, 0), ("plain", 0, 3)]


@pytest.mark.parametrize("asked", [{"topics": None}, {"topics": [{"name": "plain"}]}])
async def test_a_plain_topic_that_is_lanes_elsewhere(asked) -> None:
    """Refused here, too, asked by name or with all others."""
    context = disagreeing(PLAIN_ELSEWHERE)
    context.expect(METADATA, None, answer(topic("plain", PLAIN, 3)))

    seen = await call(context, METADATA, 12, asked)

    assert [(one["error_code"], one["partitions"]) for one in seen["topics"]] == [(29, [])]


async def test_its_records_are_not_relayed_either() -> None:
    """A client with metadata of before loses the connection, with the reason in the log."""
    context = disagreeing(PLAIN_ELSEWHERE)
    for version, named in ((12, {"topic": "plain"}), (13, {"topic_id": PLAIN})):
        partitions = [{"partition": 0}]
        request = make_request(1, version, {"topics": [{**named, "partitions": partitions}]})
        assert not is_relayed(context, request)
        with pytest.raises(ConfigInvalid, match=r"a plain topic at this node \(1\); 2 lanes"):
            await serve(context, request)
