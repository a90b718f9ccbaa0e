"""kio's entities read and written without loss: also what their schemas have no room for.

Source: KIP-482 (tagged fields), KIP-893 (nullable structs), Kafka protocol guide.

kio drops tagged fields that a schema lacks and refuses error codes that it has no name for. A
client or broker newer than keylane may send both, and they are no business of a proxy. Here an
entity with unknown tagged fields belongs to a subclass that holds them raw, so that
`dataclasses.replace` keeps them; an unknown code is an `UnknownCode`; a time that Python cannot
hold stays a number of milliseconds. Reading so takes three times as long as kio behind its guard,
so `messages` comes here only for what kio cannot do. Writing takes a third of what kio's takes.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import itemgetter
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.serial._introspect import classify_field, get_field_tag, is_optional

from keylane.errors import FrameInvalid
from keylane.wire.primitives import (
    NO_TAGS,
    UUID_BYTES,
    Reader,
    read_uvarint,
    write_uvarint,
)
from keylane.wire.repeated import Repeated

Read = Callable[[Reader], Any]
Write = Callable[[list[bytes], Any], None]

UNKNOWN: Final = "unknown_tags"
"""The field of a subclass that holds what its schema lacks: a raw section of tagged fields."""
UNKNOWN_TAGS_MAX: Final = 1000
"""Tagged fields of one section; Kafka's largest message has five known ones."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
NO_UUID: Final = bytes(UUID_BYTES)
NULL_STRUCT, STRUCT = b"\xff", b"\x01"
LAYOUTS: Final = {
    name: struct.Struct(">" + code)
    for name, code in {
        "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I",
        "int64": "q", "uint64": "Q", "float64": "d", "bool": "?", "error_code": "h",
        "timedelta_i32": "i", "timedelta_i64": "q", "datetime_i64": "q", "uuid": "16s",
    }.items()
}  # fmt: skip
"""Layout of each type of a fixed size; the others have a length before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaField:
    """One field of a kio entity type."""

    name: str
    tag: int | None
    entity_type: Any
    """Type of the value or of each item; None: it is a primitive."""
    kafka_type: str
    """Name of a primitive type; empty for an entity."""
    is_array: bool
    is_nullable: bool
    has_default: bool
    tagged_default: Any
    """Value of a tagged field that was not sent; None without a tag."""


@cache
def schema_fields(entity_type: Any) -> tuple[SchemaField, ...]:
    """Return the fields of a kio entity type, in the order of the wire.

    kio says none of this in public, so its private names are used here, and in no other module.
    """
    found = []
    for one in fields(entity_type):
        kind, tag = classify_field(one), get_field_tag(one)
        kafka_type = one.metadata.get("kafka_type", "")
        found.append(
            SchemaField(
                name=one.name,
                tag=tag,
                entity_type=None if kafka_type else kind.type_,
                kafka_type=kafka_type,
                is_array=kind.is_array,
                is_nullable=is_optional(one),
                has_default=one.default is not MISSING,
                tagged_default=None if tag is None else get_tagged_field_default(one),
            )
        )
    return tuple(found)


class UnknownCode(int):
    """An error code that kio has no name for: its number is all that is known."""

    @property
    def name(self) -> str:
        """Name for logs, as `ErrorCode.name` is."""
        return f"error_{int(self)}"


@cache
def tagged_type(entity_type: Any) -> Any:
    """Return the subclass of a kio entity type with the field `unknown_tags`."""
    return make_dataclass(
        entity_type.__name__,
        [(UNKNOWN, bytes, field(default=NO_TAGS))],
        bases=(entity_type,),
        namespace={"__schema__": entity_type},
        frozen=True,
        slots=True,
        kw_only=True,
    )


def unknown_tags_of(entity: Any) -> bytes:
    """Return the raw section of tagged fields that the entity's schema lacks."""
    section: bytes = getattr(entity, UNKNOWN, NO_TAGS)
    return section


def with_unknown_tags(entity: Any, section: bytes) -> Any:
    """Return the entity with another section of tagged fields that its schema lacks."""
    if hasattr(entity, UNKNOWN):
        return replace(entity, unknown_tags=section)
    if section == NO_TAGS:
        return entity
    values = {one.name: getattr(entity, one.name) for one in fields(entity)}
    entity_type: Any = type(entity)
    return tagged_type(entity_type)(**values, unknown_tags=section)


def schema_of(entity_type: Any) -> Any:
    """Return kio's own type: of itself, or of its `tagged_type`."""
    return getattr(entity_type, "__schema__", entity_type)


# -- reading ------------------------------------------------------------------------------


def read_entity(entity_type: Any, body: memoryview) -> tuple[Any, int]:
    """Return an entity of kio's type, or its subclass, and the position behind it.

    Raises:
        FrameInvalid: a length or count passes the end, or a value is no legal one.
    """
    reader = Reader(body, flexible=entity_type.__flexible__)
    return _entity_reader(entity_type)(reader), reader.position


@cache
def _entity_reader(entity_type: Any) -> Read:
    known = schema_fields(entity_type)
    plain = [(one.name, _field_reader(one)) for one in known if one.tag is None]
    tagged = {one.tag: (one.name, _field_reader(one)) for one in known if one.tag is not None}
    defaults = {one.name: one.tagged_default for one in known if one.tag is not None}

    def read_one(reader: Reader) -> Any:
        values = {name: read(reader) for name, read in plain}
        if not reader.flexible:
            return entity_type(**values)
        values |= defaults
        unknown = _read_tags(reader, tagged, values)
        if unknown is None:
            return entity_type(**values)
        return tagged_type(entity_type)(**values, unknown_tags=unknown)

    return read_one


def _read_tags(
    reader: Reader, tagged: dict[int, tuple[str, Read]], values: dict[str, Any]
) -> bytes | None:
    """Put known tagged fields into `values`; return the section of the unknown ones, or None."""
    if reader.position < reader.limit and reader.buffer[reader.position] == 0:
        reader.position += 1
        return None
    count = reader.uvarint()
    if count > UNKNOWN_TAGS_MAX:
        raise FrameInvalid(f"{count} tagged fields before byte {reader.position}")
    unknown = []
    for _ in range(count):
        start = reader.position
        tag, size = reader.uvarint(), reader.uvarint()
        begin = reader.advance(size)
        if tag not in tagged:
            unknown.append(bytes(reader.buffer[start : reader.position]))
            continue
        name, read = tagged[tag]
        part = Reader(reader.buffer[begin : begin + size], flexible=True)
        values[name] = read(part)
        if part.position != size:
            raise FrameInvalid(f"tagged field {tag} at byte {begin} has a wrong length")
    return write_uvarint(len(unknown)) + b"".join(unknown) if unknown else None


def _field_reader(one: SchemaField) -> Read:
    nullable = one.is_nullable
    if one.entity_type is None:
        item = _primitive_reader(one.kafka_type, nullable=nullable)
    else:
        item = _entity_reader(one.entity_type)
        if nullable and not one.is_array:
            return _nullable_entity_reader(item)
    if not one.is_array:
        return item

    def read_array(reader: Reader) -> Any:
        count = reader.nullable_count(1) if nullable else reader.count(1)
        return None if count is None else tuple(item(reader) for _ in range(count))

    return read_array


def _nullable_entity_reader(item: Read) -> Read:
    def read(reader: Reader) -> Any:
        return None if reader.int8() < 0 else item(reader)

    return read


def _primitive_reader(kafka_type: str, *, nullable: bool) -> Read:
    if kafka_type == "string":
        return Reader.nullable_string if nullable else Reader.string
    if kafka_type in ("bytes", "records"):
        return _nullable_bytes if nullable else _bytes
    unpack, size = LAYOUTS[kafka_type].unpack_from, LAYOUTS[kafka_type].size
    converters: dict[str, Callable[[Any], Any]] = {
        "uuid": topic_id_of,
        "error_code": error_code,
        "timedelta_i32": _interval,
        "timedelta_i64": _interval,
        "datetime_i64": _nullable_time if nullable else _time,
    }
    of_wire = converters.get(kafka_type)
    if of_wire is None:
        return lambda reader: unpack(reader.buffer, reader.advance(size))[0]
    return lambda reader: of_wire(unpack(reader.buffer, reader.advance(size))[0])


def error_code(value: int) -> ErrorCode | UnknownCode:
    """Return the code by its name, where it has one."""
    try:
        return ErrorCode(value)
    except ValueError:
        return UnknownCode(value)


def _nullable_bytes(reader: Reader) -> bytes | None:
    data = reader.nullable_bytes()
    return None if data is None else bytes(data)


def _bytes(reader: Reader) -> bytes:
    data = reader.nullable_bytes()
    if data is None:
        raise FrameInvalid(f"null bytes before byte {reader.position}")
    return bytes(data)


def topic_id_of(data: bytes) -> uuid.UUID | None:
    """Return the id that 16 bytes are; None: the zero id, which is no topic's."""
    return None if data == NO_UUID else uuid.UUID(bytes=data)


def _interval(ms: int) -> timedelta | int:
    try:
        return timedelta(milliseconds=ms)
    except OverflowError:
        return ms


def _nullable_time(ms: int) -> datetime | int | None:
    return None if ms == -1 else _time(ms)


def _time(ms: int) -> datetime | int:
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return ms


# -- writing ------------------------------------------------------------------------------


def write_entity(entity: Any) -> bytes:
    """Return the bytes of an entity, in the version of its type."""
    out: list[bytes] = []
    _entity_writer(schema_of(type(entity)))(out, entity)
    return b"".join(out)


@cache
def _entity_writer(entity_type: Any) -> Write:
    flexible: bool = entity_type.__flexible__
    known = schema_fields(entity_type)
    plain = [(one.name, _field_writer(one, flexible=flexible)) for one in known if one.tag is None]
    tagged = sorted(
        (
            (one.tag, one.name, one.tagged_default, _field_writer(one, flexible=flexible))
            for one in known
            if one.tag is not None
        ),
        key=itemgetter(0),
    )

    def write_one(out: list[bytes], entity: Any) -> None:
        for name, write in plain:
            write(out, getattr(entity, name))
        if not flexible:
            return
        unknown = NO_TAGS if type(entity) is entity_type else getattr(entity, UNKNOWN, NO_TAGS)
        if not tagged:
            out.append(unknown)
            return
        found = _split_tags(unknown)
        for tag, name, default, write in tagged:
            value = getattr(entity, name)
            if value != default:
                part: list[bytes] = []
                write(part, value)
                data = b"".join(part)
                found.append((tag, write_uvarint(tag) + write_uvarint(len(data)) + data))
        found.sort(key=itemgetter(0))
        out.append(write_uvarint(len(found)))
        out.extend(data for _, data in found)

    return write_one


def _split_tags(section: bytes) -> list[tuple[int, bytes]]:
    """Return (tag, the field as it stands) for each field of a section."""
    limit = len(section)
    count, position = read_uvarint(section, 0, limit)
    found = []
    for _ in range(count):
        tag, behind = read_uvarint(section, position, limit)
        size, behind = read_uvarint(section, behind, limit)
        found.append((tag, section[position : behind + size]))
        position = behind + size
    return found


def _field_writer(one: SchemaField, *, flexible: bool) -> Write:
    nullable = one.is_nullable
    if one.entity_type is None:
        of_item = nullable and not one.is_array
        item = _primitive_writer(one.kafka_type, nullable=of_item, flexible=flexible)
    else:
        item = _entity_writer(one.entity_type)
        if nullable and not one.is_array:
            return _nullable_entity_writer(item)
    if not one.is_array:
        return item

    def write_array(out: list[bytes], values: Any) -> None:
        if values is None and not nullable:
            raise TypeError(f"{one.name} may not be null")
        out.append(_length(None if values is None else len(values), flexible=flexible))
        if isinstance(values, Repeated):
            values.write(out, item)
            return
        for value in values or ():
            item(out, value)

    return write_array


def _length(count: int | None, *, flexible: bool) -> bytes:
    if flexible:
        return write_uvarint(0 if count is None else count + 1)
    return LAYOUTS["int32"].pack(-1 if count is None else count)


def _nullable_entity_writer(item: Write) -> Write:
    def write(out: list[bytes], entity: Any) -> None:
        out.append(NULL_STRUCT if entity is None else STRUCT)
        if entity is not None:
            item(out, entity)

    return write


def _primitive_writer(kafka_type: str, *, nullable: bool, flexible: bool) -> Write:
    if kafka_type in ("string", "bytes", "records"):
        return _sized_writer(kafka_type, nullable=nullable, flexible=flexible)
    pack = LAYOUTS[kafka_type].pack
    converters: dict[str, Callable[[Any], Any]] = {
        "uuid": topic_id_bytes,
        "timedelta_i32": _milliseconds,
        "timedelta_i64": _milliseconds,
        "datetime_i64": _since_epoch,
    }
    to_wire = converters.get(kafka_type)
    if to_wire is None:
        return lambda out, value: out.append(pack(value))
    return lambda out, value: out.append(pack(to_wire(value)))


def _sized_writer(kafka_type: str, *, nullable: bool, flexible: bool) -> Write:
    pack = LAYOUTS["int16" if kafka_type == "string" else "int32"].pack

    def write(out: list[bytes], value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError(f"a {kafka_type} may not be null")
            out.append(NO_TAGS if flexible else pack(-1))  # a compact length of 0 is null
            return
        data = value.encode() if isinstance(value, str) else value
        out.append(write_uvarint(len(data) + 1) if flexible else pack(len(data)))
        out.append(data)

    return write


def topic_id_bytes(topic_id: uuid.UUID | None) -> bytes:
    """Return the 16 bytes of an id; those of None are zero."""
    return NO_UUID if topic_id is None else topic_id.bytes


def _milliseconds(value: timedelta | int) -> int:
    return value if isinstance(value, int) else value // MILLISECOND


def _since_epoch(value: datetime | int | None) -> int:
    if value is None:
        return -1
    return value if isinstance(value, int) else (value - EPOCH) // MILLISECOND
