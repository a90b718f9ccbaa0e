"""DescribeTopicPartitions v0, DescribeConfigs v1-4: topics by the names that clients use."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import (
    ORDERS,
    PLAIN,
    FakeContext,
    call,
    check,
    make_request,
    versions,
)

PARTITIONS, CONFIGS = 75, 32


def request(*names: str, cursor: tuple[str, int] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"topics": [{"name": name} for name in names], "cursor": None}
    if cursor is not None:
        found["cursor"] = {"topic_name": cursor[0], "partition_index": cursor[1]}
    return found


def topic(name: str, topic_id: Any, indexes: list[int], error_code: int = 0) -> dict[str, Any]:
    entries = [{"partition_index": i, "leader_id": 1 + i % 2} for i in indexes]
    return {"name": name, "topic_id": topic_id, "partitions": entries, "error_code": error_code}


async def test_lanes_show_as_partitions() -> None:
    """As in Metadata; the broker is asked by the topic's own name, once."""
    context = FakeContext()
    context.expect(
        PARTITIONS,
        request("orders", "plain"),
        {"topics": [topic("orders", ORDERS, [0, 1]), topic("plain", PLAIN, [0, 1, 2])]},
    )

    found = await call(context, PARTITIONS, 0, request("orders", "orders.lanes-3", "plain"))

    renamed = context.lanes("orders.lanes-3").view_id
    check(
        {
            "topics": [
                topic("orders", ORDERS, list(range(8))),
                topic("orders.lanes-3", renamed, list(range(6))),
                topic("plain", PLAIN, [0, 1, 2]),
            ]
        },
        found,
    )


async def test_a_page_holds_all_lanes_of_its_partitions() -> None:
    """The cursor speaks of partitions, under the name that the client uses; both ways."""
    context = FakeContext()
    name = "plain.lanes-2"
    view_id = context.lanes(name).view_id
    following = {"topic_name": "plain", "partition_index": 2}
    context.expect(
        PARTITIONS,
        request("plain", cursor=("plain", 1)),
        {"topics": [topic("plain", PLAIN, [1])], "next_cursor": following},
    )

    found = await call(context, PARTITIONS, 0, request(name, cursor=(name, 1)))

    lanes = [{"partition_index": i} for i in (1, 4)]
    check({"topics": [{"name": name, "topic_id": view_id, "partitions": lanes}]}, found)
    check({"next_cursor": {"topic_name": name, "partition_index": 2}}, found)


async def test_a_missing_topic_has_the_name_that_was_asked_for() -> None:
    """And all topics at once are shown as configured."""
    context = FakeContext()
    context.expect(PARTITIONS, request("gone"), {"topics": [topic("gone", None, [], 3)]})
    missing = await call(context, PARTITIONS, 0, request("gone.lanes-4"))
    check({"topics": [{"name": "gone.lanes-4", "error_code": 3}]}, missing)

    context.expect(PARTITIONS, request(), {"topics": [topic("orders", ORDERS, [0, 1])]})
    check({"topics": [topic("orders", ORDERS, list(range(8)))]},
          await call(context, PARTITIONS, 0, request()))  # fmt: skip


def resources(*names: tuple[int, str]) -> dict[str, Any]:
    return {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            for kind, name in names
        ]
    }


def results(*names: tuple[int, str]) -> dict[str, Any]:
    return {
        "results": [
            {"resource_type": kind, "resource_name": name, "error_code": 0, "error_message": None}
            for kind, name in names
        ]
    }


async def test_plain_topics_are_asked_for_as_they_came() -> None:
    """The same bytes go up, a name that stands there twice as well: a broker answers it twice."""
    context = FakeContext()
    wanted = request("plain", "plain", cursor=("shop", 0))
    found = [topic("plain", PLAIN, [0]), topic("plain", PLAIN, [0])]
    context.expect(PARTITIONS, bytes(make_request(PARTITIONS, 0, wanted).body), {"topics": found})

    seen = await call(context, PARTITIONS, 0, wanted)

    check({"topics": found}, seen)


async def test_what_keylane_keeps_is_internal() -> None:
    """As in Metadata."""
    context = FakeContext()
    own = ["__individual_commit_offsets", "__keylane_scans", "__keylane_settings"]
    found = [topic(name, PLAIN, [0]) for name in (*own, "plain")]
    context.expect(PARTITIONS, request(), {"topics": found})

    seen = await call(context, PARTITIONS, 0, request())

    internal = {entry["name"]: entry["is_internal"] for entry in seen["topics"]}
    assert internal == {**dict.fromkeys(own, True), "plain": False}


@pytest.mark.parametrize("version", versions(CONFIGS))
async def test_configuration_under_a_lane_name(version) -> None:
    """It is the topic's; a broker that is called like a lane name is left alone."""
    context = FakeContext()
    context.expect(
        CONFIGS,
        resources((2, "orders"), (4, "x.lanes-2"), (2, "plain")),
        results((2, "orders"), (4, "x.lanes-2"), (2, "plain")),
        version=version,
    )
    asked = [(2, "orders.lanes-3"), (4, "x.lanes-2"), (2, "plain")]

    check(results(*asked), await call(context, CONFIGS, version, resources(*asked)))


@pytest.mark.parametrize("version", versions(CONFIGS))
async def test_configuration_of_a_topic_by_two_names(version) -> None:
    """Each name gets its own answer."""
    context = FakeContext()
    twice = (2, "orders"), (2, "orders")
    context.expect(CONFIGS, resources(*twice), results(*twice))
    asked = [(2, "orders.lanes-3"), (2, "orders")]

    check(results(*asked), await call(context, CONFIGS, version, resources(*asked)))


@pytest.mark.parametrize("version", versions(CONFIGS))
async def test_configuration_by_own_names_passes(version) -> None:
    """As direct."""
    context = FakeContext()
    context.expect(CONFIGS, resources((2, "orders")), results((2, "orders")))

    found = await call(context, CONFIGS, version, resources((2, "orders")))

    check(results((2, "orders")), found)
