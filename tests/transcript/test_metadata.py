"""Metadata v0-13: every broker is keylane, lane topics show P*L partitions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kio.index import load_request_schema

from keylane.errors import FrameInvalid
from keylane.proxy.apis.shared import large
from keylane.wire.messages import write_message
from tests.transcript.entities import build
from tests.transcript.fake import ORDERS, PLAIN, SHOP, FakeContext, call, check, versions

METADATA = 3


def partitions(count: int, *, leader: int = 1) -> list[dict[str, Any]]:
    return [
        {
            "partition_index": index,
            "leader_id": leader + index,
            "leader_epoch": 5,
            "replica_nodes": [1, 2],
            "isr_nodes": [1 + index],
        }
        for index in range(count)
    ]


def topic(name: str | None, topic_id: uuid.UUID, count: int, error_code: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": error_code,
        "partitions": partitions(count),
    }


def answer(*topics: dict[str, Any]) -> dict[str, Any]:
    brokers = [
        {"node_id": node, "host": f"kafka{node}", "port": 9092, "rack": "r1"} for node in (1, 2)
    ]
    return {"brokers": brokers, "cluster_id": "c", "controller_id": 1, "topics": list(topics)}


@pytest.mark.parametrize("version", versions(METADATA))
async def test_lanes_and_plain_topics(version) -> None:
    """Lane `lane * 2 + p` has the leader of partition p; a plain topic differs in nothing."""
    context = FakeContext()
    context.expect(
        METADATA,
        {"topics": [{"name": "orders"}, {"name": "plain"}]},
        answer(topic("orders", ORDERS, 2), topic("plain", PLAIN, 3)),
        version=version,
    )

    seen = await call(
        context, METADATA, version, {"topics": [{"name": "orders"}, {"name": "plain"}]}
    )

    check({"brokers": [{"host": "lane.example", "port": 20_000 + node} for node in (1, 2)]}, seen)
    lanes = [{"partition_index": i, "leader_id": 1 + i % 2, "error_code": 0} for i in range(8)]
    check({"name": "orders", "partitions": lanes}, seen["topics"][0])
    check({"name": "plain", "error_code": 0}, seen["topics"][1])
    assert len(seen["topics"][1]["partitions"]) == 3
    assert context.world.brokers == [1, 2]
    assert context.events == ["send Metadata", "release"]
    if version >= 10:
        assert [entry["topic_id"] for entry in seen["topics"]] == [ORDERS, PLAIN]


@pytest.mark.parametrize("version", versions(METADATA))
async def test_a_lane_name_beside_the_topic_itself(version) -> None:
    """The broker is asked once, by the topic's own name; each name gets its view and id."""
    context = FakeContext()
    names = ["orders.lanes-3", "orders", "plain.lanes-2"]
    context.expect(
        METADATA,
        {"topics": [{"name": "orders"}, {"name": "plain"}]},
        answer(topic("orders", ORDERS, 2), topic("plain", PLAIN, 3)),
    )

    seen = await call(context, METADATA, version, {"topics": [{"name": name} for name in names]})

    found = {entry["name"]: entry for entry in seen["topics"]}
    assert {name: len(entry["partitions"]) for name, entry in found.items()} == {
        "orders.lanes-3": 6,
        "orders": 8,
        "plain.lanes-2": 6,
    }
    if version >= 10:
        assert found["orders"]["topic_id"] == ORDERS
        assert found["orders.lanes-3"]["topic_id"] == context.lanes("orders.lanes-3").view_id


@pytest.mark.parametrize("version", versions(METADATA))
async def test_all_topics(version) -> None:
    """Lane topics show under their own name; lane names are not listed."""
    context = FakeContext()
    context.expect(METADATA, None, answer(topic("orders", ORDERS, 2), topic("plain", PLAIN, 3)))

    seen = await call(context, METADATA, version, {"topics": [] if version == 0 else None})

    shown = [(entry["name"], len(entry["partitions"])) for entry in seen["topics"]]
    assert shown == [("orders", 8), ("plain", 3)]


NAMES_BESIDE_IDS = [None, "", "of-no-use"]
"""As librdkafka, franz-go and others write it; as Java does; a broker looks at none of them."""


@pytest.mark.parametrize("name", NAMES_BESIDE_IDS)
@pytest.mark.parametrize("version", range(12, 14))
async def test_topics_asked_for_by_id(version, name) -> None:
    """An own id stays, a lane name's id is asked for as its topic's: brokers mix no names in."""
    context = FakeContext()
    view = context.lanes("orders.lanes-3")
    context.expect(
        METADATA,
        {"topics": [{"topic_id": PLAIN, "name": name}, {"topic_id": ORDERS, "name": name}]},
        answer(topic("plain", PLAIN, 3), topic("orders", ORDERS, 2)),
    )
    asked = [{"topic_id": PLAIN, "name": name}, {"topic_id": view.view_id, "name": name}]

    seen = await call(context, METADATA, version, {"topics": asked})

    shown = [(e["name"], e["topic_id"], len(e["partitions"])) for e in seen["topics"]]
    assert shown == [("plain", PLAIN, 3), ("orders.lanes-3", view.view_id, 6)]


@pytest.mark.parametrize("name", NAMES_BESIDE_IDS)
@pytest.mark.parametrize("version", range(12, 14))
async def test_many_plain_topics_by_id_are_asked_for_as_they_came(version, name) -> None:
    """Each id is asked for, known to keylane or not, with the bytes that the client sent."""
    context = FakeContext()
    unknown = uuid.UUID(int=0xE5)
    wanted = {"topics": [{"topic_id": one, "name": name} for one in (PLAIN, SHOP, unknown)]}
    body = write_message(build(load_request_schema(METADATA, version), wanted))
    context.expect(
        METADATA,
        body,
        answer(topic("plain", PLAIN, 3), topic("shop", SHOP, 1), topic("new", unknown, 1)),
    )

    seen = await call(context, METADATA, version, wanted)

    assert [entry["name"] for entry in seen["topics"]] == ["plain", "shop", "new"]


@pytest.mark.parametrize("version", range(12, 14))
async def test_a_lane_name_by_its_id_beside_the_topic_by_its_own(version) -> None:
    """The broker is asked once, each id gets its view; also when the topic is gone."""
    context = FakeContext()
    view = context.lanes("orders.lanes-3")
    asked = [{"topic_id": view.view_id, "name": ""}, {"topic_id": ORDERS, "name": ""}]
    once = {"topics": [{"topic_id": ORDERS}]}

    context.expect(METADATA, once, answer(topic("orders", ORDERS, 2)))
    seen = await call(context, METADATA, version, {"topics": asked})
    context.expect(METADATA, once, answer(topic(None, ORDERS, 0, error_code=100)))
    gone = await call(context, METADATA, version, {"topics": asked})

    shown = [(e["name"], e["topic_id"], len(e["partitions"])) for e in seen["topics"]]
    assert shown == [("orders.lanes-3", view.view_id, 6), ("orders", ORDERS, 8)]
    shown = [(e["name"], e["topic_id"], e["error_code"]) for e in gone["topics"]]
    assert shown == [(None, view.view_id, 100), (None, ORDERS, 100)]


@pytest.mark.parametrize("version", range(10, 12))
async def test_ids_before_they_are_taken_go_up_as_they_came(version) -> None:
    """A broker refuses v10 and v11 with ids; keylane makes no question by name of them."""
    context = FakeContext()
    wanted = {"topics": [{"topic_id": PLAIN, "name": ""}, {"topic_id": SHOP, "name": ""}]}
    body = write_message(build(load_request_schema(METADATA, version), wanted))
    context.expect(METADATA, body, answer(topic("", PLAIN, 0, 42), topic("", SHOP, 0, 42)))

    seen = await call(context, METADATA, version, wanted)

    assert [(e["topic_id"], e["error_code"]) for e in seen["topics"]] == [(PLAIN, 42), (SHOP, 42)]


@pytest.mark.parametrize("version", range(12, 14))
async def test_a_lane_topic_by_its_own_id(version) -> None:
    """The client caches by id: it sees lanes under the same id."""
    context = FakeContext()
    wanted = {"topics": [{"topic_id": ORDERS, "name": None}]}
    context.expect(METADATA, wanted, answer(topic("orders", ORDERS, 2)))

    seen = await call(context, METADATA, version, wanted)

    check({"topics": [{"name": "orders", "topic_id": ORDERS}]}, seen)
    assert len(seen["topics"][0]["partitions"]) == 8


@pytest.mark.parametrize("version", versions(METADATA))
@pytest.mark.parametrize("error_code", [3, 29, 5])
async def test_an_error_has_the_name_that_was_asked_for(version, error_code) -> None:
    """A lane name of a topic that is missing or forbidden is not answered with another name."""
    context = FakeContext()
    zero = uuid.UUID(int=0)
    context.expect(METADATA, None, answer(topic("gone", zero, 0, error_code)))

    seen = await call(context, METADATA, version, {"topics": [{"name": "gone.lanes-4"}]})

    check({"topics": [{"name": "gone.lanes-4", "error_code": error_code, "partitions": []}]}, seen)


async def test_a_topic_that_is_new_to_keylane() -> None:
    """Up to v9 the answer has no id, so the cluster is asked; from v10 the answer has it."""
    for version in (9, 12):
        context = FakeContext()
        new_id = uuid.UUID(int=0xD4)
        if version < 10:
            context.world.unknown["new"] = (new_id, 2)
        context.expect(METADATA, {"topics": [{"name": "new"}]}, answer(topic("new", new_id, 2)))

        seen = await call(context, METADATA, version, {"topics": [{"name": "new.lanes-5"}]})

        assert len(seen["topics"][0]["partitions"]) == 10


async def test_a_grown_topic_keeps_its_lanes() -> None:
    """The broker shows 3 partitions, groups stand on 2: still 8 lanes with indexes 0 to 7."""
    context = FakeContext()
    context.lanes("orders")
    context.expect(METADATA, None, answer(topic("orders", ORDERS, 3)))

    seen = await call(context, METADATA, 12, {"topics": [{"name": "orders"}]})

    indexes = [entry["partition_index"] for entry in seen["topics"][0]["partitions"]]
    assert sorted(indexes) == list(range(8))


@pytest.mark.parametrize("version", range(1, 14))
async def test_no_topics_at_all(version) -> None:
    """A client that only wants brokers; the request passes as it came."""
    context = FakeContext()
    context.expect(METADATA, {"topics": []}, answer())

    seen = await call(context, METADATA, version, {"topics": []})

    assert seen["topics"] == [] and len(seen["brokers"]) == 2


@pytest.mark.parametrize("version", range(1, 14))
async def test_what_keylane_keeps_is_internal(version) -> None:
    """A classic member of the pattern `.*` is given none of keylane's own topics."""
    context = FakeContext()
    own = ["__individual_commit_offsets", "__keylane_scans", "__keylane_settings"]
    found = [topic(name, uuid.UUID(int=0xE0 + i), 1) for i, name in enumerate([*own, "__other"])]
    context.expect(METADATA, None, answer(*found))

    seen = await call(context, METADATA, version, {"topics": None})

    internal = {entry["name"]: entry["is_internal"] for entry in seen["topics"]}
    assert internal == {**dict.fromkeys(own, True), "__other": False}


async def test_lane_names_have_so_much_room(monkeypatch) -> None:
    """A client chooses them, and each shows all partitions as often as it has lanes."""
    monkeypatch.setattr(large, "LANE_NAME_ENTRIES_MAX", 20)
    context = FakeContext()
    names = ["plain.lanes-2", "plain.lanes-4", "plain.lanes-5", "orders"]
    context.expect(
        METADATA,
        {"topics": [{"name": "plain"}, {"name": "orders"}]},
        answer(topic("plain", PLAIN, 3), topic("orders", ORDERS, 2)),
    )

    found = await call(context, METADATA, 9, {"topics": [{"name": name} for name in names]})

    shown = {one["name"]: (one["error_code"], len(one["partitions"])) for one in found["topics"]}
    assert shown == {
        "plain.lanes-2": (0, 6), "plain.lanes-4": (0, 12), "plain.lanes-5": (17, 0),
        "orders": (0, 8),
    }  # fmt: skip
    assert "plain.lanes-5" not in context.registry.views


async def test_a_large_answer_is_made_beside_the_loop(monkeypatch) -> None:
    """Its lanes and its bytes, one at a time of all connections."""
    monkeypatch.setattr(large, "ENTRIES_AT_ONCE", 7)
    context = FakeContext()
    context.expect(METADATA, None, answer(topic("orders", ORDERS, 2)))

    found = await call(context, METADATA, 9, {"topics": [{"name": "orders"}]})

    assert context.events.count("in turn") == 2
    assert [entry["partition_index"] for entry in found["topics"][0]["partitions"]] == [*range(8)]


async def test_more_topics_than_a_cluster_has(monkeypatch) -> None:
    """Refused before the broker is asked."""
    monkeypatch.setattr("keylane.proxy.apis.connection.metadata.TOPICS_MAX", 2)

    with pytest.raises(FrameInvalid, match="3 topics, at most 2"):
        await call(FakeContext(), METADATA, 9, {"topics": [{"name": "plain"}] * 3})
