"""Stable offsets that could stand further, were it known what lies behind them.

Source: docs/decisions/021.

A commit settles positions over what is known to hold no record of their lanes. Where the scan
becomes known after the commit (another node reads the partition), or is forgotten (a restart), the
stable offset stays in front of it; and when it was the group's last commit, it stays for good.
So each commit that leaves such a place is remembered until the place is known. Then the push is
owed, until one is taken: that of the last committer may be refused, since the group has rebalanced
meanwhile, or its connection is gone. Any member's heartbeat may push it.

A node that takes a group over, or starts, has none of that: what it loads with lanes beyond their
stable offset is looked at with the first heartbeat of the group. So is what goes back since the log
was cut: Kafka's own offset may stand behind what a scan of the old log had led to. So is what an
admin has set or deleted: a lane without a record is led on by no commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from keylane.errors import UpstreamLost
from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.records.journal import StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.proxy.lanes.fetch_request import LaneAnswer, LaneFetch, LaneFetchRequest
from keylane.proxy.lanes.fetcher import LaneFetcher
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.offsets")

PLACES_MAX: Final = 10_000
"""Groups and partitions that are remembered, some 500 bytes each; the longest is forgotten."""
READS_MAX: Final = 4
"""At once: a restart under many groups must not read all of their partitions together."""
PATIENCE_S: Final = 3.0
"""After a commit: grace period in which another commit, or news of the place, may come."""
WAIT_MS: Final = 500
"""Enough for what is in the log; at its end there is nothing to wait for."""
READ_UNCOMMITTED: Final = 0

Key = TypeVar("Key")
Keys = dict[StateKey, None]
"""In the order in which they came, so that pushes go in it as well."""


@dataclass(slots=True, kw_only=True, eq=False)
class LatePush:
    """A group's stable offset on a partition, with nothing known behind it."""

    view: View
    partition: int
    position: int
    """The stable position; what follows it is not known."""
    since_s: float
    push: Callable[[], None]
    """Has the group's offset pushed again, as its last committer."""
    is_read: bool = False
    """True: this node has read it already, and not in vain so far."""
    is_owed: bool = False
    """True: the place is known."""
    scan_key: PartitionSplit = field(init=False)
    """Place where it is."""

    def __post_init__(self) -> None:
        self.scan_key = self.view.partition_split(self.partition)

    def want_read(self, now_s: float) -> None:
        """The read was in vain: it comes again in a while, unless news comes by itself."""
        self.is_read, self.since_s = False, now_s


class LatePushes:
    """Invariants: each state is in one index, by its scan key or, once that is known, its group."""

    def __init__(self) -> None:
        self._pushes: dict[StateKey, LatePush] = {}
        self._by_scan: dict[PartitionSplit, Keys] = {}
        self._owed: dict[str, Keys] = {}
        """By group: their places are known."""
        self._loaded: dict[str, Keys] = {}
        """By group: states whose stable offset was not looked at yet."""

    def __len__(self) -> int:
        return len(self._pushes)

    def note_loaded(self, key: StateKey, state: OffsetState) -> None:
        """A state was loaded, adopted or set, or its log cut: Kafka's offset may be elsewhere."""
        pushed, stable = state.pushed, state.stable_position
        if pushed is not None and (stable != pushed or stable < state.fastest_position):
            self._want_look(key)

    def note_unanswered(self, key: StateKey) -> None:
        """A push may still come into effect, and leave Kafka's offset elsewhere."""
        self._want_look(key)

    def loaded(self, group: str) -> list[StateKey]:
        """States of a group that are to be looked at."""
        return list(self._loaded.get(group, ()))

    def note_looked_at(self, key: StateKey) -> None:
        """A state needs no look any more."""
        if key in self._loaded.get(key.group, ()):
            _leave(self._loaded, key.group, key)

    def note_commit(
        self, key: StateKey, state: OffsetState, scan: ScanIndex, make_late: Callable[[], LatePush]
    ) -> None:
        """A group has committed; what is made is remembered, if it leaves something behind."""
        earlier = self._pushes.get(key)
        self.forget(key)
        # If not: while the broker was asked, the log was found to begin further on.
        is_pushed = state.pushed in {None, state.stable_position}
        if is_pushed and state.stable_position >= state.fastest_position:
            return
        if is_pushed and not scan.has_passed(state.stable_position):
            late = make_late()
            self._by_scan.setdefault(late.scan_key, {})[key] = None
            self._put(key, late, earlier)
        elif not is_pushed or _is_led_on(state, scan):
            # The news came while the broker was asked.
            late = make_late()
            self._owe(key, late)
            self._put(key, late, earlier)
            late.push()

    def note_transaction(self, key: StateKey, state: OffsetState, late: LatePush) -> None:
        """Offsets are in a transaction: what it leaves behind is looked at when it has ended.

        That passes no handler, so it is owed, and heartbeats try.
        """
        earlier = self._pushes.get(key)
        self.forget(key)
        if state.stable_position < state.fastest_position:
            self._owe(key, late)
            self._put(key, late, earlier)

    def _want_look(self, key: StateKey) -> None:
        self._loaded.setdefault(key.group, {})[key] = None

    def _owe(self, key: StateKey, late: LatePush) -> None:
        late.is_owed = True
        self._owed.setdefault(key.group, {})[key] = None

    def _put(self, key: StateKey, late: LatePush, earlier: LatePush | None) -> None:
        self._pushes[key] = late
        if earlier is not None and earlier.position == late.position and not earlier.is_read:
            # The place is the same: commits and looks that come again and again must not keep it
            # from being read.
            late.since_s = earlier.since_s
        if len(self._pushes) > PLACES_MAX:
            self.forget(next(iter(self._pushes)))

    def forget(self, key: StateKey) -> None:
        """A state was pushed, a member committed anew, or the state is gone."""
        self.note_looked_at(key)
        late = self._pushes.pop(key, None)
        if late is not None and late.is_owed:
            _leave(self._owed, key.group, key)
        elif late is not None:
            _leave(self._by_scan, late.scan_key, key)

    def forget_where(self, is_lost: Callable[[str], bool]) -> None:
        """Another node serves these groups."""
        for key in [key for key in self._pushes if is_lost(key.group)]:
            self.forget(key)
        for group in [group for group in self._loaded if is_lost(group)]:
            del self._loaded[group]

    def owed(self, group: str) -> list[LatePush]:
        """Pushes of a group whose places are known, and that no broker has taken yet."""
        return [self._pushes[key] for key in self._owed.get(group, ())]

    def note_scanned(self, scan_key: PartitionSplit, scan: ScanIndex, log_start: int = 0) -> None:
        """Something was scanned; what is known now is owed, and pushed.

        log_start: what is below it was deleted, as far as that is known.
        """
        for key in list(self._by_scan.get(scan_key, ())):
            late = self._pushes[key]
            if scan.has_passed(max(late.position, log_start)):
                _leave(self._by_scan, scan_key, key)
                self._owe(key, late)
                late.push()

    def overdue(self, now_s: float) -> list[LatePush]:
        """Places of which no news comes: to be read here, each once, a few at a time."""
        overdue = (
            late
            for late in self._pushes.values()
            if not late.is_read and not late.is_owed and now_s - late.since_s > PATIENCE_S
        )
        # The longest wait goes first: places that are read in vain must not keep others from it.
        due = nsmallest(READS_MAX, overdue, key=lambda late: late.since_s)
        for late in due:
            late.is_read = True
        return due

    def check(self) -> None:
        """Assert the invariant; tests call it after every step."""
        waiting = {(scan, key) for scan, keys in self._by_scan.items() for key in keys}
        owed = {(group, key) for group, keys in self._owed.items() for key in keys}
        pushes = self._pushes.items()
        assert waiting == {(late.scan_key, key) for key, late in pushes if not late.is_owed}
        assert owed == {(key.group, key) for key, late in pushes if late.is_owed}
        indexes = self._by_scan, self._owed, self._loaded
        assert all(keys for index in indexes for keys in index.values())
        assert len(self._pushes) <= PLACES_MAX


def _leave(index: dict[Key, Keys], at: Key, key: StateKey) -> None:
    """Take a state out of an index."""
    index[at].pop(key, None)
    if not index[at]:
        del index[at]


def _is_led_on(state: OffsetState, scan: ScanIndex) -> bool:
    """Return whether the stable offset would move by what is known now."""
    if state.is_settled(scan):
        return False  # nothing was scanned since the commit was settled, as a rule
    led_on = state.copy()
    led_on.settle(scan)
    return led_on.stable_position > state.stable_position


async def read_behind(
    late: LatePush, fetcher: LaneFetcher, log_start: Callable[[View, int], Awaitable[int]]
) -> None:
    """Read one block where no scan of it comes; from where the log begins, if further on.

    The read is for the scan alone: no client gets its records. A place that a broker did not answer
    for well, or in time, is to be read again.
    log_start: a partition's first offset; raises UpstreamLost.
    """
    at = late.position
    answer = await _read(late, at, fetcher)
    if answer.error_code == ErrorCode.offset_out_of_range:
        try:
            at = max(at, await log_start(late.view, late.partition))
        except UpstreamLost as error:
            log.debug(
                "stable offset not read behind: trying again topic=%s partition=%d reason=%s",
                late.view.topic, late.partition, error,
            )  # fmt: skip
        else:
            answer = await _read(late, at, fetcher)
    if answer.error_code or answer.high_watermark > at:
        late.want_read(time.monotonic())


async def _read(late: LatePush, offset: int, fetcher: LaneFetcher) -> LaneAnswer:
    lane = LaneFetch(
        topic=late.view.topic,
        topic_id=late.view.topic_id,
        partition=late.partition,
        output=0,
        key_split=late.view.key_split(late.partition),
        fetch_offset=offset,
        partition_max_bytes=1,
        reserve=late.view.reserve,
    )
    request = LaneFetchRequest(
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=1,
        isolation_level=READ_UNCOMMITTED,
        lanes=(lane,),
        cursor_id=f"behind {late.view.name} {late.partition}",  # no client's connection
    )
    (answer,) = await fetcher.fetch(request)
    fetcher.release(request.cursor_id)
    return answer
