"""Primitive types: values at their bounds, and every lie about a length."""

from __future__ import annotations

import pytest

from keylane.errors import FrameInvalid
from keylane.wire.primitives import (
    JOIN_BYTES_MAX,
    NO_TAGS,
    STRING_BYTES_MAX,
    UVARINT_MAX,
    Reader,
    Writer,
    read_tags,
    read_uvarint,
    skip_tags,
    write_tags,
    write_uvarint,
)

BOTH = pytest.mark.parametrize("flexible", [False, True])


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (UVARINT_MAX, b"\xff\xff\xff\xff\x07"),
    ],
)
def test_a_varint_is_its_shortest_form(value: int, data: bytes) -> None:
    """Written as in protobuf, and read back with the position behind it."""
    assert write_uvarint(value) == data
    assert read_uvarint(b"?" + data, 1, 1 + len(data)) == (value, 1 + len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff\x0f", b"\xff" * 6])
def test_a_varint_that_ends_early_or_is_too_large_is_refused(data: bytes) -> None:
    """FrameInvalid for no byte, an open end, 32 bits and more."""
    with pytest.raises(FrameInvalid, match="varint"):
        read_uvarint(data, 0, len(data))


@pytest.mark.parametrize("value", [-1, UVARINT_MAX + 1])
def test_a_varint_that_cannot_be_written_is_our_bug(value: int) -> None:
    """ValueError outside 31 bits."""
    with pytest.raises(ValueError, match="31 bits"):
        write_uvarint(value)


@BOTH
def test_values_come_back_as_written(flexible: bool) -> None:
    """Integers at their lower bounds, strings, null, counts, in one message."""
    writer = Writer(flexible=flexible)
    writer.int8(-128)
    writer.int16(-(2**15))
    writer.int32(-(2**31))
    writer.int64(-(2**63))
    writer.raw(bytes(range(16)))
    writer.string("ümlaut")
    writer.string(None)
    writer.count(0)
    writer.count(None)
    writer.tags(NO_TAGS)

    reader = Reader(writer.to_bytes(), flexible=flexible)

    assert (reader.int8(), reader.int16()) == (-128, -(2**15))
    assert (reader.int32(), reader.int64()) == (-(2**31), -(2**63))
    assert reader.uuid() == bytes(range(16))
    assert (reader.string(), reader.nullable_string()) == ("ümlaut", None)
    assert (reader.count(1), reader.nullable_count(1)) == (0, None)
    assert reader.tags() == NO_TAGS
    assert reader.remaining == 0
    reader.end()


@BOTH
def test_null_where_it_may_not_be_is_refused(flexible: bool) -> None:
    """FrameInvalid for a null string and a null array."""
    null = b"\x00" if flexible else b"\xff\xff\xff\xff"

    with pytest.raises(FrameInvalid, match="null string"):
        Reader(null, flexible=flexible).string()
    with pytest.raises(FrameInvalid, match="null array"):
        Reader(null, flexible=flexible).count(1)


@pytest.mark.parametrize(
    ("data", "flexible"),
    [
        (b"\x7f\xff\xff\xff" + bytes(9), False),
        (b"\xff\xff\xff\xfe", False),
        (b"\x05" + bytes(7), True),
        (b"\xff\xff\xff\xff\x07", True),
    ],
)
def test_a_count_beyond_the_bytes_that_remain_is_refused(data: bytes, *, flexible: bool) -> None:
    """4 items of 2 bytes do not fit in 7 bytes, nor do negative ones."""
    with pytest.raises(FrameInvalid, match="items"):
        Reader(data, flexible=flexible).count(2)


@pytest.mark.parametrize("size", [b"\x00\x03", b"\xff\xfe", b"\x80\x00"])
def test_a_string_beyond_the_end_or_of_negative_size_is_refused(size: bytes) -> None:
    """FrameInvalid for 3 bytes where 2 remain, and for -2 and -32768."""
    with pytest.raises(FrameInvalid):
        Reader(size + b"ab", flexible=False).nullable_string()


def test_a_string_longer_than_kafka_reads_is_refused() -> None:
    """32768 bytes: FrameInvalid on reading, ValueError on writing."""
    data = write_uvarint(STRING_BYTES_MAX + 2) + bytes(STRING_BYTES_MAX + 1)

    with pytest.raises(FrameInvalid, match="string of 32768"):
        Reader(data, flexible=True).string()
    with pytest.raises(ValueError, match="too long"):
        Writer(flexible=True).string("x" * (STRING_BYTES_MAX + 1))


def test_a_string_that_is_not_utf8_is_refused() -> None:
    """FrameInvalid, not UnicodeDecodeError."""
    with pytest.raises(FrameInvalid, match="UTF-8"):
        Reader(b"\x02\xff", flexible=True).string()


def test_bytes_that_follow_a_message_are_refused() -> None:
    """One byte left means that something was misread."""
    with pytest.raises(FrameInvalid, match="1 bytes follow"):
        Reader(b"x", flexible=True).end()


def test_bytes_are_a_view() -> None:
    """A change of the frame shows in what was read; null stays null."""
    frame = bytearray(b"\x04abc\x00")
    reader = Reader(frame, flexible=True)
    data = reader.nullable_bytes()
    assert data is not None

    frame[1] = ord("z")

    assert bytes(data) == b"zbc"
    assert reader.nullable_bytes() is None


@pytest.mark.parametrize("position", [-1, 4])
def test_a_position_outside_the_message_is_refused(position: int) -> None:
    """A message of 3 bytes has positions 0 to 3."""
    with pytest.raises(FrameInvalid, match="no byte"):
        Reader(b"abc", position, flexible=True)


@pytest.mark.parametrize("size", [-1, 4])
def test_a_step_beyond_the_end_is_refused(size: int) -> None:
    """Neither backwards nor past the end; the position stays."""
    reader = Reader(b"abc", flexible=True)

    with pytest.raises(FrameInvalid, match="remain"):
        reader.advance(size)
    assert reader.position == 0


def test_tags_are_written_in_ascending_order() -> None:
    """{9, 0} is written 0, 9, and read back the same."""
    section = write_tags({9: b"nine", 0: b""})

    assert section == b"\x02\x00\x00\x09\x04nine"
    assert read_tags(section) == {0: b"", 9: b"nine"}
    assert skip_tags(section + b"rest", 0, len(section) + 4) == len(section)


@pytest.mark.parametrize("section", [b"", b"\x01", b"\x01\x00", b"\x01\x00\x05ab", b"\x7f\x00\x00"])
def test_tags_beyond_the_end_are_refused(section: bytes) -> None:
    """FrameInvalid for a missing section, count, size or value."""
    with pytest.raises(FrameInvalid):
        skip_tags(section, 0, len(section))


def test_bytes_behind_tags_are_refused() -> None:
    """A section is the whole of what `read_tags` is given."""
    with pytest.raises(FrameInvalid, match="follow"):
        read_tags(NO_TAGS + b"x")


def test_small_parts_are_joined_and_large_ones_kept() -> None:
    """Two small, one large, one small part: three buffers, the large one by reference."""
    large = bytes(JOIN_BYTES_MAX)
    writer = Writer(flexible=True)
    writer.int8(1)
    writer.int8(2)
    writer.raw(large)
    writer.int8(3)

    buffers = writer.to_buffers()

    assert [bytes(buffer) for buffer in buffers] == [b"\x01\x02", large, b"\x03"]
    assert buffers[1] is large
    assert Writer(flexible=True).to_buffers() == []
