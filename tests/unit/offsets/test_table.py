"""The table of states: what its records bring back, in any order and after any crash."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

import pytest

from keylane.keyrange.lane import LaneLayout
from keylane.offsets import table as table_module
from keylane.offsets.lineage import EpochStart
from keylane.offsets.records.journal import (
    EpochKey,
    JournalRecord,
    LayoutValue,
    PusherKey,
    RangeKey,
    RangeValue,
    StateKey,
    ic_partition,
    read_key,
    write_fence,
    write_key,
    write_value,
)
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import ON_ITS_WAY_S_MAX, WHOLE, OwnerEpoch, Pusher

COUNT = 5
KEY = StateKey("group", uuid.UUID(int=7), 3)
LANE = LaneLayout(partition_count=1, lane_count=4).key_range(0, 0)
LAYOUT = LayoutValue(timestamp_ms=1, topic_id=KEY.topic_id, partition_count=2, lane_count=16)


def make_table() -> OffsetTable:
    return OffsetTable(partition_count=COUNT)


def load(records: list[JournalRecord]) -> OffsetTable:
    """What a node that starts makes of the records."""
    table = make_table()
    for offset, record in enumerate(records):
        table.apply(record.partition, offset, record.key, record.value)
    table.finish_load()
    table.check()
    return table


def save(table: OffsetTable, key: StateKey = KEY) -> list[JournalRecord]:
    records = table.records(key, now_ms=1, member_id="m", leader_epoch=2)
    table.mark_saved(key)
    return records


def range_record(key: StateKey, first: int, last: int) -> JournalRecord:
    partition = ic_partition(key.group, COUNT)
    value = write_value(RangeValue(timestamp_ms=0))
    return JournalRecord(partition, write_key(RangeKey(key, first, last)), value)


def test_merge_appends_two_tombstones_and_one_put() -> None:
    """[48-49] between [45-47] and [50-50]: exactly three records, the put before the tombstones."""
    table = make_table()
    table.put(KEY, OffsetState(committed=43))
    draft = changed(table, [(45, 47), (50, 50)])
    save(table)

    draft = changed(table, [(48, 49)])
    records = save(table)

    assert draft.ranges() == [(45, 50)]
    assert [(read_key(r.key), r.value is None) for r in records] == [
        (RangeKey(KEY, 45, 50), False),
        (RangeKey(KEY, 45, 47), True),
        (RangeKey(KEY, 50, 50), True),
    ]
    assert not table.records(KEY, now_ms=2)


def test_order_of_range_and_positions_records_does_not_matter() -> None:
    """Fifty shuffles of the records of one state all give that state."""
    table = make_table()
    table.put(KEY, OffsetState(committed=43, topic_name="orders"))
    changed(table, [(45, 47), (60, 69), (80, 80)])
    records = save(table)
    chance = random.Random(1)

    for _ in range(50):
        chance.shuffle(records)
        loaded = load(records)

        assert loaded.get(KEY) == table.get(KEY)
        assert not loaded.records(KEY, now_ms=2)


def test_crash_anywhere_in_an_append_loses_no_commit_acknowledged_before() -> None:
    """Each prefix of an append loads to a state that holds what was saved before it."""
    table = make_table()
    table.put(KEY, OffsetState(committed=43))
    changed(table, [(45, 47), (50, 50), (60, 60)])
    journal = save(table)
    changed(table, [(43, 44), (48, 49)])
    records = save(table)

    for cut in range(len(records) + 1):
        state = load(journal + records[:cut]).get(KEY)

        assert state is not None
        for bounds in [(45, 47), (50, 50), (60, 60)]:
            assert state.is_committed(*bounds)


def test_crash_in_a_reset_never_leaves_its_positions_with_the_old_ranges() -> None:
    """What a reset to 30 dropped is gone from the journal before the positions stand at 30."""
    table = make_table()
    table.put(KEY, OffsetState(committed=43))
    changed(table, [(45, 47)])
    journal = save(table)
    draft = table.get(KEY)
    assert draft is not None
    draft = draft.copy()
    draft.commit_keys((WHOLE,), 30, reset=True)
    table.put(KEY, draft)
    records = save(table)

    for cut in range(len(records) + 1):
        state = load(journal + records[:cut]).get(KEY)

        assert state is not None
        assert state.stable_position == 43 or not state.ranges()


def test_deleted_state_leaves_nothing() -> None:
    """Tombstones cover ranges of failed writes too; afterwards a load finds nothing at all."""
    table = make_table()
    table.put(KEY, OffsetState(committed=43))
    changed(table, [(45, 47)])
    journal = save(table)
    changed(table, [(60, 69)])
    journal += table.records(KEY, now_ms=2)  # no ack came
    journal += table.tombstones(KEY)

    table.remove(KEY)
    table.remove(KEY)

    loaded = load(journal)
    assert (len(loaded), len(table), table.groups()) == (0, 0, [])
    assert loaded.take_orphan_tombstones() == []
    assert table.tombstones(KEY) == []


def test_the_epoch_of_a_state_comes_back_and_goes_with_it() -> None:
    """It is written once per epoch, before the positions, and deleted with them."""
    table = make_table()
    table.put(KEY, OffsetState(committed=43))
    table.note_epoch(KEY, EpochStart(5, 40))
    first = save(table)
    table.note_epoch(KEY, EpochStart(5, 41))
    again = save(table)
    table.note_epoch(KEY, EpochStart(6, 50))
    records = [*first, *save(table)]
    loaded = load(records)
    tombstones = loaded.tombstones(KEY)

    assert [read_key(record.key) for record in first] == [EpochKey(KEY), KEY]
    assert not again
    assert loaded.epoch_of(KEY) == EpochStart(6, 50)
    assert load([*records, *tombstones]).take_orphan_tombstones() == []
    assert load([*records, tombstones[-1]]).take_orphan_tombstones() == tombstones[:1]


def test_the_pusher_of_a_state_comes_back_and_goes_with_it() -> None:
    """It is written once per owner, before the positions, and deleted with them."""
    table = make_table()
    table.put(KEY, OffsetState(committed=43))
    table.owner = OwnerEpoch(8, 1)
    table.note_taken(KEY, 43, 0.0, 1000)
    first = save(table)
    table.note_taken(KEY, 43, 0.0, 1000)
    again = save(table)
    table.owner = OwnerEpoch(8, 2)
    table.note_taken(KEY, 43, 0.0, 1000)
    records = [*first, *save(table)]
    loaded = load(records)
    tombstones = loaded.tombstones(KEY)

    assert [read_key(record.key) for record in first] == [PusherKey(KEY), KEY]
    assert not again
    assert loaded._pushers[KEY] == Pusher(OwnerEpoch(8, 2), 1000)
    assert load([*records, *tombstones]).take_orphan_tombstones() == []
    assert load([*records, tombstones[-1]]).take_orphan_tombstones() == tombstones[:1]


@pytest.mark.parametrize(
    ("pushed_by", "last", "is_late"),
    [
        (Pusher(OwnerEpoch(8, 1), 990), OwnerEpoch(8, 2), True),
        (Pusher(OwnerEpoch(8, 1), 1001), OwnerEpoch(8, 2), True),
        (Pusher(OwnerEpoch(8, 1), 1000 - ON_ITS_WAY_S_MAX - 1), OwnerEpoch(8, 2), False),
        (Pusher(OwnerEpoch(8, 2), 990), OwnerEpoch(8, 2), False),
        (Pusher(OwnerEpoch(8, 3), 990), OwnerEpoch(8, 2), False),
        (Pusher(OwnerEpoch(7, 1), 990), OwnerEpoch(8, 2), False),
        (Pusher(OwnerEpoch(8, 1), 990), None, False),
    ],
)
def test_only_what_is_known_to_be_overtaken_counts_for_nothing(pushed_by, last, is_late) -> None:
    """Ids of producers are in no order: Kafka deals them out broker by broker."""
    table = make_table()
    state = OffsetState(committed=43)
    state.mark_pushed(43)
    table.put(KEY, state)
    table.owner = last
    table.note_taken(KEY, 43, 0.0, 1000)

    found = table.recognise(KEY, 20, 0.0, pusher=pushed_by)

    assert (found is not None) is is_late
    if found is not None:
        assert (found.pushed, found.stable_position) == (20, 43) and table.get(KEY) is found


@pytest.mark.parametrize(
    ("found_at", "made_at_s", "owner", "is_late"),
    [
        (20, 990, OwnerEpoch(8, 2), True),
        (20, 1000 - ON_ITS_WAY_S_MAX - 1, OwnerEpoch(8, 2), False),
        (50, 990, OwnerEpoch(8, 2), False),
        (20, 990, OwnerEpoch(8, 1), False),
        (20, 990, OwnerEpoch(9, 0), False),
        (20, 990, None, False),
    ],
)
def test_the_last_pushes_of_an_owner_that_died_may_change_places(
    found_at, made_at_s, owner, is_late
) -> None:
    """43 was pushed last by epoch 1 and 20 before it; the next owner has pushed nothing yet."""
    table = make_table()
    state = OffsetState(committed=43)
    state.mark_pushed(43)
    table.put(KEY, state)
    table.owner = OwnerEpoch(8, 1)
    table.note_taken(KEY, 43, 0.0, 1000)
    table.owner = owner

    found = table.recognise(KEY, found_at, 0.0, pusher=Pusher(OwnerEpoch(8, 1), made_at_s))

    assert (found is not None) is is_late
    if found is not None:
        assert (found.pushed, found.stable_position) == (20, 43)


def test_states_are_found_by_group() -> None:
    """Two groups; the first has states on two partitions."""
    table = make_table()
    others = [StateKey("group", KEY.topic_id, 4), StateKey("b", KEY.topic_id, 3)]
    for number, key in enumerate([KEY, *others]):
        table.put(key, OffsetState(committed=number))

    table.remove(others[0])

    table.check()
    assert sorted(table.groups()) == ["b", "group"]
    assert set(table.of_group("group")) == {KEY}
    assert dict(table.items()).keys() == {KEY, others[1]}
    assert table.of_group("none") == {} and table.get(others[0]) is None


def test_layouts_are_pinned_and_unpinned() -> None:
    """A pinned layout is loaded again; after the unpinning it is not."""
    table = make_table()

    pinned = table.pin_layout("orders.lanes-16", LAYOUT)
    before = load(pinned)
    unpinned = table.pin_layout("orders.lanes-16", None)

    assert before.layouts() == {"orders.lanes-16": LAYOUT}
    assert before.layouts().get("orders.lanes-16") == LAYOUT
    assert load(pinned + unpinned).layouts() == table.layouts() == {}


def test_a_layout_counts_in_any_partition_and_the_newest_one_does() -> None:
    """A node pins where it may write; what the only node of a cluster pinned before counts, too."""
    newer = replace(LAYOUT, timestamp_ms=2, lane_count=8)
    home = ic_partition("orders", COUNT)
    for first, second in ((home, home + 1), (home + 1, home)):
        table = make_table()
        old = table.pin_layout("orders", LAYOUT, partition=first % COUNT)
        new = table.pin_layout("orders", newer, partition=second % COUNT)
        assert [record.partition for record in (*old, *new)] == [first % COUNT, second % COUNT]

        # Partitions are read beside each other: in any order.
        for records in (old + new, new + old):
            assert load(records).layouts().get("orders") == newer == table.layouts().get("orders")
    assert table.pin_layout("orders", LAYOUT)[0].partition == home


def test_a_layout_of_one_partition_gives_way_there_only() -> None:
    """An unpinning, and a damaged record, say nothing of other partitions."""
    table = make_table()
    records = table.pin_layout("orders", LAYOUT, partition=0)
    records += table.pin_layout("orders", replace(LAYOUT, timestamp_ms=5), partition=1)
    unpinned = table.pin_layout("orders", None, partition=1)
    damaged = [JournalRecord(1, records[1].key, b"?")]

    for last in (unpinned, damaged):
        assert load(records + last).layouts().get("orders") == LAYOUT


def test_a_fence_says_nothing() -> None:
    """Nor is it damage; a keylane that does not know it passes it over as well."""
    table = make_table()
    fence = write_fence(3, 77)

    table.apply(fence.partition, 0, fence.key, fence.value)

    assert table.finish_load().damaged_count == 0 and len(table) == 0
    assert (fence.partition, read_key(fence.key)) == (3, None)


def test_orphan_ranges_are_dropped_and_deleted() -> None:
    """A range without positions makes no state; its tombstone is handed out once."""
    loaded = load([range_record(KEY, 5, 9)])

    tombstones = loaded.take_orphan_tombstones()

    assert len(loaded) == 0
    assert [(read_key(r.key), r.value) for r in tombstones] == [(RangeKey(KEY, 5, 9), None)]
    assert loaded.take_orphan_tombstones() == []


@pytest.mark.parametrize("at", ["positions", "range"])
def test_damaged_value_costs_only_itself(at: str) -> None:
    """Damaged positions drop the state, a damaged range drops the range; both are counted."""
    table = make_table()
    table.put(KEY, OffsetState(committed=43))
    changed(table, [(45, 47), (60, 69)])
    records = save(table)
    index = 0 if at == "range" else 2
    records[index] = JournalRecord(records[index].partition, records[index].key, b"\0\0\xff")

    loaded = make_table()
    for offset, record in enumerate(records):
        loaded.apply(record.partition, offset, record.key, record.value)
    report = loaded.finish_load()

    assert (report.damaged_count, len(report.damaged)) == (1, 1)
    ((_, offset, reason),) = report.damaged
    assert offset == index and at in reason
    if at == "range":
        state = loaded.get(KEY)
        assert state is not None and state.ranges() == [(60, 69)]
    assert (report.state_count, report.orphan_count) == ((1, 1) if at == "range" else (0, 2))


def test_records_that_make_no_sense_are_counted_and_the_first_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No key, garbage, a wrong partition: none stops the load, and few are named."""
    monkeypatch.setattr(table_module, "DAMAGED_LOGGED_MAX", 20)
    table = make_table()
    wrong = (ic_partition(KEY.group, COUNT) + 1) % COUNT

    table.apply(0, 0, None, b"")
    table.apply(wrong, 1, write_key(KEY), None)
    table.apply(0, 2, b"\0\\9 from a later keylane", b"?")
    for offset in range(100):
        table.apply(0, offset, b"\0", b"")
    report = table.finish_load()

    assert report.damaged_count == 102
    assert len(report.damaged) == 20
    assert "without a key" in report.damaged[0].reason
    assert "another partition" in report.damaged[1].reason


def changed(table: OffsetTable, ranges: list[tuple[int, int]]) -> OffsetState:
    """Commit ranges on a copy that takes the state's place."""
    state = table.get(KEY)
    assert state is not None
    draft = state.copy()
    draft.commit_ranges(ranges)
    table.put(KEY, draft)
    return draft


def test_a_layout_is_unpinned_wherever_it_stands() -> None:
    """Numbered nodes have pinned it in partitions of theirs; pinned again meanwhile, it is said."""
    table = OffsetTable(partition_count=COUNT)
    records = [
        record
        for partition in (0, 1)
        for record in table.pin_layout("orders", LAYOUT, partition=partition)
    ]

    records += table.unpin_layout("orders")
    unpinned = table.layouts()
    table.pin_layout("orders", LAYOUT, partition=1)
    records += table.layout_records(["orders", "never-pinned"])

    assert unpinned == {}
    assert load(records).layouts() == {"orders": LAYOUT}
    assert table.groups() == []
