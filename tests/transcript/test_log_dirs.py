"""DescribeLogDirs v1-5, AlterReplicaLogDirs v1-2 on lanes."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.transcript.fake import FakeContext, call, check, make_request, serve, versions

ALTER, DESCRIBE = 34, 35
UNKNOWN, CONFLICT = 3, 42


def sizes(*topics: tuple[str, dict[int, int]], path: str = "/a") -> dict[str, Any]:
    return {
        "log_dir": path,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": i, "partition_size": size, "offset_lag": 5}
                    for i, size in found.items()
                ],
            }
            for name, found in topics
        ],
    }


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_sizes_of_all_lanes_add_up_to_the_disks(version) -> None:
    """All topics: each lane has its part, what is left over is the first lane's."""
    context = FakeContext()
    held = sizes(("orders", {0: 403, 1: 8}), ("plain", {0: 50}))
    other = sizes(path="/b")
    context.expect(DESCRIBE, {"topics": None}, {"results": [held, other]}, version=version)

    found = await call(context, DESCRIBE, version, {"topics": None})

    lanes = {0: 103, 1: 2, 2: 100, 3: 2, 4: 100, 5: 2, 6: 100, 7: 2}
    check({"results": [sizes(("orders", lanes), ("plain", {0: 50})), other]}, found)
    assert sum(lanes.values()) == 403 + 8


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_named_lanes_are_shown_under_their_names(version) -> None:
    """In the folder that their partition is in; folders without them stay."""
    context = FakeContext()
    context.expect(
        DESCRIBE,
        {"topics": [{"topic": "orders", "partitions": [1, 0]}]},
        {"results": [sizes(("orders", {1: 80})), sizes(("orders", {0: 40}), path="/b")]},
        version=version,
    )
    asked = [
        {"topic": "orders", "partitions": [3, 9]},
        {"topic": "orders.lanes-2", "partitions": [0]},
    ]

    found = await call(context, DESCRIBE, version, {"topics": asked})

    here, there = sizes(("orders", {3: 20})), sizes(("orders.lanes-2", {0: 20}), path="/b")
    check({"results": [here, there]}, found)


async def test_plain_topics_pass_as_they_are() -> None:
    """Byte for byte, named or all."""
    for topics in ([{"topic": "plain", "partitions": [0, 0]}], None):
        context = FakeContext()
        asked = make_request(DESCRIBE, 4, {"topics": topics})
        context.expect(DESCRIBE, bytes(asked.body), {"results": [sizes(("plain", {0: 50}))]})
        await serve(context, asked)

    context = FakeContext()
    asked = make_request(ALTER, 2, moves(("/a", "plain", [0, 0])))
    context.expect(ALTER, bytes(asked.body), moved(("plain", {0: 0})))
    await serve(context, asked)


def moves(*topics: tuple[str, str, list[int]]) -> dict[str, Any]:
    return {
        "dirs": [
            {"path": path, "topics": [{"name": name, "partitions": indexes}]}
            for path, name, indexes in topics
        ]
    }


def moved(*topics: tuple[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [{"partition_index": i, "error_code": c} for i, c in codes.items()],
            }
            for name, codes in topics
        ]
    }


@pytest.mark.parametrize("version", versions(ALTER))
async def test_a_lane_moves_with_its_partition(version, caplog) -> None:
    """Lanes that go to two folders are refused, and the reason is logged."""
    context = FakeContext()
    context.expect(
        ALTER,
        moves(("/a", "orders", [1]), ("/b", "plain", [2])),
        moved(("orders", {1: 0}), ("plain", {2: 57})),
        version=version,
    )
    asked = moves(("/a", "orders", [0, 3, 5, 8]), ("/b", "plain", [2]), ("/c", "orders", [2]))

    with caplog.at_level(logging.WARNING, "keylane.admin"):
        found = await call(context, ALTER, version, asked)

    first = {0: CONFLICT, 3: 0, 5: 0, 8: UNKNOWN}
    check(moved(("orders", first), ("plain", {2: 57}), ("orders", {2: CONFLICT})), found)
    assert "different things are asked of partition 0 of the topic orders" in caplog.text
