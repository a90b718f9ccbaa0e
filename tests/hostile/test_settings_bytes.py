"""Records of the settings topic that a stranger wrote: set aside one by one, and nothing dies."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import SettingsInvalid
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.proxy.topics import settings_records
from keylane.proxy.topics.range_table import CLIENTS_MAX, Assignment, RangeTable
from keylane.proxy.topics.settings_records import (
    CHANGE_BYTES_MAX,
    VERSION_ROOM,
    SettingsState,
    write_assignments,
    write_switches,
)
from keylane.proxy.topics.settings_store import _apply_all
from keylane.proxy.topics.switches import Switches
from keylane.wire.bounded_json import JsonInvalid, has_depth, read_json

LOW, HIGH = KeyRange(0, 99), KeyRange(100, HASH_MAX)
A = b'["assignment","c"]'
VERSION = b'["assignments"]'
SWITCHES = b'["switches"]'
GOOD = [
    *write_assignments(RangeTable().with_clients({"a": {"t": {0: [LOW]}}}), {"a": 1}),
    *write_switches(Switches(version=1, topics={"t": True})),
]


class Record(NamedTuple):
    """As aiokafka gives it, as far as that matters."""

    key: bytes | None
    value: bytes | None
    offset: int


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"[" * 100_000, b"{}"),
        (b'["assignment",' + b'"x",' * 100_000 + b"1]", b"{}"),
        (b"\xff\xfe[\x00", b""),
        (b"12345678901234567890", b"{}"),
        (b"{}", b"{}"),
        (b"9" * 5000, b"{}"),
        (None, b"{}"),
        (b"", None),
        (VERSION, None),
        (b'["fences"]', None),
        (b'["assignment","\\ud800"]', None),
        (b'["assignment",""]', None),
        (A, b"[" * 100_000),
        (A, b'{"format":1,"topics":{"orders":{"0":[[Infinity,1]]}}}'),
        (A, b'{"format":1,"topics":{"orders":{"0":[[1e400,1]]}}}'),
        (A, b'{"format":1,"topics":{"orders":{"Infinity":[[0,1]]}}}'),
        (A, b'{"format":1,"topics":{"orders":{"0":[["' + b"9" * 5000 + b'","1"]]}}}'),
        (A, b'{"format":1,"topics":{"orders":{"0":[["0","9223372036854775808"]]}}}'),
        (A, b'{"format":1,"topics":{"orders":{"4294967296":[["0","1"]]}}}'),
        (A, b'{"format":1,"topics":{"orders":{"0":[[0.5,1]]}}}'),
        (A, b'{"format":1,"topics":{"orders":{"0":[[true,1]]}}}'),
        (A, b'{"format":1,"topics":{"or/ders":{"0":[["0","1"]]}}}'),
        (A, b'{"format":1,"format":1,"topics":{}}'),
        (A, b'{"format":1,"topics":{"t":{"0":[["0","1"]],"0":[]}}}'),
        (A, b'{"format":1,"topics":"\xff"}'),
        (A, b"x" * (CHANGE_BYTES_MAX + 1)),
        (VERSION, b'{"format":1,"version":true}'),
        (VERSION, b'{"format":1,"version":1.0}'),
        (VERSION, b'{"format":1,"version":NaN}'),
        (VERSION, b'{"format":1,"version":' + b"9" * 3999 + b"}"),
        (VERSION, b'{"format":1,"version":%d}' % (VERSION_ROOM + 8)),
        (SWITCHES, b'{"format":1,"version":1,"accept.range.fetch":{"\\ud800":true}}'),
        (SWITCHES, b'{"format":1,"version":1,"accept.range.fetch":null}'),
        (SWITCHES, b'{"format":1,"version":' + b"9" * 3999 + b"}"),
        (SWITCHES, json.dumps({"format": 1, "version": 1, "accept.range.fetch": {
            f"t{number}": True for number in range(2000)}}).encode()),
    ],
)  # fmt: skip
def test_a_bad_record_is_set_aside_and_the_next_ones_count(
    key: bytes | None, value: bytes | None
) -> None:
    """A damaged record is reported by its place, without its text; the records behind it count."""
    state = SettingsState()
    records = [Record(key, value, 7), *(Record(*each, 8 + n) for n, each in enumerate(GOOD))]

    changed, damaged = _apply_all(state, records)

    assert changed and (state.table.version, state.switches.version) == (1, 1)
    ((partition, offset, reason),) = damaged
    assert (partition, offset) == (0, 7)
    assert len(reason) < 200 and "ders" not in reason and "99999" not in reason


@given(
    records=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=40) | st.sampled_from([A, VERSION, SWITCHES]),
            st.none()
            | st.binary(max_size=60)
            | st.sampled_from([value for _, value in GOOD])
            | st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
                max_leaves=8,
            ).map(lambda value: json.dumps(value).encode()),
        ),
        max_size=8,
    ),
)
def test_no_record_raises_anything_but_the_declared_error(records) -> None:
    """A change that is made of any accepted records is accepted by its readers."""
    state = SettingsState()
    for offset, (key, value) in enumerate(records):
        try:
            state.apply(key, value, offset)
        except SettingsInvalid:
            continue
    state.take_left_out()

    newest = state.table.with_clients({"z": {"t": {0: []}}} if not state.table.clients else {})
    switched = Switches(version=state.switches.version + 1, topics={"t": False})
    other = SettingsState(table=state.table, switches=state.switches)
    for key, value in (*write_assignments(newest, newest.clients), *write_switches(switched)):
        other.apply(key, value, len(records) + 1)
    assert (other.table, other.switches) == (newest, switched)


@given(data=st.data(), at=st.integers(0, 400), flip=st.integers(1, 255))
def test_flipped_bytes_are_refused_or_read(data, at: int, flip: int) -> None:
    """A damaged record of a node's own."""
    key, value = data.draw(st.sampled_from(GOOD))
    assert value is not None
    bad = bytearray(value)
    bad[at % len(bad)] ^= flip
    state = SettingsState()
    try:
        state.apply(key, bytes(bad), 3)
    except SettingsInvalid:
        assert (state.table, state.switches) == (RangeTable(), Switches())


def test_the_highest_version_that_is_taken_leaves_room_for_the_next_ones() -> None:
    """A stranger's high version does not bring the count to its end."""
    state = SettingsState()
    state.apply(VERSION, b'{"format":1,"version":%d}' % (VERSION_ROOM + 7), 7)

    for offset in (8, 9, 10):  # a change takes more, but not less
        after = state.table.with_clients({f"c{offset}": {"t": {offset: []}}})
        for key, value in write_assignments(after, {f"c{offset}": 1}):
            state.apply(key, value, offset)
        assert state.table == after


def test_assignments_without_a_version_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of too many assignments are dropped and reported; the last ones count."""
    monkeypatch.setattr(settings_records, "PENDING_MAX", 4)
    state = SettingsState()
    for offset in range(5):
        table = RangeTable().with_clients({f"c{offset}": {"t": {offset: []}}})
        state.apply(*write_assignments(table, {f"c{offset}": 1})[0], offset)

    assert [each.offset for each in state.take_left_out()] == [0, 1, 2]
    state.apply(VERSION, b'{"format":1,"version":1}', 9)
    assert sorted(state.table.clients) == ["c3", "c4"]


def test_of_assignments_that_overlap_the_last_one_counts() -> None:
    """A chain of them: each is looked at beside those that come later, and those that stay."""
    before = RangeTable().with_clients({"stays": {"t": {0: [LOW]}}})
    changes: dict[str, Assignment | None] = {
        "first": {"t": {0: [HIGH]}, "u": {0: [LOW]}},
        "over": {"t": {0: [KeyRange(50, 200)]}},
        "gone": None,
        "last": {"u": {0: [KeyRange(0, 1000)]}},
        "apart": {"u": {1: []}},
    }

    fitting = before.fitting(changes)

    assert {name for name, each in fitting.items() if each is not None} == {"last", "apart"}
    assert sorted(before.with_clients(fitting).clients) == ["apart", "last", "stays"]


def test_more_clients_than_have_room_are_left_out() -> None:
    """The last ones count, as many as a table takes."""
    changes: dict[str, Assignment | None] = {
        f"c{number}": {"t": {number: []}} for number in range(CLIENTS_MAX + 2)
    }

    fitting = RangeTable().fitting(changes)

    assert [name for name, each in fitting.items() if each is None] == ["c0", "c1"]


@given(text=st.text(alphabet='["\\]{}x', max_size=30))
def test_depth_is_that_of_brackets_outside_of_strings(text: str) -> None:
    """As a character by character look has it, strings without an end included."""
    depth = deepest = 0
    is_string = is_escaped = False
    for character in text:
        if is_string:
            is_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            is_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1

    for bound in range(4):
        assert has_depth(text.encode(), bound) == (deepest <= bound)


@given(data=st.binary(max_size=60))
def test_json_of_any_bytes_is_read_or_refused(data: bytes) -> None:
    """No other error; NaN and what is twice are refused."""
    try:
        json.dumps(read_json(data, bytes_max=50, depth_max=3), allow_nan=False)
    except JsonInvalid:
        return
