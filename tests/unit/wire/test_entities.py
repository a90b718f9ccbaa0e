"""Entities without loss: kio's bytes for what kio knows, and all else kept."""

from __future__ import annotations

import io
import random
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.metadata.v12.request import MetadataRequest
from kio.serial import entity_writer

from keylane.errors import FrameInvalid
from keylane.wire.entities import (
    UNKNOWN,
    UNKNOWN_TAGS_MAX,
    UnknownCode,
    error_code,
    read_entity,
    schema_of,
    tagged_type,
    write_entity,
)
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_request, read_response, write_message
from keylane.wire.primitives import NO_TAGS, write_tags, write_uvarint
from tests.fuzz.entities import known_versions, random_request, random_response
from tests.fuzz.unknown_tags import with_unknown_tags, without_unknown_tags

KNOWN = known_versions()
SEEDS = st.integers(0, 2**32)


def kios_bytes(entity: Any) -> bytes:
    """What kio writes: the twin of `write_entity`."""
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


@given(st.sampled_from(KNOWN), SEEDS)
def test_what_kio_knows_is_as_kio_has_it(known: tuple[int, int], seed: int) -> None:
    """Bytes and entities equal kio's own, for requests and answers of every API and version."""
    for entity in (random_request(*known, seed), random_response(*known, seed)):
        body = kios_bytes(entity)

        assert write_entity(entity) == body
        assert read_entity(type(entity), memoryview(body)) == (entity, len(body))


@given(st.sampled_from(KNOWN), SEEDS, st.sampled_from([0.3, 1.0]))
def test_unknown_tagged_fields_survive(known: tuple[int, int], seed: int, chance: float) -> None:
    """At every level: read and written again they are the same bytes, the rest is kio's."""
    rng = random.Random(seed)
    for plain, read in (
        (random_request(*known, seed), read_request),
        (random_response(*known, seed), read_response),
    ):
        tagged = with_unknown_tags(plain, rng, chance=chance)
        body = write_message(tagged)

        found = read(*known, memoryview(body))

        assert found == tagged
        assert write_message(found) == body
        assert kios_bytes(without_unknown_tags(found)) == kios_bytes(plain)


@given(st.sampled_from(KNOWN), SEEDS, SEEDS)
def test_a_field_that_is_changed_keeps_the_tags(
    known: tuple[int, int], seed: int, other: int
) -> None:
    """As handlers do it: all fields are replaced, the unknown ones of the entity stay."""
    entity = with_unknown_tags(random_response(*known, seed), random.Random(seed))
    news = random_response(*known, other)
    changes = {one.name: getattr(news, one.name) for one in fields(news)}

    changed = replace(entity, **changes)

    found = read_response(*known, memoryview(write_message(changed)))
    assert without_unknown_tags(found) == news
    assert getattr(found, UNKNOWN, NO_TAGS) == getattr(entity, UNKNOWN, NO_TAGS)


def test_unknown_tags_stand_among_known_ones_in_order() -> None:
    """Tags ascend, as KIP-482 asks, whichever of them keylane knows."""
    sent = write_tags({0: b"\x02a", 1: bytes(4) + bytes(8) + NO_TAGS, 2: b"?", 9: b"x"})
    body = b"\x00" * 13 + bytes(8) + b"\x01\x01\x01" + sent

    entity = read_request(ApiKey.FETCH, 17, memoryview(body))

    assert write_message(entity) == body
    assert write_message(replace(entity, cluster_id=None)) == body.replace(
        sent, write_tags({1: bytes(12) + NO_TAGS, 2: b"?", 9: b"x"})
    )


def test_too_many_tagged_fields_are_refused() -> None:
    """Two bytes each, they would cost much more to hold."""
    many = UNKNOWN_TAGS_MAX + 1
    body = b"\x01\x01\x01" + write_uvarint(many) + b"\x63\x00" * many

    with pytest.raises(FrameInvalid, match="1001 tagged fields"):
        read_request(ApiKey.METADATA, 12, memoryview(body))


def test_every_cut_message_with_tags_is_refused() -> None:
    """FrameInvalid for a message without its last byte, in every API and version."""
    for known in KNOWN:
        body = write_message(with_unknown_tags(random_request(*known, 1), random.Random(1)))
        if body:
            with pytest.raises(FrameInvalid):
                read_request(*known, memoryview(body)[:-1])


def test_what_may_not_be_null_is_not_written() -> None:
    """TypeError for our own mistake, where a broker would close the connection."""
    named = random_request(ApiKey.HEARTBEAT, 4, 1)
    listed = random_request(ApiKey.DELETE_GROUPS, 2, 1)

    with pytest.raises(TypeError, match="may not be null"):
        write_entity(replace(named, member_id=None))
    with pytest.raises(TypeError, match="groups_names may not be null"):
        write_entity(replace(listed, groups_names=None))


def test_an_interval_that_python_cannot_hold_is_kept() -> None:
    """A retention of 2^63 - 1 ms in OffsetCommit v2: no offset is to expire."""
    entity = replace(random_request(ApiKey.OFFSET_COMMIT, 2, 1), retention_time=2**63 - 1)

    body = write_message(entity)

    assert read_request(ApiKey.OFFSET_COMMIT, 2, memoryview(body)) == entity


def test_a_subclass_is_made_once_and_knows_its_schema() -> None:
    """Two messages with unknown fields have the same types, so that entities compare."""
    assert tagged_type(MetadataRequest) is tagged_type(MetadataRequest)
    assert schema_of(tagged_type(MetadataRequest)) is schema_of(MetadataRequest) is MetadataRequest
    assert issubclass(tagged_type(MetadataRequest), MetadataRequest)
    assert load_response_schema(3, 12) is schema_of(tagged_type(load_response_schema(3, 12)))


def test_codes() -> None:
    """A known code is kio's; another one is a number with a name for logs."""
    assert error_code(3).name == "unknown_topic_or_partition"
    assert isinstance(error_code(3000), UnknownCode)
    assert error_code(3000).name == "error_3000"
