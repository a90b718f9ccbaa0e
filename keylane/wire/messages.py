"""Control-plane messages: typed by kio, guarded by us.

Source: Kafka protocol guide; schemas by kio.

Why a guard: kio's native reader trusts array counts, and a hostile count makes it reserve
the memory at once and abort the process. `check_message` walks the bytes first with the same
schema and proves that every count and length fits in what was received. What kio would lose, or
has no value for, `entities` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.serial.errors import SerialError

from keylane.errors import FrameInvalid
from keylane.wire.entities import LAYOUTS, SchemaField, read_entity, schema_fields, write_entity
from keylane.wire.primitives import INT16, INT32, read_uvarint

# kio looks the module up by its name each time.
_request_schema, _response_schema = cache(load_request_schema), cache(load_response_schema)


class _UnknownTag(Exception):
    """A message has a tagged field that its schema lacks: kio would drop it."""


Check = Callable[[memoryview, int, int], int]
"""(buffer, position, end) -> position behind the value; raises FrameInvalid."""

LEFT_OVER_MAX: Final = {3: 3}
"""Bytes that may follow a request, by API key. librdkafka reserves four for the count of topics
in Metadata and, when all are asked for (v9 and later), writes its one byte there and goes on
behind the fourth; brokers look at no byte behind a request's end."""


def _advance(position: int, size_bytes: int, end: int) -> int:
    if size_bytes < 0 or position + size_bytes > end:
        raise FrameInvalid(f"length {size_bytes} at byte {position} passes the message's end")
    return position + size_bytes


def _check_fixed(size_bytes: int) -> Check:
    return lambda _buffer, position, end: _advance(position, size_bytes, end)


def _read_length(
    buffer: memoryview, position: int, end: int, *, flexible: bool, wide: bool
) -> tuple[int, int]:
    """Length or count, -1 for null; compact ones are stored plus one."""
    if flexible:
        value, position = read_uvarint(buffer, position, end)
        return value - 1, position
    layout = INT32 if wide else INT16
    behind = _advance(position, layout.size, end)
    return layout.unpack_from(buffer, position)[0], behind


def _check_sized(kafka_type: str, *, flexible: bool) -> Check:
    wide = kafka_type != "string"

    def check(buffer: memoryview, position: int, end: int) -> int:
        length, position = _read_length(buffer, position, end, flexible=flexible, wide=wide)
        return position if length == -1 else _advance(position, length, end)

    return check


def _check_array(item: Check, *, flexible: bool, nullable: bool) -> Check:
    count_min = -1 if nullable else 0

    def check(buffer: memoryview, position: int, end: int) -> int:
        count, position = _read_length(buffer, position, end, flexible=flexible, wide=True)
        # Every item takes at least one byte, so a count beyond the rest is a lie.
        # kio reads a null as None where the schema has none, too, which no handler expects.
        if not count_min <= count <= end - position:
            raise FrameInvalid(f"count {count} at byte {position} passes the message's end")
        for _ in range(count):
            position = item(buffer, position, end)
        return position

    return check


def _check_nullable_entity(item: Check) -> Check:
    def check(buffer: memoryview, position: int, end: int) -> int:
        behind = _advance(position, 1, end)
        return behind if buffer[position] >= 0x80 else item(buffer, behind, end)

    return check


def _field_check(field: SchemaField, *, flexible: bool) -> Check:
    if field.entity_type is not None:
        item = entity_check(field.entity_type)
        if field.is_nullable and not field.is_array:
            return _check_nullable_entity(item)
    elif field.kafka_type in LAYOUTS:
        item = _check_fixed(LAYOUTS[field.kafka_type].size)
    else:
        item = _check_sized(field.kafka_type, flexible=flexible)
    if not field.is_array:
        return item
    return _check_array(item, flexible=flexible, nullable=field.is_nullable)


@cache
def entity_check(entity_type: Any) -> Check:
    """Return the guard of one kio entity type, made once."""
    flexible: bool = entity_type.__flexible__
    known = [(one.tag, _field_check(one, flexible=flexible)) for one in schema_fields(entity_type)]
    plain = [check for tag, check in known if tag is None]
    tagged = {tag: check for tag, check in known if tag is not None}

    def check(buffer: memoryview, position: int, end: int) -> int:
        for step in plain:
            position = step(buffer, position, end)
        return _check_tags(tagged, buffer, position, end) if flexible else position

    return check


def _check_tags(tagged: dict[int, Check], buffer: memoryview, position: int, end: int) -> int:
    count, position = read_uvarint(buffer, position, end)
    for _ in range(count):
        tag, position = read_uvarint(buffer, position, end)
        size_bytes, position = read_uvarint(buffer, position, end)
        behind = _advance(position, size_bytes, end)
        if tag not in tagged:
            raise _UnknownTag
        if tagged[tag](buffer, position, behind) != behind:
            raise FrameInvalid(f"tagged field {tag} at byte {position} has a wrong length")
        position = behind
    return position


def _read(entity_type: Any, body: memoryview, *, left_over_max: int = 0) -> Any:
    # OverflowError: kio has no value for a timestamp before 1970.
    try:
        behind = entity_check(entity_type)(body, 0, len(body))
        # kio refuses what could be written to, and large frames are in buffers that could.
        entity, _ = entity_reader(entity_type)(body.toreadonly(), 0)
    except (_UnknownTag, SerialError, ValueError, KeyError, OverflowError):
        entity, behind = read_entity(entity_type, body)
    if len(body) - behind > left_over_max:
        raise FrameInvalid(f"bytes left over behind {entity_type.__name__}")
    return entity


def read_request(api_key: int, api_version: int, body: memoryview) -> Any:
    """Read a request body. Raises: FrameInvalid."""
    schema = _request_schema(api_key, api_version)
    return _read(schema, body, left_over_max=LEFT_OVER_MAX.get(api_key, 0))


def read_response(api_key: int, api_version: int, body: memoryview) -> Any:
    """Read a response body. Raises: FrameInvalid."""
    return _read(_response_schema(api_key, api_version), body)


def write_message(entity: Any) -> bytes:
    """Return the bytes of any kio entity; the version is the entity's own."""
    return write_entity(entity)
