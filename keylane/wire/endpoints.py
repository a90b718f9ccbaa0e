"""Broker addresses inside answers that keylane otherwise relays: found and replaced.

Source: "NodeEndpoints" in FetchResponse.json (v16), ProduceResponse.json (v10), both a tagged
field 0; in ShareFetchResponse.json and ShareAcknowledgeResponse.json (v1, v2) the last field;
KIP-951 (new leaders in Produce and Fetch answers), KIP-932 (share groups).

A client that gets a new leader connects to it at once. With the broker's own address it
would leave keylane and see partitions where it had lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from keylane.errors import FrameInvalid
from keylane.wire.fetch import FETCH_VERSION_MAX, fetch_response_tail
from keylane.wire.header import ApiKey
from keylane.wire.primitives import (
    NO_TAGS,
    UUID_BYTES,
    Buffer,
    Reader,
    Writer,
    read_tags,
    read_uvarint,
    skip_tags,
    write_tags,
)

AddressOf = Callable[[int], tuple[str, int] | None]
"""Broker id -> host and port where clients reach it; None: nowhere, and it is left out."""

ENDPOINTS_TAG: Final = 0
ENDPOINT_BYTES_MIN: Final = 11
"""Node id, empty host, port, null rack, no tags."""
FETCH_FROM: Final = 16
PRODUCE_FROM: Final = 10
PRODUCE_TOPIC_ID_FROM: Final = 13
PRODUCE_VERSION_MAX: Final = 13
SHARE_FROM: Final = 1
SHARE_VERSION_MAX: Final = 2
PRODUCE_ANSWER_BYTES: Final = 30
"""Index, error code, base offset, append time, log start offset."""
PRODUCE_NO_ERRORS: Final = b"\x01\x00\x00"
"""No record errors, null message, no tags: what a partition without an error ends with."""


class NodeEndpoint(NamedTuple):
    """A broker and its address in an answer."""

    node_id: int
    host: str
    port: int
    rack: str | None
    tags: bytes = NO_TAGS


def has_endpoints(api_key: int, api_version: int) -> bool:
    """Return whether answers of this API and version can hold broker addresses to rewrite."""
    if api_key == ApiKey.FETCH:
        return api_version >= FETCH_FROM
    if api_key == ApiKey.PRODUCE:
        return api_version >= PRODUCE_FROM
    return api_key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE) and api_version >= SHARE_FROM


def read_endpoints(api_key: int, api_version: int, body: Buffer) -> tuple[NodeEndpoint, ...]:
    """The broker addresses in a response body; empty for an API that has none.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end.
    """
    if not has_endpoints(api_key, api_version):
        return ()
    tail = _tail(api_key, api_version, body)
    if api_key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):
        return _read_array(Reader(body, tail, flexible=True))
    if len(body) == tail + 1 and body[tail] == 0:
        return ()
    tags = read_tags(memoryview(body)[tail:])
    return read_endpoints_field(tags[ENDPOINTS_TAG]) if ENDPOINTS_TAG in tags else ()


def rewrite_endpoints(
    api_key: int, api_version: int, body: Buffer, address_of: AddressOf
) -> list[Buffer] | None:
    """A response body with the addresses that clients of keylane connect to.

    None: it holds no address, relay it as it is; that costs a walk over the partitions. The
    body before the addresses is returned as a view of `body`. What `address_of` raises passes.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    if not has_endpoints(api_key, api_version):
        return None
    tail = _tail(api_key, api_version, body)
    if len(body) == tail + 1 and body[tail] == 0:
        return None  # no tagged field, the rule
    view = memoryview(body)
    if api_key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):
        reader = Reader(body, tail, flexible=True)
        endpoints = _read_array(reader)
        rest = reader.position
        reader.tags()
        reader.end()
        if not endpoints:
            return None
        return [view[:tail], _write_array(_moved(endpoints, address_of)), view[rest:]]
    tags = read_tags(view[tail:])
    if ENDPOINTS_TAG not in tags:
        return None
    moved = _moved(read_endpoints_field(tags[ENDPOINTS_TAG]), address_of)
    return [view[:tail], tag_with_endpoints(view[tail:], moved)]


def tag_with_endpoints(section: Buffer, endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The tagged fields of a Fetch or Produce response with these brokers, or none, in it.

    Raises:
        FrameInvalid: the section is not well formed.
    """
    tags = read_tags(section)
    tags.pop(ENDPOINTS_TAG, None)
    if endpoints:
        tags[ENDPOINTS_TAG] = _write_array(endpoints)
    return write_tags(tags) if tags else NO_TAGS


def _moved(endpoints: Iterable[NodeEndpoint], address_of: AddressOf) -> list[NodeEndpoint]:
    moved = []
    for endpoint in endpoints:
        address = address_of(endpoint.node_id)
        if address is not None:
            moved.append(endpoint._replace(host=address[0], port=address[1]))
    return moved


def merge_endpoint_tags(sections: Iterable[bytes]) -> bytes:
    """One tagged fields section from those of several answers; each broker named once.

    Of a tag that keylane does not know the last one stays.

    Raises:
        FrameInvalid: a section is not well formed.
    """
    tags: dict[int, bytes] = {}
    endpoints: dict[int, NodeEndpoint] = {}
    for section in sections:
        if section == NO_TAGS:
            continue
        tags.update(read_tags(section))
        if ENDPOINTS_TAG in tags:
            named = read_endpoints_field(tags.pop(ENDPOINTS_TAG))
            endpoints.update({endpoint.node_id: endpoint for endpoint in named})
    if endpoints:
        tags[ENDPOINTS_TAG] = _write_array(endpoints.values())
    return write_tags(tags) if tags else NO_TAGS


def read_endpoints_field(field: Buffer) -> tuple[NodeEndpoint, ...]:
    """The value of the tagged field NodeEndpoints.

    Raises:
        FrameInvalid: a length or count passes the end, or bytes are left over.
    """
    reader = Reader(field, flexible=True)
    endpoints = _read_array(reader)
    reader.end()
    return endpoints


def _read_array(reader: Reader) -> tuple[NodeEndpoint, ...]:
    return tuple(
        NodeEndpoint(
            reader.int32(), reader.string(), reader.int32(), reader.nullable_string(), reader.tags()
        )
        for _ in range(reader.count(ENDPOINT_BYTES_MIN))
    )


def _write_array(endpoints: Iterable[NodeEndpoint]) -> bytes:
    writer = Writer(flexible=True)
    items = list(endpoints)
    writer.count(len(items))
    for item in items:
        writer.int32(item.node_id)
        writer.string(item.host)
        writer.int32(item.port)
        writer.string(item.rack)
        writer.tags(item.tags)
    return writer.to_bytes()


# -- where the addresses stand ------------------------------------------------------------


def _tail(api_key: int, api_version: int, body: Buffer) -> int:
    version_max = {
        ApiKey.FETCH: FETCH_VERSION_MAX,
        ApiKey.PRODUCE: PRODUCE_VERSION_MAX,
    }.get(ApiKey(api_key), SHARE_VERSION_MAX)
    if api_version > version_max:
        raise FrameInvalid(f"{ApiKey(api_key).name} v{api_version} is not known")
    if api_key == ApiKey.FETCH:
        return fetch_response_tail(body, 0, api_version)
    if api_key == ApiKey.PRODUCE:
        return produce_response_tail(body, api_version)
    return _share_tail(api_key, api_version, body)


def produce_response_tail(body: Buffer, version: int) -> int:
    """Position of the top-level tagged fields of a Produce response v9 to v13.

    Raises:
        FrameInvalid: a length or count passes the end.
    """
    limit = len(body)
    topics, position = read_uvarint(body, 0, limit)
    for _ in range(topics - 1):
        size = UUID_BYTES
        if version < PRODUCE_TOPIC_ID_FROM:
            length, position = read_uvarint(body, position, limit)
            size = length - 1 if length else 0
        partitions, position = read_uvarint(body, position + size, limit)
        for _ in range(partitions - 1):
            position += PRODUCE_ANSWER_BYTES
            if body[position : position + 3] == PRODUCE_NO_ERRORS:
                position += 3
            else:
                position = _skip_produce_errors(body, position)
        position = skip_tags(body, position, limit)
    position += 4  # throttle time
    if position >= limit:
        raise FrameInvalid("produce response ends before its tagged fields")
    return position


def _skip_produce_errors(body: Buffer, position: int) -> int:
    reader = Reader(body, min(position, len(body)), flexible=True)
    for _ in range(reader.count(6)):
        reader.advance(4)
        _skip_string(reader)
        _skip_tags(reader)
    _skip_string(reader)
    _skip_tags(reader)
    return reader.position


def _share_tail(api_key: int, version: int, body: Buffer) -> int:
    is_fetch = api_key == ApiKey.SHARE_FETCH
    reader = Reader(body, flexible=True)
    reader.advance(6)  # throttle time, error code
    _skip_string(reader)
    if is_fetch or version >= 2:
        reader.advance(4)  # acquisition lock timeout
    for _ in range(reader.count(UUID_BYTES + 2)):
        reader.advance(UUID_BYTES)
        for _ in range(reader.count(17)):
            reader.advance(6)  # index, error code
            _skip_string(reader)
            if is_fetch:
                reader.advance(2)  # acknowledge error code
                _skip_string(reader)
            reader.advance(8)  # current leader
            _skip_tags(reader)
            if is_fetch:
                reader.nullable_bytes()
                for _ in range(reader.count(19)):
                    reader.advance(18)  # first and last offset, delivery count
                    _skip_tags(reader)
            _skip_tags(reader)
        _skip_tags(reader)
    return reader.position


def _skip_string(reader: Reader) -> None:
    length = reader.uvarint()
    reader.advance(length - 1 if length else 0)


def _skip_tags(reader: Reader) -> None:
    reader.position = skip_tags(reader.buffer, reader.position, reader.limit)
