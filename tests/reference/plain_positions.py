"""Naive twin of `keylane.offsets.positions`: an object per interval, and every lane walked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.positions import Change, PositionMap
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.values import WHOLE, Position
from tests.reference.interval_map import IntervalMap


class PlainPositions:
    """What `OffsetState` asks of a `PositionMap`."""

    def __init__(self, intervals: IntervalMap[Position]) -> None:
        self.intervals = intervals

    def __len__(self) -> int:
        return len(self.intervals)

    def copy(self) -> PlainPositions:
        return PlainPositions(self.intervals.copy())

    def items(self, first: int = 0, last: int = HASH_MAX) -> Iterator[Change]:
        return self.intervals.items(first, last)

    def values(self, first: int, last: int) -> list[Position]:
        return [position for _, _, position in self.items(first, last)]

    @property
    def lowest(self) -> int:
        return min(position.counted for position in self.intervals.values())

    @property
    def highest(self) -> int:
        return max(position.counted for position in self.intervals.values())

    @property
    def concluded_end(self) -> int:
        places = self.intervals.values()
        return max(
            (p.counted for p in places if p.counted > p.offset or not p.committed), default=0
        )

    @property
    def is_committed(self) -> bool:
        return any(position.committed for position in self.intervals.values())

    @property
    def text_chars(self) -> int:
        return sum(len(position.metadata or "") for position in self.intervals.values())

    def is_said(self, offset: int) -> bool:
        return all(p.committed and p.offset >= offset for p in self.intervals.values())

    def cuts_added(self, first: int, last: int) -> int:
        return self.intervals.cuts_added(first, last)

    def update(
        self, first: int, last: int, change: Callable[[int, int, Position], Position]
    ) -> bool:
        return self.intervals.update(first, last, change)

    def lead_on(self, scan: ScanIndex) -> bool:
        def led(lo: int, hi: int, old: Position) -> Position:
            counted = scan.effective(KeyRange(lo, hi), old.counted)
            return Position(
                offset=old.offset,
                counted=counted,
                committed=old.committed,
                metadata=old.metadata,
                leader_epoch=old.leader_epoch,
            )

        moved = [self.update(lane.lo, lane.hi, led) for lane in scan.lanes_of(WHOLE)]
        return any(moved)

    def check(self) -> None:
        self.intervals.check()


def plain_state(committed: int | None) -> OffsetState:
    """A state whose positions are the twin's."""
    state = OffsetState(committed=committed)
    start = Position(offset=committed or 0, counted=committed or 0, committed=committed is not None)
    plain: Any = PlainPositions(IntervalMap(0, HASH_MAX, start))
    state._positions = cast("PositionMap", plain)
    return state
