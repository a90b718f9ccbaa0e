"""DescribeProducers v0, DescribeTransactions v0 on lanes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from kio.index import load_response_schema

from keylane.proxy.apis.shared.request import Operation
from keylane.wire.messages import write_message
from tests.transcript.entities import build
from tests.transcript.fake import FakeContext, call, check, make_request, serve

PRODUCERS, TRANSACTIONS = 61, 65
UNKNOWN, NOT_LEADER = 3, 6
START = datetime(2026, 1, 1, tzinfo=UTC)
NOT_BEGUN = (-1).to_bytes(8, "big", signed=True)


def wanted(*topics: tuple[str, list[int]]) -> dict[str, Any]:
    return {"topics": [{"name": name, "partition_indexes": each} for name, each in topics]}


def producers(*topics: tuple[str, dict[int, int | None]]) -> dict[str, Any]:
    """Per index a producer id, or None where there is an error."""
    return {
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": i,
                        "error_code": NOT_LEADER if number is None else 0,
                        "active_producers": [] if number is None else [{"producer_id": number}],
                    }
                    for i, number in found.items()
                ],
            }
            for name, found in topics
        ]
    }


async def test_the_producers_of_a_lane_are_those_of_its_partition() -> None:
    """Each partition is asked for once, errors of it are its lanes'."""
    context = FakeContext()
    context.expect(
        PRODUCERS,
        wanted(("orders", [1, 0]), ("plain", [2])),
        producers(("orders", {0: None, 1: 70}), ("plain", {2: 80})),
    )

    asked = wanted(("orders", [5, 7, 0]), ("plain", [2]))
    found = await call(context, PRODUCERS, 0, asked)

    check(producers(("orders", {5: 70, 7: 70, 0: None}), ("plain", {2: 80})), found)


async def test_what_is_no_lane_is_not_asked_for() -> None:
    """And the reason says which lanes there are."""
    found = await call(FakeContext(), PRODUCERS, 0, wanted(("shop.lanes-2", [2])))

    entry = found["topics"][0]["partitions"][0]
    assert entry["error_code"] == UNKNOWN and "numbered 0 to 1" in entry["error_message"]


@pytest.mark.parametrize("operation", list(Operation))
async def test_the_broker_judges_the_right(operation) -> None:
    """keylane says nothing from its memory."""
    context = FakeContext()
    context.world.denied.add(("orders", operation))
    context.expect(PRODUCERS, wanted(("orders", [0])), producers(("orders", {0: None})))

    found = await call(context, PRODUCERS, 0, wanted(("orders", [4])))

    check(producers(("orders", {4: None})), found)


async def test_producers_of_plain_topics_pass_as_they_are() -> None:
    """Byte for byte."""
    context = FakeContext()
    asked = make_request(PRODUCERS, 0, wanted(("plain", [1, 1])))
    context.expect(PRODUCERS, bytes(asked.body), producers(("plain", {1: 80})))

    await serve(context, asked)


def transactions(*topics: tuple[str, list[int]]) -> dict[str, Any]:
    entries = [{"topic": name, "partitions": each} for name, each in topics]
    state = {"transactional_id": "t", "transaction_start_time": START, "topics": entries}
    return {"transaction_states": [state]}


async def test_a_transaction_names_all_lanes_of_its_partitions() -> None:
    """A tool that looks for hanging ones lane by lane finds each lane in it."""
    context = FakeContext()
    written = transactions(("orders", [1]), ("plain", [2]), ("__consumer_offsets", [7]))
    context.expect(TRANSACTIONS, None, written)

    found = await call(context, TRANSACTIONS, 0, {"transactional_ids": ["t"]})

    check(
        transactions(("orders", [1, 3, 5, 7]), ("plain", [2]), ("__consumer_offsets", [7])), found
    )


async def test_a_transaction_on_plain_topics_passes_as_it_is() -> None:
    """The frame itself."""
    context = FakeContext()
    context.expect(TRANSACTIONS, None, transactions(("plain", [2])))

    check(
        transactions(("plain", [2])),
        await call(context, TRANSACTIONS, 0, {"transactional_ids": ["t"]}),
    )


async def test_a_transaction_that_has_not_begun_shows_its_lanes() -> None:
    """Its start is -1, a time for which kio has no value."""
    context = FakeContext()
    begun = write_message(
        build(load_response_schema(TRANSACTIONS, 0), transactions(("orders", [1])))
    )
    start = begun.index(round(START.timestamp() * 1000).to_bytes(8, "big"))
    context.expect(TRANSACTIONS, None, begun[:start] + NOT_BEGUN + begun[start + 8 :])

    frame = await serve(context, make_request(TRANSACTIONS, 0, {"transactional_ids": ["t"]}))

    assert NOT_BEGUN in frame
    lanes = b"".join(lane.to_bytes(4, "big") for lane in (1, 3, 5, 7))
    assert lanes in frame
