"""Steps in the journal: their order, their readers, and steps that are not gone on from."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import JournalInvalid
from keylane.journal.journal_reads import Cuts
from keylane.journal.store import append_all
from keylane.keyrange.key_split import even_split
from keylane.offsets.positions import Step
from keylane.offsets.records.journal import (
    JournalRecord,
    StateKey,
    StepKey,
    read_key,
    write_key,
)
from keylane.offsets.state import OffsetState
from keylane.offsets.steps import StepValue, read_step, write_step
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import Position
from keylane.tasks import spawn

KEY = StateKey("group", uuid.UUID(int=7), 3)
COUNT = 16
LANES = even_split(COUNT)
position = st.builds(
    lambda ends, committed, metadata: Position(
        offset=min(ends), counted=max(ends), committed=committed, metadata=metadata
    ),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
    st.booleans(),
    st.none() | st.just("text"),
)


def filled() -> OffsetTable:
    """A group that has committed every lane somewhere else, all of it in the journal."""
    table = OffsetTable(partition_count=1)
    state = OffsetState(committed=0, topic_name="orders")
    for lane in range(COUNT):
        state.commit_keys((LANES.key_range(lane),), 100 + lane)
    table.put(KEY, state)
    return table


def save(table: OffsetTable) -> list[JournalRecord]:
    records = table.records(KEY, now_ms=5)
    table.mark_saved(KEY)
    return records


def commit(table: OffsetTable, lane: int, offset: int) -> None:
    state = table.get(KEY)
    assert state is not None
    draft = state.copy()
    draft.commit_keys((LANES.key_range(lane),), offset)
    table.put(KEY, draft)


def load(records: list[JournalRecord], damaged: int = 0) -> OffsetTable:
    table = OffsetTable(partition_count=1)
    for offset, record in enumerate(records):
        table.apply(record.partition, offset, record.key, record.value)
    assert table.finish_load().damaged_count == damaged
    return table


def kinds(records: list[JournalRecord]) -> list[int | None]:
    """Number of each step; None: a whole record."""
    found = [read_key(record.key) for record in records]
    return [key.number if isinstance(key, StepKey) else None for key in found]


def test_a_commit_of_one_lane_is_a_record_of_one_lane() -> None:
    """As short among 16 lanes as among 1,024, and the whole record comes back now and then."""
    table = filled()
    journal = save(table)
    seen = []
    for number in range(40):
        commit(table, number % COUNT, 1000 + number)
        journal += (records := save(table))
        seen += kinds(records)
        assert load(journal).get(KEY) == table.get(KEY)

    assert seen[:3] == [0, 1, 2] and None in seen
    assert max(number for number in seen if number is not None) < 20
    lengths = [len(r.value or b"") for r in journal if len(r.value or b"") < 200]
    assert len(lengths) > 30 and max(lengths) < 100


def test_what_a_scan_has_led_on_is_one_number() -> None:
    """All lanes but two go to one place; so many bytes are not spent on each of them."""
    table = filled()
    state = table.get(KEY)
    assert state is not None
    state.advance_log_start(200)
    commit(table, 0, 300)
    journal = save(table)
    state = table.get(KEY)
    assert state is not None
    draft = state.copy()
    draft.advance_log_start(250)
    table.put(KEY, draft)

    (record,) = save(table)

    assert kinds([record]) == [0] and len(record.value or b"") < 60
    assert load([*journal, record]).get(KEY) == draft


def test_a_state_of_few_lanes_is_always_whole_and_of_the_first_version() -> None:
    """A keylane of any version reads it."""
    table = OffsetTable(partition_count=1)
    table.put(KEY, OffsetState(committed=5))
    for lane in range(3):
        commit(table, lane, 100 + lane)
        (record,) = save(table)
        assert kinds([record]) == [None] and (record.value or b"")[:2] == b"\0\0"


def test_a_keylane_from_before_steps_refuses_what_is_but_a_base() -> None:
    """It knows version 0, and sets aside anything else: it never takes a base for all there is."""
    (record,) = save(filled())

    assert record.key == write_key(KEY)
    assert (record.value or b"")[:2] == b"\0\1"


def test_all_can_be_written_as_older_keylanes_read_it() -> None:
    """Asked for, and rewritten for states that were loaded."""
    table = filled()
    journal = save(table)
    commit(table, 3, 1000)
    journal += save(table)
    loaded = load(journal)

    rewritten = loaded.whole_records(now_ms=6)

    assert [(r.value or b"")[:2] for r in rewritten] == [b"\0\0", b""]
    assert kinds(rewritten) == [None, 0]
    known = [*(r for r in journal if kinds([r]) == [None]), *rewritten]
    assert load(known).get(KEY) == load([*journal, *rewritten]).get(KEY) == table.get(KEY)
    commit(table, 3, 1001)
    records = table.records(KEY, now_ms=7, is_whole=True)
    assert [(r.value or b"")[:2] for r in records] == [b"\0\0", b""]


def test_steps_of_before_say_nothing_beside_a_record_of_an_older_keylane() -> None:
    """It writes whole records, and leaves steps where they are."""
    table = filled()
    journal = save(table)
    commit(table, 3, 1000)
    journal += save(table)
    (older,) = filled().records(KEY, now_ms=9, is_whole=True)

    loaded = load([*journal, older])

    assert loaded.get(KEY) == filled().get(KEY)
    commit(loaded, 3, 500)
    journal += [older, *save(loaded)]
    commit(loaded, 4, 600)
    journal += save(loaded)
    assert load(journal).get(KEY) == loaded.get(KEY)


@pytest.mark.parametrize("arrives", [True, False])
def test_nothing_goes_on_from_an_append_without_an_ack(arrives: bool) -> None:
    """Whether it is there is not known: the next record is whole."""
    table = filled()
    journal = save(table)
    commit(table, 3, 1000)
    lost = table.records(KEY, now_ms=6)
    journal += lost if arrives else []
    commit(table, 4, 1000)

    records = save(table)

    assert kinds(lost) == [0] and kinds(records) == [None]
    assert load([*journal, *records]).get(KEY) == table.get(KEY)


def test_nothing_goes_on_from_a_load_or_a_deletion_or_a_cut_journal() -> None:
    """Each makes the next record whole."""
    table = filled()
    journal = save(table)
    table.tombstones(KEY)  # not acknowledged
    commit(table, 3, 1000)
    assert kinds(save(table)) == [None]
    table.note_cuts(1)
    commit(table, 3, 1001)
    assert kinds(save(table)) == [None]
    table.note_cuts(1)  # no other cut
    commit(table, 3, 1002)
    assert kinds(save(table)) == [0]
    loaded = load(journal)
    commit(loaded, 3, 1002)
    assert kinds(save(loaded)) == [None]
    commit(loaded, 3, 1003)
    assert kinds(save(loaded)) == [0]


@pytest.mark.parametrize("at", ["damaged", "missing"])
def test_a_state_with_a_gap_in_its_steps_is_dropped_for_good(at: str) -> None:
    """Kafka's own offset counts, as for damaged positions; a crash brings no older moment back."""
    table = filled()
    journal = save(table)
    for lane in range(3):
        commit(table, lane, 1000)
        journal += save(table)
    broken = [*journal]
    broken[2:3] = [] if at == "missing" else [journal[2]._replace(value=b"?")]

    loaded = load(broken, damaged=2 if at == "damaged" else 1)

    assert loaded.get(KEY) is None
    tombstones = loaded.take_orphan_tombstones()
    assert tombstones[0] == JournalRecord(0, write_key(KEY), None)
    for cut in range(1, len(tombstones) + 1):
        again = load([*broken, *tombstones[:cut]], damaged=1 if at == "damaged" else 0)
        assert again.get(KEY) is None


def test_a_gap_beside_a_writer_is_none() -> None:
    """A node that reads layouts only: the step's successor is behind the end that it reads to."""
    table = filled()
    journal = save(table)
    for lane in range(3):
        commit(table, lane, 1000)
        journal += save(table)
    reader = OffsetTable(partition_count=1)
    for offset, record in enumerate([*journal[:2], journal[3]]):
        reader.apply(record.partition, offset, record.key, record.value)

    assert reader.finish_load(is_moving=True).damaged_count == 0
    assert reader.get(KEY) is not None


def test_a_deleted_state_takes_its_steps_along() -> None:
    """Its positions go before them, so that none is left from an earlier moment."""
    table = filled()
    journal = save(table)
    for lane in range(3):
        commit(table, lane, 1000)
        journal += save(table)

    tombstones = table.tombstones(KEY)

    assert kinds(tombstones) == [None, 0, 1, 2]
    for cut in range(1, 5):
        loaded = load([*journal, *tombstones[:cut]])
        assert loaded.get(KEY) is None
        assert len(loaded.take_orphan_tombstones()) == 4 - cut


def test_steps_that_fewer_lanes_will_not_need_are_deleted() -> None:
    """The journal of a state does not stay as large as it once was."""
    table = OffsetTable(partition_count=1)
    many = even_split(512)
    state = OffsetState(committed=0)
    for lane in range(512):
        state.commit_keys((many.key_range(lane),), 100 + lane)
    table.put(KEY, state)
    journal = save(table)
    for number in range(200):
        table.put(KEY, (draft := state.copy()))
        draft.commit_keys((many.key_range(number),), 5000 + number)
        state = draft
        journal += save(table)
    table.put(KEY, (draft := state.copy()))
    draft.reconcile(10_000)

    records = save(table)

    assert kinds(records)[0] is None and kinds(records)[1:] == list(range(200))
    assert len(table.tombstones(KEY)) == 1
    assert load([*journal, *records]).get(KEY) == draft


@given(
    changes=st.lists(st.tuples(st.integers(0, 9), position), max_size=5),
    lift=st.none() | st.tuples(st.integers(0, 50), st.integers(51, 99)),
    pushed=st.none() | st.integers(0, 2**62),
)
def test_a_step_is_read_as_it_was_written(
    changes: list[tuple[int, Position]], lift: tuple[int, int] | None, pushed: int | None
) -> None:
    """Decode after encode is the same value."""
    ranges = tuple((20 * n, 20 * n + length, each) for n, (length, each) in enumerate(changes))
    value = StepValue(timestamp_ms=3, base=9, pushed=pushed, step=Step(lift, ranges))

    assert read_step(write_step(value)) == value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (StepValue(timestamp_ms=0, base=-1, pushed=0, step=Step(None, ())), "base -1"),
        (StepValue(timestamp_ms=0, base=1, pushed=0, step=Step((-1, 5), ())), "lift from -1"),
        (
            StepValue(
                timestamp_ms=0,
                base=1,
                pushed=0,
                step=Step(None, ((5, 4, Position(offset=1, counted=1, committed=True)),)),
            ),
            "out of order",
        ),
    ],
)
def test_nonsense_steps_are_refused(value: StepValue, says: str) -> None:
    """The text says what is wrong."""
    with pytest.raises(JournalInvalid, match=says):
        read_step(write_step(value))


def test_a_journal_that_lost_records_or_has_those_of_others_is_found_out() -> None:
    """What is appended stands right behind what was; each partition by itself."""
    cuts = Cuts()
    for partition, offset in ((0, 5), (0, 6), (1, 2), (0, 7), (1, -1), (1, 3)):
        cuts.note(partition, offset)
    assert cuts.count == 0
    cuts.note(0, 7)
    cuts.note(0, 8)
    assert cuts.count == 1
    cuts.note(1, 5)
    assert cuts.count == 2
    cuts.note(1, 0)
    assert cuts.count == 3
    shared = Cuts(is_shared=True)
    for offset in (5, 9, 9):
        shared.note(0, offset)
    assert shared.count == 1


async def test_acks_are_noted_in_the_order_of_the_log() -> None:
    """The first ack of two appends beside each other may be that of the second in the log."""
    made: list[asyncio.Future[object]] = []

    class Producer:
        async def send(self, *_: object, **__: object) -> asyncio.Future[object]:
            made.append(asyncio.get_running_loop().create_future())
            return made[-1]

    class Ack:
        def __init__(self, offset: int) -> None:
            self.partition, self.offset = 0, offset

    noted: list[tuple[int, int]] = []
    producer: Any = Producer()

    def note(partition: int, offset: int) -> None:
        noted.append((partition, offset))

    record = JournalRecord(0, b"k", b"v")
    appends = [spawn(append_all(producer, [record] * count, note), "append") for count in (2, 1)]
    await asyncio.sleep(0)
    for offset, future in enumerate(made):
        future.set_result(Ack(offset))
    await asyncio.gather(*appends)
    assert noted == [(0, 0), (0, 1), (0, 2)]
