"""keylane/offsets/records/held.py: lanes in hand, as the journal has them and a node loads them."""

from __future__ import annotations

import struct

import pytest

from keylane.errors import JournalInvalid
from keylane.offsets.records.held import (
    HELD,
    HeldLanes,
    HeldTable,
    read_held,
    read_held_key,
    write_held,
    write_held_key,
)
from keylane.offsets.records.journal import KEY_HEAD, KEY_VERSION, JournalRecord, ic_partition
from keylane.offsets.table import OffsetTable

A = HeldLanes("a", None, 3, frozenset({("orders", 0), ("orders", 2), ("shop", 1)}))
B = HeldLanes("b-2", "i", 4, frozenset({("orders", 1)}))


def lanes(*indexes: int) -> HeldLanes:
    """A member with lanes of orders."""
    return HeldLanes("m", None, 1, frozenset(("orders", index) for index in indexes))


def changed(
    table: HeldTable, changes: dict[str, HeldLanes | None]
) -> list[tuple[str, frozenset[tuple[str, int]] | None]]:
    """Identity and lanes of each record, in order."""
    found = []
    for record in table.changed("g", changes, 50, 7):
        named = read_held_key(record.key or b"")
        assert named is not None and named[0] == "g"
        assert record.partition == ic_partition("g", 50)
        value = None if record.value is None else read_held(record.value).lanes
        found.append((named[1], value))
    return found


def loaded(records: list[JournalRecord]) -> HeldTable:
    """What another node has of them."""
    table = HeldTable()
    for record in records:
        table.apply(record.key or b"", record.value)
    return table


def test_a_value_is_these_bytes() -> None:
    """Version 0 at 7 ms, epoch 3: other versions of keylane read it."""
    one = HeldLanes("m", None, 3, frozenset({("t", 5), ("t", 1)}))

    value = write_held(one, 7)

    assert value == struct.pack(">hqi h1s h i h1s i ii".replace(" ", ""), 0, 7, 3, 1, b"m", -1, 1,
                                1, b"t", 2, 1, 5)  # fmt: skip


@pytest.mark.parametrize(
    ("position", "patch"),
    [(0, b"\0\1"), (10, b"\xff\xff\xff\xff"), (17, b"\x7f\xff\xff\xff"), (28, b"\xff\xff\xff\xff")],
    ids=["version", "epoch below 0", "count of topics", "index below 0"],
)
def test_a_value_that_makes_no_sense(position, patch) -> None:
    """Refused as part of the journal, which passes over the record."""
    value = bytearray(write_held(HeldLanes("m", None, 3, frozenset({("t", 5)})), 7))
    value[position : position + len(patch)] = patch

    with pytest.raises(JournalInvalid, match="held lanes"):
        read_held(bytes(value))


def test_keys_of_other_kinds_are_not_read() -> None:
    """None, and nothing is applied."""
    other = KEY_HEAD.pack(KEY_VERSION, HELD - 1) + b"more"
    table = HeldTable()

    table.apply(other, b"any")

    assert read_held_key(other) is None and table.groups() == []


def test_a_group_is_there_until_its_last_member_is_taken_out() -> None:
    """By its records only; what is returned is a copy."""
    table = HeldTable()
    before = table.has_group("g")
    table.changed("g", {"a": A, "static i": B}, 1, 0)
    copy = table.of_group("g")
    table.changed("g", {"a": None}, 1, 0)
    is_there, groups = table.has_group("g"), table.groups()
    table.changed("g", {"static i": None}, 1, 0)

    assert (before, is_there, table.has_group("g"), groups) == (False, True, False, ["g"])
    assert copy == {"a": A, "static i": B} and table.of_group("g") == {}


def test_members_that_lose_lanes_are_written_first() -> None:
    """A crash between two records leaves no lane in the hands of neither, nor of the wrong one."""
    table = HeldTable()
    changed(table, {"a": lanes(0, 1, 2), "b": lanes(3)})

    order = changed(table, {"b": lanes(2, 3), "a": lanes(0, 1), "c": lanes(4), "d": None})

    assert [name for name, _ in order] == ["a", "d", "b", "c"]


def test_a_lane_is_at_the_member_whose_record_came_last() -> None:
    """The order of the log is the order of the table, also of a member that was there before."""
    table = HeldTable()
    records = table.changed("g", {"a": lanes(0), "b": lanes(1)}, 1, 0)
    records += table.changed("g", {"a": lanes(0, 2)}, 1, 0)

    assert list(table.of_group("g")) == list(loaded(records).of_group("g")) == ["b", "a"]


def test_an_end_is_written_though_the_table_has_it_already() -> None:
    """The write before may have failed, after the table took it in."""
    table = HeldTable()
    changed(table, {"a": lanes(0)})
    changed(table, {"a": None})

    assert changed(table, {"a": None}) == [("a", None)]


def test_a_damaged_record_ends_its_member_only() -> None:
    """The journal loads, counts it, and has the other member's lanes."""
    table = OffsetTable(partition_count=1)
    records = HeldTable().changed("g", {"a": A, "static i": B}, 1, 0)
    for offset, record in enumerate(records):
        value = record.value[:-1] if offset == 0 and record.value else record.value
        table.apply(0, offset, record.key, value)

    assert table.finish_load().damaged_count == 1
    assert list(table.held.of_group("g").values()) == [B]


def test_names_of_any_length_that_kafka_allows() -> None:
    """A longer one is refused before it is written."""
    key = write_held_key("g" * 32_767, "m")

    assert read_held_key(key) == ("g" * 32_767, "m")
    with pytest.raises(ValueError, match="32768"):
        write_held_key("g" * 32_768, "m")
