"""Records of lanes in hand: what is written is read, and any bytes are read or refused."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import JournalInvalid
from keylane.offsets.records.held import (
    HeldLanes,
    HeldTable,
    read_held,
    read_held_key,
    write_held,
    write_held_key,
)
from keylane.offsets.records.journal import JournalRecord

names = st.text(st.characters(codec="utf-8"), max_size=20)
indexes = st.integers(0, 2**31 - 1)
all_lanes = st.frozensets(st.tuples(names, indexes), max_size=20)
held_lanes = st.builds(HeldLanes, names, st.none() | names, indexes, all_lanes)
few = st.frozensets(st.tuples(st.just("t"), st.integers(0, 5)), min_size=1)
steps = st.lists(
    st.dictionaries(
        st.sampled_from("abc"), st.none() | st.builds(HeldLanes, names, st.none(), indexes, few)
    ),
    max_size=8,
)


@given(held=held_lanes, now_ms=st.integers(0, 2**63 - 1), group=names, identity=names)
def test_what_is_written_is_read(held, now_ms, group, identity) -> None:
    """Names, a missing instance id, and lanes of any topics."""
    found = read_held(write_held(held, now_ms)), read_held_key(write_held_key(group, identity))

    assert found == (held, (group, identity))


@given(data=st.binary(max_size=200), held=held_lanes, cut=st.integers(0, 300), patch=st.binary())
def test_any_bytes_are_read_or_refused(data, held, cut, patch) -> None:
    """JournalInvalid is the only error, and what is read has a sensible epoch and indexes."""
    value, key = write_held(held, 0), write_held_key(held.member_id, "m")
    for hostile in (data, value[:cut] + patch, value[: -1 - cut] + data):
        with suppress(JournalInvalid):
            found = read_held(hostile)
            assert found.epoch >= 0 and all(index >= 0 for _, index in found.lanes)
    for hostile in (data, key[:cut] + patch):
        with suppress(JournalInvalid):
            read_held_key(hostile)


@given(steps=steps)
def test_a_node_that_loads_the_log_has_the_same_table(steps) -> None:
    """In the same order, wherever members come and go."""
    table, log = HeldTable(), list[JournalRecord]()
    for changes in steps:
        log += table.changed("g", changes, 1, 0)

    loaded = HeldTable()
    for record in log:
        loaded.apply(record.key or b"", record.value)

    assert list(loaded.of_group("g").items()) == list(table.of_group("g").items())


@given(steps=steps)
def test_a_log_that_ends_anywhere_has_no_lane_at_a_member_that_gave_it_to_another(steps) -> None:
    """Where lanes go from hand to hand: the later record of a lane is its new member's."""
    table, log = HeldTable(), list[JournalRecord]()
    holders: dict[tuple[str, int], str] = {}
    for changes in steps:
        mine = {name: held.lanes if held else frozenset() for name, held in changes.items()}
        taken = frozenset[tuple[str, int]]()
        clean: dict[str, HeldLanes | None] = {}
        for name, held in changes.items():
            others = {x for x, owner in holders.items() if owner != name and owner not in mine}
            lanes = mine[name] - taken - others
            taken |= lanes
            clean[name] = held._replace(lanes=lanes) if held and lanes else None
        before = dict(holders)
        log_before = list(log)
        new = table.changed("g", clean, 1, 0)
        log += new
        holders = {x: owner for x, owner in holders.items() if owner not in clean}
        holders |= {x: owner for owner, held in clean.items() if held for x in held.lanes}
        for end in range(len(new) + 1):
            for lane, owner in _holders([*log_before, *new[:end]]).items():
                assert owner in {before.get(lane), holders.get(lane)}


def _holders(log: list[JournalRecord]) -> dict[tuple[str, int], str]:
    """The member of each lane, where the later record counts."""
    table = HeldTable()
    for record in log:
        table.apply(record.key or b"", record.value)
    return {lane: owner for owner, held in table.of_group("g").items() for lane in held.lanes}
