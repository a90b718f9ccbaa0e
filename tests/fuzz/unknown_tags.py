"""Tagged fields that no schema has, put at every level of a kio entity.

Source: KIP-482.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from keylane.wire.entities import UNKNOWN, schema_of, tagged_type
from keylane.wire.primitives import write_tags

TAG_MIN = 100
"""Above every tag that Kafka has given out."""


def with_unknown_tags(entity: Any, rng: random.Random, *, chance: float = 1.0) -> Any:
    """The entity, and all entities in it, with one to three tagged fields more.

    chance: of each entity to get some. One of a version without tagged fields stays as it is.
    """

    def draw(_: Any) -> Mapping[int, bytes]:
        if rng.random() >= chance:
            return {}
        return {
            rng.randrange(TAG_MIN, 2**31 - 1): rng.randbytes(rng.randrange(200))
            for _ in range(rng.randint(1, 3))
        }

    return with_tags(entity, draw)


def with_tags(entity: Any, tags_of: Callable[[Any], Mapping[int, bytes]]) -> Any:
    """The entity, and all entities in it, with tagged fields, given by entity; {}: none."""
    if not entity.__flexible__:
        return entity
    values = {one.name: getattr(entity, one.name) for one in fields(entity)}
    for one in fields(entity):
        # What is at its default is not sent; with a tag in it, it would be.
        if values[one.name] != one.default:
            values[one.name] = _deeper(values[one.name], tags_of)
    tags = tags_of(entity)
    if not tags:
        return type(entity)(**values)
    return tagged_type(schema_of(type(entity)))(**values, unknown_tags=write_tags(tags))


def without_unknown_tags(entity: Any) -> Any:
    """The entity as kio has it."""
    schema = schema_of(type(entity))
    return schema(
        **{
            one.name: _bare(getattr(entity, one.name))
            for one in fields(entity)
            if one.name != UNKNOWN
        }
    )


def _deeper(value: Any, tags_of: Callable[[Any], Mapping[int, bytes]]) -> Any:
    if isinstance(value, tuple):
        return tuple(_deeper(item, tags_of) for item in value)
    return with_tags(value, tags_of) if is_dataclass(value) else value


def _bare(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_bare(item) for item in value)
    return without_unknown_tags(value) if is_dataclass(value) else value
