"""ShareGroupHeartbeat v1, share sessions v1-2, offsets of share groups v0-1: whole partitions."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.proxy.apis.share.node_members import node_member_id
from keylane.proxy.apis.shared.request import Operation
from tests.transcript.fake import (
    ORDERS,
    FakeContext,
    call,
    check,
    is_relayed,
    make_request,
    serve,
    versions,
)
from tests.transcript.test_nodes import among_nodes

HEARTBEAT, FETCH, ACKNOWLEDGE, DESCRIBE, ALTER, DELETE = 76, 78, 79, 90, 91, 92
UNKNOWN, DENIED, INVALID_REQUEST, POLICY, GROUP_DENIED = 3, 29, 42, 44, 30


def beat(*names: str, epoch: int = 0) -> dict[str, Any]:
    return {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": epoch,
        "subscribed_topic_names": list(names),
    }


async def test_a_member_of_a_lane_name_gets_the_reason() -> None:
    """It would wait without end: the broker takes the name for a topic that may come."""
    found = await call(FakeContext(), HEARTBEAT, 1, beat("plain", "orders.lanes-8"))

    check({"error_code": INVALID_REQUEST, "assignment": None, "member_id": "m"}, found)
    assert "orders.lanes-8 means lanes of the topic orders" in found["error_message"]


@pytest.mark.parametrize(
    "values", [beat("orders", "plain"), beat("orders.lanes-8", epoch=-1)], ids=["own", "leaves"]
)
async def test_members_of_topics_pass_as_they_are(values) -> None:
    """Byte for byte, also of one whose own name means lanes, and of members that leave."""
    context = FakeContext()
    asked = make_request(HEARTBEAT, 1, values)
    context.expect(HEARTBEAT, bytes(asked.body), {"error_code": 0})

    await serve(context, asked)


def starts(*topics: tuple[str, dict[int, int]]) -> dict[str, Any]:
    entries = [
        {
            "topic_name": name,
            "partitions": [{"partition_index": i, "start_offset": at} for i, at in found.items()],
        }
        for name, found in topics
    ]
    return {"group_id": "g", "topics": entries}


def altered(*topics: tuple[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "responses": [
            {
                "topic_name": name,
                "partitions": [{"partition_index": i, "error_code": c} for i, c in found.items()],
            }
            for name, found in topics
        ]
    }


async def test_a_reset_of_all_that_metadata_shows_is_one_of_the_partitions() -> None:
    """Lanes beyond the partitions repeat them: the broker is asked for partitions."""
    context = FakeContext()
    context.expect(ALTER, starts(("orders", {0: 10, 1: 20})), altered(("orders", {0: 0, 1: 0})))

    every = {i: 10 + 10 * (i % 2) for i in range(8)}
    found = await call(context, ALTER, 0, starts(("orders", every)))

    check(altered(("orders", dict.fromkeys(range(8), 0))), found)


async def test_a_lane_beyond_the_partitions_alone_is_refused() -> None:
    """Its records are one part of a partition, which a share group has whole.

    A number that is no lane, below or above them, is unknown.
    """
    context = FakeContext()
    context.expect(
        ALTER,
        starts(("orders", {0: 10}), ("plain", {2: 5})),
        altered(("orders", {0: 0}), ("plain", {2: 0})),
    )
    asked = starts(("orders", {0: 10, 2: 11, 3: 20, 9: 1, -1: 1}), ("plain", {2: 5}))

    found = await call(context, ALTER, 0, asked)

    codes = {0: 0, 2: POLICY, 3: POLICY, 9: UNKNOWN, -1: UNKNOWN}
    check(altered(("orders", codes), ("plain", {2: 0})), found)
    reason = found["responses"][0]["partitions"][2]["error_message"]
    assert "name partition 1 in the place of lane 3" in reason


async def test_offsets_of_a_lane_name_are_not_set() -> None:
    """The reason names the topic; without the right to read it there is none."""
    context = FakeContext()
    context.expect(ALTER, starts(), altered())
    found = await call(context, ALTER, 0, starts(("shop.lanes-2", {0: 1})))
    check(altered(("shop.lanes-2", {0: POLICY})), found)
    assert "name shop itself" in found["responses"][0]["partitions"][0]["error_message"]

    context.world.denied.add(("shop", Operation.READ))
    context.expect(ALTER, starts(), altered())
    found = await call(context, ALTER, 0, starts(("shop.lanes-2", {0: 1})))
    check(altered(("shop.lanes-2", {0: DENIED})), found)


@pytest.mark.parametrize(
    ("api_key", "values"),
    [
        (ALTER, starts(("shop.lanes-2", {0: 1}))),
        (DELETE, {"group_id": "g", "topics": [{"topic_name": "shop.lanes-2"}]}),
    ],
)
async def test_the_broker_judges_the_right_to_the_group(api_key, values) -> None:
    """Before keylane says anything of lanes."""
    context = FakeContext()
    denied = {"error_code": GROUP_DENIED, "error_message": "no", "responses": []}
    context.expect(api_key, {"topics": []}, denied)

    check(denied, await call(context, api_key, 0, values))


def description(topics: Any) -> dict[str, Any]:
    return {"groups": [{"group_id": "g", "topics": topics}]}


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_offsets_of_a_lane_name_are_not_described(version) -> None:
    """Those of the other topics are, in partitions."""
    context = FakeContext()
    own = {"topic_name": "orders", "partitions": [0, 1]}
    lanes = {"topic_name": "shop.lanes-2", "partitions": [0]}
    described = {
        "topic_name": "orders",
        "topic_id": ORDERS,
        "partitions": [{"partition_index": 1, "start_offset": 7}],
    }
    context.expect(DESCRIBE, description([own]), description([described]), version=version)

    found = await call(context, DESCRIBE, version, description([lanes, own]))

    refused = {"partition_index": 0, "start_offset": -1, "error_code": POLICY}
    view_id = context.lanes("shop.lanes-2").view_id
    shown = {"topic_name": "shop.lanes-2", "topic_id": view_id, "partitions": [refused]}
    check(description([described, shown]), found)


async def test_offsets_of_a_lane_name_are_not_deleted() -> None:
    """Those of the other topics are."""
    context = FakeContext()
    own, lanes = {"topic_name": "orders"}, {"topic_name": "shop.lanes-2"}
    done = {"topic_name": "orders", "error_code": 0}
    context.expect(
        DELETE, {"group_id": "g", "topics": [own]}, {"error_code": 0, "responses": [done]}
    )

    found = await call(context, DELETE, 0, {"group_id": "g", "topics": [lanes, own]})

    check({"responses": [done, {"topic_name": "shop.lanes-2", "error_code": POLICY}]}, found)


@pytest.mark.parametrize(
    ("api_key", "version", "values"),
    [
        (DESCRIBE, 0, description([{"topic_name": "orders", "partitions": [0, 1]}])),
        (DESCRIBE, 1, description(None)),
        (ALTER, 0, starts(("plain", {0: 1}))),
        (DELETE, 0, {"group_id": "g", "topics": [{"topic_name": "orders"}]}),
    ],
)
async def test_topics_by_their_own_names_pass_as_they_are(api_key, version, values) -> None:
    """Byte for byte."""
    context = FakeContext()
    asked = make_request(api_key, version, values)
    context.expect(api_key, bytes(asked.body), {})

    await serve(context, asked)


SESSIONS = [(key, version) for key in (FETCH, ACKNOWLEDGE) for version in versions(key)]


def of_session(member_id: str) -> dict[str, Any]:
    batch = {"first_offset": 3, "last_offset": 4, "acknowledge_types": [1]}
    part = {"partition_index": 1, "acknowledgement_batches": [batch]}
    return {
        "group_id": "g",
        "member_id": member_id,
        "share_session_epoch": 7,
        "topics": [{"topic_id": None, "partitions": [part]}],
    }


@pytest.mark.parametrize(("api_key", "version"), SESSIONS)
async def test_a_member_has_a_session_at_each_node(api_key, version) -> None:
    """One broker gets another member id of each node, and the rest as it came."""
    moved = {"node_endpoints": [{"node_id": 2, "host": "broker", "port": 9092, "rack": "a"}]}
    sent = []
    for number in (1, 2):
        context = among_nodes(number)
        context.expect(api_key, of_session(f"m.{number}"), moved, version=version)

        found = await call(context, api_key, version, of_session("m"))

        (endpoint,) = found["node_endpoints"]
        assert endpoint["node_id"] == context.placement.own_id(2)
        assert endpoint["host"] != "broker"
        sent += context.world.sent
    assert len(set(map(str, sent))) == 2


@pytest.mark.parametrize(
    "member_id",
    ["x" * 33, "x" * 36, "\u00e9" * 34],
    ids=["a suffix too long", "as long as may be", "not ASCII"],
)
def test_long_ids_of_members_stay_apart(member_id) -> None:
    """A digest stands for them: at most 36 characters, another one for each member and node."""
    ids = {
        node_member_id(member, number)
        for member in (member_id, f"{member_id[:-1]}y")
        for number in (0, 1, 999)
    }

    assert len(ids) == 6
    assert all(len(each) <= 36 for each in ids)


@pytest.mark.parametrize("member_id", ["", "x" * 37])
async def test_ids_that_brokers_refuse_stay(member_id) -> None:
    """The broker gives its own reason."""
    context = among_nodes()
    context.expect(FETCH, of_session(member_id), {"error_code": INVALID_REQUEST})

    found = await call(context, FETCH, 2, of_session(member_id))

    check({"error_code": INVALID_REQUEST}, found)


@pytest.mark.parametrize(("api_key", "version"), SESSIONS)
def test_the_lone_node_relays_sessions(api_key, version) -> None:
    """There is one node, so that a broker has one session per member."""
    assert is_relayed(FakeContext(), make_request(api_key, version, of_session("m")))
