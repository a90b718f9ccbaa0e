"""Parts that Fetch and Produce have in common: topics, records, and the addresses of brokers.

Source: KIP-516 (topic ids); NodeEndpoints in FetchResponse.json (v16) and ProduceResponse.json
(v10), of both the tagged field 0; KIP-951.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from keylane.wire.primitives import (
    NO_TAGS,
    UUID_BYTES,
    Buffer,
    Reader,
    Writer,
    read_tags,
    write_tags,
)

TOPIC_ID_FROM: Final = 13
"""Version of either API."""
ENDPOINTS_TAG: Final = 0
ENDPOINT_BYTES_MIN: Final = 11
"""Node id, empty host, port, null rack, no tags."""

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class KeyedTopic(NamedTuple, Generic[Item_co]):
    """A topic of a request or an answer: `name` up to v12, `topic_id` from v13."""

    name: str | None
    topic_id: bytes | None
    partitions: tuple[Item_co, ...]
    tags: bytes = NO_TAGS


class NodeEndpoint(NamedTuple):
    """A broker and its address in an answer."""

    node_id: int
    host: str
    port: int
    rack: str | None
    tags: bytes = NO_TAGS


# -- topics and records -------------------------------------------------------------------


def read_topics(
    reader: Reader, version: int, read_items: Callable[[Reader, int], tuple[Item, ...]]
) -> tuple[KeyedTopic[Item], ...]:
    """Read an array of topics; `read_items` reads the partitions of one. Raises: FrameInvalid."""
    has_id = version >= TOPIC_ID_FROM
    bytes_min = UUID_BYTES + 2 if has_id else 3 if reader.flexible else 6
    topics = []
    for _ in range(reader.count(bytes_min)):
        name, topic_id = (None, reader.uuid()) if has_id else (reader.string(), None)
        topics.append(KeyedTopic(name, topic_id, read_items(reader, version), reader.tags()))
    return tuple(topics)


def write_topics(
    writer: Writer,
    version: int,
    topics: Sequence[KeyedTopic[Item]],
    write_items: Callable[[Writer, int, Sequence[Item]], None],
) -> None:
    """Write an array of topics; `write_items` writes the partitions of one behind their count."""
    writer.count(len(topics))
    for name, topic_id, partitions, tags in topics:
        if version >= TOPIC_ID_FROM:
            assert topic_id is not None, "topics are named by id from v13 on"
            assert len(topic_id) == UUID_BYTES, "a topic id has 16 bytes"
            writer.raw(topic_id)
        else:
            assert name is not None, "topics are named by name up to v12"
            writer.string(name)
        writer.count(len(partitions))
        write_items(writer, version, partitions)
        writer.tags(tags)


def read_records(reader: Reader) -> tuple[memoryview] | None:
    """Read records as a view into the message; None for null."""
    records = reader.nullable_bytes()
    return None if records is None else (records,)


def write_records(writer: Writer, pieces: Sequence[Buffer] | None) -> None:
    """Write records that are in pieces; large pieces are kept by reference."""
    writer.count(None if pieces is None else sum(map(len, pieces)))
    for piece in pieces or ():
        writer.raw(piece)


# -- addresses of brokers -----------------------------------------------------------------


def tag_with_endpoints(section: Buffer, endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Return the tagged fields of a response with these brokers, or none, among them.

    Raises:
        FrameInvalid: the section is not well formed.
    """
    tags = read_tags(section)
    tags.pop(ENDPOINTS_TAG, None)
    if endpoints:
        tags[ENDPOINTS_TAG] = _write_endpoints(endpoints)
    return write_tags(tags) if tags else NO_TAGS


def merge_endpoint_tags(sections: Iterable[bytes]) -> bytes:
    """Return one tagged fields section for those of several answers; each broker named once.

    Of a tag that keylane does not know the last one stays.

    Raises:
        FrameInvalid: a section is not well formed.
    """
    tags: dict[int, bytes] = {}
    endpoints: dict[int, NodeEndpoint] = {}
    for section in sections:
        tags.update(read_tags(section))
        if ENDPOINTS_TAG in tags:
            named = read_endpoints_field(tags.pop(ENDPOINTS_TAG))
            endpoints.update({endpoint.node_id: endpoint for endpoint in named})
    return tag_with_endpoints(write_tags(tags), tuple(endpoints.values()))


def read_endpoints_field(field: Buffer) -> tuple[NodeEndpoint, ...]:
    """Read the value of the tagged field NodeEndpoints.

    Raises:
        FrameInvalid: a length or count passes the end, or bytes are left over.
    """
    reader = Reader(field, flexible=True)
    endpoints = read_endpoints_array(reader)
    reader.end()
    return endpoints


def read_endpoints_array(reader: Reader) -> tuple[NodeEndpoint, ...]:
    """Read an array of brokers. Raises: FrameInvalid."""
    return tuple(
        NodeEndpoint(
            reader.int32(), reader.string(), reader.int32(), reader.nullable_string(), reader.tags()
        )
        for _ in range(reader.count(ENDPOINT_BYTES_MIN))
    )


def _write_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    writer = Writer(flexible=True)
    writer.count(len(endpoints))
    for item in endpoints:
        writer.int32(item.node_id)
        writer.string(item.host)
        writer.int32(item.port)
        writer.string(item.rack)
        writer.tags(item.tags)
    return writer.to_bytes()
