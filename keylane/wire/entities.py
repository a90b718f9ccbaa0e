"""kio's entities read and written without loss: also what their schemas have no room for.

Source: KIP-482 (tagged fields), KIP-893 (nullable structs), Kafka protocol guide.

kio drops tagged fields that a schema lacks and refuses error codes that it has no name for. A
client or broker newer than keylane may send both, and they are no business of a proxy. Here an
entity with unknown tagged fields is of a subclass that holds them raw, so that
`dataclasses.replace` keeps them; an unknown code is an `UnknownCode`; a time that Python cannot
hold stays a number of milliseconds. Reading so takes three times as long as kio behind its guard,
so `messages` comes here only for what kio cannot do. Writing takes a third of what kio's takes.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import MISSING, field, fields, make_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)

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
"""Of one section; Kafka's largest message has five known ones."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
NO_UUID: Final = bytes(UUID_BYTES)
NULL_STRUCT, STRUCT = b"\xff", b"\x01"
NUMBERS: Final = {
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I",
    "int64": "q", "uint64": "Q", "float64": "d", "bool": "?",
}  # fmt: skip
INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")


class UnknownCode(int):
    """An error code that kio has no name for: its number is all that is known."""

    @property
    def name(self) -> str:
        """For logs, as `ErrorCode.name`."""
        return f"error_{int(self)}"


@cache
def tagged_type(entity_type: Any) -> Any:
    """The subclass of a kio entity type with the field `unknown_tags`."""
    return make_dataclass(
        entity_type.__name__,
        [(UNKNOWN, bytes, field(default=NO_TAGS))],
        bases=(entity_type,),
        namespace={"__schema__": entity_type},
        frozen=True,
        slots=True,
        kw_only=True,
    )


def schema_of(entity_type: Any) -> Any:
    """kio's own type, of it or of its `tagged_type`."""
    return getattr(entity_type, "__schema__", entity_type)


# -- reading ------------------------------------------------------------------------------


def read_entity(entity_type: Any, body: memoryview) -> tuple[Any, int]:
    """An entity of kio's type, or its subclass, and the position behind it.

    Raises:
        FrameInvalid: a length or count passes the end, or a value is no legal one.
    """
    reader = Reader(body, flexible=entity_type.__flexible__)
    return _entity_reader(entity_type)(reader), reader.position


@cache
def _entity_reader(entity_type: Any) -> Read:
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    defaults: dict[str, Any] = {}
    for one in fields(entity_type):
        tag = get_field_tag(one)
        read = _field_reader(one, flexible=entity_type.__flexible__)
        if tag is None:
            plain.append((one.name, read))
        else:
            tagged[int(tag)] = one.name, read
            defaults[one.name] = get_tagged_field_default(one)

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
    """Put known tagged fields into `values`; the section of the unknown ones, None for none."""
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


def _field_reader(one: Any, *, flexible: bool) -> Read:
    kind = classify_field(one)
    nullable = is_optional(one)
    if isinstance(kind, EntityField | EntityTupleField):
        item = _entity_reader(kind.type_)
        if not kind.is_array:
            return _nullable_entity_reader(item) if nullable else item
    else:
        item = _primitive_reader(get_schema_field_type(one), nullable=nullable, flexible=flexible)
    if not kind.is_array:
        return item

    def read_array(reader: Reader) -> Any:
        count = reader.nullable_count(1) if nullable else reader.count(1)
        return None if count is None else tuple(item(reader) for _ in range(count))

    return read_array


def _nullable_entity_reader(item: Read) -> Read:
    def read(reader: Reader) -> Any:
        return None if reader.int8() < 0 else item(reader)

    return read


def _primitive_reader(kafka_type: str, *, nullable: bool, flexible: bool) -> Read:
    if kafka_type in NUMBERS:
        layout = struct.Struct(">" + NUMBERS[kafka_type])
        return lambda reader: layout.unpack_from(reader.buffer, reader.advance(layout.size))[0]
    match kafka_type:
        case "string":
            return Reader.nullable_string if nullable else Reader.string
        case "bytes" | "records":
            return _nullable_bytes if nullable else _bytes
        case "uuid":
            return _uuid
        case "error_code":
            return lambda reader: error_code(reader.int16())
        case "timedelta_i32":
            return lambda reader: timedelta(milliseconds=reader.int32())
        case "timedelta_i64":
            return lambda reader: _interval(reader.int64())
        case "datetime_i64":
            return lambda reader: _time(reader.int64(), nullable=nullable)
    raise NotImplementedError(f"{kafka_type}, flexible={flexible}")


def error_code(value: int) -> ErrorCode | UnknownCode:
    """The code by its name, where it has one."""
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


def _uuid(reader: Reader) -> uuid.UUID | None:
    data = reader.uuid()
    return None if data == NO_UUID else uuid.UUID(bytes=data)


def _interval(ms: int) -> timedelta | int:
    try:
        return timedelta(milliseconds=ms)
    except OverflowError:
        return ms


def _time(ms: int, *, nullable: bool) -> datetime | int | None:
    if ms == -1 and nullable:
        return None
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return ms


# -- writing ------------------------------------------------------------------------------


def write_entity(entity: Any) -> bytes:
    """The bytes of an entity, in the version of its type."""
    out: list[bytes] = []
    _entity_writer(schema_of(type(entity)))(out, entity)
    return b"".join(out)


@cache
def _entity_writer(entity_type: Any) -> Write:
    flexible: bool = entity_type.__flexible__
    plain: list[tuple[str, Write]] = []
    tagged: list[tuple[int, str, Any, Write]] = []
    for one in fields(entity_type):
        tag, write = get_field_tag(one), _field_writer(one, flexible=flexible)
        if tag is None:
            plain.append((one.name, write))
        else:
            default = one.default if one.default is not MISSING else get_tagged_field_default(one)
            tagged.append((int(tag), one.name, default, write))
    tagged.sort(key=lambda known: known[0])

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
        found.sort(key=lambda one: one[0])
        out.append(write_uvarint(len(found)))
        out.extend(data for _, data in found)

    return write_one


def _split_tags(section: bytes) -> list[tuple[int, bytes]]:
    """(tag, the field as it stands) of a section of tagged fields."""
    limit = len(section)
    count, position = read_uvarint(section, 0, limit)
    found = []
    for _ in range(count):
        tag, behind = read_uvarint(section, position, limit)
        size, behind = read_uvarint(section, behind, limit)
        found.append((tag, section[position : behind + size]))
        position = behind + size
    return found


def _field_writer(one: Any, *, flexible: bool) -> Write:
    kind = classify_field(one)
    nullable = is_optional(one)
    if isinstance(kind, EntityField | EntityTupleField):
        item = _entity_writer(kind.type_)
        if not kind.is_array and nullable:
            return _nullable_entity_writer(item)
    else:
        of_item = nullable and not kind.is_array
        item = _primitive_writer(get_schema_field_type(one), nullable=of_item, flexible=flexible)
    if not kind.is_array:
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
    return INT32.pack(-1 if count is None else count)


def _nullable_entity_writer(item: Write) -> Write:
    def write(out: list[bytes], entity: Any) -> None:
        out.append(NULL_STRUCT if entity is None else STRUCT)
        if entity is not None:
            item(out, entity)

    return write


def _primitive_writer(kafka_type: str, *, nullable: bool, flexible: bool) -> Write:
    if kafka_type in NUMBERS:
        pack = struct.Struct(">" + NUMBERS[kafka_type]).pack
        return lambda out, value: out.append(pack(value))
    match kafka_type:
        case "string" | "bytes" | "records":
            return _sized_writer(kafka_type, nullable=nullable, flexible=flexible)
        case "uuid":
            return lambda out, value: out.append(NO_UUID if value is None else value.bytes)
        case "error_code":
            return lambda out, value: out.append(INT16.pack(value))
        case "timedelta_i32":
            return lambda out, value: out.append(INT32.pack(_milliseconds(value)))
        case "timedelta_i64":
            return lambda out, value: out.append(INT64.pack(_milliseconds(value)))
        case "datetime_i64":
            return lambda out, value: out.append(INT64.pack(_since_epoch(value)))
    raise NotImplementedError(kafka_type)


def _sized_writer(kafka_type: str, *, nullable: bool, flexible: bool) -> Write:
    pack = (INT16 if kafka_type == "string" else INT32).pack

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


def _milliseconds(value: timedelta | int) -> int:
    return value if isinstance(value, int) else value // MILLISECOND


def _since_epoch(value: datetime | int | None) -> int:
    if value is None:
        return -1
    return value if isinstance(value, int) else (value - EPOCH) // MILLISECOND
