"""Produce v3-13: lanes become partitions, in rounds of one batch each."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from keylane.wire.batch import read_batch_header
from tests.reference.batches import Batch, Record, write_batch
from tests.transcript.entities import plain
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

PRODUCE = 0
IDS = {"orders": ORDERS, "plain": PLAIN}


def topic(
    name: str, records: dict[int, bytes], topic_id: uuid.UUID | None = None
) -> dict[str, Any]:
    entries = [{"index": i, "records": data} for i, data in records.items()]
    return {"name": name, "topic_id": topic_id or IDS[name], "partition_data": entries}


def request(*topics: Any, acks: int = -1) -> dict[str, Any]:
    return {"acks": acks, "timeout": 1000, "topic_data": list(topics)}


def named(version: int, name: str, topic_id: uuid.UUID | None = None) -> dict[str, Any]:
    return {"topic_id": topic_id or IDS[name]} if version >= 13 else {"name": name}


def wants(version: int, name: str, records: dict[int, bytes]) -> dict[str, Any]:
    entries = [{"index": i, "records": data} for i, data in records.items()]
    return {**named(version, name), "partition_data": entries}


def answer(version: int, name: str, offsets: dict[int, tuple[int, int]]) -> dict[str, Any]:
    """Partition -> (base offset, error code)."""
    entries = [
        {"index": i, "base_offset": offset, "error_code": code}
        for i, (offset, code) in offsets.items()
    ]
    return {**named(version, name), "partition_responses": entries}


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_plain_topics_are_relayed(version) -> None:
    """No handler, the same bytes both ways."""
    context = FakeContext()
    asked = make_request(PRODUCE, version, request(topic("plain", {0: b"abc"})))
    answered = {"responses": [answer(version, "plain", {0: (5, 0)})]}
    context.expect(PRODUCE, bytes(asked.body), answered)

    assert is_relayed(context, asked)
    check(answered, plain(asked.decode_answer(await serve(context, asked))))


@pytest.mark.parametrize("version", versions(PRODUCE))
@pytest.mark.parametrize("name", ["plain", "orders"])
async def test_acks_0_has_no_answer(version, name) -> None:
    """Neither for plain topics, which therefore are not relayed, nor for lanes."""
    context = FakeContext()
    asked = make_request(PRODUCE, version, request(topic(name, {1: b"abc"}), acks=0))
    context.expect(PRODUCE, {"topic_data": [wants(version, name, {1: b"abc"})]}, None)

    assert not is_relayed(context, asked)
    assert await serve(context, asked) == b""


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_lanes_of_different_partitions_go_together(version) -> None:
    """Lane 5 is partition 1, lane 2 partition 0; a plain topic rides along."""
    context = FakeContext()
    context.expect(
        PRODUCE,
        {
            "acks": -1,
            "topic_data": [
                wants(version, "orders", {1: b"five", 0: b"two"}),
                wants(version, "plain", {2: b"p"}),
            ],
        },
        {
            "responses": [
                answer(version, "orders", {1: (50, 0), 0: (-1, 6)}),
                answer(version, "plain", {2: (7, 0)}),
            ]
        },
        version=version,
    )

    seen = await call(
        context, PRODUCE, version,
        request(topic("orders", {5: b"five", 2: b"two"}), topic("plain", {2: b"p"})),
    )  # fmt: skip

    check(
        {
            "responses": [
                answer(version, "orders", {5: (50, 0), 2: (-1, 6)}),
                answer(version, "plain", {2: (7, 0)}),
            ]
        },
        seen,
    )
    assert context.events == ["send Produce", "release"]


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_lanes_of_one_partition_go_in_turns(version) -> None:
    """A broker takes one batch per partition and request; all are sent before the first answer."""
    context = FakeContext()
    for records, offset in ((b"a", 10), (b"b", 11)):
        context.expect(
            PRODUCE,
            {"topic_data": [wants(version, "orders", {0: records})]},
            {"responses": [answer(version, "orders", {0: (offset, 0)})]},
        )

    seen = await call(context, PRODUCE, version, request(topic("orders", {0: b"a", 4: b"b"})))

    check({"responses": [answer(version, "orders", {0: (10, 0), 4: (11, 0)})]}, seen)
    assert context.events == ["send Produce", "send Produce", "release"]


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_a_lane_name(version) -> None:
    """The broker gets the topic's own name or id."""
    context = FakeContext()
    view = context.lanes("plain.lanes-2")
    context.expect(
        PRODUCE,
        {"topic_data": [wants(version, "plain", {1: b"x"})]},
        {"responses": [answer(version, "plain", {1: (4, 0)})]},
    )

    seen = await call(
        context, PRODUCE, version, request(topic("plain.lanes-2", {4: b"x"}, view.view_id))
    )

    expected = {
        **answer(version, "plain", {4: (4, 0)}), **named(version, "plain.lanes-2", view.view_id)
    }  # fmt: skip
    check({"responses": [expected]}, seen)


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_lanes_out_of_range(version) -> None:
    """They are refused; the others are written. Alone, nothing is sent."""
    context = FakeContext()
    context.expect(
        PRODUCE,
        {"topic_data": [wants(version, "orders", {1: b"x"})]},
        {"responses": [answer(version, "orders", {1: (4, 0)})]},
    )

    mixed = await call(context, PRODUCE, version, request(topic("orders", {8: b"w", 1: b"x"})))
    alone = await call(context, PRODUCE, version, request(topic("orders", {-1: b"w"})))

    check({"responses": [answer(version, "orders", {8: (-1, 3), 1: (4, 0)})]}, mixed)
    check({"responses": [answer(version, "orders", {-1: (-1, 3)})]}, alone)


@pytest.mark.parametrize("version", range(10, 14))
async def test_new_leaders_are_reached_through_keylane(version) -> None:
    """Of lanes and of relayed topics alike."""
    endpoint = {"node_id": 2, "host": "kafka2", "port": 9092, "rack": "r"}
    for name in ("orders", "plain"):
        context = FakeContext()
        moved = {"responses": [answer(version, name, {0: (-1, 6)})], "node_endpoints": [endpoint]}
        context.expect(PRODUCE, None, moved)

        seen = await call(context, PRODUCE, version, request(topic(name, {0: b"x"})))

        own = {**endpoint, "host": "lane.example", "port": 20_002}
        check({"node_endpoints": [own]}, seen)


def batch(sequence: int) -> bytes:
    """An idempotent producer's batch of one record."""
    record = Record(0, b"k", b"v")
    return write_batch(
        Batch(0, (record,), producer_id=4000, producer_epoch=0, base_sequence=sequence)
    )


def sequence_of(sent: dict[str, Any]) -> int:
    """The number that the broker saw."""
    records = sent["topic_data"][0]["partition_data"][0]["records"]
    found = read_batch_header(records, 0)
    assert found is not None
    return found[0].base_sequence


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_an_idempotent_producer_is_numbered_per_partition(version) -> None:
    """Two lanes start at 0 each; the partition sees one row of numbers, and waits for answers."""
    context = FakeContext()

    def expect(offset: int) -> None:
        context.expect(PRODUCE, None, {"responses": [answer(version, "orders", {0: (offset, 0)})]})

    expect(0)
    expect(1)
    both = request(topic("orders", {0: batch(0), 2: batch(0)}))
    seen = await call(context, PRODUCE, version, both)
    expect(2)

    await call(context, PRODUCE, version, request(topic("orders", {0: batch(1)})))

    check({"responses": [answer(version, "orders", {0: (0, 0), 2: (1, 0)})]}, seen)
    sequences = list(map(sequence_of, context.world.sent))
    assert [number - sequences[0] for number in sequences] == [0, 1, 2]
    assert "release" not in context.events


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_a_retry_that_was_written_is_not_written_twice(version) -> None:
    """What is known to be in the log is answered from memory with its offset."""
    context = FakeContext()
    context.expect(PRODUCE, None, {"responses": [answer(version, "orders", {0: (10, 0)})]})
    asked = request(topic("orders", {0: batch(0)}))
    first = await call(context, PRODUCE, version, asked)

    again = await call(context, PRODUCE, version, asked)

    check({"responses": first["responses"]}, again)
