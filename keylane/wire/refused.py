"""Refusals as kio entities: an answer, or an entry of one, with its error code wherever it has one.

Source: Kafka message schemas.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.wire.entities import schema_fields

ENTRIES: Final = (
    "topics", "topic_names", "v3_and_below_topics", "creations", "groups", "groups_names",
    "resources", "partitions", "partition_indexes",
)  # fmt: skip
"""Fields of requests, and of their entries, that say what is asked for."""
VALUES: Final = {
    "configs": (), "committed_offset": -1, "low_watermark": -1, "metadata": "",
    "producer_epoch": -1, "start_offset": -1,
}  # fmt: skip
"""Values beside an error that are not what was asked for, nor zero or empty by their type."""
EMPTY: Final = {"string": "", "bytes": b"", "timedelta_i32": timedelta(0), "uuid": None}


class _Kind(enum.Enum):
    CODE = enum.auto()
    MESSAGE = enum.auto()
    ENTRIES = enum.auto()
    VALUE = enum.auto()


@cache
def _shape(entity_type: Any) -> tuple[tuple[str, _Kind, Any], ...]:
    """Name, kind, and the type of the entries or the value; fields with a default are left out."""
    found = []
    for one in schema_fields(entity_type):
        kind, value = _Kind.VALUE, VALUES.get(one.name)
        if one.name == "error_message":
            kind = _Kind.MESSAGE
        elif one.kafka_type == "error_code":
            kind = _Kind.CODE
        elif one.has_default:
            continue
        elif value is None and not one.is_nullable:
            if one.is_array:
                kind, value = _Kind.ENTRIES, one.entity_type
            else:
                value = EMPTY.get(one.kafka_type, 0)
        found.append((one.name, kind, value))
    return tuple(found)


def has_code(entity_type: Any) -> bool:
    """Return whether an entity has an error code itself, beside those of its entries."""
    return any(kind is _Kind.CODE for _, kind, _ in _shape(entity_type))


def results_of(response_type: Any) -> tuple[str, Any]:
    """The field of an answer with a result for each entry of the request, and their type."""
    return next((name, item) for name, kind, item in _shape(response_type) if kind is _Kind.ENTRIES)


def entries_of(asked: Any) -> tuple[str, Sequence[Any]]:
    """The field of a request, or of an entry of one, that says what is asked for, and its value."""
    name = next(name for name in ENTRIES if hasattr(asked, name))
    return name, getattr(asked, name) or ()


def refuse(
    entity_type: Any,
    asked: Any,
    code: ErrorCode,
    message: str | None = None,
    *,
    whole: ErrorCode | None = None,
    **values: Any,
) -> Any:
    """Return an entity of an answer in which all that was asked for is refused.

    asked: the request, or an entry of it; a name or number, where the request has no more.
    whole: the code of what has entries, which are named then; else entries beside a code are not.
    values: fields that are to be something else.
    """
    shape = _shape(entity_type)
    are_named = whole is not None or not has_code(entity_type)
    has_entries = any(kind is _Kind.ENTRIES for _, kind, _ in shape)
    found: dict[str, Any] = {}
    for number, (name, kind, value) in enumerate(shape):
        if kind is _Kind.CODE:
            found[name] = code if whole is None or not has_entries else whole
        elif kind is _Kind.MESSAGE:
            found[name] = message
        elif kind is _Kind.ENTRIES:
            entries = entries_of(asked)[1] if are_named else ()
            found[name] = tuple(refuse(value, each, code, message, whole=whole) for each in entries)
        elif name in VALUES:
            found[name] = value
        elif isinstance(asked, str | int):
            found[name] = value if number else asked
        else:
            found[name] = getattr(asked, name, value)
    return entity_type(**(found | values))
