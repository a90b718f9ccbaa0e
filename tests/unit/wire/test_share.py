"""ShareFetch and ShareAcknowledge v1 and v2: every field as kio has it, and lies are refused."""

from __future__ import annotations

import random
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import FrameInvalid
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_request, read_response, write_message
from keylane.wire.parts import NodeEndpoint
from keylane.wire.primitives import UVARINT_MAX, write_uvarint
from keylane.wire.share import (
    ACCEPT,
    RELEASE,
    RENEW,
    AckBatch,
    Acquired,
    ForgottenShareTopic,
    ShareAcknowledgeRequest,
    ShareAnswer,
    ShareFetchRequest,
    SharePartition,
    ShareResponse,
    ShareTopic,
    ShareTopicAnswer,
    read_share_acknowledge_request,
    read_share_acknowledge_response,
    read_share_fetch_request,
    read_share_fetch_response,
    write_share_acknowledge_request,
    write_share_acknowledge_response,
    write_share_fetch_request,
    write_share_fetch_response,
)
from tests.fuzz.entities import (
    random_request,
    random_response,
    random_response_body,
)
from tests.fuzz.unknown_tags import with_unknown_tags

FETCH, ACKNOWLEDGE = ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE
VERSIONS = st.sampled_from([1, 2])
SEEDS = st.integers(0, 2**64)
TOPIC_ID = uuid.UUID(int=7)
ACKS = (AckBatch(5, 7, bytes((ACCEPT,))), AckBatch(9, 10, bytes((RELEASE, RENEW))))
Read = Callable[[bytes], Any]


def readers(version: int) -> list[tuple[Read, bytes]]:
    """Each reader with a sound body that has an item in every array."""
    topics = (ShareTopic(None, TOPIC_ID.bytes, (SharePartition(3, ACKS),)),)
    forgotten = (ForgottenShareTopic(None, TOPIC_ID.bytes, (1,)),)
    fetch = ShareFetchRequest(group="g", member_id="m", epoch=4, topics=topics, forgotten=forgotten)
    acknowledge = ShareAcknowledgeRequest(group="g", member_id="m", epoch=4, topics=topics)
    response = make_response()
    return [
        (
            lambda body: read_share_fetch_request(body, 0, version),
            write_share_fetch_request(fetch, version),
        ),
        (
            lambda body: read_share_acknowledge_request(body, 0, version),
            write_share_acknowledge_request(acknowledge, version),
        ),
        (
            lambda body: read_share_fetch_response(body, 0),
            b"".join(write_share_fetch_response(response)),
        ),
        (
            lambda body: read_share_acknowledge_response(body, 0, version),
            b"".join(write_share_acknowledge_response(response, version)),
        ),
    ]


def make_response() -> ShareResponse:
    answer = ShareAnswer(
        3,
        error_code=6,
        error_message="moved",
        ack_error_code=121,
        ack_error_message="lost",
        leader_id=2,
        leader_epoch=8,
        records=(b"first", b"last"),
        acquired=(Acquired(5, 7, 1), Acquired(9, 9, 4)),
    )
    return ShareResponse(
        throttle_ms=3,
        lock_ms=30_000,
        topics=(ShareTopicAnswer(None, TOPIC_ID.bytes, (answer,)),),
        endpoints=(NodeEndpoint(2, "host", 9092, None),),
    )


def make_request(api_key: int, version: int, seed: int) -> Any:
    """A request of kio with the ids that its schema would let be null."""
    entity = random_request(api_key, version, seed)
    named = {"group_id": entity.group_id or "g", "member_id": entity.member_id or "m"}
    return replace(entity, **named)


@given(VERSIONS, SEEDS)
def test_requests_are_kios_byte_for_byte(version: int, seed: int) -> None:
    """A fetch and an acknowledgement of kio, read and written, are the bytes that they were."""
    fetch = write_message(make_request(FETCH, version, seed))
    acknowledge = write_message(make_request(ACKNOWLEDGE, version, seed))

    asked = read_share_fetch_request(fetch, 0, version)
    said = read_share_acknowledge_request(acknowledge, 0, version)

    assert write_share_fetch_request(asked, version) == fetch
    assert write_share_acknowledge_request(said, version) == acknowledge


@given(VERSIONS, SEEDS)
def test_responses_are_kios_byte_for_byte(version: int, seed: int) -> None:
    """The same for what brokers answer."""
    fetch = random_response_body(FETCH, version, seed)
    acknowledge = random_response_body(ACKNOWLEDGE, version, seed)

    fetched = read_share_fetch_response(fetch, 0)
    confirmed = read_share_acknowledge_response(acknowledge, 0, version)

    assert b"".join(write_share_fetch_response(fetched)) == fetch
    assert b"".join(write_share_acknowledge_response(confirmed, version)) == acknowledge


@given(VERSIONS, SEEDS)
def test_unknown_tagged_fields_are_passed_over(version: int, seed: int) -> None:
    """At every level, of requests and responses: the values are read as without them."""
    pairs: tuple[tuple[Any, Any, Any], ...] = (
        (make_request, FETCH, lambda b: read_share_fetch_request(b, 0, version)),
        (make_request, ACKNOWLEDGE, lambda b: read_share_acknowledge_request(b, 0, version)),
        (random_response, FETCH, lambda b: _without_tags(read_share_fetch_response(b, 0))),
        (
            random_response,
            ACKNOWLEDGE,
            lambda b: _without_tags(read_share_acknowledge_response(b, 0, version)),
        ),
    )
    for make, api_key, read in pairs:
        entity = make(api_key, version, seed)
        tagged = with_unknown_tags(entity, random.Random(seed), chance=1.0)

        found, expected = read(write_message(tagged)), read(write_message(entity))

        assert _topics_without_tags(found) == _topics_without_tags(expected)


def _without_tags(response: ShareResponse) -> Any:
    endpoints = [(e.node_id, e.host, e.port, e.rack) for e in response.endpoints]
    return endpoints, response.error_code, _topics_without_tags(response)


def _topics_without_tags(read: Any) -> Any:
    return [(t.topic_id, t.partitions) for t in read.topics] if hasattr(read, "topics") else read


@pytest.mark.parametrize("version", [1, 2])
def test_a_fetch_has_kios_fields(version: int) -> None:
    """kio reads from our bytes every value that we put in."""
    request = ShareFetchRequest(
        group="g",
        member_id="m",
        epoch=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1000,
        max_records=20,
        batch_size=10,
        acquire_mode=1 if version >= 2 else 0,
        is_renewal=version >= 2,
        topics=(ShareTopic(None, TOPIC_ID.bytes, (SharePartition(3, ACKS),)),),
        forgotten=(ForgottenShareTopic(None, TOPIC_ID.bytes, (1, 2)),),
    )

    entity = read_request(FETCH, version, memoryview(write_share_fetch_request(request, version)))

    assert (entity.group_id, entity.member_id, entity.share_session_epoch) == ("g", "m", -1)
    assert entity.max_wait.total_seconds() == 0.5
    assert (entity.min_bytes, entity.max_bytes) == (1, 1000)
    assert (entity.max_records, entity.batch_size) == (20, 10)
    if version >= 2:
        assert (entity.share_acquire_mode, entity.is_renew_ack) == (1, True)
    topic, partition = entity.topics[0], entity.topics[0].partitions[0]
    assert (topic.topic_id, partition.partition_index) == (TOPIC_ID, 3)
    batches = partition.acknowledgement_batches
    found = [(b.first_offset, b.last_offset, bytes(b.acknowledge_types)) for b in batches]
    assert found == [tuple(batch) for batch in ACKS]
    assert entity.forgotten_topics_data[0].partitions == (1, 2)


def test_a_fetch_answer_has_kios_fields() -> None:
    """Errors, the leader, records joined, ranges and brokers."""
    body = b"".join(write_share_fetch_response(make_response()))

    entity = read_response(FETCH, 2, memoryview(body))

    answer = entity.responses[0].partitions[0]
    assert (answer.error_code, answer.error_message) == (6, "moved")
    assert (answer.acknowledge_error_code, answer.acknowledge_error_message) == (121, "lost")
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (2, 8)
    assert answer.records == b"firstlast"
    ranges = [(r.first_offset, r.last_offset, r.delivery_count) for r in answer.acquired_records]
    assert ranges == [(5, 7, 1), (9, 9, 4)]
    assert entity.acquisition_lock_timeout.total_seconds() == 30
    assert (entity.node_endpoints[0].host, entity.node_endpoints[0].port) == ("host", 9092)


def test_records_are_views_of_the_frame() -> None:
    """A byte changed in the frame changes in the records: nothing was copied."""
    frame = bytearray(b"".join(write_share_fetch_response(make_response())))
    records = read_share_fetch_response(frame, 0).topics[0].partitions[0].records
    assert records is not None

    frame[frame.index(b"first")] = ord("!")

    assert bytes(records[0][:5]) == b"!irst"


@pytest.mark.parametrize(("name", "field"), [("group_id", "group"), ("member_id", "member_id")])
def test_a_null_id_is_an_empty_one(name: str, field: str) -> None:
    """The schema has it, and no broker serves it; of no ordered group, it goes to the broker."""
    entity = replace(make_request(FETCH, 2, 1), **{name: None})

    assert getattr(read_share_fetch_request(write_message(entity), 0, 2), field) == ""


@pytest.mark.parametrize("version", [1, 2])
def test_bodies_that_are_cut_or_go_on_are_refused(version: int) -> None:
    """Each shorter prefix, and one byte more."""
    for read, body in readers(version):
        read(body)
        for wrong in [*(body[:end] for end in range(len(body))), body + b"\x00"]:
            with pytest.raises(FrameInvalid):
                read(wrong)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("count", [200_000, UVARINT_MAX])
def test_counts_that_lie_take_no_memory(version: int, count: int) -> None:
    """Wherever a count far beyond the end stands; in a fixed number it is as good as another."""
    for read, body in readers(version):
        lies = [body[:n] + write_uvarint(count) + body[n + 1 :] for n in range(len(body))]
        refused = 0
        tracemalloc.start()
        for lie in lies:
            try:
                read(lie)
            except FrameInvalid:
                refused += 1
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert refused > len(body) // 2
        # A list of 200,000 entries takes 1.6 MB, what is read here 5 KB. What other threads take
        # meanwhile counts, too, and so does a trace that is logged for garbage of another test.
        assert peak_bytes < 1_000_000
