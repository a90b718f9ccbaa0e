"""kio entities of any version from plain values, and back.

In:    nested dicts and lists.  Out: kio entities; fields that a version lacks are left out.
Pure:  no I/O.
Source: kio's schema modules, read through their dataclass fields.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from datetime import timedelta
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


def build(entity_type: Any, values: Values) -> Any:
    """An entity; what `values` does not name is at its default, or zero."""
    made = {}
    for field in fields(entity_type):
        if field.name in values:
            made[field.name] = _value(field, values[field.name])
        elif field.default is MISSING:
            made[field.name] = _zero(field)
    return entity_type(**made)


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
    kind = classify_field(field)
    if value is None:
        return None
    if isinstance(kind, EntityTupleField):
        return tuple(build(kind.type_, item) for item in value)
    if isinstance(kind, EntityField):
        return build(kind.type_, value)
    if kind.is_array:
        return tuple(value)
    return _primitive(get_schema_field_type(field), value)


def _primitive(kafka_type: str, value: Any) -> Any:
    if kafka_type.startswith("timedelta"):
        return timedelta(milliseconds=value)
    return ErrorCode(value) if kafka_type == "error_code" else value


def _zero(field: Any) -> Any:
    kind = classify_field(field)
    if isinstance(kind, EntityTupleField):
        return ()
    if is_optional(field):
        return None
    if isinstance(kind, EntityField):
        return build(kind.type_, {})
    if kind.is_array:
        return ()
    kafka_type = get_schema_field_type(field)
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
