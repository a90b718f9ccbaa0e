"""Ranges that fetches name, in any order, at any time: just these, few splits, bounds kept."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keylane.keyrange.space import HASH_MAX, KeyRange, merge_ranges
from keylane.proxy.topics.range_splits import (
    IDLE_S,
    PAUSE_S_MAX,
    SPLITS_MAX,
    TIDY_S,
    UNUSED_S,
    Ranges,
    RangeSplits,
)
from keylane.proxy.topics.view import Share
from tests.reference.asked_ranges import AskedRanges, holds

TOPIC = uuid.UUID(int=1)
SMALL = 12
BOUNDS = st.integers(0, SMALL - 1)
PARTS = st.tuples(BOUNDS, BOUNDS).map(lambda ends: KeyRange(min(ends), max(ends)))
ASKED = st.lists(PARTS, min_size=1, max_size=3).map(merge_ranges)
PLACES = st.integers(0, 1)


class AskedMachine(RuleBasedStateMachine):
    """Clients come and go at two partitions. A share holds just the keys that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.splits = RangeSplits(ranges_max=60, shares_max=16)
        self.twins = AskedRanges(), AskedRanges()
        self.now_s = 100.0

    def ask(self, partition: int, ranges: Ranges) -> Share | None:
        """Fetch, as a handler does: it waits when that is the answer, and not for long."""
        begun_s, twin = self.now_s, self.twins[partition]
        while True:
            placing = self.splits.place(TOPIC, partition, ranges, self.now_s)
            self.splits.check()
            if placing.share is not None or not placing.wait_s:
                break
            self.now_s += placing.wait_s
            assert self.now_s - begun_s <= PAUSE_S_MAX + 0.001
        share = placing.share
        if share is None:
            others = twin.overlapping(ranges, self.now_s)
            kept = twin.since(self.now_s - UNUSED_S - TIDY_S - PAUSE_S_MAX)
            is_full = self.splits.range_count + len(ranges) > 45 or len(kept) >= 16
            assert is_full or len(others) >= SPLITS_MAX
            return None
        twin.ask(ranges, self.now_s)
        assert share.ranges == ranges
        for point in (*range(SMALL + 1), HASH_MAX):
            assert (share.key_split.output_at(point) == share.output) == holds(ranges, point)
        return share

    @rule(partition=PLACES, ranges=ASKED)
    def fetch(self, partition, ranges) -> None:
        """Some client asks for some ranges."""
        self.ask(partition, ranges)

    @rule(partition=PLACES, ranges=ASKED)
    def come(self, partition, ranges) -> None:
        """A newcomer asks once, and does not come back when its time is there."""
        placing = self.splits.place(TOPIC, partition, ranges, self.now_s)
        if placing.share is not None or placing.wait_s:
            self.twins[partition].ask(ranges, self.now_s)

    @rule(passed_s=st.sampled_from([0.01, 0.5, 2.0, IDLE_S, IDLE_S + 1, TIDY_S, 200.0]))
    def wait(self, passed_s) -> None:
        """Time passes."""
        self.now_s += passed_s

    @rule(partition=PLACES)
    def go_on_quietly(self, partition) -> None:
        """Those in use fetch for a while; if no two overlap, one reader is enough in the end."""
        twin = self.twins[partition]
        for _ in range(2 * int(TIDY_S / 5) + 4):
            for ranges in twin.in_use(self.now_s):
                self.ask(partition, ranges)
            self.now_s += 5.0
        in_use = twin.in_use(self.now_s)
        shares = [self.ask(partition, ranges) for ranges in in_use]
        if in_use and twin.are_disjoint(self.now_s):
            assert len({share.key_split for share in shares if share is not None}) == 1
            assert None not in shares

    @invariant()
    def is_sound(self) -> None:
        """Counts and bounds are right."""
        self.splits.check()


TestAsked = AskedMachine.TestCase
TestAsked.__doc__ = "Fetches of ranges in any order."
