"""Cut partitions into lanes so that the busiest lane is as light as it can be.

Source: the linear partition problem. The least possible maximum is found by bisection over the
limit, where a greedy fill shows whether a limit can be held; loads are integers, so the answer is
exact. What is free beyond that evens out the other lanes, or keeps cuts where they were.

Cuts lie between buckets. A key lies in one bucket, so no cut divides the load of one key: the
heaviest key is a floor under the busiest lane.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from keylane.assignor.profile import HeavyKey, LoadProfile
from keylane.assignor.range_plan import RangePlan
from keylane.errors import ConfigInvalid
from keylane.keyrange.space import HASH_MAX, LANE_COUNT_MAX, split_even

SLACK: Final = 0.02
"""Share above the best maximum that a plan may take to leave the cuts of a prior plan."""

Rows = Sequence[Sequence[int]]
"""Loads by bucket of partitions that are cut alike; one row where each is cut by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """Results of a plan, in bytes by the profile."""

    busiest: int
    """The heaviest lane of the topic."""
    mean: float
    """Of all lanes."""
    best: int
    """The heaviest lane of the best cut between buckets."""
    even: int
    """The heaviest lane when the hash space is cut evenly."""
    floor: HeavyKey | None
    """The heaviest key, below which no plan gets; None where keys were not counted one by one."""
    moved: int | None
    """Bytes whose lane is another one than in the prior plan; None without one."""
    total: int


def plan_ranges(
    profile: LoadProfile,
    lane_count: int,
    *,
    prior: RangePlan | None = None,
    is_cut_alike: bool = False,
    slack: float = SLACK,
) -> tuple[RangePlan, PlanReport]:
    """Return the cuts of every partition, and the loads that they result in.

    The busiest lane is the best possible between buckets, or with `prior` at most `slack` above.
    Same input, same plan. Cost: O(P * L * log(buckets) * log(bytes)).

    Raises:
        ConfigInvalid: more lanes than buckets, or `prior` is of another topic or lane count.
    """
    _check(profile, lane_count, prior, slack)
    loads = [list(load.size_bytes) for load in profile.partitions]
    groups = [loads] if is_cut_alike else [[row] for row in loads]
    cuts: list[tuple[int, ...]] = []
    best = 0
    for number, rows in enumerate(groups):
        targets = None
        if prior is not None:
            targets = [nearest_bucket(profile, cut) for cut in prior.cuts[number]]
        least = least_maximum(rows, lane_count)
        best = max(best, least)
        limit = least if prior is None else least + int(least * slack)
        edges = choose_edges(rows, lane_count, limit, targets)
        cuts += [tuple(map(profile.bucket_start, edges))] * len(rows)
    plan = RangePlan(
        topic=profile.topic,
        lane_count=lane_count,
        cuts=tuple(cuts),
        epoch=0 if prior is None else prior.epoch + 1,
        prior=None if prior is None else prior.plan_id,
        is_cut_alike=is_cut_alike,
        predicted=tuple(lane_loads(profile, number, row) for number, row in enumerate(cuts)),
        profiled=tuple((load.start, load.end) for load in profile.partitions),
    )
    return plan, report_plan(profile, plan, best, prior)


def report_plan(
    profile: LoadProfile, plan: RangePlan, best: int, prior: RangePlan | None
) -> PlanReport:
    """The results of a plan for a profile; `best` is the heaviest lane of the best cut."""
    even = [part.lo for part in split_even(plan.lane_count)[1:]]
    numbers = range(len(profile.partitions))
    total = profile.size_bytes
    return PlanReport(
        busiest=max(int(max(row)) for row in plan.predicted),
        mean=total / (len(profile.partitions) * plan.lane_count),
        best=best,
        even=max(max(lane_loads(profile, number, even)) for number in numbers),
        floor=max(profile.heavy, key=lambda key: key.size_bytes, default=None),
        moved=None if prior is None else moved_bytes(profile, prior, plan),
        total=total,
    )


def least_maximum(rows: Rows, lane_count: int) -> int:
    """The least load that the heaviest of `lane_count` runs of buckets can have."""
    sums = _running_sums(rows)
    low, high = max(map(max, rows)), max(row[-1] for row in sums)
    low = max([low, *(-(-row[-1] // lane_count) for row in sums)])
    while low < high:
        middle = (low + high) // 2
        if _runs_needed(sums, middle) <= lane_count:
            high = middle
        else:
            low = middle + 1
    return low


def choose_edges(
    rows: Rows, lane_count: int, limit: int, targets: Sequence[int] | None = None
) -> list[int]:
    """First buckets of lanes 1, 2, ...: no lane above `limit`, each near its target.

    Without `targets` a lane aims at an even share of what is left. `limit` must be one that can be
    held, see `least_maximum`; every lane gets at least one bucket.
    """
    sums = _running_sums(rows)
    count = len(rows[0])
    total = [sum(column) for column in zip(*sums, strict=True)]
    first_for = _first_coverable(sums, lane_count, limit)
    edges: list[int] = []
    start = 0
    for left in range(lane_count - 1, 0, -1):  # lanes behind this one
        low = max(start + 1, first_for[left])
        high = min(_furthest(sums, start, limit), count - left)
        if targets is None and total[start] == total[-1]:
            aim = start + (count - start) // (left + 1)  # without load by width
        elif targets is None:
            share = total[start] + (total[-1] - total[start]) // (left + 1)
            after = bisect_left(total, share, start)
            before = max(after - 1, start)
            aim = before if share - total[before] < total[min(after, count)] - share else after
        else:
            aim = targets[len(edges)]
        start = min(max(aim, low), high)
        edges.append(start)
    return edges


def lane_loads(profile: LoadProfile, partition: int, cuts: Sequence[int]) -> tuple[int, ...]:
    """Bytes of each lane; a bucket that a cut divides counts on both sides by the cut's place."""
    sums = list(accumulate(profile.partitions[partition].size_bytes, initial=0))
    places = [sum_below(profile, sums, cut) for cut in cuts]
    return tuple(high - low for low, high in pairwise([0, *places, sums[-1]]))


def moved_bytes(profile: LoadProfile, before: RangePlan, after: RangePlan) -> int:
    """Bytes of the profile whose lane differs between two plans of one lane count."""
    moved = 0
    for number, load in enumerate(profile.partitions):
        sums = list(accumulate(load.size_bytes, initial=0))
        old, new = before.cuts[number], after.cuts[number]
        points = [0, *sorted({*old, *new}), HASH_MAX + 1]
        for low, high in pairwise(points):
            if bisect_right(old, low) != bisect_right(new, low):
                moved += sum_below(profile, sums, high) - sum_below(profile, sums, low)
    return moved


def nearest_bucket(profile: LoadProfile, cut: int) -> int:
    """The edge of a bucket that is nearest to a hash."""
    width = profile.bucket_start(1)
    return (cut + width // 2) // width


def sum_below(profile: LoadProfile, sums: Sequence[int], point: int) -> int:
    """Load of the hashes below `point`, by its place in its bucket."""
    width = profile.bucket_start(1)
    bucket, inside = divmod(point, width)
    if inside == 0:
        return sums[bucket]
    return sums[bucket] + ((sums[bucket + 1] - sums[bucket]) * inside + width // 2) // width


def _check(profile: LoadProfile, lane_count: int, prior: RangePlan | None, slack: float) -> None:
    if not 1 <= lane_count <= min(LANE_COUNT_MAX, profile.bucket_count):
        bound = min(LANE_COUNT_MAX, profile.bucket_count)
        raise ConfigInvalid(f"lanes: expected 1 to {bound}, got {lane_count}")
    if not 0 <= slack <= 1:
        raise ConfigInvalid(f"slack: expected 0 to 1, got {slack}")
    if prior is None:
        return
    if prior.topic != profile.topic:
        raise ConfigInvalid(
            f"prior plan: is of topic {prior.topic}, the profile of {profile.topic}"
        )
    if prior.partition_count != len(profile.partitions):
        raise ConfigInvalid(
            f"prior plan: has {prior.partition_count} partitions, topic {profile.topic} has"
            f" {len(profile.partitions)}"
        )
    if prior.lane_count != lane_count:
        raise ConfigInvalid(
            f"prior plan: has {prior.lane_count} lanes; another count is another view of the"
            " topic, and no plan follows from one to the other"
        )


def _running_sums(rows: Rows) -> list[list[int]]:
    return [list(accumulate(row, initial=0)) for row in rows]


def _furthest(sums: Rows, start: int, limit: int) -> int:
    """The bucket behind the longest run from `start` that no row exceeds `limit` in."""
    return min(bisect_right(row, row[start] + limit) - 1 for row in sums)


def _runs_needed(sums: Rows, limit: int) -> int:
    """Runs that a greedy fill makes; `limit` is at least the heaviest bucket."""
    count, start, runs = len(sums[0]) - 1, 0, 0
    while start < count:
        start = _furthest(sums, start, limit)
        runs += 1
    return runs


def _first_coverable(sums: Rows, lane_count: int, limit: int) -> list[int]:
    """By number of lanes, the first bucket from which they can hold all that follows."""
    first = [len(sums[0]) - 1]
    for _ in range(lane_count - 1):
        first.append(max(bisect_left(row, row[first[-1]] - limit) for row in sums))
    return first
