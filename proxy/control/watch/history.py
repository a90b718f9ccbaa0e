"""Ten minutes of samples: lag and records done of members and groups, flow of topics.

A ring of POINTS numbers for each series, one per STEP_S; points without a sample are null. No I/O.

Memory: 0.5 KiB per series; a member and a group have two, a topic has two.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from keylane.bounded import BoundedDict, CostBoundedDict

STEP_S: Final = 10
POINTS: Final = 60
"""Ten minutes."""
MEMBERS_MAX: Final = 10_000
"""Members of all groups, 10 MiB; the group that was sampled the longest ago goes first."""
TOPICS_MAX: Final = 2_000
"""Topics, 2 MiB."""

Numbers = list[float | None]


class Pair(NamedTuple):
    """One sample of two series."""

    first: float | None
    second: float | None


class MemberSample(NamedTuple):
    """A member at the time of a sample."""

    label: str
    lag: float | None
    consumed_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeries:
    """Lag and records done per second of a whole group."""

    lag: Numbers
    consumed_per_s: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeries:
    """Same of one member."""

    member_id: str
    label: str
    lag: Numbers
    consumed_per_s: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeries:
    """Flow into a topic's lanes."""

    bytes_per_s: Numbers
    records_per_s: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryReport:
    """The last ten minutes of a group, or of a topic.

    `group` and `topic` are null where none was asked for, or there is no sample of it at this node.
    """

    step_s: int
    from_ms: int
    """Time of the first point, in ms since 1970."""
    points: int
    members: tuple[MemberSeries, ...] = ()
    group: GroupSeries | None = None
    topic: TopicSeries | None = None


class _Ring:
    """Two series. Invariant: points newer than `slot` are not known yet."""

    __slots__ = ("_first", "_second", "label", "slot")

    def __init__(self) -> None:
        self._first = array("d", [math.nan] * POINTS)
        self._second = array("d", [math.nan] * POINTS)
        self.slot = -1
        """Step of the newest point."""
        self.label = ""

    def put(self, slot: int, pair: Pair) -> None:
        """Note a sample; the later one of a step counts."""
        if slot < self.slot:
            return
        for skipped in range(max(self.slot + 1, slot - POINTS + 1), slot):
            self._first[skipped % POINTS] = self._second[skipped % POINTS] = math.nan
        self.slot = slot
        for series, value in zip((self._first, self._second), pair, strict=True):
            series[slot % POINTS] = math.nan if value is None else value

    def until(self, slot: int) -> tuple[Numbers, Numbers]:
        """Return both series, the last point of which is of a step."""
        return self._until(self._first, slot), self._until(self._second, slot)

    def _until(self, series: array[float], slot: int) -> Numbers:
        found: Numbers = []
        for each in range(slot - POINTS + 1, slot + 1):
            is_there = max(0, self.slot - POINTS + 1) <= each <= self.slot
            value = series[each % POINTS] if is_there else math.nan
            found.append(None if math.isnan(value) else round(value, 2))
        return found


@dataclass(slots=True)
class _Group:
    whole: _Ring = field(default_factory=_Ring)
    members: dict[str, _Ring] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        """Return the rings."""
        return 1 + len(self.members)


class History:
    """Samples of all groups and topics. Event loop only."""

    def __init__(self, *, members_max: int = MEMBERS_MAX, topics_max: int = TOPICS_MAX) -> None:
        self._groups: CostBoundedDict[str, _Group] = CostBoundedDict(_Group, cost_max=members_max)
        self._topics: BoundedDict[str, _Ring] = BoundedDict(topics_max)

    def note_group(
        self, group: str, now_ms: int, whole: Pair, members: Mapping[str, MemberSample]
    ) -> None:
        """Note a sample. whole: lag and records done per second; members: by member id."""
        slot = slot_of(now_ms)
        with self._groups.changed(group) as known:
            known.whole.put(slot, whole)
            for member_id, sample in members.items():
                ring = known.members.setdefault(member_id, _Ring())
                ring.label = sample.label
                ring.put(slot, Pair(sample.lag, sample.consumed_per_s))
            for gone in [k for k, ring in known.members.items() if ring.slot <= slot - POINTS]:
                del known.members[gone]

    def note_topic(self, topic: str, now_ms: int, flow: Pair) -> None:
        """Note a sample. flow: bytes and records per second."""
        ring = self._topics.use(topic)
        if ring is None:
            ring = self._topics[topic] = _Ring()
        ring.put(slot_of(now_ms), flow)

    def find(
        self, now_ms: int, *, group: str | None = None, topic: str | None = None
    ) -> HistoryReport:
        """Return the last ten minutes; of a group or topic that was not sampled there is none."""
        slot = slot_of(now_ms)
        known = None if group is None else self._groups.get(group)
        ring = None if topic is None else self._topics.get(topic)
        members = sorted(known.members.items(), key=_label_and_id) if known else []
        return HistoryReport(
            step_s=STEP_S,
            from_ms=start_ms_of(slot - POINTS + 1),
            points=POINTS,
            members=tuple(
                MemberSeries(
                    member_id=member_id,
                    label=each.label,
                    **dict(zip(("lag", "consumed_per_s"), each.until(slot), strict=True)),
                )
                for member_id, each in members
            ),
            group=None if known is None else GroupSeries(
                **dict(zip(("lag", "consumed_per_s"), known.whole.until(slot), strict=True))
            ),
            topic=None if ring is None else TopicSeries(
                **dict(zip(("bytes_per_s", "records_per_s"), ring.until(slot), strict=True))
            ),
        )  # fmt: skip

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        self._groups.check()


def _label_and_id(member: tuple[str, _Ring]) -> tuple[str, str]:
    return member[1].label, member[0]


def slot_of(now_ms: int) -> int:
    """Return the step that a time is in."""
    return now_ms // (STEP_S * 1000)


def start_ms_of(slot: int) -> int:
    """Return the time at which a step begins."""
    return slot * STEP_S * 1000
