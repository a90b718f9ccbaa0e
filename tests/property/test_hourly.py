"""keylane/assignor/hourly.py against every possible cut of small loads by hour."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from keylane.assignor.hourly import (
    ALL_HOURS,
    EVEN,
    WHOLE_RANGE,
    HourLoads,
    busiest_lane,
    plan_all_hours,
)
from keylane.assignor.profile import LoadProfile
from keylane.assignor.range_plan import read_plan, write_plan
from tests.property.test_planner import WEIGHTS, make_profile
from tests.reference import planner as twin

BUCKETS = 8
HOUR_S = 3_600

Row = list[int]


@st.composite
def partitions_by_hour(draw: st.DrawFn) -> list[list[Row]]:
    """One to three partitions with the same one to four hours of eight buckets."""
    hour_count = draw(st.integers(1, 4))
    row = st.lists(WEIGHTS, min_size=BUCKETS, max_size=BUCKETS)
    hours = st.lists(row, min_size=hour_count, max_size=hour_count)
    return draw(st.lists(hours, min_size=1, max_size=3))


def added(rows: list[Row]) -> Row:
    """Loads of all hours."""
    return [sum(column) for column in zip(*rows, strict=True)]


def worst_lane(profile: LoadProfile, rows: list[Row], cuts: tuple[int, ...]) -> int:
    """The heaviest lane of any hour."""
    return max(busiest_lane(profile, list(accumulate(row, initial=0)), cuts) for row in rows)


def loads_of(partitions: list[list[Row]]) -> list[HourLoads]:
    """The hours from 1970 on."""
    starts = tuple(number * HOUR_S for number in range(len(partitions[0])))
    return [HourLoads(starts, tuple(rows)) for rows in partitions]


@given(partitions_by_hour(), st.integers(1, BUCKETS))
def test_the_worst_hour_is_the_best_possible(partitions: list[list[Row]], lane_count: int) -> None:
    """No other cut of a partition has a lighter lane in its worst hour; nor has any other plan."""
    profile = make_profile([added(rows) for rows in partitions])

    plan, report = plan_all_hours(profile, loads_of(partitions), lane_count)

    best = [twin.least_maximum(rows, lane_count) for rows in partitions]
    for rows, cuts, least in zip(partitions, plan.cuts, best, strict=True):
        assert worst_lane(profile, rows, cuts) == least
    assert report.worst(ALL_HOURS)[1] == max(best) <= report.worst(WHOLE_RANGE)[1]
    assert read_plan(write_plan(plan)) == plan
    for number, rows in enumerate(partitions):
        assert sum(plan.predicted[number]) == sum(map(sum, rows))


@given(partitions_by_hour(), st.integers(1, BUCKETS), st.integers(1, 3))
def test_hours_are_reported_as_they_are(
    partitions: list[list[Row]], lane_count: int, hours_a_day: int
) -> None:
    """Totals, the best of each hour, and the lanes of a day's plan in every hour."""
    profile = make_profile([added(rows) for rows in partitions])

    def day_of(start: int) -> str:
        return f"day {start // HOUR_S // hours_a_day}"

    _, report = plan_all_hours(profile, loads_of(partitions), lane_count, day_of=day_of)

    hours = range(len(partitions[0]))
    for hour in hours:
        own = [rows[hour] for rows in partitions]
        start = hour * HOUR_S
        assert report.total[start] == sum(map(sum, own))
        assert report.best[start] == max(twin.least_maximum([row], lane_count) for row in own)
        assert report.mean(start) == report.total[start] / (lane_count * len(own))
        others = report.busiest.keys() - {EVEN}  # which divides buckets
        assert all(report.busiest[name][start] >= report.best[start] for name in others)
    for day in {day_of(hour * HOUR_S) for hour in hours}:
        inside = [hour for hour in hours if day_of(hour * HOUR_S) == day]
        if len(inside) == 1:  # cut by one hour alone: the best that this hour can have
            start = inside[0] * HOUR_S
            assert report.busiest[day][start] == report.best[start]


@given(partitions_by_hour(), st.integers(1, BUCKETS), st.sampled_from([0.0, 0.02, 0.5]))
def test_a_next_plan_stays_near_the_prior_one(
    partitions: list[list[Row]], lane_count: int, slack: float
) -> None:
    """Within the slack of the best worst hour; by the same load nothing moves."""
    profile = make_profile([added(rows) for rows in partitions])
    prior, _ = plan_all_hours(profile, loads_of(partitions), lane_count)
    later = [[list(reversed(row)) for row in rows] for rows in partitions]

    same, _ = plan_all_hours(profile, loads_of(partitions), lane_count, prior=prior)
    plan, _ = plan_all_hours(profile, loads_of(later), lane_count, prior=prior, slack=slack)

    assert (same.cuts, same.epoch, same.prior) == (prior.cuts, 1, prior.plan_id)
    for rows, cuts in zip(later, plan.cuts, strict=True):
        best = twin.least_maximum(rows, lane_count)
        assert best <= worst_lane(profile, rows, cuts) <= best * (1 + slack)


def test_a_partition_without_load_is_cut_evenly() -> None:
    """Where nothing was measured, every lane gets its share of the hash space."""
    rows = [[0] * BUCKETS, [0] * BUCKETS]

    plan, _ = plan_all_hours(make_profile([rows[0]]), loads_of([rows]), 4)

    ranges = plan.layout().key_split(0).key_ranges()
    assert {part.hi - part.lo for part in ranges} == {2**61 - 1}
    assert all(low.hi + 1 == high.lo for low, high in pairwise(ranges))
