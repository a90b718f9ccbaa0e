"""A journal of steps against one of whole records: any prefix, compacted anyhow, loads the same."""

from __future__ import annotations

import random
import uuid
from functools import partial
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.keyrange.key_split import even_split
from keylane.keyrange.space import KeyRange
from keylane.offsets import steps as steps_module
from keylane.offsets.lineage import EpochStart
from keylane.offsets.records.journal import JournalRecord, StateKey, StepKey, read_key
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable

KEYS = [StateKey("group", uuid.UUID(int=1), 0), StateKey("group", uuid.UUID(int=1), 1)]
COUNTS = (12, 12, 12, 12, 12, 12, 5, 1)
lanes = st.sampled_from(COUNTS).flatmap(
    lambda count: st.integers(0, count - 1).map(even_split(count).key_range)
)
offsets = st.integers(0, 99)
keys = st.sampled_from(KEYS)
seeds = st.integers(0, 2**32)
STEPS_MAX = 4


class JournalOfSteps(RuleBasedStateMachine):
    """The twin's journal has whole records only, as an older keylane writes them.

    `marks[n]` is how much of the twin's journal says the same as the first n records of ours.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bounds = (
            mock.patch.object(steps_module, "INTERVALS_MIN", 2),
            mock.patch.object(steps_module, "STEPS_MAX", STEPS_MAX),
        )
        for bound in self.bounds:
            bound.start()
        self.tested, self.twin = _new_table(), _new_table()
        self.journal: list[JournalRecord] = []
        self.plain: list[JournalRecord] = []
        self.marks = [0]
        self.now_ms, self.cuts = 0, 0
        self.healed = 0
        """Where the last cut was made good; before, steps may stand on what is gone."""

    def teardown(self) -> None:
        for bound in self.bounds:
            bound.stop()

    @initialize()
    def begin(self) -> None:
        """Both partitions have been committed."""
        for key in KEYS:
            self.stand_apart(key)

    @rule(key=keys, commits=st.lists(st.tuples(lanes, offsets), min_size=1, max_size=8))
    def commit(self, key: StateKey, commits: list[tuple[KeyRange, int]]) -> None:
        for lane, offset in commits:
            text = "text" if offset > 90 else None
            self._change(key, partial(_commit, lane, offset, text))
            self._save(key)

    @rule(key=keys)
    def stand_apart(self, key: StateKey) -> None:
        """Each lane elsewhere, so that a step is worth it."""
        for number in range(12):
            lane = even_split(12).key_range(number)
            self._change(key, partial(_commit, lane, number + 80, None))
        self._save(key)

    @rule(key=keys, ranges=st.lists(st.tuples(offsets, st.integers(0, 5)), max_size=3))
    def commit_ranges(self, key: StateKey, ranges: list[tuple[int, int]]) -> None:
        spans = [(first, first + size) for first, size in ranges]
        self._change(key, lambda state: state.commit_ranges(spans))
        self._save(key)

    @rule(key=keys, start=st.integers(0, 84))
    def lead_all_on(self, key: StateKey, start: int) -> None:
        """As a scan does: many positions go to one place."""
        self._change(key, lambda state: state.advance_log_start(start))
        self._save(key)

    @rule(key=keys, found=st.none() | offsets)
    def moved_directly(self, key: StateKey, found: int | None) -> None:
        self._change(key, lambda state: state.reconcile(found))
        self._save(key)

    @rule(key=keys, epoch=st.integers(0, 5))
    def other_epoch(self, key: StateKey, epoch: int) -> None:
        for table in (self.tested, self.twin):
            if table.get(key) is not None:
                table.note_epoch(key, EpochStart(epoch, 0))
        self._save(key)

    @rule(key=keys, lane=lanes, offset=offsets, arrives=st.integers(0, 3))
    def fail(self, key: StateKey, lane: KeyRange, offset: int, arrives: int) -> None:
        """An append has no ack; of its records some are there. The process goes on."""
        self._change(key, lambda state: state.commit_keys((lane,), offset))
        self._save(key, arrives=arrives)

    @rule(key=keys)
    def written_before_a_push(self, key: StateKey) -> None:
        """The state of the table goes first, then what the draft has beyond it."""
        if self.tested.get(key) is None:
            return
        pair = [
            table.records_before_push(key, None, now_ms=self._tick())
            for table in (self.tested, self.twin)
        ]
        self._append(*pair)
        for table in (self.tested, self.twin):
            table.mark_written(key)

    @rule(key=keys, arrives=st.none() | st.integers(0, 3))
    def delete(self, key: StateKey, arrives: int | None) -> None:
        """A group forgets the partition; or the append fails, and it stays."""
        pair = [table.tombstones(key) for table in (self.tested, self.twin)]
        self._append(*pair, arrives=arrives)
        if arrives is None:
            self.tested.remove(key)
            self.twin.remove(key)

    @rule()
    def restart(self) -> None:
        """The process ends; the next one has the journal."""
        self.tested, self.twin = _load(self.journal), _load(self.plain)
        orphans = [table.take_orphan_tombstones() for table in (self.tested, self.twin)]
        self._append(*orphans)

    @rule()
    def go_back_to_an_older_keylane(self) -> None:
        """Records are rewritten at a load, and one that knows of no steps reads them."""
        self.restart()
        records = self.tested.whole_records(now_ms=self._tick())
        self.journal += records
        self.marks += [self.marks[-1]] * len(records)
        known = [record for record in self.journal if not _is_step(record)]
        assert _content(_load(known)) == _content(self.tested)

    @precondition(lambda self: len(self.journal) > 3)
    @rule(key=keys, share=st.integers(0, 100))
    def cut(self, key: StateKey, share: int) -> None:
        """The journal has another leader that lacks its end, and the process goes on."""
        kept = len(self.journal) * share // 100
        self.journal, self.plain = self.journal[:kept], self.plain[: self.marks[kept]]
        self.marks = self.marks[: kept + 1]
        self.cuts += 1
        at_ms = self._tick()
        self._change(key, lambda state: state.mark_pushed(at_ms))
        if self.tested.get(key) is not None:
            # What the first append finds out; its positions stand on what is gone, not the rest.
            for record in self.tested.records(key, now_ms=self._tick()):
                self.journal.append(record)
                if not isinstance(read_key(record.key), (StateKey, StepKey)):
                    self.plain.append(record)
                self.marks.append(len(self.plain))
        self.tested.note_cuts(self.cuts)
        at_ms = self._tick()
        for each in KEYS:
            self._change(each, lambda state: state.mark_pushed(at_ms))
            self._save(each)
        self.healed = len(self.journal)

    @rule(seed=seeds)
    def crash_anywhere(self, seed: int) -> None:
        """What any process finds that has a part of the log, compacted as Kafka may have done."""
        chance = random.Random(seed)
        kept = chance.randint(self.healed, len(self.journal))
        whole = _content(_load(self.plain[: self.marks[kept]]))
        records = self.journal[:kept]
        assert _content(_load(records)) == whole
        assert _content(_load(_compacted(records, chance))) == whole
        chance.shuffle(latest := _compacted(records, None))
        assert _content(_load(latest)) == whole

    @invariant()
    def bounded(self) -> None:
        """Steps of one state take no more than their room, and nothing is without a state."""
        self.tested.check()
        for key in KEYS:
            steps = [r for r in _compacted(self.journal, None) if _is_step(r) and r.value]
            of_key = [r for r in steps if _state(r) == key]
            assert len(of_key) <= STEPS_MAX

    def _tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def _change(self, key: StateKey, change: object) -> None:
        assert callable(change)
        for table in (self.tested, self.twin):
            state = table.get(key)
            draft = OffsetState(committed=0, topic_name="t") if state is None else state.copy()
            change(draft)
            table.put(key, draft)

    def _save(self, key: StateKey, *, arrives: int | None = None) -> None:
        if self.tested.get(key) is None:
            return
        now_ms = self._tick()
        ours = self.tested.records(key, now_ms=now_ms)
        self._append(ours, self.twin.records(key, now_ms=now_ms, is_whole=True), arrives=arrives)
        if arrives is None:
            self.tested.mark_saved(key)
            self.twin.mark_saved(key)

    def _append(
        self, ours: list[JournalRecord], plain: list[JournalRecord], *, arrives: int | None = None
    ) -> None:
        """Records of both; arrives: only the first so many of ours, and what is the same there."""
        rest = list(plain)
        for record in ours[:arrives]:
            is_deletion = _is_step(record) and record.value is None
            if not is_deletion:
                self.plain.append(rest.pop(0))
            self.journal.append(record)
            self.marks.append(len(self.plain))
        assert arrives is not None or not rest


def _commit(lane: KeyRange, offset: int, text: str | None, state: OffsetState) -> None:
    state.commit_keys((lane,), offset, text)


def _new_table() -> OffsetTable:
    return OffsetTable(partition_count=1)


def _load(records: list[JournalRecord]) -> OffsetTable:
    table = _new_table()
    for offset, record in enumerate(records):
        table.apply(record.partition, offset, record.key, record.value)
    report = table.finish_load()
    assert report.damaged_count == 0, report.damaged
    return table


def _content(table: OffsetTable) -> dict[StateKey, object]:
    """All that a state is, with what the journal says beside it."""
    return {
        key: (
            state.positions(),
            state.ranges(),
            state.pushed,
            state.topic_name,
            table.epoch_of(key),
        )
        for key, state in table.items()
    }


def _compacted(records: list[JournalRecord], chance: random.Random | None) -> list[JournalRecord]:
    """Without some records that a later one has the key of; None: without all of them."""
    last = {record.key: index for index, record in enumerate(records)}
    kept = [
        record
        for index, record in enumerate(records)
        if last[record.key] == index or (chance is not None and chance.random() < 0.5)
    ]
    first = {record.key: index for index, record in reversed(list(enumerate(kept)))}
    return [
        record
        for index, record in enumerate(kept)
        if record.value is not None or first[record.key] != index
    ]


def _is_step(record: JournalRecord) -> bool:
    return isinstance(read_key(record.key), StepKey)


def _state(record: JournalRecord) -> StateKey:
    key = read_key(record.key)
    assert isinstance(key, StepKey)
    return key.state


def _ranges(table: OffsetTable, key: StateKey) -> list[tuple[int, int]]:
    state = table.get(key)
    assert state is not None
    return state.ranges()


def test_a_range_is_gone_after_two_cuts() -> None:
    """Its tombstone was written between them, by the append that found out about the first one."""
    machine, key = JournalOfSteps(), KEYS[0]
    try:
        machine.begin()
        machine.commit_ranges(key, [(81, 0)])
        machine.go_back_to_an_older_keylane()
        machine.fail(key, KeyRange(0, 768614336404564649), 0, 2)
        machine.cut(key, 34)
        machine.cut(key, 50)
        for seed in range(5):
            machine.crash_anywhere(seed)
        machine.restart()
        assert _ranges(machine.tested, key) == _ranges(machine.twin, key) == []
        machine.delete(key, None)
        machine.crash_anywhere(0)
    finally:
        machine.teardown()


TestJournalOfSteps = JournalOfSteps.TestCase
# A history takes a tenth of a second: a third of what the profile asks for.
TestJournalOfSteps.settings = settings(
    max_examples=max(30, settings().max_examples // 3), stateful_step_count=40
)
