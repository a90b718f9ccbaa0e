"""keylane/assignor/cut_planner.py against every possible cut of small profiles."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from keylane.assignor.cut_planner import choose_edges, lane_loads, least_maximum, plan_ranges
from keylane.assignor.profile import LoadProfile, PartitionLoad, read_profile, write_profile
from keylane.assignor.range_plan import RangePlan, read_plan, write_plan
from tests.reference import planner as twin

BITS = 3
WEIGHTS = st.one_of(st.just(0), st.integers(0, 20), st.integers(0, 2**40))


def make_profile(rows: list[list[int]]) -> LoadProfile:
    """A profile of `rows`, bytes by bucket."""
    return LoadProfile(
        topic="orders",
        bits=(len(rows[0]) - 1).bit_length(),
        partitions=tuple(
            PartitionLoad(start=0, end=9, records=(1,) * len(row), size_bytes=tuple(row))
            for row in rows
        ),
    )


@st.composite
def profiles(draw: st.DrawFn) -> LoadProfile:
    """One to three partitions of eight buckets."""
    row = st.lists(WEIGHTS, min_size=1 << BITS, max_size=1 << BITS)
    return make_profile(draw(st.lists(row, min_size=1, max_size=3)))


def edges_of(profile: LoadProfile, plan: RangePlan, partition: int) -> list[int]:
    """First buckets of lanes 1, 2, ..."""
    return [cut // profile.bucket_start(1) for cut in plan.cuts[partition]]


@given(profiles(), st.integers(1, 8))
def test_the_busiest_lane_is_the_best_possible(profile: LoadProfile, lane_count: int) -> None:
    """Partitions cut by themselves: no other cut has a lighter heaviest lane."""
    plan, report = plan_ranges(profile, lane_count)

    for number, load in enumerate(profile.partitions):
        assert max(plan.predicted[number]) == twin.least_maximum([load.size_bytes], lane_count)
    assert report.busiest == report.best == max(max(row) for row in plan.predicted)


@given(profiles(), st.integers(1, 8))
def test_cuts_for_all_partitions_are_the_best_possible(
    profile: LoadProfile, lane_count: int
) -> None:
    """Partitions cut alike: no other common cut has a lighter heaviest lane."""
    plan, report = plan_ranges(profile, lane_count, is_cut_alike=True)

    rows = [load.size_bytes for load in profile.partitions]
    assert len(set(plan.cuts)) == 1
    assert report.busiest == twin.least_maximum(rows, lane_count)


@given(profiles(), st.integers(1, 8), st.booleans())
def test_a_plan_is_whole_and_survives_its_file(
    profile: LoadProfile, lane_count: int, is_cut_alike: bool
) -> None:
    """Every hash has one lane, predicted bytes add up, the file reads back the same."""
    plan, _ = plan_ranges(profile, lane_count, is_cut_alike=is_cut_alike)

    for number, load in enumerate(profile.partitions):
        ranges = plan.layout().key_split(number).key_ranges()
        assert len(ranges) == lane_count
        assert (ranges[0].lo, ranges[-1].hi) == (0, 2**63 - 1)
        assert all(low.hi + 1 == high.lo for low, high in pairwise(ranges))
        assert sum(plan.predicted[number]) == sum(load.size_bytes)
    assert read_plan(write_plan(plan)) == plan


@given(profiles(), profiles(), st.integers(1, 8), st.sampled_from([0.0, 0.02, 0.5]))
def test_a_next_plan_stays_near_the_prior_one(
    before: LoadProfile, after: LoadProfile, lane_count: int, slack: float
) -> None:
    """Within the slack of the best; moved bytes are those of buckets that change lanes."""
    count = min(len(before.partitions), len(after.partitions))
    before = make_profile([list(load.size_bytes) for load in before.partitions[:count]])
    after = make_profile([list(load.size_bytes) for load in after.partitions[:count]])
    prior, _ = plan_ranges(before, lane_count)

    plan, report = plan_ranges(after, lane_count, prior=prior, slack=slack)
    same, unmoved = plan_ranges(before, lane_count, prior=prior)

    for number, load in enumerate(after.partitions):
        best = twin.least_maximum([load.size_bytes], lane_count)
        assert best <= max(plan.predicted[number]) <= best * (1 + slack)
    assert report.moved == sum(
        twin.moved(load.size_bytes, edges_of(after, prior, number), edges_of(after, plan, number))
        for number, load in enumerate(after.partitions)
    )
    assert (plan.epoch, plan.prior) == (1, prior.plan_id)
    assert (same.cuts, unmoved.moved) == (prior.cuts, 0)


@given(
    st.lists(st.lists(WEIGHTS, min_size=5, max_size=5), min_size=1, max_size=3), st.integers(1, 5)
)
def test_any_limit_that_can_be_held_is_held(rows: list[list[int]], lane_count: int) -> None:
    """At the least limit, and above it."""
    least = least_maximum(rows, lane_count)

    assert least == twin.least_maximum(rows, lane_count)
    for limit in (least, least + 7, 2 * least):
        edges = choose_edges(rows, lane_count, limit)
        assert len(edges) == lane_count - 1
        for low, high in pairwise([0, *edges, 5]):
            assert low < high
            assert all(sum(row[low:high]) <= limit for row in rows)


@given(profiles(), st.lists(st.integers(1, 2**63 - 1), max_size=6, unique=True))
def test_loads_of_any_cuts_add_up(profile: LoadProfile, cuts: list[int]) -> None:
    """Cuts inside of buckets divide them, and nothing is lost."""
    loads = lane_loads(profile, 0, sorted(cuts))

    assert sum(loads) == sum(profile.partitions[0].size_bytes)
    assert min(loads) >= 0


@given(profiles())
def test_a_profile_survives_its_file(profile: LoadProfile) -> None:
    """What is written is read."""
    assert read_profile(write_profile(profile)) == profile
