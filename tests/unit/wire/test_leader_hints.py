"""Broker ids in answers: leaders, replicas and addresses replaced, everything else untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keylane.errors import FrameInvalid
from keylane.wire.header import ApiKey
from keylane.wire.leader_hints import may_name_replica, rewrite_ids
from keylane.wire.messages import write_message
from tests.fuzz.entities import random_request, random_response

FETCHES = [(ApiKey.FETCH, version) for version in range(12, 18)]
OTHERS = [
    *((ApiKey.PRODUCE, version) for version in (10, 11, 12, 13)),
    *((key, v) for key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE) for v in (1, 2)),
]


def id_of(broker_id: int) -> int:
    return broker_id if broker_id < 0 else (broker_id + 1_000_000) % 2**31


def address_of(broker_id: int) -> tuple[str, int]:
    return f"lane-{broker_id}.example", 7000


def rewrite(api_key: int, version: int, entity: Any, *, names_replica: bool) -> bytes | None:
    body = memoryview(write_message(entity))
    buffers = rewrite_ids(
        api_key,
        version,
        body,
        id_of=id_of,
        address_of=address_of,
        names_replica=names_replica,
    )
    return None if buffers is None else b"".join(buffers)


def shown(entity: Any) -> Any:
    """What kio holds after the change."""

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


def has_endpoints(entity: Any) -> bool:
    return bool(getattr(entity, "node_endpoints", ()))


@pytest.mark.parametrize(("api_key", "version"), [*FETCHES, *OTHERS])
def test_ids_are_replaced_where_a_leader_is_named(api_key: ApiKey, version: int) -> None:
    """The bytes equal what kio writes for the same answer with other ids and addresses."""
    drawn = [random_response(api_key, version, seed) for seed in range(60)]
    for entity in drawn:
        found = rewrite(api_key, version, entity, names_replica=False)

        expected = write_message(shown(entity)) if has_endpoints(entity) else None
        assert found == expected
    assert version < 16 or any(map(has_endpoints, drawn)) or api_key != ApiKey.FETCH


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
        rewrite_ids(
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
def test_a_cut_answer_is_refused(api_key: ApiKey, version: int) -> None:
    """At every byte, as brokers are believed but not their cuts."""
    drawn = (random_response(api_key, version, seed) for seed in range(200))
    body = write_message(next(entity for entity in drawn if has_endpoints(entity)))
    for size in range(len(body)):
        with pytest.raises(FrameInvalid):
            rewrite_ids(
                api_key,
                version,
                memoryview(body)[:size],
                id_of=id_of,
                address_of=address_of,
                names_replica=True,
            )
