"""Random histories of positions in columns against a twin that walks every lane each time."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keylane.keyrange.key_split import KeySplit, even_split, owners_split
from keylane.keyrange.space import KeyRange, split_even
from keylane.offsets import positions as positions_module
from keylane.offsets import scan as scan_module
from keylane.offsets.positions import PositionMap
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from tests.reference.plain_positions import plain_state

OFFSET_MAX = 60
COUNTS = (1, 2, 3, 5, 8, 12)
PIECES = split_even(6)
SPLITS = (
    even_split(8),
    even_split(5),
    owners_split([(PIECES[0], PIECES[3]), (PIECES[1],)]),  # and no client has the rest
)
lanes = st.sampled_from(COUNTS).flatmap(
    lambda count: st.integers(0, count - 1).map(even_split(count).key_range)
)
offsets = st.integers(0, OFFSET_MAX)
texts = st.none() | st.sampled_from(["", "a", "text"])
which = st.sampled_from([0, 0, 0, 0, 1, 2])


class SettledAlike(RuleBasedStateMachine):
    """Commits, scans in any order, cuts, resets: both say the same of each key at each moment."""

    def __init__(self) -> None:
        super().__init__()
        self.tested, self.plain = OffsetState(committed=None), plain_state(None)
        self.scans = [ScanIndex(split) for split in SPLITS]
        self.saved = self.tested.positions_held()
        self.bounds = (
            mock.patch.object(positions_module, "MOVED_MAX", 3),
            mock.patch.object(scan_module, "FEW", 2),  # both ways to look at positions
            mock.patch.object(scan_module, "NEWS_MAX", 4),
            mock.patch.object(scan_module, "REGION_COUNT_MAX", 3),
            mock.patch.object(scan_module, "HOLE_COUNT_MAX", 3),
        )
        for bound in self.bounds:
            bound.start()
        self.scans = [ScanIndex(split) for split in SPLITS]

    def teardown(self) -> None:
        for bound in self.bounds:
            bound.stop()

    @initialize(committed=st.none() | offsets)
    def begin(self, committed: int | None) -> None:
        self.tested, self.plain = OffsetState(committed=committed), plain_state(committed)

    @property
    def both(self) -> tuple[OffsetState, OffsetState]:
        return self.tested, self.plain

    @rule(lane=lanes, offset=offsets, text=texts, epoch=st.integers(-1, 1), reset=st.booleans())
    def commit(
        self, lane: KeyRange, offset: int, text: str | None, epoch: int, *, reset: bool
    ) -> None:
        outcomes = [s.commit_keys((lane,), offset, text, epoch, reset=reset) for s in self.both]
        assert outcomes[0] == outcomes[1]

    @rule(lane=lanes, offset=offsets, number=which)
    def commit_by_scan(self, lane: KeyRange, offset: int, number: int) -> None:
        for state in self.both:
            state.commit_keys((lane,), offset, scan=self.scans[number])

    @rule(first=offsets, size=st.integers(0, 9))
    def commit_range(self, first: int, size: int) -> None:
        for state in self.both:
            state.commit_ranges([(first, first + size)])

    @rule(data=st.data(), number=which, start=offsets, size=st.integers(1, 20))
    def scan(self, data: st.DataObject, number: int, start: int, size: int) -> None:
        self._scan(data, number, start, size)

    @rule(data=st.data(), number=which, size=st.integers(1, 9))
    def scan_on(self, data: st.DataObject, number: int, size: int) -> None:
        """From where a lane stands; settled before and after, as commits do."""
        self.settle(number)
        places = sorted({position.counted for _, _, position in self.tested.positions()})
        self._scan(data, number, data.draw(st.sampled_from(places)), size)
        self.settle(number)

    def _scan(self, data: st.DataObject, number: int, start: int, size: int) -> None:
        inside = st.integers(start, start + size - 1)
        count = SPLITS[number].output_count
        lasts = data.draw(st.lists(st.just(-1) | inside, min_size=count, max_size=count))
        holes = data.draw(st.lists(inside, max_size=3))
        scanned: Any = np.array(lasts, np.int64)
        self.scans[number].add(start, start + size, scanned, holes=[(o, o) for o in holes])

    @rule(number=which)
    def settle(self, number: int) -> None:
        moved = [state.settle(self.scans[number]) for state in self.both]
        assert moved[0] == moved[1]

    @rule(number=which, end=offsets, forgets=st.booleans())
    def truncate(self, number: int, end: int, *, forgets: bool) -> None:
        self.scans[number].truncate(end)
        if forgets:
            self.scans[number] = ScanIndex(SPLITS[number])
        for state in self.both:
            state.cut(end)

    @rule(number=which, start=offsets, known=st.booleans())
    def log_start(self, number: int, start: int, *, known: bool) -> None:
        self.scans[number].advance_log_start(start)
        for state in self.both if known else ():
            state.advance_log_start(start)

    @rule(found=st.none() | offsets)
    def moved_directly(self, found: int | None) -> None:
        for state in self.both:
            state.reconcile(found, base=3)

    @rule(lane=lanes, base=offsets, deletes=st.booleans())
    def begin_lane(self, lane: KeyRange, base: int, *, deletes: bool) -> None:
        for state in self.both:
            state.delete_lane(lane, base=base) if deletes else state.assume(lane, base)

    @rule()
    def go_on_with_copies(self) -> None:
        """What a draft does stays its own."""
        before, kept = self.tested.positions(), self.tested
        self.tested, self.plain = self.tested.copy(), self.plain.copy()
        self.tested.commit_keys((PIECES[2],), 17, "other")
        self.plain.commit_keys((PIECES[2],), 17, "other")
        assert kept.positions() == before

    @rule()
    def step(self) -> None:
        """From what was saved last the step leads exactly here."""
        here = self.tested.positions_held()
        walked = self.saved.copy()
        walked.apply_step(here.step_from(self.saved))
        assert walked == here
        walked.check()
        assert here.step_from(here) == (None, ())
        self.saved = here

    @invariant()
    def alike(self) -> None:
        self.tested.check()
        tested, plain = self.both
        assert tested.positions() == plain.positions()
        assert tested.ranges() == plain.ranges()
        for name in (
            "stable_position",
            "fastest_position",
            "concluded_end",
            "committed",
            "is_said",
        ):
            assert getattr(tested, name) == getattr(plain, name), name
        for scan in self.scans:
            if tested.is_settled(scan):
                assert not plain.copy().settle(scan), "the mark of the last news hides some"
        held = tested.positions_held()
        assert PositionMap.from_ends(held.ends()) == held


TestSettledAlike = SettledAlike.TestCase
TestSettledAlike.settings = settings(stateful_step_count=40)
assert all(isinstance(split, KeySplit) for split in SPLITS)
