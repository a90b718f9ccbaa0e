"""Headers: every API key, flexible versions, client ids, positions."""

from __future__ import annotations

import io

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

from keylane.errors import FrameInvalid
from keylane.wire.header import (
    _FLEXIBLE_FROM,
    ApiKey,
    is_flexible,
    read_request_header,
    response_body_position,
    write_request,
)

NEVER = 1 << 15
KNOWN = [
    (key, version)
    for key, name in sorted(api_key_map.items())
    for version, kinds in schema_name_map[name].items()
    if EntityType.request in kinds
]


def kio_request_header(api_key: int, version: int, client_id: str | None) -> bytes:
    """What kio writes as the header of this request."""
    schema = load_request_schema(api_key, version).__header_schema__
    buffer = io.BytesIO()
    header = schema(
        request_api_key=i16(api_key),
        request_api_version=i16(version),
        correlation_id=i32(77),
        client_id=client_id,
    )
    entity_writer(schema)(buffer, header)
    return buffer.getvalue()


def test_flexible_versions_are_those_of_kio():
    """The table says for every known (key, version) what kio's schema says."""
    expected = {pair: load_request_schema(*pair).__flexible__ for pair in KNOWN}

    table = {pair: is_flexible(*pair) for pair in KNOWN}

    assert table == expected


def test_the_table_has_no_flexible_version_that_kio_lacks():
    """A first flexible version is the first one kio marks so, or below all it knows."""
    for key, first in zip(ApiKey, _FLEXIBLE_FROM, strict=True):
        versions = [version for other, version in KNOWN if other == key]
        flexible = [v for v in versions if load_request_schema(key, v).__flexible__]
        if not versions or not flexible:
            assert first == NEVER or not versions
        else:
            assert first == min(flexible) or (first < min(flexible) and flexible == versions)


def test_api_keys_are_0_to_92_without_a_hole():
    """Names cover 0..92, and each that kio knows has kio's name."""
    assert [int(key) for key in ApiKey] == list(range(93))
    assert {key: ApiKey(key).name.lower() for key in api_key_map} == dict(api_key_map)


@pytest.mark.parametrize("client_id", [None, "", "app-1", "ümlaut"])
def test_a_header_of_kio_reads_back(client_id):
    """Key, version, correlation id, client id and body position of every API."""
    for key, version in KNOWN:
        header_bytes = kio_request_header(key, version, client_id)

        header = read_request_header(memoryview(header_bytes + b"body"))

        assert (header.api_key, header.api_version, header.correlation_id) == (key, version, 77)
        assert (header.client_id, header.body_position) == (client_id, len(header_bytes))


@pytest.mark.parametrize("client_id", [None, "", "app-1", "ümlaut"])
def test_a_written_request_is_kios(client_id):
    """Size, header and body of every API equal kio's bytes."""
    for key, version in KNOWN:
        expected = kio_request_header(key, version, client_id) + b"body"

        frame = write_request(key, version, 77, client_id, b"body")

        assert frame == len(expected).to_bytes(4, "big") + expected


def test_a_header_behind_a_size_gives_a_position_in_that_frame():
    """The body position counts from the frame's first byte, size included."""
    frame = write_request(ApiKey.FETCH, 12, 1, "app", b"body")

    header = read_request_header(frame, 4)

    assert frame[header.body_position :] == b"body"


def test_tagged_fields_of_a_header_are_skipped():
    """An unknown tag in a v2 header does not move the body position."""
    frame = write_request(ApiKey.FETCH, 12, 1, "app", b"")[4:-1] + b"\x01\x05\x02xybody"

    header = read_request_header(memoryview(frame))

    assert frame[header.body_position :] == b"body"


def test_an_unknown_api_key_reads_as_header_v1():
    """Key 9000 gives its correlation id and client id; the body is whatever follows."""
    frame = write_request(9000, 3, 41, "app", b"\xff")

    header = read_request_header(frame, 4)

    assert (header.api_key, header.correlation_id, header.client_id) == (9000, 41, "app")
    assert frame[header.body_position :] == b"\xff"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00" * 9,
        b"\x00\x12\x00\x00\x00\x00\x00\x01\x00\x05app",
        b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xfe",
        b"\x00\x12\x00\x00\x00\x00\x00\x01\x00\x01\xff",
        b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff",
        b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff\x01\x00\x7f",
    ],
    ids=["empty", "short", "client id cut", "size -2", "not utf-8", "no tags", "tag too long"],
)
def test_a_broken_header_is_refused(frame):
    """FrameInvalid for every way a header can end early or lie."""
    with pytest.raises(FrameInvalid):
        read_request_header(memoryview(frame))


def test_response_bodies_start_where_kio_says():
    """4 bytes of header v0, 5 of v1, ApiVersions always 4."""
    for key, version in KNOWN:
        schema = load_response_schema(key, version).__header_schema__

        position = response_body_position(key, version)

        assert position == (5 if schema.__version__ == 1 else 4)


def test_a_client_id_that_does_not_fit_is_our_bug():
    """ValueError above 32767 bytes."""
    with pytest.raises(ValueError, match="too long"):
        write_request(ApiKey.FETCH, 12, 1, "x" * 40_000, b"")
