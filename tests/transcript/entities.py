"""kio entities of any version from plain values, and back.

Source: kio's schema modules, read through their dataclass fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, fields
from datetime import timedelta
from functools import cache, partial
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_schema_field_type,
    is_optional,
)

Values = dict[str, Any]
Convert = Callable[[Any], Any]


def build(entity_type: Any, values: Values) -> Any:
    """An entity; what `values` does not name is at its default, or zero."""
    made = {}
    for name, convert, zero in _plan(entity_type):
        if name in values:
            value = values[name]
            made[name] = value if convert is None or value is None else convert(value)
        elif zero is not MISSING:
            made[name] = zero
    return entity_type(**made)


@cache
def _plan(entity_type: Any) -> tuple[tuple[str, Convert | None, Any], ...]:
    """By field: its name, what a plain value goes through, and what it is without one.

    MISSING: its default.
    """
    return tuple(
        (field.name, _converter(field), _zero(field) if field.default is MISSING else MISSING)
        for field in fields(entity_type)
    )


def plain(entity: Any) -> Values:
    """Nested dicts and lists with plain numbers, as `build` takes them."""
    shown: Values = _plain(asdict(entity))
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, ErrorCode):
        return int(value)
    return value


def _kind(field: Any) -> tuple[Any, str]:
    """kio's kind of a field, and Kafka's type of what is no entity."""
    kind = classify_field(field)
    is_entity = isinstance(kind, EntityField | EntityTupleField)
    return kind, "" if is_entity else get_schema_field_type(field)


def _converter(field: Any) -> Convert | None:
    """How a plain value becomes the field's own; None: it is one."""
    kind, kafka_type = _kind(field)
    if isinstance(kind, EntityTupleField):
        return partial(_build_all, kind.type_)
    if isinstance(kind, EntityField):
        return partial(build, kind.type_)
    if kind.is_array:
        return tuple
    if kafka_type.startswith("timedelta"):
        return _milliseconds
    return ErrorCode if kafka_type == "error_code" else None


def _build_all(entity_type: Any, items: Iterable[Values]) -> tuple[Any, ...]:
    return tuple([build(entity_type, item) for item in items])


def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def _zero(field: Any) -> Any:
    kind, kafka_type = _kind(field)
    if isinstance(kind, EntityTupleField):
        return ()
    if is_optional(field):
        return None
    if isinstance(kind, EntityField):
        return build(kind.type_, {})
    if kind.is_array:
        return ()
    match kafka_type:
        case "string":
            return ""
        case "bool":
            return False
        case "bytes" | "records":
            return b""
        case "uuid":
            return None
    if kafka_type.startswith("timedelta"):
        return timedelta()
    return ErrorCode(0) if kafka_type == "error_code" else 0
