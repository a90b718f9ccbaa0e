"""Cut, mutated and lying bytes: every decoder raises FrameInvalid or reads, nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import BatchCorrupt, FrameInvalid
from keylane.producers.resequence import resequence
from keylane.wire.batch import read_batch_header
from keylane.wire.endpoints import read_endpoints, rewrite_brokers
from keylane.wire.fetch import (
    fetch_response_tail,
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from keylane.wire.header import ApiKey, read_request_header
from keylane.wire.messages import read_request, read_response
from keylane.wire.parts import merge_endpoint_tags
from keylane.wire.primitives import Buffer, Reader, read_tags
from keylane.wire.produce import (
    read_produce_request,
    read_produce_response,
    write_produce_request,
    write_produce_response,
)
from keylane.wire.share import (
    read_share_acknowledge_request,
    read_share_acknowledge_response,
    read_share_fetch_request,
    read_share_fetch_response,
    write_share_acknowledge_request,
    write_share_fetch_request,
)
from keylane.wire.share_acks import count_acks
from tests.fuzz.entities import known_versions, random_request_body, random_response_body

KNOWN: Final = known_versions()
Decode = Callable[..., object]


def address_of(node_id: int) -> tuple[str, int]:
    return f"n{node_id}", 1


def endpoints_of(api_key: int, version: int) -> Decode:
    def decode(body: bytes) -> None:
        read_endpoints(api_key, version, body)
        rewrite_brokers(api_key, version, body, address_of=address_of, id_of=int)

    return decode


REQUESTS: list[tuple[int, int, Decode]] = [
    *((ApiKey.FETCH, v, lambda b, v=v: read_fetch_request(b, 0, v)) for v in range(4, 19)),
    *((ApiKey.PRODUCE, v, lambda b, v=v: read_produce_request(b, 0, v)) for v in range(3, 14)),
    *((ApiKey.SHARE_FETCH, v, lambda b, v=v: read_share_fetch_request(b, 0, v)) for v in (1, 2)),
    *((ApiKey.SHARE_ACKNOWLEDGE, v, lambda b, v=v: read_share_acknowledge_request(b, 0, v))
      for v in (1, 2)),
]  # fmt: skip
WRITERS: dict[int, Callable[[Any, int], Buffer]] = {
    ApiKey.FETCH: lambda message, _: write_fetch_request(message),
    ApiKey.PRODUCE: lambda message, _: b"".join(write_produce_request(message)),
    ApiKey.SHARE_FETCH: write_share_fetch_request,
    ApiKey.SHARE_ACKNOWLEDGE: write_share_acknowledge_request,
}
RESPONSES: list[tuple[int, int, Decode]] = [
    *((ApiKey.FETCH, v, lambda b, v=v: read_fetch_response(b, 0, v)) for v in range(4, 19)),
    *((ApiKey.PRODUCE, v, lambda b, v=v: read_produce_response(b, 0, v)) for v in range(3, 14)),
    *((ApiKey.SHARE_FETCH, v, lambda b: read_share_fetch_response(b, 0)) for v in (1, 2)),
    *((ApiKey.SHARE_ACKNOWLEDGE, v, lambda b, v=v: read_share_acknowledge_response(b, 0, v))
      for v in (1, 2)),
    *((ApiKey.FETCH, v, endpoints_of(ApiKey.FETCH, v)) for v in (16, 17, 18)),
    *((ApiKey.PRODUCE, v, endpoints_of(ApiKey.PRODUCE, v)) for v in (10, 12, 13)),
    *((k, v, endpoints_of(k, v)) for k in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)
      for v in (1, 2)),
]  # fmt: skip
SHARES: Final = (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)
CASES: list[tuple[bytes, Decode]] = [
    *((random_request_body(k, v, seed), partial(count_acks, position=0, api_key=k, version=v))
      for k in SHARES for v in (1, 2) for seed in (1, 2, 3)),
    *((random_request_body(k, v, seed), d) for k, v, d in REQUESTS for seed in (1, 2)),
    *((random_response_body(k, v, seed), d) for k, v, d in RESPONSES for seed in (1, 2)),
]  # fmt: skip


def survives(decode: Decode, body: Buffer) -> None:
    """Decode; FrameInvalid is the only error allowed."""
    with suppress(FrameInvalid):
        decode(body)


@pytest.mark.parametrize(("api_key", "version", "decode"), REQUESTS + RESPONSES[:30])
def test_every_cut_body_is_refused(api_key: int, version: int, decode: Decode) -> None:
    """FrameInvalid for each shorter prefix of a sound body."""
    is_request = (api_key, version, decode) in REQUESTS
    make = random_request_body if is_request else random_response_body
    body = make(api_key, version, 3)

    for end in range(min(len(body), 3000)):
        with pytest.raises(FrameInvalid):
            decode(body[:end])


@given(st.integers(0, len(CASES) - 1), st.integers(0, 2**32), st.integers(1, 4))
def test_mutated_bodies_are_read_or_refused(case: int, seed: int, flips: int) -> None:
    """1 to 4 bytes changed to anything, in every message and version."""
    body, decode = CASES[case]
    rng, mutated = random.Random(seed), bytearray(body)

    for _ in range(flips):
        if mutated:
            mutated[rng.randrange(len(mutated))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x55))

    survives(decode, bytes(mutated))


@given(st.integers(0, len(CASES) - 1), st.binary(max_size=200))
def test_garbage_is_read_or_refused(case: int, body: bytes) -> None:
    """Any bytes at all, for every message and version."""
    survives(CASES[case][1], body)


@given(st.binary(max_size=100), st.integers(-1, 10))
def test_headers_and_tags_of_garbage(frame: bytes, position: int) -> None:
    """Request headers, tagged fields, merged endpoints, a tail at any version."""
    survives(lambda body: read_request_header(body, position), frame)
    survives(read_tags, frame)
    survives(lambda body: merge_endpoint_tags([body]), frame)
    survives(lambda body: fetch_response_tail(body, 0, 12 + len(body) % 7), frame)


@given(st.binary(max_size=150))
def test_batches_of_garbage(batch: bytes) -> None:
    """BatchCorrupt and nothing else, from reading a header and from numbering anew."""
    for decode in (lambda b: read_batch_header(b, 0), lambda b: resequence(memoryview(b), 1)):
        with suppress(BatchCorrupt):
            decode(batch)


@given(st.sampled_from(KNOWN), st.integers(0, 9), st.binary(max_size=8), st.integers(0, 2**32))
def test_control_messages_changed_at_random(
    known: tuple[int, int], seed: int, patch: bytes, at: int
) -> None:
    """The guard in front of kio lets through only what kio can read, of every API and version."""
    for make, read in ((random_request_body, read_request), (random_response_body, read_response)):
        body = bytearray(make(*known, seed))
        at %= len(body) + 1
        body[at : at + len(patch)] = patch

        survives(partial(read, *known), memoryview(body))


@pytest.mark.parametrize(
    "count", [b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe", b"\x00\xff\xff\xff"]
)
def test_a_lying_count_costs_nothing(count: bytes) -> None:
    """An array of 2^31-1 items in 12 bytes is refused before anything is made of it."""
    head = b"\xff\xff\xff\xff" + bytes(13)

    with pytest.raises(FrameInvalid):
        read_fetch_request(head + count + bytes(12), 0, 4)
    with pytest.raises(FrameInvalid):
        read_produce_response(count + bytes(12), 0, 3)


def test_a_compact_count_of_31_bits_is_refused() -> None:
    """The largest varint there is, as topics and as tags."""
    huge = b"\xff\xff\xff\xff\x07"

    for decode in (
        lambda body: read_fetch_response(bytes(10) + body, 0, 17),
        lambda body: read_produce_request(b"\x00" + bytes(6) + body, 0, 13),
        lambda body: rewrite_brokers(ApiKey.PRODUCE, 13, body, address_of=address_of, id_of=int),
        lambda body: rewrite_brokers(
            ApiKey.SHARE_FETCH, 2, bytes(11) + body, address_of=address_of, id_of=int
        ),
        read_tags,
    ):
        with pytest.raises(FrameInvalid):
            decode(huge + bytes(20))


def test_a_string_that_is_not_utf8_is_refused() -> None:
    """FrameInvalid, not UnicodeDecodeError."""
    with pytest.raises(FrameInvalid, match="UTF-8"):
        Reader(b"\x00\x01\xff", flexible=False).string()


@given(st.integers(0, len(CASES) - 1), st.integers(0, 2**32))
def test_what_is_read_can_be_written_and_read_again(case: int, seed: int) -> None:
    """A mutated message that still reads is a message: writing it gives one that reads the same."""
    index = case % len(REQUESTS)
    api_key, version, decode = REQUESTS[index]
    body = bytearray(random_request_body(api_key, version, seed % 50))
    rng = random.Random(seed)
    if body:
        body[rng.randrange(len(body))] = rng.randrange(256)
    try:
        message = decode(bytes(body))
    except FrameInvalid:
        return

    written = WRITERS[api_key](message, version)

    assert decode(bytes(written)) == message


@given(st.integers(4, 18), st.integers(3, 13), st.integers(0, 2**32))
def test_responses_that_are_read_can_be_written(fetch: int, produce: int, seed: int) -> None:
    """The same for answers, with one byte changed."""
    rng = random.Random(seed)
    for api_key, version in ((ApiKey.FETCH, fetch), (ApiKey.PRODUCE, produce)):
        body = bytearray(random_response_body(api_key, version, seed % 50))
        body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            if api_key == ApiKey.FETCH:
                answer = read_fetch_response(bytes(body), 0, version)
                again = b"".join(write_fetch_response(answer, version))
                assert read_fetch_response(again, 0, version).topics is not None
            else:
                produced = read_produce_response(bytes(body), 0, version)
                again = b"".join(write_produce_response(produced, version))
                assert read_produce_response(again, 0, version) == produced
        except FrameInvalid:
            continue
