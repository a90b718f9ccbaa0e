"""kio entities of any version from plain values, and back.

In:    nested dicts and lists.  Out: kio entities; fields that a version lacks are left out.
Pure:  no I/O.
Source: kio's schema modules, read through their dataclass fields.
"""

from __future__ import annotations

from collections.abc import Callable
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
Zero = Callable[[], Any]


def build(entity_type: Any, values: Values) -> Any:
    """An entity; what `values` does not name is at its default, or zero."""
    made = {}
    for name, convert, zero in _plan(entity_type):
        if name in values:
            made[name] = convert(values[name])
        elif zero is not None:
            made[name] = zero()
    return entity_type(**made)


@cache
def _plan(entity_type: Any) -> tuple[tuple[str, Convert, Zero | None], ...]:
    """By field: its name, how a plain value becomes its own, and what it is without one."""
    return tuple(
        (
            field.name,
            partial(_value, field),
            partial(_zero, field) if field.default is MISSING else None,
        )
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


def _value(field: Any, value: Any) -> Any:
    if value is None:
        return None
    kind, kafka_type = _kind(field)
    if isinstance(kind, EntityTupleField):
        return tuple(build(kind.type_, item) for item in value)
    if isinstance(kind, EntityField):
        return build(kind.type_, value)
    return tuple(value) if kind.is_array else _primitive(kafka_type, value)


_kinds: dict[int, tuple[Any, str]] = {}
"""By field, which are not hashable; schemas stay for as long as the process runs."""


def _kind(field: Any) -> tuple[Any, str]:
    """kio's kind of a field, and Kafka's type of what is no entity."""
    found = _kinds.get(id(field))
    if found is None:
        kind = classify_field(field)
        is_entity = isinstance(kind, EntityField | EntityTupleField)
        found = _kinds[id(field)] = kind, "" if is_entity else get_schema_field_type(field)
    return found


def _primitive(kafka_type: str, value: Any) -> Any:
    if kafka_type.startswith("timedelta"):
        return timedelta(milliseconds=value)
    return ErrorCode(value) if kafka_type == "error_code" else value


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
    return _primitive(kafka_type, 0)
