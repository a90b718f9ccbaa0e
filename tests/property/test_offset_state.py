"""Random histories of a group: the state says what a log walked offset by offset says."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from keylane.keyrange.key_split import even_split
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import WHOLE, KeyRange
from keylane.offsets.records.journal import JournalRecord, StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import CommitError, Reconciled
from tests.reference.offsets import ATOM_COUNT, ATOMS, OffsetTwin, atoms_of

KEY = StateKey("group", uuid.UUID(int=1), 0)
SCAN_LAYOUT = LaneLayout(partition_count=1, lane_count=8)
SCAN_LANES = tuple(SCAN_LAYOUT.key_range(0, lane) for lane in range(8))
LANE_COUNTS = [1, 2, 4, 8, 3, 12]
"""Not only the scanned layout's: another view of the topic, or a new count."""
lanes = st.sampled_from(LANE_COUNTS).flatmap(
    lambda count: st.integers(0, count - 1).map(even_split(count).key_range)
)
atoms_or_holes = st.none() | st.integers(0, ATOM_COUNT - 1)
fractions = st.integers(0, 100)


class OffsetHistory(RuleBasedStateMachine):
    """Commits, scans, restarts, crashes and resets in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = OffsetTwin(scan_lanes=SCAN_LANES)
        self.state = OffsetState(committed=None)
        self.scan = ScanIndex(SCAN_LAYOUT.key_split(0))
        self.journal: list[JournalRecord] = []
        self.scan_is_whole = True
        self.may_go_back = True
        self.stable_before = 0

    @initialize(direct=st.none() | st.integers(0, 3))
    def begin(self, direct: int | None) -> None:
        """A fresh group, or one that has consumed directly so far."""
        self.produce([0, 5, None, 23])
        if direct is not None:
            self.state = OffsetState(committed=direct)
            self.twin.restart_at(direct, committed=True)

    @rule(atoms=st.lists(atoms_or_holes, min_size=1, max_size=12))
    def produce(self, atoms: list[int | None]) -> None:
        self.twin.log += atoms

    @rule(start=fractions, end=fractions)
    def scan_anywhere(self, start: int, end: int) -> None:
        first, last = sorted((self._at(start), self._at(end)))
        self._scan(first, last)

    @rule()
    def scan_all(self) -> None:
        self._scan(0, len(self.twin.log))
        self.scan_is_whole = True

    @rule(lane=lanes, at=fractions, admin=st.booleans())
    def commit_lane(self, lane: KeyRange, at: int, *, admin: bool) -> None:
        offset = self._at(at)
        draft = self.state.copy()
        self.twin.commit_keys(lane, offset=offset, reset=admin)
        outcome = draft.commit_keys((lane,), offset, scan=self.scan, reset=admin)
        assert outcome.error is CommitError.NONE
        self.may_go_back = draft.stable_position < self.stable_before
        assert draft.position_of(lane).offset >= offset or not admin
        self._take(draft)

    @rule(parts=st.lists(lanes, min_size=1, max_size=3), at=fractions)
    def commit_keys(self, parts: list[KeyRange], at: int) -> None:
        """A client id that has several key ranges commits them at once."""
        offset = self._at(at)
        draft = self.state.copy()
        self.twin.commit_keys(*parts, offset=offset)
        outcome = draft.commit_keys(parts, offset, scan=self.scan)
        assert outcome.error is CommitError.NONE
        self.may_go_back = draft.stable_position < self.stable_before
        assert draft.position_of(*parts).offset >= offset
        self._take(draft)

    @precondition(lambda self: len(self.twin.log) > 0)
    @rule(
        starts=st.lists(st.tuples(fractions, st.integers(0, 5)), min_size=1, max_size=4),
        parts=st.lists(lanes, max_size=2),
    )
    def commit_ranges(self, starts: list[tuple[int, int]], parts: list[KeyRange]) -> None:
        """Of all keys, or of the lanes of a member."""
        ranges = [(self._at(at), self._at(at) + size) for at, size in starts]
        ranges = [(first, min(last, len(self.twin.log) - 1)) for first, last in ranges]
        ranges = [bounds for bounds in ranges if bounds[0] <= bounds[1]]
        draft = self.state.copy()
        self.twin.commit_ranges(ranges, *parts)
        outcome = draft.commit_ranges(ranges, parts or WHOLE)
        assert outcome.error in {CommitError.NONE, CommitError.TOO_OLD}
        self._take(draft)

    @rule()
    def commit_everything(self) -> None:
        """Every lane is read to its end and committed behind its last record (librdkafka)."""
        for lane in SCAN_LANES:
            mine = self.twin.records_of(atoms_of(lane))
            position = self.state.position_of(lane).offset
            if mine and position <= max(mine):
                self.twin.commit_keys(lane, offset=max(mine) + 1)
                self.state.commit_keys((lane,), max(mine) + 1, scan=self.scan)
        self._scan(0, len(self.twin.log))
        self.scan_is_whole = True
        self._take(self.state)
        assert self.state.stable_position == len(self.twin.log)

    @rule(at=fractions, fresh=st.lists(atoms_or_holes, max_size=12), forgets=st.booleans())
    def log_is_replaced(self, at: int, fresh: list[int | None], *, forgets: bool) -> None:
        """A new leader has another log from an offset on; a position beyond goes back."""
        end = self._at(at)
        self.twin.cut(end, fresh)
        self.scan.truncate(end)
        if forgets:
            self.scan = ScanIndex(SCAN_LAYOUT.key_split(0))
        draft = self.state.copy()
        draft.cut(end)
        self.scan_is_whole, self.may_go_back = False, True
        assert not draft.cut(end), "once is enough"
        beyond = [atom for atom in range(ATOM_COUNT) if self.twin.atoms[atom].said > end]
        for atom in beyond:
            self.twin.commit_keys(ATOMS[atom], offset=end)
            draft.commit_keys((ATOMS[atom],), end)
        self.state = draft

    @rule(cut=st.integers(0, 200))
    def crash_and_load(self, cut: int) -> None:
        """The proxy is killed while it appends; the next one has the journal and Kafka only."""
        pushed = self.state.stable_position
        self.state.mark_pushed(pushed)
        table = OffsetTable(partition_count=1)
        table.put(KEY, self.state)
        records = table.records(KEY, now_ms=0)
        kept = [*self.journal, *records[:cut]]
        loaded = _load(kept)
        if loaded is not None:
            loaded.check()
            loaded.reconcile(pushed)
            assert loaded.stable_position <= min(
                self.twin.first_uncommitted([atom]) for atom in range(ATOM_COUNT)
            )
            assert loaded.stable_position >= pushed

    @rule()
    def save_and_restart(self) -> None:
        """The proxy is stopped and started; nothing was scanned yet, and nothing is lost."""
        self.state.mark_pushed(self.state.stable_position)
        table = OffsetTable(partition_count=1)
        table.put(KEY, self.state)
        self.journal += table.records(KEY, now_ms=0)
        table.mark_saved(KEY)
        loaded = _load(self.journal)
        assert loaded is not None
        assert loaded == self.state
        assert not loaded.unsaved()
        assert loaded.reconcile(self.state.stable_position) is Reconciled.EQUAL
        self.state, self.scan = loaded, ScanIndex(SCAN_LAYOUT.key_split(0))
        self.twin.scanned, self.twin.holes = set(), set()
        self.scan_is_whole = False

    @rule(at=fractions)
    def committed_directly(self, at: int) -> None:
        """Somebody moves Kafka's own group offset while keylane is not in between."""
        pushed, offset = self.state.stable_position, self._at(at)
        self.state.mark_pushed(pushed)
        draft = self.state.copy()
        reconciled = draft.reconcile(offset)
        if offset < pushed:
            assert reconciled is Reconciled.BACK
            self.twin.restart_at(offset, committed=True)
            self.may_go_back = True
        elif offset > pushed:
            assert reconciled is Reconciled.FORWARD
            self.twin.raise_to(offset)
        self._take(draft)

    @invariant()
    def sound(self) -> None:
        """Nothing that is not committed is passed, by the whole or by any part."""
        self.state.check()
        self.scan.check()
        truth = self.twin.first_uncommitted(list(range(ATOM_COUNT)))
        assert self.state.stable_position <= truth
        for lo, hi, position in self.state.positions():
            mine = atoms_of(KeyRange(lo=lo, hi=hi))
            assert position.counted <= self.twin.first_uncommitted(mine)
        for lane in SCAN_LANES:
            records = self.twin.records_of(atoms_of(lane))
            ranges = self.state.ranges(lane)
            passed = {o for first, last in ranges for o in range(first, last + 1)}
            assert records & passed <= self.twin.done, "a range has what is done, and nothing else"
            end = len(self.twin.log)
            undone = self.state.uncommitted_ranges(0, end, lane)
            assert not passed & {o for first, last in undone for o in range(first, last + 1)}

    @invariant()
    def steady(self) -> None:
        """The stable position goes back only where somebody asked for it."""
        if not self.may_go_back:
            assert self.state.stable_position >= self.stable_before
        self.stable_before, self.may_go_back = self.state.stable_position, False

    @invariant()
    def complete(self) -> None:
        """With everything scanned the stable position is the twin's, so it does not stall."""
        if self.scan_is_whole and len(self.twin.scanned) == len(self.twin.log):
            self.state.settle(self.scan)
            self.twin.settle(scan=True)
            assert self.state.stable_position == self.twin.stable_position

    def _take(self, draft: OffsetState) -> None:
        self.state = draft
        self.state.settle(self.scan)
        self.twin.settle(scan=True)

    def _at(self, fraction: int) -> int:
        return len(self.twin.log) * fraction // 100

    def _scan(self, start: int, end: int) -> None:
        """What a block of the reader says: the last record of each lane, and holes."""
        last: Any = np.full(len(SCAN_LANES), -1, np.int64)
        for lane, key_range in enumerate(SCAN_LANES):
            mine = self.twin.records_of(atoms_of(key_range))
            last[lane] = max((o for o in mine if start <= o < end), default=-1)
        holes = {o for o in range(start, end) if self.twin.log[o] is None}
        self.scan.add(start, end, last, holes=[(o, o) for o in holes])
        self.twin.scanned |= set(range(start, end))
        self.twin.holes |= holes
        self.state.settle(self.scan)
        self.twin.settle(scan=True)


def _load(records: list[JournalRecord]) -> OffsetState | None:
    table = OffsetTable(partition_count=1)
    for offset, record in enumerate(records):
        table.apply(record.partition, offset, record.key, record.value)
    report = table.finish_load()
    assert report.damaged_count == 0
    return table.get(KEY)


TestOffsetHistory = OffsetHistory.TestCase
TestOffsetHistory.settings = settings(stateful_step_count=30)
assert [atom for key_range in SCAN_LANES for atom in atoms_of(key_range)] == list(range(len(ATOMS)))
