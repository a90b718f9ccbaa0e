"""AddPartitionsToTxn v0-3: a producer adds the physical partitions of lanes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import FakeContext, call, check, versions

ADD = 24


def asked(*topics: tuple[str, list[int]]) -> dict[str, Any]:
    return {
        "v3_and_below_transactional_id": "t",
        "v3_and_below_producer_id": 9,
        "v3_and_below_producer_epoch": 1,
        "v3_and_below_topics": [{"name": n, "partitions": indexes} for n, indexes in topics],
    }


def answered(*topics: tuple[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": name,
                "results_by_partition": [
                    {"partition_index": i, "partition_error_code": code}
                    for i, code in codes.items()
                ],
            }
            for name, codes in topics
        ]
    }


@pytest.mark.parametrize("version", versions(ADD))
async def test_lanes_add_their_partitions_once(version) -> None:
    """Three lanes of two partitions and a plain topic; errors reach every lane."""
    context = FakeContext()
    context.expect(
        ADD,
        asked(("orders", [0, 1]), ("plain", [2])),
        answered(("orders", {0: 0, 1: 29}), ("plain", {2: 0})),
        version=version,
    )

    found = await call(context, ADD, version, asked(("orders", [0, 2, 3]), ("plain", [2])))

    check(answered(("orders", {0: 0, 2: 0, 3: 29}), ("plain", {2: 0})), found)
    assert context.events == ["send AddPartitionsToTxn", "release"]


@pytest.mark.parametrize("version", versions(ADD))
async def test_lane_name_and_own_name(version) -> None:
    """One entry at the broker, an answer under each name."""
    context = FakeContext()
    context.expect(ADD, asked(("plain", [0, 1])), answered(("plain", {0: 0, 1: 0})))

    found = await call(context, ADD, version, asked(("plain", [0]), ("plain.lanes-2", [4, 3])))

    check(answered(("plain", {0: 0}), ("plain.lanes-2", {4: 0, 3: 0})), found)


@pytest.mark.parametrize("version", versions(ADD))
async def test_lanes_out_of_range(version) -> None:
    """They are refused; what is there is added all the same."""
    context = FakeContext()
    context.expect(ADD, asked(("orders", [1])), answered(("orders", {1: 0})))

    mixed = await call(context, ADD, version, asked(("orders", [8, 1])))
    alone = await call(context, ADD, version, asked(("orders", [8, -1])))

    check(answered(("orders", {8: 3, 1: 0})), mixed)
    check(answered(("orders", {8: 3, -1: 3})), alone)


@pytest.mark.parametrize("version", versions(ADD))
async def test_without_lanes_it_passes(version) -> None:
    """As direct."""
    context = FakeContext()
    context.expect(ADD, asked(("plain", [1])), answered(("plain", {1: 0})))

    check(answered(("plain", {1: 0})), await call(context, ADD, version, asked(("plain", [1]))))
