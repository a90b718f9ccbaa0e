"""One plan for load that moves: cuts whose busiest lane in the worst hour is as light as it can be.

Weight is bytes in an hour, whatever the other lanes have then: that is what a member must be able
to carry. The cuts of a partition are shared by all its hours, as those of a topic are by partitions
that are cut alike, so the same search is exact here: a greedy fill that ends a lane before any
hour would exceed the limit needs the fewest lanes, and a limit that holds holds when raised.

Beside it, the same hours under other cuts: of the whole range, of each day, of each hour by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

from keylane.assignor.cut_planner import (
    SLACK,
    choose_edges,
    lane_loads,
    least_maximum,
    nearest_bucket,
    plan_ranges,
    sum_below,
)
from keylane.assignor.profile import LoadProfile
from keylane.assignor.range_plan import RangePlan
from keylane.keyrange.space import split_even

ALL_HOURS: Final = "all hours"
WHOLE_RANGE: Final = "whole range"
EVEN: Final = "even"

Cuts = Sequence[int]


@dataclass(frozen=True, slots=True)
class HourLoads:
    """Bytes of one partition by hour and bucket."""

    starts: tuple[int, ...]
    """Of each hour, in seconds since 1970, ascending; the same hours for all partitions."""
    rows: tuple[Sequence[int], ...]
    """By hour, then by bucket."""


@dataclass(slots=True)
class HourReport:
    """Loads of all hours under several cuts; an hour is named by its start."""

    lane_total: int
    """Lanes of all partitions."""
    total: Counter[int] = field(default_factory=Counter)
    """Bytes of an hour."""
    best: Counter[int] = field(default_factory=Counter)
    """The busiest lane of an hour that is cut by its own load."""
    busiest: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """The busiest lane of an hour, by name of the cuts."""

    def worst(self, name: str, starts: Iterable[int] | None = None) -> tuple[int, int]:
        """The hour with the heaviest lane under some cuts, and that lane's bytes."""
        loads = self.busiest[name]
        hour = max(sorted(loads if starts is None else starts), key=lambda start: loads[start])
        return hour, loads[hour]

    def mean(self, start: int) -> float:
        """Bytes of a mean lane in an hour."""
        return self.total[start] / self.lane_total


def plan_all_hours(
    profile: LoadProfile,
    hours: Iterable[HourLoads],
    lane_count: int,
    *,
    day_of: Callable[[int], str] | None = None,
    others: Mapping[str, RangePlan] | None = None,
    prior: RangePlan | None = None,
    slack: float = SLACK,
) -> tuple[RangePlan, HourReport]:
    """The plan whose worst hour is the best possible, and the hours under it and under others.

    `hours` has every partition of `profile` in order, and is taken one at a time. With `day_of`,
    which names the day of an hour, the report also has the cuts of each day by its bytes, under
    the day's name; `others` are further plans by name. With `prior` the worst hour is at most
    `slack` above the best. Cost: O(P * H * L * log(buckets) * log(bytes)) for H hours.

    Raises:
        ConfigInvalid: as `plan_ranges`.
    """
    whole, _ = plan_ranges(profile, lane_count, prior=prior, slack=slack)
    even = tuple(part.lo for part in split_even(lane_count)[1:])
    report = HourReport(lane_total=lane_count * len(profile.partitions))
    cuts: list[tuple[int, ...]] = []
    for number, own in enumerate(hours):
        targets = None
        if prior is not None:
            targets = [nearest_bucket(profile, cut) for cut in prior.cuts[number]]
        edges = _edges(own.rows, lane_count, targets, slack)
        cuts.append(tuple(map(profile.bucket_start, edges)))
        named: dict[str, Cuts] = {
            ALL_HOURS: cuts[-1],
            WHOLE_RANGE: whole.cuts[number],
            EVEN: even,
            **{name: plan.cuts[number] for name, plan in (others or {}).items()},
        }
        for day, row in _days(own, day_of).items():
            edges = _edges([row], lane_count)
            named[day] = tuple(map(profile.bucket_start, edges))
        _add(report, profile, own, named, lane_count)
    plan = RangePlan(
        topic=profile.topic,
        lane_count=lane_count,
        cuts=tuple(cuts),
        epoch=whole.epoch,
        prior=whole.prior,
        predicted=tuple(lane_loads(profile, number, row) for number, row in enumerate(cuts)),
        profiled=whole.profiled,
    )
    return plan, report


def busiest_lane(profile: LoadProfile, sums: Sequence[int], cuts: Cuts) -> int:
    """Bytes of the heaviest lane under some cuts; `sums` are running ones, by bucket, from 0."""
    places = [0, *(sum_below(profile, sums, cut) for cut in cuts), sums[-1]]
    return max(high - low for low, high in pairwise(places))


def _edges(
    rows: Sequence[Sequence[int]],
    lane_count: int,
    targets: Sequence[int] | None = None,
    slack: float = 0.0,
) -> list[int]:
    least = least_maximum(rows, lane_count)
    limit = least if targets is None else least + int(least * slack)
    return choose_edges(rows, lane_count, limit, targets)


def _days(own: HourLoads, day_of: Callable[[int], str] | None) -> dict[str, Sequence[int]]:
    """The bytes of each day by bucket."""
    days: dict[str, list[Sequence[int]]] = {}
    if day_of is not None:
        for start, row in zip(own.starts, own.rows, strict=True):
            days.setdefault(day_of(start), []).append(row)
    return {day: [sum(column) for column in zip(*rows, strict=True)] for day, rows in days.items()}


def _add(
    report: HourReport,
    profile: LoadProfile,
    own: HourLoads,
    named: Mapping[str, Cuts],
    lane_count: int,
) -> None:
    for start, row in zip(own.starts, own.rows, strict=True):
        sums = list(accumulate(row, initial=0))
        report.total[start] += sums[-1]
        report.best[start] = max(report.best[start], least_maximum([row], lane_count))
        for name, cuts in named.items():
            loads = report.busiest[name]
            loads[start] = max(loads[start], busiest_lane(profile, sums, cuts))
