"""Random kio messages of any API and version, to which codecs are compared.

In:    an entity type and a seeded generator.  Out: an entity, its bytes.
Source: kio's schema modules, read through their dataclass fields.
"""

from __future__ import annotations

import datetime
import random
import uuid
from dataclasses import MISSING, fields
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)
from kio.static.constants import EntityType

from keylane.wire.messages import write_message

INT_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
EDGES = (0, 1, -1)
EPOCH = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
STRINGS = ("", "a", "orders", "orders.lanes-16", "ümlaut", "x" * 130)


def random_entity(entity_type: Any, rng: random.Random, *, items_max: int = 3) -> Any:
    """An entity with every field drawn; tagged fields stay at their default half of the time."""
    values = {}
    for field in fields(entity_type):
        is_tagged = get_field_tag(field) is not None
        if is_tagged and field.default is not MISSING and rng.random() < 0.5:
            continue
        values[field.name] = _value(field, rng, items_max)
    return entity_type(**values)


def _value(field: Any, rng: random.Random, items_max: int) -> Any:
    kind = classify_field(field)
    if isinstance(kind, EntityTupleField):
        if is_optional(field) and rng.random() < 0.2:
            return None
        count = rng.randrange(items_max + 1)
        return tuple(random_entity(kind.type_, rng, items_max=items_max) for _ in range(count))
    if isinstance(kind, EntityField):
        if is_optional(field) and rng.random() < 0.2:
            return None
        return random_entity(kind.type_, rng, items_max=items_max)
    kafka_type = get_schema_field_type(field)
    if kind.is_array:
        return tuple(_primitive(kafka_type, rng) for _ in range(rng.randrange(items_max + 1)))
    if is_optional(field) and rng.random() < 0.2:
        return None
    return _primitive(kafka_type, rng)


def _primitive(kafka_type: str, rng: random.Random) -> Any:
    if kafka_type in INT_BITS:
        bits = INT_BITS[kafka_type]
        edges = (*EDGES, 2**bits - 1, -(2**bits))
        return rng.choice(edges) if rng.random() < 0.5 else rng.randrange(-(2**bits), 2**bits)
    match kafka_type:
        case "uint8" | "uint16" | "uint32" | "uint64":
            return rng.randrange(2 ** int(kafka_type[4:]))
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.random() * 1e9
        case "error_code":
            return rng.choice((ErrorCode.none, *ErrorCode))
        case "string":
            return rng.choice(STRINGS)
        case "uuid":
            return uuid.UUID(int=rng.getrandbits(128) | 1)
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 61, 200, 2000)))
        case "timedelta_i32":
            return datetime.timedelta(milliseconds=rng.randrange(1 << 31))
        case "timedelta_i64":
            return datetime.timedelta(milliseconds=rng.randrange(1 << 40))
        case "datetime_i64":
            return EPOCH + datetime.timedelta(seconds=rng.randrange(1 << 28))
    raise AssertionError(f"no value for {kafka_type}")


def random_request(api_key: int, version: int, seed: int, *, items_max: int = 3) -> Any:
    """A kio request entity drawn from a seed."""
    schema = load_request_schema(api_key, version)
    return random_entity(schema, random.Random(seed), items_max=items_max)


def random_response(api_key: int, version: int, seed: int, *, items_max: int = 3) -> Any:
    """A kio response entity drawn from a seed."""
    schema = load_response_schema(api_key, version)
    return random_entity(schema, random.Random(seed), items_max=items_max)


def random_request_body(api_key: int, version: int, seed: int) -> bytes:
    """The bytes of `random_request`."""
    return write_message(random_request(api_key, version, seed))


def random_response_body(api_key: int, version: int, seed: int) -> bytes:
    """The bytes of `random_response`."""
    return write_message(random_response(api_key, version, seed))


def known_versions() -> list[tuple[int, int]]:
    """Every (API key, version) that kio has a request and a response of."""
    return [
        (int(key), int(version))
        for key, name in sorted(api_key_map.items())
        for version, kinds in schema_name_map[name].items()
        if EntityType.request in kinds and EntityType.response in kinds
    ]
