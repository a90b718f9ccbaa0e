"""Broker addresses in answers: replaced where they stand, everything else untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keylane.errors import FrameInvalid
from keylane.wire.endpoints import (
    NodeEndpoint,
    has_endpoints,
    merge_endpoint_tags,
    read_endpoints,
    read_endpoints_field,
    rewrite_endpoints,
)
from keylane.wire.header import ApiKey
from keylane.wire.messages import write_message
from keylane.wire.primitives import NO_TAGS, read_tags, write_tags
from tests.fuzz.entities import random_response

WITH_ENDPOINTS = [
    *((ApiKey.FETCH, version) for version in (16, 17, 18)),
    *((ApiKey.PRODUCE, version) for version in (10, 11, 12, 13)),
    *((key, v) for key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE) for v in (1, 2)),
]


def address_of(node_id: int) -> tuple[str, int]:
    return f"lane-{node_id}.example", 7000


def never_asked(node_id: int) -> tuple[str, int]:
    pytest.fail(f"asked for the address of {node_id}")


def responses_of(api_key: int, version: int, *, named: bool) -> list[Any]:
    """Random responses, some with and some without endpoints."""
    drawn = [random_response(api_key, version, seed) for seed in range(120)]
    return [entity for entity in drawn if bool(entity.node_endpoints) == named]


@pytest.mark.parametrize(("api_key", "version"), WITH_ENDPOINTS)
def test_addresses_are_replaced_and_nothing_else(api_key: ApiKey, version: int) -> None:
    """The buffers equal what kio writes for the same answer with other hosts and ports."""
    for entity in responses_of(api_key, version, named=True):
        moved = tuple(
            replace(node, host=address_of(node.node_id)[0], port=7000)
            for node in entity.node_endpoints
        )
        expected = write_message(replace(entity, node_endpoints=moved))

        buffers = rewrite_endpoints(api_key, version, write_message(entity), address_of)

        assert buffers is not None
        assert b"".join(buffers) == expected


@pytest.mark.parametrize(("api_key", "version"), WITH_ENDPOINTS)
def test_an_answer_without_addresses_is_relayed(api_key: ApiKey, version: int) -> None:
    """None, and no address is asked for."""
    for entity in responses_of(api_key, version, named=False):
        assert rewrite_endpoints(api_key, version, write_message(entity), never_asked) is None
        assert read_endpoints(api_key, version, write_message(entity)) == ()


@pytest.mark.parametrize(("api_key", "version"), WITH_ENDPOINTS)
def test_addresses_are_read_as_kio_wrote_them(api_key: ApiKey, version: int) -> None:
    """Node id, host, port and rack of each broker."""
    for entity in responses_of(api_key, version, named=True):
        expected = [(n.node_id, n.host, n.port, n.rack) for n in entity.node_endpoints]

        endpoints = read_endpoints(api_key, version, write_message(entity))

        assert [endpoint[:4] for endpoint in endpoints] == expected


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(ApiKey.FETCH, 15), (ApiKey.PRODUCE, 9), (ApiKey.METADATA, 12), (ApiKey.SHARE_FETCH, 0)],
)
def test_other_answers_are_not_even_read(api_key: ApiKey, version: int) -> None:
    """None for any bytes of an API or version that names no broker here."""
    assert not has_endpoints(api_key, version)
    assert rewrite_endpoints(api_key, version, b"\xff" * 9, never_asked) is None
    assert read_endpoints(api_key, version, b"\xff" * 9) == ()


def test_the_body_before_the_addresses_is_a_view() -> None:
    """The first buffer is a memoryview of the body that was given."""
    entity = responses_of(ApiKey.FETCH, 17, named=True)[0]
    body = write_message(entity)

    buffers = rewrite_endpoints(ApiKey.FETCH, 17, body, address_of)

    assert buffers is not None
    assert isinstance(buffers[0], memoryview)
    assert buffers[0].obj is body


@pytest.mark.parametrize(("api_key", "version"), [(ApiKey.FETCH, 17), (ApiKey.PRODUCE, 13)])
def test_tags_that_keylane_does_not_know_are_kept(api_key: ApiKey, version: int) -> None:
    """Tag 99 beside the addresses stays; alone it gives None."""
    named = write_message(responses_of(api_key, version, named=True)[0])
    bare = write_message(responses_of(api_key, version, named=False)[0])
    plain = rewrite_endpoints(api_key, version, named, address_of)
    assert plain is not None
    head, tail = bytes(plain[0]), bytes(plain[1])

    unknown = write_tags({**read_tags(tail), 99: b"later"})
    buffers = rewrite_endpoints(api_key, version, head + unknown, address_of)

    assert buffers is not None
    assert b"".join(buffers) == head + unknown
    alone = bare[:-1] + write_tags({99: b"later"})
    assert rewrite_endpoints(api_key, version, alone, never_asked) is None
    assert read_endpoints(api_key, version, alone) == ()


@pytest.mark.parametrize(("api_key", "version"), WITH_ENDPOINTS)
def test_a_cut_answer_is_refused(api_key: ApiKey, version: int) -> None:
    """FrameInvalid wherever an answer ends early."""
    body = write_message(min(responses_of(api_key, version, named=True), key=str))

    for end in range(len(body)):
        with pytest.raises(FrameInvalid):
            rewrite_endpoints(api_key, version, body[:end], address_of)


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(ApiKey.FETCH, 19), (ApiKey.PRODUCE, 14), (ApiKey.SHARE_FETCH, 3)],
)
def test_a_version_of_the_future_is_refused(api_key: ApiKey, version: int) -> None:
    """Its addresses could stand anywhere: FrameInvalid, never a wrong address relayed."""
    with pytest.raises(FrameInvalid, match="not known"):
        rewrite_endpoints(api_key, version, b"\x00" * 50, address_of)


def test_merged_sections_name_each_broker_once() -> None:
    """Endpoints of two answers make one field, in the order met; unknown tags stay."""
    one = b"\x02" + b"\x00\x00\x00\x01\x02a\x00\x00\x00\x09\x00\x00"
    two = (
        b"\x03" + b"\x00\x00\x00\x02\x02b\x00\x00\x00\x09\x02r\x00"
        b"\x00\x00\x00\x01\x02c\x00\x00\x00\x09\x00\x00"
    )

    merged = merge_endpoint_tags([write_tags({0: one}), NO_TAGS, write_tags({0: two, 5: b"x"})])

    tags = read_tags(merged)
    assert tags[5] == b"x"
    assert read_endpoints_field(tags[0]) == (
        NodeEndpoint(1, "c", 9, None),
        NodeEndpoint(2, "b", 9, "r"),
    )


def test_sections_without_a_field_merge_to_none() -> None:
    """No answer or only empty sections: one byte 0."""
    assert merge_endpoint_tags([]) == merge_endpoint_tags([NO_TAGS, NO_TAGS]) == NO_TAGS
