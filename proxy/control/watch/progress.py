"""Progress of a group from sample to sample: records done per second, and members that are stuck.

Source: Burrow's evaluation rules (STALLED: commits that do not move, STOPPED: no commits, each
while there is lag over the whole window); decaying sums as in `scans.loads`.

In:    reports of the group, and the records of a lane between two offsets. No I/O.

A member is stuck when records have waited for it over STUCK_S, and none of its lanes has moved on
in that time. A lane that has just come to a member has moved, so a new member has its time; one
without records to read waits, and is never stuck. Records count as done when their commit is in.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from keylane.bounded import CostBoundedDict

STUCK_S: Final = 60.0
"""Twelve of the clients' default commit intervals (5 s), and half a minute beyond a slow one."""
MEMORY_S: Final = 60.0
"""Time constant of rates: commits come each 5 s, samples each 10 s."""
LANES_MAX: Final = 500_000
"""Lanes of all groups, 50 bytes each; the group that was sampled the longest ago goes first."""
NOT_COMMITTED: Final = -1


class LaneRecords(Protocol):
    """Records of lanes, as readers have counted them."""

    def count(self, topic: str, index: int, start: int, end: int) -> int:
        """Return the records of a lane in `[start, end)`; end: the log's end."""

    def has_records(self, topic: str, index: int, start: int) -> bool:
        """Return whether a record of a lane was surely met at or behind an offset."""


class LaneState(Protocol):
    """A lane at the time of a sample: a part of `LaneReport`."""

    @property
    def topic(self) -> str:
        """Name that clients use."""

    @property
    def lane_index(self) -> int:
        """Partition number that clients see."""

    @property
    def member_id(self) -> str | None:
        """None: no member holds it."""

    @property
    def committed(self) -> int | None:
        """None: nothing was ever committed."""

    @property
    def log_end(self) -> int:
        """End of the partition."""

    @property
    def lag(self) -> int | None:
        """None: without a commit."""

    @property
    def lag_is_exact(self) -> bool:
        """False: it may be that no record waits."""


@dataclass(slots=True)
class _Topic:
    """Lanes of a topic, by lane index."""

    committed: NDArray[np.int64]
    done: NDArray[np.float64]
    """Decaying sums of records."""
    moved_s: NDArray[np.float64]
    """Time when the lane last moved on, or came to its member."""
    waits_s: NDArray[np.float64]
    """Since when records wait; infinity: none do."""
    holders: list[str | None]

    @classmethod
    def of(cls, count: int, now_s: float) -> _Topic:
        return cls(
            np.full(count, NOT_COMMITTED, np.int64),
            np.zeros(count),
            np.full(count, now_s),
            np.full(count, math.inf),
            [None] * count,
        )


@dataclass(slots=True)
class GroupProgress:
    """Lanes of one group, as the last samples had them."""

    started_s: float = math.inf
    sampled_s: float = -math.inf
    topics: dict[str, _Topic] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        """Return the lanes."""
        return 1 + sum(len(topic.holders) for topic in self.topics.values())

    def note(self, lanes: Iterable[LaneState], records: LaneRecords, now_s: float) -> None:
        """Take in a sample; lanes of a topic stand together, ascending."""
        self.started_s = min(self.started_s, now_s)
        fade = math.exp(-max(0.0, now_s - self.sampled_s) / MEMORY_S) if self.topics else 0.0
        topics: dict[str, _Topic] = {}
        for name, group in groupby(lanes, key=lambda lane: lane.topic):
            own = list(group)
            size = own[-1].lane_index + 1
            known = self.topics.get(name)
            is_new = known is None or len(known.holders) != size
            topic = _Topic.of(size, now_s) if known is None or is_new else known
            topic.done *= fade
            for lane in own:
                _note_lane(topic, lane, records, now_s, is_new=is_new)
            topics[name] = topic
        self.topics, self.sampled_s = topics, now_s

    def done_per_s(self, topic: str, index: int) -> float | None:
        """Return records of a lane that are done per second; None: two samples are needed."""
        known, elapsed_s = self.topics.get(topic), self.sampled_s - self.started_s
        if known is None or index >= len(known.holders) or elapsed_s <= 0:
            return None
        if known.committed[index] == NOT_COMMITTED:
            return None
        return float(known.done[index]) / (MEMORY_S * -math.expm1(-elapsed_s / MEMORY_S))

    def has_moved(self, lane: LaneState) -> bool:
        """Return whether a lane has moved on, or come to its member, since the last sample."""
        known, index = self.topics.get(lane.topic), lane.lane_index
        if known is None or index >= len(known.holders):
            return True
        is_held = lane.member_id == known.holders[index]
        return not is_held or _committed_of(lane) != int(known.committed[index])

    def stuck(self, now_s: float) -> dict[str, float]:
        """Return the members that are stuck, and for how long. Cost: 0.3 us per lane.

        That is by the last sample; a caller with a newer report asks `has_moved` as well.
        """
        moved: dict[str, float] = {}
        waits: dict[str, float] = {}
        for topic in self.topics.values():
            states = zip(topic.holders, topic.moved_s.tolist(), topic.waits_s.tolist(), strict=True)
            for holder, moved_s, waits_s in states:
                if holder is not None:
                    moved[holder] = max(moved_s, moved.get(holder, -math.inf))
                    waits[holder] = min(waits_s, waits.get(holder, math.inf))
        since = {name: max(moved_s, waits[name]) for name, moved_s in moved.items()}
        return {name: now_s - at_s for name, at_s in since.items() if now_s - at_s >= STUCK_S}


def _committed_of(lane: LaneState) -> int:
    return NOT_COMMITTED if lane.committed is None else lane.committed


def _note_lane(
    topic: _Topic, lane: LaneState, records: LaneRecords, now_s: float, *, is_new: bool
) -> None:
    index = lane.lane_index
    before = int(topic.committed[index])
    committed = _committed_of(lane)
    if committed != before:
        if NOT_COMMITTED != before < committed and not is_new:
            left = records.count(lane.topic, index, before, lane.log_end)
            topic.done[index] += max(0, left - (lane.lag or 0))
        topic.committed[index] = committed
    done_s = now_s if committed != before or lane.member_id != topic.holders[index] else None
    if done_s is not None:
        topic.moved_s[index], topic.holders[index] = done_s, lane.member_id
    if not lane.lag or not (lane.lag_is_exact or records.has_records(lane.topic, index, committed)):
        topic.waits_s[index] = math.inf
    elif math.isinf(topic.waits_s[index]):
        topic.waits_s[index] = now_s


class ProgressBook:
    """Progress of all groups that are sampled. Invariant: at most LANES_MAX lanes, or one group."""

    def __init__(self, *, lanes_max: int = LANES_MAX) -> None:
        self._groups: CostBoundedDict[str, GroupProgress] = CostBoundedDict(
            GroupProgress, cost_max=lanes_max
        )

    def note(
        self, group: str, lanes: Iterable[LaneState], records: LaneRecords, now_s: float
    ) -> GroupProgress:
        """Take in a sample of a group."""
        with self._groups.changed(group) as progress:
            progress.note(lanes, records, now_s)
        return progress

    def of(self, group: str) -> GroupProgress:
        """Return a group's progress; an empty one, where it was not sampled."""
        return self._groups.get(group) or GroupProgress()

    def keep(self, groups: Container[str]) -> None:
        """Forget all other groups."""
        for group in [group for group in self._groups if group not in groups]:
            self._groups.drop(group)
