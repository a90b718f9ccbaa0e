"""CreateTopics v2-7, DeleteTopics v1-6, CreatePartitions v0-3 on lane topics and lane names."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from keylane.proxy.apis.shared.request import Operation
from tests.transcript.fake import (
    ORDERS,
    PLAIN,
    SHOP,
    FakeContext,
    call,
    check,
    make_request,
    serve,
    versions,
)

CREATE, DELETE, GROW, METADATA = 19, 20, 37, 3
UNKNOWN, INVALID_TOPIC, DENIED, POLICY = 3, 17, 29, 44
BY_ID_VERSION, MESSAGE_VERSION = 6, 5
"""Of DeleteTopics."""


def new_topics(*names: str) -> dict[str, Any]:
    return {"topics": [{"name": name, "num_partitions": 3} for name in names]}


@pytest.mark.parametrize("version", versions(CREATE))
async def test_a_topic_is_not_given_a_lane_name(version) -> None:
    """It would be hidden by the lanes of another; other topics of the request are made."""
    context = FakeContext()
    made = {"topics": [{"name": "a", "error_code": 0}, {"name": "b", "error_code": 36}]}
    context.expect(CREATE, new_topics("a", "b"), made, version=version)

    found = await call(context, CREATE, version, new_topics("a", "orders.lanes-8", "b"))

    codes = [(entry["name"], entry["error_code"]) for entry in found["topics"]]
    assert codes == [("a", 0), ("orders.lanes-8", INVALID_TOPIC), ("b", 36)]
    assert "means lanes of the topic orders" in found["topics"][1]["error_message"]


@pytest.mark.parametrize("version", versions(CREATE))
async def test_a_lane_name_alone_does_not_reach_a_broker(version) -> None:
    """The answer is whole without it."""
    found = await call(FakeContext(), CREATE, version, new_topics("x.lanes-2"))

    check({"topics": [{"name": "x.lanes-2", "error_code": INVALID_TOPIC}]}, found)


async def test_a_topic_whose_own_name_means_lanes_is_made_with_its_partitions() -> None:
    """The count is of partitions: three of them, seen as twelve lanes; byte for byte."""
    context = FakeContext()
    asked = make_request(CREATE, 7, new_topics("orders", "plain"))
    context.expect(CREATE, bytes(asked.body), {"topics": []})

    await serve(context, asked)


def deletion(version: int, *topics: tuple[str | None, uuid.UUID | None]) -> dict[str, Any]:
    if version >= BY_ID_VERSION:
        return {"topics": [{"name": name, "topic_id": topic_id} for name, topic_id in topics]}
    return {"topic_names": [name for name, _ in topics]}


@pytest.mark.parametrize("version", versions(DELETE))
async def test_a_topic_is_not_deleted_under_a_lane_name(version, caplog) -> None:
    """Under its own name it is, lanes or not. Where the answer has no reason, the log has it."""
    context = FakeContext()
    done = {"responses": [{"name": "orders", "error_code": 0}, {"name": "plain", "error_code": 0}]}
    kept = deletion(version, ("orders", None), ("plain", None))
    context.expect(DELETE, kept, done, version=version)
    asked = deletion(version, ("orders", None), ("shop.lanes-2", None), ("plain", None))

    found = await call(context, DELETE, version, asked)

    codes = [(entry["name"], entry["error_code"]) for entry in found["responses"]]
    assert codes == [("orders", 0), ("shop.lanes-2", POLICY), ("plain", 0)]
    reason = found["responses"][1].get("error_message", "")
    assert "name shop itself" in (reason if version >= MESSAGE_VERSION else caplog.text)
    # asyncio may log what another test has left.
    own = [each for each in caplog.records if each.name.startswith("keylane")]
    assert bool(own) == (version < MESSAGE_VERSION)


async def test_a_topic_is_not_deleted_by_the_id_of_a_lane_name() -> None:
    """Its own id is what deletes it."""
    context = FakeContext()
    view_id = context.lanes("shop.lanes-2").view_id
    done = {"responses": [{"name": "orders", "topic_id": ORDERS, "error_code": 0}]}
    kept = deletion(6, (None, ORDERS), (None, PLAIN))
    context.expect(DELETE, kept, done)

    found = await call(
        context, DELETE, 6, deletion(6, (None, view_id), (None, ORDERS), (None, PLAIN))
    )

    refused = {"name": "shop.lanes-2", "topic_id": view_id, "error_code": POLICY}
    check({"responses": [refused, done["responses"][0]]}, found)


async def test_without_the_right_to_delete_no_lane_name_is_explained() -> None:
    """By an id not even the name."""
    context = FakeContext()
    view_id = context.lanes("shop.lanes-2").view_id
    context.world.denied.add(("shop", Operation.DELETE))

    found = await call(context, DELETE, 6, deletion(6, (None, view_id), ("shop.lanes-2", None)))

    by_id = {"name": None, "topic_id": view_id, "error_code": DENIED, "error_message": None}
    by_name = {"name": "shop.lanes-2", "topic_id": None, "error_code": DENIED}
    check({"responses": [by_id, by_name]}, found)


async def test_a_lane_name_of_no_topic_is_unknown() -> None:
    """As the broker says of the topic."""
    context = FakeContext()
    context.expect(METADATA, None, {"topics": [{"error_code": UNKNOWN}]})

    found = await call(context, DELETE, 6, deletion(6, ("new.lanes-2", None)))

    check({"responses": [{"name": "new.lanes-2", "error_code": UNKNOWN}]}, found)


@pytest.mark.parametrize("version", versions(DELETE))
async def test_deletion_of_own_names_passes_as_it_is(version) -> None:
    """Byte for byte."""
    context = FakeContext()
    asked = make_request(DELETE, version, deletion(version, ("orders", None), ("plain", None)))
    context.expect(DELETE, bytes(asked.body), {"responses": []})

    await serve(context, asked)


def growth(*counts: tuple[str, int]) -> dict[str, Any]:
    return {
        "topics": [{"name": name, "count": count, "assignments": None} for name, count in counts]
    }


@pytest.mark.parametrize("version", versions(GROW))
@pytest.mark.parametrize("name", ["orders", "shop.lanes-8"])
async def test_a_lane_topic_is_given_no_more_partitions(version, name) -> None:
    """An admin counts lanes: 20 would make 20 partitions of 2; others of the request grow."""
    context = FakeContext()
    grown = {"results": [{"name": "plain", "error_code": 0}]}
    context.expect(GROW, growth(("plain", 4)), grown, version=version)

    found = await call(context, GROW, version, growth((name, 20), ("plain", 4)))

    check({"results": [{"name": name, "error_code": POLICY}, {"error_code": 0}]}, found)
    count, lanes = (2, 4) if name == "orders" else (1, 8)
    reason = found["results"][0]["error_message"]
    assert (
        f"seen as {count} partitions of {lanes} lanes each, 8 in all: a count of 20 is one of lanes"
        in reason
    )
    assert f"more than {count} partitions" in reason


async def test_without_the_right_to_alter_no_count_is_explained() -> None:
    """But what the broker says."""
    context = FakeContext()
    context.world.denied.add(("orders", Operation.ALTER))

    found = await call(context, GROW, 3, growth(("orders", 20)))

    refused = {"name": "orders", "error_code": DENIED, "error_message": None}
    check({"results": [refused]}, found)


@pytest.mark.parametrize("version", versions(GROW))
async def test_growth_of_plain_topics_passes_as_it_is(version) -> None:
    """Byte for byte."""
    context = FakeContext()
    asked = make_request(GROW, version, growth(("plain", 4), ("shop", 2)))
    context.expect(GROW, bytes(asked.body), {"results": []})

    await serve(context, asked)


async def test_ids_of_plain_topics_are_not_taken_for_lanes() -> None:
    """Of a topic that has views beside its own name, too."""
    context = FakeContext()
    context.lanes("shop.lanes-2")
    asked = make_request(DELETE, 6, deletion(6, (None, SHOP), (None, uuid.UUID(int=7))))
    context.expect(DELETE, bytes(asked.body), {"responses": []})

    await serve(context, asked)
