"""ElectLeaders v0-2 on lanes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import FakeContext, call, check, make_request, serve, versions

ELECT = 43
UNKNOWN, CLUSTER_DENIED, NOT_NEEDED = 3, 31, 84


def wanted(*topics: tuple[str, list[int]]) -> dict[str, Any]:
    return {"topic_partitions": [{"topic": name, "partitions": each} for name, each in topics]}


def results(*topics: tuple[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "replica_election_results": [
            {
                "topic": name,
                "partition_result": [
                    {"partition_id": i, "error_code": c} for i, c in codes.items()
                ],
            }
            for name, codes in topics
        ]
    }


@pytest.mark.parametrize("version", versions(ELECT))
async def test_an_election_for_lanes_is_one_for_their_partitions(version) -> None:
    """Each once; each lane is answered the result of its partition."""
    context = FakeContext()
    context.expect(
        ELECT,
        wanted(("orders", [1, 0]), ("plain", [2])),
        results(("orders", {0: NOT_NEEDED, 1: 0}), ("plain", {2: 0})),
        version=version,
    )

    asked = wanted(("orders", [7, 3, 0, 8]), ("plain", [2]), ("orders.lanes-2", [1]))
    found = await call(context, ELECT, version, asked)

    expected = (
        ("orders", {7: 0, 3: 0, 0: NOT_NEEDED, 8: UNKNOWN}),
        ("plain", {2: 0}),
        ("orders.lanes-2", {1: 0}),
    )
    check(results(*expected), found)
    reason = found["replica_election_results"][0]["partition_result"][3]["error_message"]
    assert "numbered 0 to 7" in reason


@pytest.mark.parametrize("version", versions(ELECT))
async def test_an_election_for_all_is_answered_for_all_lanes(version) -> None:
    """Of topics whose own name means lanes."""
    context = FakeContext()
    done = results(("orders", {1: 0}), ("plain", {0: 0}))
    context.expect(ELECT, {"topic_partitions": None}, done, version=version)

    found = await call(context, ELECT, version, {"topic_partitions": None})

    check(results(("orders", {1: 0, 3: 0, 5: 0, 7: 0}), ("plain", {0: 0})), found)


async def test_the_broker_refuses_a_client_that_may_not_elect() -> None:
    """As a whole."""
    context = FakeContext()
    denied = {"error_code": CLUSTER_DENIED, "replica_election_results": []}
    context.expect(ELECT, wanted(("orders", [0])), denied)

    check(denied, await call(context, ELECT, 2, wanted(("orders", [0]))))


@pytest.mark.parametrize("version", versions(ELECT))
async def test_plain_topics_pass_as_they_are(version) -> None:
    """Byte for byte."""
    context = FakeContext()
    asked = make_request(ELECT, version, wanted(("plain", [0, 0])))
    context.expect(ELECT, bytes(asked.body), results(("plain", {0: 0})))

    await serve(context, asked)
