"""Brokers inside answers that keylane otherwise relays: addresses, leaders, replicas to read from.

Source: NodeEndpoints and CurrentLeader in FetchResponse.json (v16, v12) and ProduceResponse.json
(v10), both tagged fields; in ShareFetchResponse.json and ShareAcknowledgeResponse.json (v1, v2)
the addresses are the last field. KIP-951 (new leaders in Produce and Fetch answers), KIP-932
(share groups), KIP-392 (PreferredReadReplica, Fetch v11).

A client that gets a new leader connects to it at once. With the broker's own address it
would leave keylane and see partitions where it had lanes.

Among many nodes clients know pairs of node and broker, and a broker's own id is none of these,
or node 0's. A Java consumer that is sent to a replica it does not know asks for metadata and goes
back to the leader, which answers the same again: it would never get a record. librdkafka takes
the address that comes with an id it knows, and gives up the broker that it knew by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from keylane.errors import FrameInvalid
from keylane.wire.fetch import (
    FETCH_VERSION_MAX,
    FetchResponse,
    fetch_response_tail,
    read_fetch_response,
    write_fetch_response,
)
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_response, write_message
from keylane.wire.parts import (
    ENDPOINTS_TAG,
    TOPIC_ID_FROM,
    NodeEndpoint,
    read_endpoints_array,
    read_endpoints_field,
    tag_with_endpoints,
)
from keylane.wire.primitives import (
    NO_TAGS,
    UUID_BYTES,
    Buffer,
    Reader,
    read_tags,
    read_uvarint,
    skip_tags,
    write_tags,
)
from keylane.wire.produce import (
    PRODUCE_VERSION_MAX,
    read_produce_response,
    write_produce_response,
)

AddressOf = Callable[[int], tuple[str, int] | None]
"""Broker id -> host and port where clients reach it; None: nowhere, and it is left out."""
IdOf = Callable[[int], int]
"""Broker id -> the id under which clients know it; -1 (none) stays."""

FETCH_LEADER_TAG: Final = 1
PRODUCE_LEADER_TAG: Final = 0
INT32_BYTES: Final = 4
RACK_FROM: Final = 11
RACK_COMPACT_FROM: Final = 12
VERSIONS: Final[Mapping[int, tuple[int, int]]] = {
    ApiKey.FETCH: (16, FETCH_VERSION_MAX),
    ApiKey.PRODUCE: (10, PRODUCE_VERSION_MAX),
    ApiKey.SHARE_FETCH: (1, 2),
    ApiKey.SHARE_ACKNOWLEDGE: (1, 2),
}
"""First version with addresses, and the last that keylane knows."""
PRODUCE_ANSWER_BYTES: Final = 30
"""Index, error code, base offset, append time, log start offset."""
PRODUCE_NO_ERRORS: Final = b"\x01\x00\x00"
"""No record errors, null message, no tags: what a partition without an error ends with."""


def has_endpoints(api_key: int, api_version: int) -> bool:
    """Return whether answers of this API and version can hold broker addresses to rewrite."""
    return api_key in VERSIONS and api_version >= VERSIONS[api_key][0]


def read_endpoints(api_key: int, api_version: int, body: Buffer) -> tuple[NodeEndpoint, ...]:
    """Return the broker addresses in a response body; empty for an API that has none.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end.
    """
    if not has_endpoints(api_key, api_version):
        return ()
    tail = _tail(api_key, api_version, body)
    if api_key not in (ApiKey.FETCH, ApiKey.PRODUCE):
        return read_endpoints_array(Reader(body, tail, flexible=True))
    if len(body) == tail + 1 and body[tail] == 0:
        return ()
    tags = read_tags(memoryview(body)[tail:])
    return read_endpoints_field(tags[ENDPOINTS_TAG]) if ENDPOINTS_TAG in tags else ()


def may_name_replica(api_key: int, api_version: int, request: Buffer) -> bool:
    """Return whether brokers may answer a request's body with a replica to read from.

    They do where the client says its rack, the last field. Bytes that may be a rack count as one.
    """
    if api_key != ApiKey.FETCH or api_version < RACK_FROM:
        return False
    no_rack = b"\x01" + NO_TAGS if api_version >= RACK_COMPACT_FROM else bytes(2)
    return bytes(request[-len(no_rack) :]) != no_rack


def rewrite_brokers(
    api_key: int,
    api_version: int,
    body: Buffer,
    *,
    address_of: AddressOf,
    id_of: IdOf,
    names_replica: bool = False,
) -> Sequence[Buffer] | None:
    """Return a response body with ids and addresses of brokers as clients know them.

    names_replica: see `may_name_replica`. None: it names no broker, relay it as it is; that costs
    a walk over the partitions. What `address_of` and `id_of` raise passes.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    endpoints = read_endpoints(api_key, api_version, body)
    if not endpoints and not names_replica:
        return None
    if api_key not in (ApiKey.FETCH, ApiKey.PRODUCE):
        return (_rewrite_share(api_key, api_version, body, address_of, id_of),)
    shown = [
        endpoint._replace(node_id=id_of(endpoint.node_id), host=address[0], port=address[1])
        for endpoint in endpoints
        if (address := address_of(endpoint.node_id)) is not None
    ]
    if api_key == ApiKey.FETCH:
        fetched = show_fetch_ids(read_fetch_response(body, 0, api_version), id_of)
        fetched = replace(fetched, tags=tag_with_endpoints(fetched.tags, shown))
        return write_fetch_response(fetched, api_version)
    response = read_produce_response(body, 0, api_version)
    topics = tuple(
        topic._replace(
            partitions=tuple(
                answer._replace(tags=_show_leader(answer.tags, PRODUCE_LEADER_TAG, id_of))
                for answer in topic.partitions
            )
        )
        for topic in response.topics
    )
    tags = tag_with_endpoints(response.tags, shown)
    return write_produce_response(replace(response, topics=topics, tags=tags), api_version)


def show_fetch_ids(response: FetchResponse, id_of: IdOf) -> FetchResponse:
    """Return a fetch response whose partitions name leaders and replicas as clients know them."""
    topics = tuple(
        topic._replace(
            partitions=tuple(
                answer
                if answer.preferred_read_replica < 0 and answer.tags == NO_TAGS
                else answer._replace(
                    preferred_read_replica=id_of(answer.preferred_read_replica),
                    tags=_show_leader(answer.tags, FETCH_LEADER_TAG, id_of),
                )
                for answer in topic.partitions
            ),
        )
        for topic in response.topics
    )
    return replace(response, topics=topics)


def _rewrite_share(
    api_key: int, api_version: int, body: Buffer, address_of: AddressOf, id_of: IdOf
) -> bytes:
    """Rewrite by kio, with a copy of the records: leaders change seldom."""
    response = read_response(api_key, api_version, memoryview(body))
    topics = tuple(
        replace(topic, partitions=tuple(_show_share(entry, id_of) for entry in topic.partitions))
        for topic in response.responses
    )
    shown = tuple(
        replace(
            entry,
            node_id=type(entry.node_id)(id_of(int(entry.node_id))),
            host=address[0],
            port=type(entry.port)(address[1]),
        )
        for entry in response.node_endpoints
        if (address := address_of(int(entry.node_id))) is not None
    )
    return write_message(replace(response, responses=topics, node_endpoints=shown))


def _show_share(entry: Any, id_of: IdOf) -> Any:
    leader = entry.current_leader
    leader_id = type(leader.leader_id)(id_of(int(leader.leader_id)))
    return replace(entry, current_leader=replace(leader, leader_id=leader_id))


def _show_leader(tags: bytes, tag: int, id_of: IdOf) -> bytes:
    """Return a partition's tagged fields with another leader id, the first of CurrentLeader."""
    if tags == NO_TAGS:
        return tags
    fields = read_tags(tags)
    leader = fields.get(tag, b"")
    if len(leader) < INT32_BYTES:
        return tags
    leader_id = id_of(int.from_bytes(leader[:INT32_BYTES], signed=True))
    return write_tags(
        {**fields, tag: leader_id.to_bytes(INT32_BYTES, signed=True) + leader[INT32_BYTES:]}
    )


# -- where the addresses stand ------------------------------------------------------------


def _tail(api_key: int, api_version: int, body: Buffer) -> int:
    if api_version > VERSIONS[api_key][1]:
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
        if version < TOPIC_ID_FROM:
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
