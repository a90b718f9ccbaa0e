"""Broker ids inside answers that keylane otherwise relays: leaders and replicas, replaced.

Source: CurrentLeader and NodeEndpoints in FetchResponse.json (v12, v16), ProduceResponse.json
(v10), ShareFetchResponse.json, ShareAcknowledgeResponse.json; KIP-951 (new leaders), KIP-392
(PreferredReadReplica, Fetch v11).

Among many nodes clients know pairs of node and broker, and a broker's own id is none of these,
or node 0's. A Java consumer that is sent to a replica it does not know asks for
metadata and goes back to the leader, which answers the same again: it would never get a record.
A client that gets a known id with another address gives that broker up for the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from keylane.wire.endpoints import (
    AddressOf,
    NodeEndpoint,
    read_endpoints,
    tag_with_endpoints,
)
from keylane.wire.fetch import FetchResponse, read_fetch_response, write_fetch_response
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_response, write_message
from keylane.wire.primitives import NO_TAGS, Buffer, read_tags, write_tags
from keylane.wire.produce import read_produce_response, write_produce_response

IdOf = Callable[[int], int]
"""Broker id -> the id under which clients know it; -1 (none) stays."""

FETCH_LEADER_TAG: Final = 1
PRODUCE_LEADER_TAG: Final = 0
INT32_BYTES: Final = 4
RACK_FROM: Final = 11
FLEXIBLE_FROM: Final = 12


def may_name_replica(api_key: int, api_version: int, request: Buffer) -> bool:
    """Return whether brokers may answer a request's body with a replica to read from.

    They do where the client says its rack, the last field. What looks as if it might be one is.
    """
    if api_key != ApiKey.FETCH or api_version < RACK_FROM:
        return False
    no_rack = b"\x01" + NO_TAGS if api_version >= FLEXIBLE_FROM else bytes(2)
    return bytes(request[-len(no_rack) :]) != no_rack


def rewrite_ids(
    api_key: int,
    api_version: int,
    body: Buffer,
    *,
    id_of: IdOf,
    address_of: AddressOf,
    names_replica: bool,
) -> Sequence[Buffer] | None:
    """A response body with ids and addresses of brokers as clients know them.

    names_replica: see `may_name_replica`. None: it names no broker, relay it as it is.

    Raises:
        FrameInvalid: unknown version, a length or count that passes the end, bytes left over.
    """
    endpoints = read_endpoints(api_key, api_version, body)
    if not endpoints and not names_replica:
        return None
    moved: list[NodeEndpoint | None] = []
    for endpoint in endpoints:
        address, node_id = address_of(endpoint.node_id), id_of(endpoint.node_id)
        moved.append(
            address and endpoint._replace(node_id=node_id, host=address[0], port=address[1])
        )
    shown = [endpoint for endpoint in moved if endpoint is not None]
    if api_key == ApiKey.FETCH:
        fetched = show_fetch_ids(read_fetch_response(body, 0, api_version), id_of)
        fetched = replace(fetched, tags=tag_with_endpoints(fetched.tags, shown))
        return write_fetch_response(fetched, api_version)
    if api_key == ApiKey.PRODUCE:
        return _rewrite_produce(api_version, body, id_of, shown)
    return (_rewrite_share(api_key, api_version, body, id_of, moved),)


def show_fetch_ids(response: FetchResponse, id_of: IdOf) -> FetchResponse:
    """A fetch response whose partitions name leaders and replicas as clients know them."""
    topics = tuple(
        replace(
            topic,
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


def _rewrite_produce(
    api_version: int, body: Buffer, id_of: IdOf, endpoints: Sequence[NodeEndpoint]
) -> list[Buffer]:
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
    tags = tag_with_endpoints(response.tags, endpoints)
    return write_produce_response(replace(response, topics=topics, tags=tags), api_version)


def _rewrite_share(
    api_key: int,
    api_version: int,
    body: Buffer,
    id_of: IdOf,
    endpoints: Sequence[NodeEndpoint | None],
) -> bytes:
    """By kio, with a copy of the records: leaders change seldom."""
    response = read_response(api_key, api_version, memoryview(body))
    topics = tuple(
        replace(topic, partitions=tuple(_show_share(entry, id_of) for entry in topic.partitions))
        for topic in response.responses
    )
    shown = tuple(
        replace(entry, node_id=type(entry.node_id)(node_id), host=host, port=type(entry.port)(port))
        for entry, endpoint in zip(response.node_endpoints, endpoints, strict=True)
        if endpoint is not None
        for node_id, host, port, *_ in [endpoint]
    )
    return write_message(replace(response, responses=topics, node_endpoints=shown))


def _show_share(entry: Any, id_of: IdOf) -> Any:
    leader = entry.current_leader
    leader_id = type(leader.leader_id)(id_of(int(leader.leader_id)))
    return replace(entry, current_leader=replace(leader, leader_id=leader_id))


def _show_leader(tags: bytes, tag: int, id_of: IdOf) -> bytes:
    """A partition's tagged fields with another leader id, the first field of CurrentLeader."""
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
