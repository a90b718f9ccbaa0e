"""kio behind its guard: every API reads, and no lie about a length reaches kio."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.metadata.v12.request import MetadataRequest

from keylane.errors import FrameInvalid
from keylane.wire.header import ApiKey
from keylane.wire.messages import entity_check, read_request, read_response, write_message
from keylane.wire.primitives import write_tags
from tests.fuzz.entities import known_versions, random_request, random_response

KNOWN = known_versions()


@pytest.mark.parametrize("seed", range(3))
def test_every_request_reads_as_it_was_written(seed: int) -> None:
    """Random entities of every API and version equal what is read from their bytes."""
    for known in KNOWN:
        entity = random_request(*known, seed)

        assert read_request(*known, memoryview(write_message(entity))) == entity


@pytest.mark.parametrize("seed", range(3))
def test_every_response_reads_as_it_was_written(seed: int) -> None:
    """The same for responses."""
    for known in KNOWN:
        entity = random_response(*known, seed)

        assert read_response(*known, memoryview(write_message(entity))) == entity


def test_every_cut_message_is_refused() -> None:
    """FrameInvalid for a message without its last byte, in every API and version."""
    for known in KNOWN:
        body = write_message(random_request(*known, 1))
        if body:
            with pytest.raises(FrameInvalid):
                read_request(*known, memoryview(body)[:-1])


def test_bytes_behind_a_message_are_refused() -> None:
    """One byte more, in every API and version."""
    for known in KNOWN:
        body = write_message(random_response(*known, 1)) + b"\x00"

        with pytest.raises(FrameInvalid, match="left over"):
            read_response(*known, memoryview(body))


def test_what_librdkafka_leaves_behind_metadata_is_passed_over() -> None:
    """Its request for all topics, as librdkafka 2.16 sends it: three bytes too long, no more."""
    sent = b"\x00\x00\x00\x00\x01\x00\x00"

    assert read_request(ApiKey.METADATA, 13, memoryview(sent)).topics is None
    with pytest.raises(FrameInvalid, match="left over"):
        read_request(ApiKey.METADATA, 13, memoryview(sent + b"\x00"))


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xff\xff\xff\x07",
        b"\xff\xff\xff\xff\xff\x01",
        b"\x80",
        b"\x02",
        b"\x02" + bytes(16) + b"\x7f",
    ],
    ids=["topics beyond the end", "endless varint", "open varint", "no topic", "long name"],
)
def test_a_lie_about_a_length_never_reaches_kio(body: bytes) -> None:
    """FrameInvalid from the guard: kio would reserve the memory at once."""
    with pytest.raises(FrameInvalid):
        entity_check(MetadataRequest)(memoryview(body), 0, len(body))


def test_an_unknown_tag_is_kept() -> None:
    """kio drops what it does not know; here it stays when another field is changed."""
    body = write_message(random_request(ApiKey.METADATA, 12, 1))[:-1] + write_tags({77: b"x"})

    entity = read_request(ApiKey.METADATA, 12, memoryview(body))

    assert write_message(entity) == body
    changed = write_message(replace(entity, topics=None))
    assert changed.startswith(b"\x00")
    assert changed.endswith(write_tags({77: b"x"}))


def test_a_tag_of_the_wrong_length_is_refused() -> None:
    """A known tagged field has to fill its size."""
    replica_state = write_tags({1: bytes(12) + b"\x00\x00"})

    with pytest.raises(FrameInvalid, match="wrong length"):
        read_request(ApiKey.FETCH, 17, memoryview(b"\x00" * 21 + b"\x01\x01\x01" + replica_state))


def test_a_time_before_1970_is_kept() -> None:
    """A timestamp of -2 in CreateDelegationToken's answer; found by fuzzing."""
    body = bytearray(write_message(random_response(ApiKey.CREATE_DELEGATION_TOKEN, 1, 1)))
    times = body.index(b"\x00\x00\x01")
    body[times : times + 8] = b"\xff" * 7 + b"\xfe"

    entity = read_response(ApiKey.CREATE_DELEGATION_TOKEN, 1, memoryview(body))

    assert write_message(entity) == body


def test_a_code_without_a_name_is_kept() -> None:
    """An error code that Kafka does not have yet is a number, and passes."""
    body = bytearray(write_message(random_response(ApiKey.HEARTBEAT, 0, 1)))
    body[-2:] = b"\x7f\xff"

    entity = read_response(ApiKey.HEARTBEAT, 0, memoryview(body))

    assert (entity.error_code, entity.error_code.name) == (0x7FFF, "error_32767")
    assert write_message(entity) == body


def test_a_message_in_a_writable_buffer_is_read() -> None:
    """Large frames are in one, such as what the leader of a group of 1,000 is answered."""
    request = MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    body = bytearray(write_message(request))

    assert read_request(ApiKey.METADATA, 12, memoryview(body)) == request
