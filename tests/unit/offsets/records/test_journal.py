"""Journal records: what is written is read, and a group's partition is Kafka's."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import JournalInvalid
from keylane.keyrange.space import HASH_MAX
from keylane.offsets.lineage import EpochStart
from keylane.offsets.records.journal import (
    EpochKey,
    EpochValue,
    IntentValue,
    Key,
    LayoutKey,
    LayoutValue,
    PositionsValue,
    PusherKey,
    PusherValue,
    RangeKey,
    RangeValue,
    StateKey,
    ic_partition,
    read_epoch,
    read_intent,
    read_key,
    read_layout,
    read_positions,
    read_pusher,
    read_range,
    write_key,
    write_value,
)
from keylane.offsets.values import (
    METADATA_BYTES_MAX,
    POSITION_COUNT_MAX,
    RANGE_LAST_MAX,
    OwnerEpoch,
    Position,
)

STATE = StateKey("group", uuid.UUID(int=7), 3)
offsets = st.integers(0, HASH_MAX)
range_ends = st.integers(0, RANGE_LAST_MAX)
names = st.text(st.characters(codec="utf-8"), max_size=50)
state_keys = st.builds(StateKey, names, st.uuids(), st.integers(0, 2**31 - 1))
range_keys = st.builds(
    lambda state, ends: RangeKey(state, min(ends), max(ends)),
    state_keys,
    st.tuples(range_ends, range_ends),
)
positions = st.builds(
    lambda ends, committed, metadata, leader_epoch: Position(
        offset=min(ends),
        counted=max(ends),
        committed=committed,
        metadata=metadata,
        leader_epoch=leader_epoch,
    ),
    st.tuples(offsets, offsets),
    st.booleans(),
    st.none() | names,
    st.integers(-1, 2**31 - 1),
)
position_values = st.builds(
    lambda timestamp_ms, pushed, topic_name, hash_tag, cuts, last: PositionsValue(
        timestamp_ms=timestamp_ms,
        pushed=pushed,
        topic_name=topic_name,
        hash_tag=hash_tag,
        positions=(*sorted(cuts.items()), (HASH_MAX, last)),
    ),
    offsets,
    st.none() | offsets,
    names,
    st.sampled_from(["", "", "murmur2/3/1"]),
    st.dictionaries(st.integers(0, HASH_MAX - 1), positions, max_size=8),
    positions,
)


other_keys = st.builds(EpochKey, state_keys) | st.builds(PusherKey, state_keys)


@given(key=state_keys | range_keys | st.builds(LayoutKey, names) | other_keys)
def test_keys_are_read_as_they_were_written(key: Key) -> None:
    """Decode after encode is the same key."""
    assert read_key(write_key(key)) == key


@given(value=position_values, base=st.none() | offsets)
def test_positions_are_read_as_they_were_written(value: PositionsValue, base: int | None) -> None:
    """Decode after encode is the same value, with the hash that its keys have."""
    value = replace(value, base=base)

    assert read_positions(write_value(value)) == value


@given(after=position_values, before=st.none() | offsets)
def test_intents_are_read_as_they_were_written(after: PositionsValue, before: int | None) -> None:
    """Decode after encode is the same value, with the hash that its keys have."""
    value = IntentValue(before=before, after=after)

    assert read_intent(write_value(value)) == value


def test_an_older_keylane_leaves_positions_by_another_hash() -> None:
    """Their version is one that it does not know, and so is that of an intent."""
    plain = PositionsValue(
        timestamp_ms=1, pushed=3, topic_name="t",
        positions=((HASH_MAX, Position(3, 3, committed=True)),),
    )  # fmt: skip
    hashed = replace(plain, hash_tag="murmur2/3/1")
    values = (plain, replace(plain, base=1), hashed, replace(hashed, base=1))

    versions = [int.from_bytes(write_value(value)[:2], "big") for value in values]

    assert versions == [0, 1, 2, 3]
    assert write_value(IntentValue(before=None, after=hashed))[:2] == b"\0\2"


@given(timestamp_ms=offsets, leader_epoch=st.integers(-1, 2**31 - 1), member_id=names)
def test_ranges_are_read_as_they_were_written(timestamp_ms, leader_epoch, member_id) -> None:
    """Decode after encode is the same value."""
    value = RangeValue(timestamp_ms=timestamp_ms, leader_epoch=leader_epoch, member_id=member_id)

    assert read_range(write_value(value)) == value


@given(timestamp_ms=offsets, epoch=st.integers(0, 2**31 - 1), start=offsets)
def test_epochs_are_read_as_they_were_written(timestamp_ms, epoch, start) -> None:
    """Decode after encode is the same value; one that is none is refused."""
    value = EpochValue(timestamp_ms=timestamp_ms, seen=EpochStart(epoch, start))

    assert read_epoch(write_value(value)) == value
    with pytest.raises(JournalInvalid, match="journal epoch: epoch -1 from"):
        read_epoch(write_value(replace(value, seen=EpochStart(-1, start))))


@given(timestamp_ms=offsets, producer_id=offsets, epoch=st.integers(0, 2**15 - 1))
def test_pushers_are_read_as_they_were_written(timestamp_ms, producer_id, epoch) -> None:
    """Decode after encode is the same value; one that is none is refused."""
    value = PusherValue(timestamp_ms=timestamp_ms, owner=OwnerEpoch(producer_id, epoch))

    assert read_pusher(write_value(value)) == value
    with pytest.raises(JournalInvalid, match="journal pusher: producer"):
        read_pusher(write_value(replace(value, owner=OwnerEpoch(producer_id, -1))))


def test_layouts_are_read_as_they_were_written() -> None:
    """Decode after encode is the same value."""
    even = LayoutValue(timestamp_ms=5, topic_id=uuid.UUID(int=9), partition_count=3, lane_count=16)
    cut = replace(even, fingerprint=bytes(range(32)))

    for value in (even, cut):
        assert read_layout(write_value(value)) == value


def test_a_layout_of_equal_ranges_is_written_as_before_there_were_plans() -> None:
    """Version 0 and no fingerprint: an older keylane reads it, and refuses only one of a plan."""
    even = LayoutValue(timestamp_ms=5, topic_id=uuid.UUID(int=9), partition_count=3, lane_count=16)

    assert write_value(even)[:2] == b"\0\0"
    assert write_value(replace(even, fingerprint=bytes(32)))[:2] == b"\0\1"


def test_both_ends_of_a_range_are_in_its_key() -> None:
    """[45-50] and [45-47] are two records: the one does not overwrite the other."""
    assert write_key(RangeKey(STATE, 45, 50)) != write_key(RangeKey(STATE, 45, 47))


def test_keys_on_the_wire_stay_as_they_are() -> None:
    """The bytes of a range key are pinned: a topic outlives the program that wrote it."""
    expected = (
        "0000 02 0005 67726f7570"  # version, kind, group
        "00000000000000000000000000000007 00000003"  # topic id, partition
        "000000000000002d 000000000000002f"  # both ends
    )

    assert write_key(RangeKey(STATE, 45, 47)) == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("group", "java_hash"),
    [
        ("", 0),
        ("abc", 96_354),
        ("polygenelubricants", -(2**31)),
        ("\U0001f511", 0xD83D * 31 + 0xDD11),
        ("connect-cluster", None),
    ],
)
def test_group_maps_to_kafkas_partition(group: str, java_hash: int | None) -> None:
    """abs(String.hashCode) mod count, with Integer.MIN_VALUE as 0 and surrogate pairs as two."""
    if java_hash is None:
        java_hash = java_hash_of(group)

    expected = 0 if java_hash == -(2**31) else abs(java_hash) % 50

    assert ic_partition(group, 50) == expected


@given(group=st.text(max_size=20))
def test_ic_partition_equals_a_naive_java_hash(group: str) -> None:
    """Any text, lone surrogates too, has the partition that signed 32-bit arithmetic gives."""
    code = java_hash_of(group)

    assert ic_partition(group, 50) == (0 if code == -(2**31) else abs(code) % 50)


def test_largest_state_fits_in_a_record() -> None:
    """8192 intervals and half a megabyte of metadata stay below Kafka's 1 MiB of a batch."""
    with_text = 512 * 1024 // METADATA_BYTES_MAX
    many = tuple(
        (
            HASH_MAX if number == POSITION_COUNT_MAX - 1 else number,
            Position(
                offset=number,
                counted=number,
                committed=True,
                metadata="x" * METADATA_BYTES_MAX if number < with_text else None,
            ),
        )
        for number in range(POSITION_COUNT_MAX)
    )
    value = PositionsValue(timestamp_ms=0, pushed=0, topic_name="t" * 249, positions=many)

    data = write_value(value)

    assert len(data) < 1_000_000
    assert read_positions(data) == value


def test_unknown_key_versions_and_kinds_are_somebody_elses() -> None:
    """A later keylane's keys are not an error."""
    assert read_key(b"\0\1" + b"anything") is None
    assert read_key(b"\0\0\x63" + b"anything") is None


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (RangeKey(STATE, 5, 4), "range from 5 to 4"),
        (RangeKey(STATE, -1, 4), "range from -1 to 4"),
        (StateKey("g", uuid.UUID(int=0), -1), "partition -1"),
    ],
)
def test_nonsense_keys_are_refused_with_their_place(key: Key, says: str) -> None:
    """The text names the place and what is wrong."""
    with pytest.raises(JournalInvalid, match=f"journal key: {says}"):
        read_key(write_key(key))


@pytest.mark.parametrize(
    "value",
    [
        PositionsValue(timestamp_ms=0, pushed=0, topic_name="t", positions=()),
        PositionsValue(timestamp_ms=0, pushed=-2, topic_name="t", positions=()),
        *(
            PositionsValue(timestamp_ms=0, pushed=0, topic_name="t", positions=intervals)
            for intervals in (
                ((5, Position(offset=1, counted=1, committed=True)),),
                ((HASH_MAX, Position(offset=2, counted=1, committed=True)),),
                ((HASH_MAX, Position(offset=1, counted=1, committed=True, leader_epoch=-2)),),
                ((5, Position(offset=1, counted=1, committed=True)),) * 2,
            )
        ),
    ],
)
def test_nonsense_positions_are_refused(value: PositionsValue) -> None:
    """No intervals, a gap at the end, offsets the wrong way round, a negative epoch."""
    with pytest.raises(JournalInvalid):
        read_positions(write_value(value))


def test_values_of_another_version_are_refused() -> None:
    """A value version that is not known is named."""
    with pytest.raises(JournalInvalid, match="journal range: value version 7, know 0"):
        read_range(b"\0\7" + bytes(14))


def java_hash_of(text: str) -> int:
    """String.hashCode in signed 32-bit steps."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (code * 31 + high * 256 + low + 2**31) % 2**32 - 2**31
    return code
