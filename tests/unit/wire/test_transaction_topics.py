"""Topics of transactions in a DescribeTransactions answer, whatever else it holds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from kio.index import load_response_schema

from keylane.errors import FrameInvalid
from keylane.wire.messages import read_response, write_message
from keylane.wire.transaction_topics import find_transaction_topics, with_partitions
from tests.transcript.entities import build

TRANSACTIONS = 65
START = datetime(2026, 1, 1, tzinfo=UTC)


def body(*states: list[tuple[str, list[int]]]) -> bytes:
    values = [
        {
            "transactional_id": f"t{number}",
            "transaction_state": "Ongoing",
            "transaction_start_time": START,
            "topics": [{"topic": name, "partitions": each} for name, each in topics],
        }
        for number, topics in enumerate(states)
    ]
    return write_message(
        build(load_response_schema(TRANSACTIONS, 0), {"transaction_states": values})
    )


def test_every_topic_of_every_transaction_is_found() -> None:
    """In the order of the answer; a transaction may have none."""
    places = find_transaction_topics(body([("a", [0, 1]), ("b", [])], [], [("a", [2])]))

    assert [(place.topic, place.partitions) for place in places] == [
        ("a", (0, 1)),
        ("b", ()),
        ("a", (2,)),
    ]


def test_other_partitions_are_put_in() -> None:
    """All else stays as it came."""
    before = body([("a", [0, 1]), ("b", [7])], [("a", [2])])
    places = find_transaction_topics(before)

    after = b"".join(with_partitions(before, [(places[0], range(200)), (places[2], ())]))

    assert after == body([("a", list(range(200))), ("b", [7])], [("a", [])])
    assert b"".join(with_partitions(before, [])) == before


def test_a_transaction_that_has_not_begun_is_read() -> None:
    """Its start is -1, which kio refuses."""
    begun = body([("a", [2])])
    start = begun.index((round(START.timestamp() * 1000)).to_bytes(8, "big"))
    waiting = begun[:start] + b"\xff" * 8 + begun[start + 8 :]

    places = find_transaction_topics(waiting)

    assert [place.partitions for place in places] == [(2,)]
    with pytest.raises(FrameInvalid, match="negative timestamp"):
        read_response(TRANSACTIONS, 0, memoryview(waiting))


def test_every_cut_of_an_answer_is_refused() -> None:
    """And bytes that follow it."""
    whole = body([("a", [0, 1])])

    for size in range(len(whole)):
        with pytest.raises(FrameInvalid):
            find_transaction_topics(whole[:size])
    with pytest.raises(FrameInvalid):
        find_transaction_topics(whole + b"\x00")
    with pytest.raises(FrameInvalid, match="items"):
        find_transaction_topics(b"\x00\x00\x00\x00\xff\xff\xff\xff\x07")
