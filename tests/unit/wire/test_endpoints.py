"""Brokers in answers: addresses, leaders and replicas replaced, everything else untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keylane.errors import FrameInvalid
from keylane.wire.endpoints import (
    AddressOf,
    has_endpoints,
    may_name_replica,
    produce_response_tail,
    read_endpoints,
    rewrite_brokers,
)
from keylane.wire.fetch import (
    FetchAnswer,
    FetchResponse,
    FetchTopicAnswer,
    fetch_response_tail,
    write_fetch_response,
)
from keylane.wire.header import ApiKey
from keylane.wire.messages import write_message
from keylane.wire.parts import (
    NodeEndpoint,
    merge_endpoint_tags,
    read_endpoints_field,
    tag_with_endpoints,
)
from keylane.wire.primitives import NO_TAGS, read_tags, write_tags
from tests.fuzz.entities import random_request, random_response

WITH_ENDPOINTS = [
    *((ApiKey.FETCH, version) for version in (16, 17, 18)),
    *((ApiKey.PRODUCE, version) for version in (10, 11, 12, 13)),
    *((key, v) for key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE) for v in (1, 2)),
]


def address_of(node_id: int) -> tuple[str, int]:
    return f"lane-{node_id}.example", 7000


def never_asked(node_id: int) -> tuple[str, int]:
    pytest.fail(f"asked for the address of {node_id}")


def rewritten(api_key: int, version: int, body: bytes, address_of: AddressOf) -> bytes | None:
    """Return the answer of a lone node, where ids stay."""
    buffers = rewrite_brokers(api_key, version, body, address_of=address_of, id_of=int)
    return None if buffers is None else b"".join(buffers)


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

        assert rewritten(api_key, version, write_message(entity), address_of) == expected


@pytest.mark.parametrize(("api_key", "version"), WITH_ENDPOINTS)
def test_an_answer_without_addresses_is_relayed(api_key: ApiKey, version: int) -> None:
    """None, and no address is asked for."""
    for entity in responses_of(api_key, version, named=False):
        assert rewritten(api_key, version, write_message(entity), never_asked) is None
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
    assert rewritten(api_key, version, b"\xff" * 9, never_asked) is None
    assert read_endpoints(api_key, version, b"\xff" * 9) == ()


def test_records_beside_addresses_are_not_copied() -> None:
    """They are a view of the body that was given."""
    answer = FetchAnswer(0, 0, 1, 1, 0, None, -1, (bytes(4096),))
    response = FetchResponse(
        topics=(FetchTopicAnswer(None, bytes(16), (answer,)),),
        tags=tag_with_endpoints(NO_TAGS, [NodeEndpoint(1, "broker", 9092, None)]),
    )
    body = b"".join(write_fetch_response(response, 17))

    buffers = rewrite_brokers(ApiKey.FETCH, 17, body, address_of=address_of, id_of=int)

    assert buffers is not None
    views = [buffer for buffer in buffers if isinstance(buffer, memoryview)]
    assert [(view.nbytes, view.obj is body) for view in views] == [(4096, True)]


@pytest.mark.parametrize(("api_key", "version"), [(ApiKey.FETCH, 17), (ApiKey.PRODUCE, 13)])
def test_tags_that_keylane_does_not_know_are_kept(api_key: ApiKey, version: int) -> None:
    """Tag 99 beside the addresses stays; alone it gives None."""
    named = write_message(responses_of(api_key, version, named=True)[0])
    bare = write_message(responses_of(api_key, version, named=False)[0])
    plain = rewritten(api_key, version, named, address_of)
    assert plain is not None
    is_fetch = api_key == ApiKey.FETCH
    tail = fetch_response_tail(plain, 0, 17) if is_fetch else produce_response_tail(plain, 13)

    unknown = plain[:tail] + write_tags({**read_tags(plain[tail:]), 99: b"later"})
    assert rewritten(api_key, version, unknown, address_of) == unknown
    alone = bare[:-1] + write_tags({99: b"later"})
    assert rewritten(api_key, version, alone, never_asked) is None
    assert read_endpoints(api_key, version, alone) == ()


@pytest.mark.parametrize(("api_key", "version"), WITH_ENDPOINTS)
def test_a_cut_answer_is_refused(api_key: ApiKey, version: int) -> None:
    """FrameInvalid wherever an answer ends early."""
    body = write_message(min(responses_of(api_key, version, named=True), key=str))

    for end in range(len(body)):
        with pytest.raises(FrameInvalid):
            rewritten(api_key, version, body[:end], address_of)


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(ApiKey.FETCH, 19), (ApiKey.PRODUCE, 14), (ApiKey.SHARE_FETCH, 3)],
)
def test_a_version_of_the_future_is_refused(api_key: ApiKey, version: int) -> None:
    """Its addresses could stand anywhere: FrameInvalid, never a wrong address relayed."""
    with pytest.raises(FrameInvalid, match="not known"):
        rewritten(api_key, version, b"\x00" * 50, address_of)


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


# -- ids of leaders and replicas -----------------------------------------------------------

FETCHES = [(ApiKey.FETCH, version) for version in range(12, 18)]
OTHERS = [
    *((ApiKey.PRODUCE, version) for version in (10, 11, 12, 13)),
    *((key, v) for key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE) for v in (1, 2)),
]


def id_of(broker_id: int) -> int:
    return broker_id if broker_id < 0 else (broker_id + 1_000_000) % 2**31


def rewrite(api_key: int, version: int, entity: Any, *, names_replica: bool) -> bytes | None:
    body = memoryview(write_message(entity))
    buffers = rewrite_brokers(
        api_key,
        version,
        body,
        id_of=id_of,
        address_of=address_of,
        names_replica=names_replica,
    )
    return None if buffers is None else b"".join(buffers)


def shown(entity: Any) -> Any:
    """Return what kio holds after the change."""

    def partition(entry: Any) -> Any:
        changes: dict[str, Any] = {}
        leader = getattr(entry, "current_leader", None)
        if leader is not None:
            changes["current_leader"] = replace(leader, leader_id=id_of(leader.leader_id))
        if hasattr(entry, "preferred_read_replica"):
            changes["preferred_read_replica"] = id_of(entry.preferred_read_replica)
        return replace(entry, **changes)

    def topic(entry: Any) -> Any:
        name = "partitions" if hasattr(entry, "partitions") else "partition_responses"
        return replace(entry, **{name: tuple(map(partition, getattr(entry, name)))})

    changes: dict[str, Any] = {"responses": tuple(map(topic, entity.responses))}
    if hasattr(entity, "node_endpoints"):
        changes["node_endpoints"] = tuple(
            replace(n, node_id=id_of(n.node_id), host=address_of(n.node_id)[0], port=7000)
            for n in entity.node_endpoints
        )
    return replace(entity, **changes)


def names_brokers(entity: Any) -> bool:
    return bool(getattr(entity, "node_endpoints", ()))


@pytest.mark.parametrize(("api_key", "version"), [*FETCHES, *OTHERS])
def test_ids_are_replaced_where_a_leader_is_named(api_key: ApiKey, version: int) -> None:
    """The bytes equal what kio writes for the same answer with other ids and addresses."""
    drawn = [random_response(api_key, version, seed) for seed in range(60)]
    for entity in drawn:
        found = rewrite(api_key, version, entity, names_replica=False)

        expected = write_message(shown(entity)) if names_brokers(entity) else None
        assert found == expected
    assert version < 16 or any(map(names_brokers, drawn)) or api_key != ApiKey.FETCH


@pytest.mark.parametrize(("api_key", "version"), [(ApiKey.FETCH, 11), *FETCHES])
def test_a_replica_to_read_from_is_named_as_this_node_has_it(api_key: ApiKey, version: int) -> None:
    """A client that gave its rack gets it, with or without a new leader."""
    for seed in range(60):
        entity = random_response(api_key, version, seed)

        found = rewrite(api_key, version, entity, names_replica=True)

        assert found == write_message(shown(entity))


@pytest.mark.parametrize("version", range(4, 18))
def test_only_a_client_that_says_its_rack_may_be_sent_elsewhere(version: int) -> None:
    """Reported by the last bytes of its request, in every version."""
    for seed in range(60):
        entity = random_request(ApiKey.FETCH, version, seed)
        if getattr(entity, "cluster_id", None) is not None or getattr(
            entity, "replica_state", None
        ):
            continue  # brokers' own fields

        found = may_name_replica(ApiKey.FETCH, version, memoryview(write_message(entity)))

        assert found == bool(getattr(entity, "rack_id", ""))
    assert not may_name_replica(ApiKey.PRODUCE, 12, b"rack")


def test_what_has_no_ids_is_not_read() -> None:
    """None for any bytes of another API."""
    assert (
        rewrite_brokers(
            ApiKey.METADATA,
            12,
            b"\xff" * 9,
            id_of=id_of,
            address_of=address_of,
            names_replica=False,
        )
        is None
    )


@pytest.mark.parametrize(("api_key", "version"), [(ApiKey.FETCH, 17), *OTHERS])
def test_a_cut_answer_with_ids_is_refused(api_key: ApiKey, version: int) -> None:
    """At every byte, as brokers are believed but not their cuts."""
    drawn = (random_response(api_key, version, seed) for seed in range(200))
    body = write_message(next(entity for entity in drawn if names_brokers(entity)))
    for size in range(len(body)):
        with pytest.raises(FrameInvalid):
            rewrite_brokers(
                api_key,
                version,
                memoryview(body)[:size],
                id_of=id_of,
                address_of=address_of,
                names_replica=True,
            )
