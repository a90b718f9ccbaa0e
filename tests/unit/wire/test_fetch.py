"""Fetch v4 to v18: every field against kio, tags kept, records as views."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from keylane.errors import FrameInvalid
from keylane.keyrange.space import KeyRange
from keylane.wire.extensions import KEY_RANGES, write_key_ranges
from keylane.wire.fetch import (
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicAnswer,
    ForgottenTopic,
    fetch_response_tail,
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_request, read_response
from keylane.wire.primitives import write_tags
from tests.fuzz.entities import random_request_body, random_response, random_response_body

VERSIONS = range(4, 19)
TOPIC_ID = uuid.UUID(int=7).bytes
UNKNOWN_TAG = write_tags({99: b"later"})


def keyed(version: int) -> dict[str, str | bytes | None]:
    """What names a topic in this version."""
    named = version < 13
    return {"name": "orders" if named else None, "topic_id": None if named else TOPIC_ID}


def make_request(version: int) -> FetchRequest:
    return FetchRequest(
        version=version,
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=52_428_800,
        isolation_level=1,
        session_id=5 if version >= 7 else 0,
        session_epoch=2 if version >= 7 else -1,
        topics=(
            FetchTopic(
                **keyed(version),  # type: ignore[arg-type]
                partitions=(
                    FetchPartition(
                        partition=3,
                        current_leader_epoch=9 if version >= 9 else -1,
                        fetch_offset=1234,
                        last_fetched_epoch=8 if version >= 12 else -1,
                        log_start_offset=17 if version >= 5 else -1,
                        partition_max_bytes=1_048_576,
                    ),
                ),
            ),
        ),
        forgotten=(
            (ForgottenTopic(**keyed(version), partitions=(1, 2)),)  # type: ignore[arg-type]
            if version >= 7
            else ()
        ),
        rack_id="r1" if version >= 11 else "",
    )


def make_response(version: int, records: tuple[bytes, ...] | None) -> FetchResponse:
    return FetchResponse(
        throttle_ms=3,
        error_code=0,
        session_id=5 if version >= 7 else 0,
        topics=(
            FetchTopicAnswer(
                **keyed(version),  # type: ignore[arg-type]
                partitions=(
                    FetchAnswer(
                        partition=3,
                        error_code=0,
                        high_watermark=100,
                        last_stable_offset=90,
                        log_start_offset=10 if version >= 5 else -1,
                        aborted=((7, 55), (8, 66)),
                        preferred_read_replica=4 if version >= 11 else -1,
                        records=records,
                    ),
                ),
            ),
        ),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_kios_requests_read_and_write_back_the_same(version: int) -> None:
    """100 random requests of kio per version come out as the bytes that went in."""
    bodies = [random_request_body(ApiKey.FETCH, version, seed) for seed in range(100)]

    written = [write_fetch_request(read_fetch_request(body, 0, version)) for body in bodies]

    assert written == bodies


@pytest.mark.parametrize("version", VERSIONS)
def test_kios_responses_read_and_write_back_the_same(version: int) -> None:
    """100 random responses of kio per version come out as the bytes that went in."""
    bodies = [random_response_body(ApiKey.FETCH, version, seed) for seed in range(100)]

    responses = [read_fetch_response(body, 0, version) for body in bodies]

    assert [b"".join(write_fetch_response(r, version)) for r in responses] == bodies


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_has_kios_fields(version: int) -> None:
    """kio reads from our bytes every value we put in."""
    request = make_request(version)

    entity = read_request(ApiKey.FETCH, version, memoryview(write_fetch_request(request)))

    topic, partition = entity.topics[0], entity.topics[0].partitions[0]
    assert (topic.topic == "orders") if version < 13 else (topic.topic_id.bytes == TOPIC_ID)
    assert (entity.min_bytes, entity.max_bytes, entity.isolation_level) == (1, 52_428_800, 1)
    assert entity.max_wait.total_seconds() == 0.5
    assert (partition.partition, partition.fetch_offset) == (3, 1234)
    assert partition.partition_max_bytes == 1_048_576
    if version >= 5:
        assert partition.log_start_offset == 17
    if version >= 7:
        assert (entity.session_id, entity.session_epoch) == (5, 2)
        assert entity.forgotten_topics_data[0].partitions == (1, 2)
    if version >= 9:
        assert partition.current_leader_epoch == 9
    if version >= 11:
        assert entity.rack_id == "r1"
    if version >= 12:
        assert partition.last_fetched_epoch == 8


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_has_kios_fields(version: int) -> None:
    """kio reads from our buffers every value we put in, records joined."""
    response = make_response(version, (b"first", b"", b"x" * 5000, b"last"))

    body = b"".join(write_fetch_response(response, version))
    entity = read_response(ApiKey.FETCH, version, memoryview(body))

    answer = entity.responses[0].partitions[0]
    assert (answer.partition_index, answer.high_watermark) == (3, 100)
    assert answer.last_stable_offset == 90
    assert [(t.producer_id, t.first_offset) for t in answer.aborted_transactions] == [
        (7, 55),
        (8, 66),
    ]
    assert answer.records == b"first" + b"x" * 5000 + b"last"
    if version >= 5:
        assert answer.log_start_offset == 10
    if version >= 7:
        assert entity.session_id == 5
    if version >= 11:
        assert answer.preferred_read_replica == 4


@pytest.mark.parametrize("version", VERSIONS)
def test_null_and_empty_records_stay_apart(version: int) -> None:
    """None is written as null and read as None; no piece is written as empty."""
    for records, expected in ((None, None), ((), (b"",))):
        body = b"".join(write_fetch_response(make_response(version, records), version))

        answer = read_fetch_response(body, 0, version).topics[0].partitions[0]

        assert answer.records == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_behind_a_header_reads_from_its_position(version: int) -> None:
    """Bytes before the position do not matter."""
    request = make_request(version)

    frame = b"header" + write_fetch_request(request)

    assert read_fetch_request(frame, 6, version) == request


@pytest.mark.parametrize("version", [12, 13, 15, 16, 17, 18])
def test_unknown_tags_of_a_request_are_kept(version: int) -> None:
    """Tag 99 of a partition, a topic, a forgotten topic and the request comes back."""
    request = make_request(version)
    topic, gone = request.topics[0], request.forgotten[0]
    partition = topic.partitions[0]._replace(tags=UNKNOWN_TAG)
    tagged = replace(
        request,
        topics=(topic._replace(partitions=(partition, partition), tags=UNKNOWN_TAG),),
        forgotten=(gone._replace(tags=UNKNOWN_TAG),),
        tags=UNKNOWN_TAG,
    )

    assert read_fetch_request(write_fetch_request(tagged), 0, version) == tagged


@pytest.mark.parametrize("version", [11, 12, 15, 17])
def test_a_request_says_whether_it_has_tags(version: int) -> None:
    """At any level of those that have some; without one, and before v12, it has none."""
    request = make_request(version)
    topic, gone = request.topics[0], request.forgotten[0]
    partition = topic.partitions[0]._replace(tags=UNKNOWN_TAG)
    places: list[dict[str, Any]] = [
        {"topics": (topic._replace(partitions=(*topic.partitions, partition)),)},
        {"topics": (topic._replace(tags=UNKNOWN_TAG),)},
        {"forgotten": (gone._replace(tags=UNKNOWN_TAG),)},
        {"tags": UNKNOWN_TAG},
    ]

    read = [
        read_fetch_request(write_fetch_request(replace(request, **place)), 0, version).is_tagged
        for place in ({"tags": b"\0"}, *places)
    ]

    assert read == [False, *(version >= 12 for _ in places)]


KEY_RANGE_ENTRY = (
    "00000003 00000007 00000000000003e8 ffffffff ffffffffffffffff 00100000"
    "01 914e 21 03 0000000000000000 1fffffffffffffff 4000000000000000 7fffffffffffffff"
)
"""Partition 3 from offset 1000 on, of the keys in the first quarter and the second half of the hash
space: two ranges, in a section of one tagged field, number 10001, of 33 bytes."""
KEY_RANGE_BODIES = {
    12: "ffffffff 000001f4 00000001 00100000 00 00000000 ffffffff 02 07 6f7264657273 02"
    + KEY_RANGE_ENTRY
    + "00 01 01 00",
    17: "000001f4 00000001 00100000 00 00000000 ffffffff 02 000102030405060708090a0b0c0d0e0f 02"
    + KEY_RANGE_ENTRY
    + "00 01 01 00",
}
"""The bodies in docs/protocol-extensions.md."""


@pytest.mark.parametrize("version", KEY_RANGE_BODIES)
def test_key_ranges_are_these_bytes(version: int) -> None:
    """A consumer's fetch of one partition by two key ranges, both ways."""
    ranges = [KeyRange(0, 2**61 - 1), KeyRange(2**62, 2**63 - 1)]
    tags = write_tags({KEY_RANGES: write_key_ranges(ranges)})
    is_named = version < 13
    wanted = FetchRequest(
        version=version,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=(
            FetchTopic(
                "orders" if is_named else None,
                None if is_named else bytes(range(16)),
                (FetchPartition(3, 7, 1000, -1, -1, 1 << 20, tags),),
            ),
        ),
    )
    body = bytes.fromhex(KEY_RANGE_BODIES[version])

    assert write_fetch_request(wanted) == body
    assert read_fetch_request(body, 0, version) == wanted


@pytest.mark.parametrize("version", [12, 13, 16, 18])
def test_unknown_tags_of_a_response_are_kept(version: int) -> None:
    """Tag 99 of a partition, a topic and the response comes back."""
    response = make_response(version, (b"records",))
    topic = response.topics[0]
    partition = topic.partitions[0]._replace(tags=UNKNOWN_TAG)
    tagged = replace(
        response,
        topics=(topic._replace(partitions=(partition,), tags=UNKNOWN_TAG),),
        tags=UNKNOWN_TAG,
    )

    body = b"".join(write_fetch_response(tagged, version))

    assert read_fetch_response(body, 0, version) == tagged


@pytest.mark.parametrize("version", [4, 12, 17])
def test_records_are_views_of_the_frame(version: int) -> None:
    """A byte changed in the frame changes in the records: nothing was copied."""
    frame = bytearray(b"".join(write_fetch_response(make_response(version, (b"#" * 99,)), version)))
    records = read_fetch_response(frame, 0, version).topics[0].partitions[0].records
    assert records is not None

    frame[frame.index(b"#")] = ord("!")

    assert bytes(records[0][:2]) == b"!#"


def test_large_pieces_are_written_by_reference() -> None:
    """A piece of 1 MiB is in the buffers as the object that was given."""
    piece = bytes(1 << 20)

    buffers = write_fetch_response(make_response(17, (piece,)), 17)

    assert any(buffer is piece for buffer in buffers)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tail_is_where_the_top_level_tags_start(version: int) -> None:
    """What follows the tail is the tagged fields section, empty before v12."""
    for seed in range(50):
        body = random_response_body(ApiKey.FETCH, version, seed)
        expected = read_fetch_response(body, 0, version).tags if version >= 12 else b""

        tail = fetch_response_tail(body, 0, version)

        assert body[tail:] == expected


@pytest.mark.parametrize("version", [3, 19, -1])
def test_an_unknown_version_is_refused(version: int) -> None:
    """FrameInvalid for versions below 4 and above 18, whatever the function."""
    with pytest.raises(FrameInvalid, match="not known"):
        read_fetch_request(b"", 0, version)
    with pytest.raises(FrameInvalid, match="not known"):
        read_fetch_response(b"", 0, version)
    with pytest.raises(FrameInvalid, match="not known"):
        fetch_response_tail(b"", 0, version)
    with pytest.raises(FrameInvalid, match="not known"):
        write_fetch_request(replace(make_request(4), version=version))
    with pytest.raises(FrameInvalid, match="not known"):
        write_fetch_response(FetchResponse(topics=()), version)


def test_bytes_behind_the_message_are_refused() -> None:
    """A request with one byte more is not a request."""
    body = write_fetch_request(make_request(17)) + b"\x00"

    with pytest.raises(FrameInvalid, match="follow"):
        read_fetch_request(body, 0, 17)


def test_a_tail_that_is_missing_is_refused() -> None:
    """A response cut in a partition or before its tags has no tail."""
    body = b"".join(write_fetch_response(make_response(17, (b"r" * 50,)), 17))

    for end in range(len(body)):
        with pytest.raises(FrameInvalid):
            fetch_response_tail(body[:end], 0, 17)


def test_random_responses_of_kio_hold_views_of_the_right_size() -> None:
    """Record sizes equal those of the entity that kio wrote."""
    entity = random_response(ApiKey.FETCH, 17, 4)
    expected = [len(p.records or b"") for t in entity.responses for p in t.partitions]

    response = read_fetch_response(random_response_body(ApiKey.FETCH, 17, 4), 0, 17)

    sizes = [sum(map(len, p.records or ())) for t in response.topics for p in t.partitions]
    assert sizes == expected
