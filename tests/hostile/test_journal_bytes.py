"""Journal decoders and hostile bytes: an error with its place, or a value; never anything else."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import JournalInvalid
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.records.journal import (
    LayoutValue,
    PositionsValue,
    RangeKey,
    RangeValue,
    StateKey,
    read_key,
    read_layout,
    read_positions,
    read_range,
    write_key,
    write_value,
)
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import Position

STATE = StateKey("group", uuid.UUID(int=7), 3)
HALF = Position(offset=3, counted=9, committed=True, metadata="m", leader_epoch=1)
GOOD = {
    "key": (write_key(RangeKey(STATE, 4, 8)), read_key),
    "positions": (
        write_value(
            PositionsValue(
                timestamp_ms=1,
                pushed=3,
                topic_name="t",
                positions=((7, HALF), (HASH_MAX, Position(offset=3, counted=3, committed=False))),
            )
        ),
        read_positions,
    ),
    "range": (write_value(RangeValue(timestamp_ms=1, member_id="m")), read_range),
    "layout": (
        write_value(
            LayoutValue(timestamp_ms=1, topic_id=STATE.topic_id, partition_count=1, lane_count=2)
        ),
        read_layout,
    ),
    "layout of a plan": (
        write_value(
            LayoutValue(
                timestamp_ms=1,
                topic_id=STATE.topic_id,
                partition_count=1,
                lane_count=2,
                fingerprint=bytes(32),
            )
        ),
        read_layout,
    ),
}
READERS = [read_key, read_positions, read_range, read_layout]


@pytest.mark.parametrize("name", GOOD)
def test_truncated_anywhere_is_refused(name: str) -> None:
    """Every proper prefix of a good record is an error."""
    data, read = GOOD[name]

    for size in range(len(data)):
        with pytest.raises(JournalInvalid, match=r"^journal "):
            read(data[:size])


@pytest.mark.parametrize("name", GOOD)
def test_bytes_behind_the_end_are_refused(name: str) -> None:
    """A byte too many is an error: the record was written by something else."""
    data, read = GOOD[name]

    with pytest.raises(JournalInvalid):
        read(data + b"\0")


@given(data=st.binary(max_size=200))
def test_garbage_is_refused_or_read(data: bytes) -> None:
    """No decoder raises anything but JournalInvalid."""
    for read in READERS:
        try:
            read(data)
        except JournalInvalid:
            continue


@given(name=st.sampled_from(sorted(GOOD)), at=st.integers(0, 200), flip=st.integers(1, 255))
def test_flipped_bytes_are_refused_or_read(name: str, at: int, flip: int) -> None:
    """A damaged record is an error or another sound value, never a state that breaks later."""
    good, read = GOOD[name]
    data = bytearray(good)
    data[at % len(data)] ^= flip
    try:
        read(bytes(data))
    except JournalInvalid:
        return
    if name == "positions":
        table = OffsetTable(partition_count=1)
        table.apply(0, 0, write_key(STATE), bytes(data))
        table.finish_load()
        table.check()


def test_lying_count_costs_no_memory() -> None:
    """Two billion intervals in a record of 40 bytes are refused before any is read."""
    head = bytes(2 + 8 + 8 + 2)

    with pytest.raises(JournalInvalid, match="2147483647 items"):
        read_positions(head + b"\x7f\xff\xff\xff" + bytes(16))


@given(
    records=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=60) | st.sampled_from([d for d, _ in GOOD.values()]),
            st.none() | st.binary(max_size=60) | st.sampled_from([d for d, _ in GOOD.values()]),
        )
    )
)
def test_load_of_hostile_records_ends_in_a_sound_table(records) -> None:
    """Whatever stands in the topic, a load ends, and its states keep their invariants."""
    table = OffsetTable(partition_count=1)

    for offset, (key, value) in enumerate(records):
        table.apply(0, offset, key, value)
    report = table.finish_load()

    table.check()
    assert report.damaged_count <= len(records)


offsets = st.integers(0, 2**63 - 1) | st.integers(2**63 - 4, 2**63 - 1) | st.integers(0, 20)


@given(
    stands=st.tuples(offsets, offsets),
    ranges=st.lists(st.tuples(offsets, offsets), max_size=4),
    pushed=st.none() | offsets,
    commit=offsets,
)
def test_whatever_is_taken_of_a_journal_can_be_written_again(
    stands, ranges, pushed, commit
) -> None:
    """Bounds of 64 bits are no trap: the group's next commit, and its deletion, have records."""
    position = Position(offset=min(stands), counted=max(stands), committed=True)
    value = PositionsValue(
        timestamp_ms=1, pushed=pushed, topic_name="t", positions=((HASH_MAX, position),)
    )
    records = [(write_key(STATE), write_value(value))]
    for ends in ranges:
        key = write_key(RangeKey(STATE, min(ends), max(ends)))
        records.append((key, write_value(RangeValue(timestamp_ms=1))))
    table = OffsetTable(partition_count=1)
    for offset, (key, data) in enumerate(records):
        table.apply(0, offset, key, data)
    table.finish_load()
    before = table.get(STATE)
    assert before is not None

    state = before.copy()
    state.commit_keys((KeyRange(0, HASH_MAX // 2),), commit)
    state.commit_ranges([(min(ends), max(ends)) for ends in ranges])
    table.put(STATE, state)

    state.check()
    for record in (*table.records(STATE, now_ms=1), *table.tombstones(STATE)):
        again = OffsetTable(partition_count=1)
        again.apply(0, 0, record.key, record.value)
        assert again.finish_load().damaged_count == 0


def test_a_range_to_the_end_of_all_offsets_is_refused() -> None:
    """The position behind it has no room in 64 bits: no later commit could be written."""
    with pytest.raises(JournalInvalid, match="range from 0 to 9223372036854775807"):
        read_key(write_key(RangeKey(STATE, 0, 2**63 - 1)))


@pytest.mark.parametrize(("read", "size"), [(read_key, 2**17), (read_positions, 2**20)])
def test_what_is_too_long_is_not_looked_at(read, size) -> None:
    """No keylane has written it."""
    with pytest.raises(JournalInvalid, match=f"at most {size} are read"):
        read(bytes(size + 1))
