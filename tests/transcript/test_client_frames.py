"""Frames of stock clients, as they were recorded: understood, and passed up as they came.

`client_frames.txt` holds a request and a broker's answer per client, API, version and shape; it
is made by `tests.long.record_clients` (Kafka 4.3.1, its Java clients, librdkafka 2.16.1, aiokafka
0.14, kafka-python 3.0, franz-go 1.22, sarama 1.61, KafkaJS 2.2).
"""

from __future__ import annotations

import base64
import random
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keylane.proxy.apis import ROUTES
from keylane.proxy.apis.shared.request import Request
from keylane.wire.entities import UNKNOWN
from keylane.wire.extensions import FEATURE, FEATURE_VERSION
from keylane.wire.fetch import (
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from keylane.wire.header import (
    ApiKey,
    find_response_body,
    read_request_header,
    response_body_position,
)
from keylane.wire.messages import read_request, read_response, write_message
from keylane.wire.primitives import write_tags
from keylane.wire.produce import (
    read_produce_request,
    read_produce_response,
    write_produce_request,
    write_produce_response,
)
from tests.fuzz.unknown_tags import with_unknown_tags
from tests.transcript.entities import plain
from tests.transcript.fake import CORRELATION_ID, FakeContext, serve

FRAMES = Path(__file__).parent / "client_frames.txt"
CLIENTS = {"java", "librdkafka", "aiokafka", "kafka-python", "franz-go", "sarama", "kafkajs"}
METADATA = 3
TOPIC_IDS = 10
FEATURES_FROM = 3

"""From this version on offsets are asked for by topic id."""


class Recorded(NamedTuple):
    """One request and its answer, without their sizes."""

    client: str
    api_key: int
    version: int
    request: bytes
    answer: bytes

    @property
    def body(self) -> bytes:
        """The request behind its header."""
        return self.request[read_request_header(self.request).body_position :]

    @property
    def answer_body(self) -> bytes:
        """The answer behind its header."""
        return self.answer[response_body_position(self.api_key, self.version) :]


def _read() -> list[Recorded]:
    found = []
    for line in FRAMES.read_text().splitlines():
        client, key, version, request, answer = line.split(" ")
        frames = base64.b64decode(request), base64.b64decode(answer)
        found.append(Recorded(client, int(key), int(version), *frames))
    return found


RECORDED = _read()
EACH = pytest.mark.parametrize(
    "one", RECORDED, ids=lambda one: f"{one.client}-{ApiKey(one.api_key).name}-v{one.version}"
)


def test_all_clients_are_recorded() -> None:
    """A file that was made anew lacks no client, and has what no other test asks so."""
    assert {one.client for one in RECORDED} == CLIENTS

    assert {1, 2, 3, 8, 9, 10, 11, 14, 18, 28, 68} <= {one.api_key for one in RECORDED}


def _written(one: Recorded) -> tuple[bytes, bytes]:
    """Request and answer, decoded and encoded again."""
    key, version = one.api_key, one.version
    if key == ApiKey.FETCH:
        request = write_fetch_request(read_fetch_request(one.body, 0, version))
        answer = write_fetch_response(read_fetch_response(one.answer_body, 0, version), version)
        return request, b"".join(answer)
    if key == ApiKey.PRODUCE:
        request = b"".join(write_produce_request(read_produce_request(one.body, 0, version)))
        answer = write_produce_response(read_produce_response(one.answer_body, 0, version), version)
        return request, b"".join(answer)
    body, answer_body = memoryview(one.body), memoryview(one.answer_body)
    return (
        write_message(read_request(key, version, body)),
        write_message(read_response(key, version, answer_body)),
    )


@EACH
def test_a_frame_is_understood(one) -> None:
    """Decoded and encoded again a request and its answer are the same bytes."""
    request, answer = _written(one)

    left_over = one.body[len(request) :]
    assert (request, answer) == (one.body[: len(request)], one.answer_body)
    # librdkafka sends bytes behind its question for all topics, at which brokers do not look.
    assert not left_over or (one.client, one.api_key) == ("librdkafka", METADATA)


@EACH
async def test_a_frame_goes_up_as_it_came(one) -> None:
    """The broker gets the client's bytes; its answer changes in addresses and versions only."""
    await _assert_passes(one, one.body, one.answer_body)


@EACH
async def test_unknown_tagged_fields_pass(one) -> None:
    """A client and a broker newer than keylane: each struct, and both headers, have some more."""
    key, version, rng = one.api_key, one.version, random.Random(len(one.request))
    request = read_request(key, version, memoryview(one.body))
    answer = read_response(key, version, memoryview(one.answer_body))
    tags = write_tags({99: b"of the header", 5: b""}) if request.__flexible__ else b""

    await _assert_passes(
        one,
        write_message(with_unknown_tags(request, rng)),
        write_message(with_unknown_tags(answer, rng)),
        request_tags=tags,
        answer_tags=b"" if key == ApiKey.API_VERSIONS else tags,
    )


async def _assert_passes(
    one: Recorded,
    body: bytes,
    answer_body: bytes,
    *,
    request_tags: bytes = b"",
    answer_tags: bytes = b"",
) -> None:
    head = one.request[: read_request_header(one.request).body_position]
    header = head[:-1] + request_tags if request_tags else head
    frame = bytearray(struct.pack(">i", len(header) + len(body)) + header + body)
    struct.pack_into(">i", frame, 8, CORRELATION_ID)
    request = Request(read_request_header(memoryview(frame)[4:]), bytes(frame))
    context = FakeContext()
    _learn_topics(context, one)
    _learn_member(context, one)
    context.expect(one.api_key, body, answer_body, version=one.version)
    context.world.answer_tags = answer_tags

    answer = await serve(context, request)

    assert one.api_key in ROUTES
    seen = answer[find_response_body(answer, 4, one.api_key, one.version) :]
    assert answer[8 : len(answer) - len(seen)] == (
        answer_tags or answer[8 : 4 + response_body_position(one.api_key, one.version)]
    )
    if one.api_key in (ApiKey.FETCH, ApiKey.PRODUCE):
        assert seen == answer_body
        return
    reported = plain(read_response(one.api_key, one.version, memoryview(answer_body)))
    shown = plain(request.decode_answer(answer))
    if one.api_key == ApiKey.API_VERSIONS:
        served = {entry["api_key"]: entry for entry in reported["api_keys"]}
        for entry in shown["api_keys"]:
            assert entry.get(UNKNOWN) == served[entry["api_key"]].get(UNKNOWN)
        del shown["api_keys"], reported["api_keys"]
        if one.version >= FEATURES_FROM:
            own = {"name": FEATURE, "min_version": FEATURE_VERSION, "max_version": FEATURE_VERSION}
            assert shown["supported_features"].pop() == own
    assert _without_addresses(shown) == _without_addresses(reported)


def _learn_topics(context: FakeContext, one: Recorded) -> None:
    """The topics that offsets are asked of by their ids are known, and have no lanes."""
    if one.api_key not in (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH) or one.version < TOPIC_IDS:
        return
    request = read_request(one.api_key, one.version, memoryview(one.body))
    answer = read_response(one.api_key, one.version, memoryview(one.answer_body))
    for said in (request, answer):
        for group in getattr(said, "groups", (said,)):
            for topic in group.topics or ():
                context.registry.learn(f"recorded-{topic.topic_id}", topic.topic_id, 3)


def _learn_member(context: FakeContext, one: Recorded) -> None:
    """A member that has joined before is known to read no lanes."""
    if one.api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
        said = read_request(one.api_key, one.version, memoryview(one.body))
        context.consumer_groups.note_plain(str(said.group_id), str(said.member_id))


def _without_addresses(value: Any) -> Any:
    """The answer without hosts and ports."""
    if isinstance(value, dict):
        hidden = ("host", "port")
        return {key: _without_addresses(item) for key, item in value.items() if key not in hidden}
    return [_without_addresses(item) for item in value] if isinstance(value, list) else value
