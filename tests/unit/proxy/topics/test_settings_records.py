"""proxy/topics/settings_records.py: what is written is read back, in any pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import AssignmentInvalid, RangesOverlap, SettingsInvalid
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.proxy.topics import settings_records
from keylane.proxy.topics.range_table import RangeTable
from keylane.proxy.topics.settings_records import (
    CHANGE_BYTES_MAX,
    Record,
    SettingsState,
    batch_bytes,
    write_assignments,
    write_fence,
    write_switches,
)
from keylane.proxy.topics.switches import SWITCHES_MAX, Switches

LOW, HIGH = KeyRange(0, 99), KeyRange(100, HASH_MAX)
VERSION_2 = b'{"format":1,"version":2}'


def feed(state: SettingsState, records: list[Record]) -> list[bool]:
    return [state.apply(key, value) for key, value in records]


def compact(records: list[Record]) -> list[Record]:
    """The last record of each key, in order, as compaction leaves them."""
    last = {key: index for index, (key, _) in enumerate(records)}
    return [record for index, record in enumerate(records) if last[record[0]] == index]


def test_a_set_of_clients_counts_when_its_version_is_read() -> None:
    """Half of a set is never seen; the version is the last record of it."""
    table = RangeTable().with_clients({"a": {"t": {0: [LOW], 1: []}}, "b": {"t": {0: [HIGH]}}})
    *first, last = write_assignments(table, {"a": 1, "b": 1})
    state = SettingsState()

    assert feed(state, first) == [False, False]
    assert state.table == RangeTable()
    assert state.apply(*last)
    assert state.table == table
    assert feed(state, [*first, last]) == [False] * 3, "the same again changes nothing"
    assert state.table == table


def test_records_are_what_the_table_says() -> None:
    """Keys and values can be read by people; whole partitions, ranges and deletions."""
    table = RangeTable().with_clients({"a": {"o": {0: [LOW], 1: []}}, "b": None})

    assert write_assignments(table, {"a": 1, "b": 1}) == [
        (
            b'["assignment","a"]',
            b'{"format":1,"topics":{"o":{"0":[["0","99"]],"1":[["0","9223372036854775807"]]}}}',
        ),
        (b'["assignment","b"]', None),
        (b'["assignments"]', b'{"format":1,"version":1}'),
    ]


def test_switches_are_read_back() -> None:
    """All that was set, and what was not; older versions are passed over."""
    switches = Switches(
        version=3, accept_individual_commit=False, topics={"t": True}, clients={"c": False}
    )
    state = SettingsState()

    assert feed(state, write_switches(switches)) == [True]
    assert state.switches == switches
    assert feed(state, write_switches(Switches(version=2))) == [False]
    assert state.switches == switches


def test_the_most_switches_with_the_longest_names_fit_in_one_change() -> None:
    """A client id may be 249 characters of four bytes each."""
    numbers = range(SWITCHES_MAX)
    switches = Switches(
        topics={f"{number:t>249}": False for number in numbers},
        clients={f"{number:\N{GRINNING FACE}>249}": False for number in numbers},
    )

    assert batch_bytes(write_switches(switches)) <= CHANGE_BYTES_MAX


CLIENTS = st.sampled_from(["a", "b", "c"])
ASSIGNMENTS = st.dictionaries(
    st.sampled_from(["t", "u"]),
    st.dictionaries(st.integers(0, 1), st.sampled_from([[], [LOW], [HIGH]]), max_size=2),
    max_size=2,
)


@given(
    st.lists(st.dictionaries(CLIENTS, st.none() | ASSIGNMENTS, min_size=1), max_size=8),
    st.data(),
)
def test_any_history_adds_up_to_the_last_table(history: list[dict[str, Any]], data) -> None:
    """Read whole, or compacted up to any point, or again from the start."""
    table, records = RangeTable(), list[Record]()
    for changes in history:
        try:
            table = table.with_clients(changes)
        except RangesOverlap:
            continue
        records += write_assignments(table, changes)
    cut = data.draw(st.integers(0, len(records)))
    state = SettingsState()

    feed(state, [*compact(records[:cut]), *records[cut:]])

    assert state.table == table
    feed(state, records)
    assert state.table == table


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (None, b"{}", "key is unknown"),
        (b"garbage", b"{}", "unknown"),
        (b'["newer kind"]', b"{}", "unknown"),
        (b'["assignments"]', None, "unknown"),
        (b'["assignments"]', b"no json", "no JSON"),
        (b'["assignments"]', b"[" * 100_000, "no JSON"),
        (b'["assignments"]', b"[]", "format 1"),
        (b'["assignments"]', b'{"format":2,"version":1}', "newer keylane"),
        (b'["assignments"]', b'{"format":1,"version":0}', "not a positive number"),
        (b'["assignments"]', b'{"format":1,"version":"1"}', "not a positive number"),
        (b'["assignment","a"]', b'{"format":1}', "no assignment"),
        (b'["assignment","a"]', b'{"format":1,"topics":[]}', "no assignment"),
        (b'["assignment","a"]', b'{"format":1,"topics":{"t":{"x":[]}}}', "no assignment"),
        (b'["assignment","a"]', b'{"format":1,"topics":{"t":{"0":[["5","3"]]}}}', "no assignment"),
        (b'["switches"]', b'{"format":1,"version":1,"accept.individual.commit":1}', "no boolean"),
        (b'["switches"]', b'{"format":1,"version":1,"accept.range.fetch":[]}', "booleans"),
        (
            b'["switches"]',
            b'{"format":1,"version":1,"allow.individual.commit":{"":true}}',
            "switches of version 1",
        ),
    ],
)
def test_what_cannot_be_read_raises_and_changes_nothing(key: Any, value: Any, text: str) -> None:
    """A record of somebody else, or of a newer version, leaves the state as it was."""
    state = SettingsState()

    with pytest.raises(SettingsInvalid, match=text):
        state.apply(key, value)

    assert (state.table, state.switches) == (RangeTable(), Switches())


def test_an_assignment_that_overlaps_is_left_out_and_keeps_nothing_out() -> None:
    """It cannot have been written by a node: the version counts without it, and so does the next.

    It stands before a good change of another client, which was made without it.
    """
    one = RangeTable().with_clients({"a": {"t": {0: [LOW]}}})
    (forged, _) = write_assignments(one.with_clients({"b": {"t": {1: []}}}), {"b": 1})
    forged = (forged[0], forged[1].replace(b'"1"', b'"0"') if forged[1] else None)
    two = one.with_clients({"c": {"t": {0: [HIGH]}}})
    state = SettingsState()
    feed(state, write_assignments(one, {"a": 1}))

    state.apply(*forged, 7)
    assert feed(state, write_assignments(two, {"c": 1})) == [False, True]

    assert state.table == two
    ((offset, reason),) = [(each.offset, each.reason) for each in state.take_left_out()]
    assert offset == 7 and "does not fit" in reason
    assert state.take_left_out() == []


def test_a_client_has_room_in_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a broker takes in one batch is refused before anything is written."""
    monkeypatch.setattr(settings_records, "RECORD_BYTES_MAX", 100)
    table = RangeTable().with_clients({"a": {"t": {number: [] for number in range(10)}}})

    with pytest.raises(AssignmentInvalid, match="at most 100 have room"):
        write_assignments(table, {"a": 1})


def test_a_change_has_room_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a byte above it is refused with both sizes; what fits is as large as a batch is."""
    table = RangeTable().with_clients({f"{n}": {"t": {n: []}} for n in range(10)})
    records = write_assignments(table, table.clients)
    builder = BatchBuilder(batch_bytes(records), 0)
    for key, value in records:
        assert builder.append(timestamp=None, key=key, value=value) is not None
    assert builder.size() <= batch_bytes(records)
    monkeypatch.setattr(settings_records, "CHANGE_BYTES_MAX", batch_bytes(records))
    assert write_assignments(table, table.clients) == records

    monkeypatch.setattr(settings_records, "CHANGE_BYTES_MAX", batch_bytes(records) - 1)
    with pytest.raises(AssignmentInvalid, match=rf"is {batch_bytes(records)} bytes .* at most"):
        write_assignments(table, table.clients)


def test_a_fence_is_passed_over() -> None:
    """Between changes, and between what is read of one."""
    table = RangeTable().with_clients({"a": {"t": {0: [LOW]}}})
    first, last = write_assignments(table, {"a": 1})
    state = SettingsState()

    assert feed(state, [*write_fence(), first, *write_fence(), last]) == [False] * 3 + [True]
    assert state.table == table


def test_all_switches_fit_in_one_record() -> None:
    """The longest names, as many as are allowed: below what a broker takes by default."""
    switches = Switches(
        version=1,
        topics={f"{number:0249}": True for number in range(500)},
        clients={f"{number:\U0001f600>249}": False for number in range(500)},
    )

    ((_, value),) = write_switches(switches)

    assert value is not None and len(value) < settings_records.RECORD_BYTES_MAX
    assert json.loads(value)["version"] == 1


def test_a_change_of_our_own_does_not_mix_with_what_is_being_read() -> None:
    """Another node's set, of which half has been read, is whole when its version comes."""
    first = RangeTable().with_clients({"a": {"t": {0: [LOW]}}})
    second = first.with_clients({"b": {"t": {0: [HIGH]}}})
    own = write_assignments(first, {"a": 1})
    *half, last = write_assignments(second, {"b": 1})
    state = SettingsState()
    feed(state, own)
    feed(state, half)

    assert not state.apply_own(own), "it was read before it was reported"
    assert state.apply(*last)

    assert state.table == second
    ahead = SettingsState()
    assert ahead.apply_own(own)
    feed(ahead, [*own, *half, last])
    assert ahead.table == second
