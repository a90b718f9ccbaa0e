"""What the tap of the chaos runs sees in the frames of one connection."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema

from keylane.wire.fetch import (
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicAnswer,
    write_fetch_request,
    write_fetch_response,
)
from keylane.wire.header import write_request
from keylane.wire.messages import write_message
from tests.long.chaos_history import Answer, Commit, Event, Fetched, OutOfRange, Place, Reset
from tests.long.tap import FrameCutter
from tests.long.tap_frames import TapBook
from tests.reference.response_frame import write_response
from tests.transcript.entities import build

TOPIC_ID = bytes(range(16))
COMMIT, FETCHING, LISTING, METADATA, POSITIONS = 8, 1, 2, 3, 9
LANES = [Place("t", 0), Place("t", 5)]


class Wire:
    """A book with one connection, and all that it noted."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, Event]] = []
        book = TapBook(
            lambda owner, event: self.noted.append((owner, event)),
            lambda name: name.partition(".lanes-")[0] if name.startswith("t") else None,
        )
        self.connection, self.at_s, self._number = book.open(), 0.0, 0

    def ask(self, key: int, version: int, body: bytes) -> int:
        self._number += 1
        self.at_s += 1
        frame = write_request(key, version, self._number, "member", body)
        self.connection.asked(frame[4:], self.at_s)
        return self._number

    def answer(self, number: int, key: int, version: int, body: Any) -> None:
        self.at_s += 1
        frame = b"".join(map(bytes, write_response(key, version, number, body)))
        self.connection.answered(frame[4:], self.at_s)

    def call(self, key: int, version: int, asked: dict[str, Any], reported: dict[str, Any]) -> None:
        body = write_message(build(load_request_schema(key, version), asked))
        answer = write_message(build(load_response_schema(key, version), reported))
        self.answer(self.ask(key, version, body), key, version, [answer])

    def learn_ids(self) -> None:
        topic = {"name": "t.lanes-4", "topic_id": _uuid(), "partitions": []}
        self.call(METADATA, 12, {"topics": None}, {"topics": [topic], "brokers": []})


def _uuid() -> Any:
    from uuid import UUID

    return UUID(bytes=TOPIC_ID)


def lanes(**by_lane: Any) -> list[dict[str, Any]]:
    return [{"partition_index": int(lane[1:]), **values} for lane, values in by_lane.items()]


@pytest.mark.parametrize("version", [2, 7, 9, 10])
def test_commits_are_noted_with_their_outcome(version) -> None:
    """By lane: offset, generation, both times, and the error of a refused one."""
    wire = Wire()
    wire.learn_ids()
    topic = {"name": "t.lanes-4"} if version < 10 else {"topic_id": _uuid()}
    asked = lanes(_0={"committed_offset": 7}, _5={"committed_offset": 9})
    reported = lanes(_0={"error_code": 0}, _5={"error_code": 22})

    wire.call(
        COMMIT,
        version,
        {
            "group_id": "g",
            "generation_id_or_member_epoch": 3,
            "member_id": "m",
            "topics": [{**topic, "partitions": asked}],
        },
        {"topics": [{**topic, "partitions": reported}]},
    )

    assert wire.noted == [
        ("g", Commit("member", LANES[0], 7, 3, 3.0, 4.0, 0)),
        ("g", Commit("member", LANES[1], 9, 3, 3.0, 4.0, 22)),
    ]


def test_a_commit_without_an_answer_is_noted_at_the_end() -> None:
    """The connection closes: its outcome stays open."""
    wire = Wire()
    body = {
        "group_id": "g",
        "generation_id_or_member_epoch": 3,
        "member_id": "m",
        "topics": [{"name": "t", "partitions": lanes(_0={"committed_offset": 7})}],
    }

    wire.ask(COMMIT, 7, write_message(build(load_request_schema(COMMIT, 7), body)))
    wire.connection.closed()

    assert wire.noted == [("g", Commit("member", LANES[0], 7, 3, 1.0, inf, 0))]


@pytest.mark.parametrize("version", [5, 7])
def test_answers_of_one_group_are_noted(version) -> None:
    """Lanes that were answered without an error are noted; other topics are not looked at."""
    wire = Wire()
    reported = lanes(_0={"committed_offset": 7}, _5={"committed_offset": -1, "error_code": 14})

    wire.call(
        POSITIONS,
        version,
        {"group_id": "g", "topics": None},
        {
            "topics": [
                {"name": "t", "partitions": reported},
                {"name": "other", "partitions": lanes(_0={"committed_offset": 1})},
            ]
        },
    )

    assert wire.noted == [("g", Answer("member", LANES[0], 7, 1.0, 2.0))]


@pytest.mark.parametrize("version", [8, 9, 10])
def test_answers_of_many_groups_are_noted(version) -> None:
    """By group; a group with an error has said nothing."""
    wire = Wire()
    wire.learn_ids()
    topic = {"name": "t"} if version < 10 else {"topic_id": _uuid()}
    topics = [{**topic, "partitions": lanes(_0={"committed_offset": 7})}]

    wire.call(
        POSITIONS,
        version,
        {"groups": []},
        {
            "groups": [
                {"group_id": "g", "topics": topics},
                {"group_id": "h", "topics": topics, "error_code": 15},
            ]
        },
    )

    assert wire.noted == [("g", Answer("member", LANES[0], 7, 3.0, 4.0))]


def test_a_reset_is_noted_when_it_is_asked() -> None:
    """ListOffsets leads a member to an end of the log."""
    wire = Wire()

    wire.call(
        LISTING,
        5,
        {"topics": [{"name": "t", "partitions": lanes(_5={"timestamp": -2})}]},
        {"topics": []},
    )

    assert wire.noted == [("member", Reset("member", LANES[1], 1.0))]


@pytest.mark.parametrize("version", [11, 13])
def test_first_fetches_and_those_that_go_back_are_noted(version) -> None:
    """Going on is not; an answer to OffsetFetch begins anew; out of range is noted."""
    wire = Wire()
    wire.learn_ids()

    for offset, code in ((5, 0), (8, 0), (3, 1)):
        fetch(wire, version, offset, code)
    reported = lanes(_0={"committed_offset": 6})
    wire.call(POSITIONS, 7, {"group_id": "g"}, {"topics": [{"name": "t", "partitions": reported}]})
    fetch(wire, version, 6, 0)

    assert [event for _, event in wire.noted if not isinstance(event, Answer)] == [
        Fetched("member", LANES[0], 5, 3.0),
        Fetched("member", LANES[0], 3, 7.0),
        OutOfRange("member", LANES[0], 3, 8.0),
        Fetched("member", LANES[0], 6, 11.0),
    ]


def fetch(wire: Wire, version: int, offset: int, code: int) -> None:
    name, topic_id = ("t", None) if version < 13 else (None, TOPIC_ID)
    request = FetchRequest(
        version=version,
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=1,
        isolation_level=0,
        topics=(
            FetchTopic(
                name=name,
                topic_id=topic_id,
                partitions=(FetchPartition(0, -1, offset, -1, -1, 1),),
            ),
        ),
    )
    entry = FetchAnswer(0, code, 9, 9, 0, None, -1, None)
    answer = FetchResponse(
        topics=(FetchTopicAnswer(name=name, topic_id=topic_id, partitions=(entry,)),)
    )
    number = wire.ask(FETCHING, version, write_fetch_request(request))
    wire.answer(number, FETCHING, version, write_fetch_response(answer, version))


def test_frames_are_cut_wherever_the_bytes_come() -> None:
    """One byte at a time, or two frames at once."""
    stream = b"\0\0\0\2ab" + b"\0\0\0\0" + b"\0\0\0\1c"
    found: list[list[bytes]] = []

    for size in (1, len(stream)):
        taken: list[bytes] = []
        cutter = FrameCutter(taken.append)
        for start in range(0, len(stream), size):
            cutter.feed(stream[start : start + size])
        found.append(taken)

    assert found == [[b"ab", b"", b"c"]] * 2
