"""Tagged fields that no schema has, put at every level of a kio entity.

Source: KIP-482.
"""

from __future__ import annotations

import random
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
    if not entity.__flexible__:
        return entity
    values = {one.name: _deeper(getattr(entity, one.name), rng, chance) for one in fields(entity)}
    if rng.random() >= chance:
        return type(entity)(**values)
    tags = {
        rng.randrange(TAG_MIN, 2**31 - 1): rng.randbytes(rng.randrange(200))
        for _ in range(rng.randint(1, 3))
    }
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


def _deeper(value: Any, rng: random.Random, chance: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_deeper(item, rng, chance) for item in value)
    return with_unknown_tags(value, rng, chance=chance) if is_dataclass(value) else value


def _bare(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_bare(item) for item in value)
    return without_unknown_tags(value) if is_dataclass(value) else value
