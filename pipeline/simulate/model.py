"""Values of a simulation: what is asked, the scenarios that answer it, and what each one gives.

Times in are milliseconds, as people say them; inside they are whole microseconds, so that sums are
exact and do not depend on how Spark divides the work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from keylane.assign import MEMBERS_MAX
from keylane.assignor.range_plan import RangePlan
from keylane.errors import ConfigInvalid
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import LANE_COUNT_MAX

Spread = Literal["constant", "exponential", "lognormal"]
SPREADS: Final[tuple[Spread, ...]] = get_args(Spread)
Arrivals = Literal["real", "backlog"]
ARRIVALS: Final[tuple[Arrivals, ...]] = get_args(Arrivals)
Assignor = Literal["key-range", "consumer", "unmeasured", "range", "roundrobin"]
ASSIGNORS: Final[tuple[Assignor, ...]] = get_args(Assignor)
Way = Literal["today", "keylane"]

SCENARIOS_MAX: Final = 64
"""Each one orders all records once; more of them than a picture can show."""
OWNERS_MAX: Final = 1_000_000
"""Lanes of all scenarios together: what each worker holds in memory to place records."""
WORK_MS_MAX: Final = 3_600_000.0
SIGMA: Final = 0.5
SIGMA_MAX: Final = 5.0
"""Beyond it a record in a hundred thousand has nearly all of the work."""
SEED_MAX: Final = 2**31 - 1
PARALLEL_MAX: Final = 10_000
HEAVY_MAX: Final = 1000
PERCENTILES: Final = (0.5, 0.95, 0.99)
MS_PER_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkModel:
    """The time that a member takes for a record: a mean of its bytes, and a spread around it."""

    base_ms: float
    per_kb_ms: float = 0.0
    """Per 1,000 bytes of key and value."""
    spread: Spread = "constant"
    sigma: float = SIGMA
    """Of a lognormal spread: the standard deviation of the logarithm. The mean stays."""
    seed: int = 0
    """A record's place and this number give its time: the same in each scenario and each run."""

    def __post_init__(self) -> None:
        expect_between("--work-ms", self.base_ms, 0, WORK_MS_MAX)
        expect_between("--work-per-kb", self.per_kb_ms, 0, WORK_MS_MAX)
        expect_between("--sigma", self.sigma, 0, SIGMA_MAX)
        expect_between("--seed", self.seed, 0, SEED_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """All that a simulation is asked, beside the records."""

    members: tuple[int, ...]
    lanes: tuple[int, ...] = ()
    """Lanes per partition, cut evenly; none where a plan cuts them."""
    plan: RangePlan | None = None
    work: WorkModel | None
    """None: each record has a measured time."""
    assignor: Assignor = "key-range"
    arrivals: Arrivals = "real"
    rate: float | None = None
    """Records per second that the times are stretched or pressed to; None: as they are."""
    parallel: int = 1
    """Records that a member works on at once, each key always in one place."""
    heavy_count: int = 20

    def __post_init__(self) -> None:
        for name, counts, most in (
            ("--members", self.members, MEMBERS_MAX),
            ("--lanes", self.lanes, LANE_COUNT_MAX),
        ):
            if any(not 1 <= count <= most for count in counts) or len(set(counts)) != len(counts):
                raise ConfigInvalid(f"{name}: expected different numbers from 1 to {most:,}")
        if not self.members or (not self.lanes and self.plan is None):
            raise ConfigInvalid("needs members, and lanes or a plan")
        if len(self.members) * max(1, len(self.lanes)) > SCENARIOS_MAX:
            raise ConfigInvalid(f"more than {SCENARIOS_MAX} pairs of members and lanes")
        expect_between("--rate", 1.0 if self.rate is None else self.rate, 1e-9, 1e12)
        expect_between("--parallel-per-member", self.parallel, 1, PARALLEL_MAX)
        expect_between("--heavy", self.heavy_count, 1, HEAVY_MAX)
        if self.rate is not None and self.arrivals == "backlog":
            raise ConfigInvalid("--rate: a backlog has no rate, leave out --arrivals backlog")


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """One row of the answer."""

    number: int
    way: Way
    """`today`: a plain group, whose members have whole partitions."""
    members: int
    lanes: int
    layout: int
    """Place of its lanes among `layouts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Times in a queue, from a record's arrival to the begin of its work, in milliseconds."""

    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """One member of one scenario; without a record, if all its lanes are empty or it has none."""

    member: int
    lanes: int
    records: int
    work_ms: float
    utilisation: float
    """Part of the scenario's time that it works, of each of its places."""
    waits: Waits | None
    """None: it has no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult:
    """One of the keys with most work, in one scenario."""

    partition: int
    key_hash: int
    records: int
    work_share: float
    waits: Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMeans:
    """Mean queueing times of the keys, over all keys of a scenario, in milliseconds."""

    keys: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """One row of the answer, with its members and its heaviest keys."""

    scenario: SimulatedGroup
    records: int
    work_ms: float
    span_ms: float
    """From the first arrival to the end of the last work."""
    busiest_ms: float
    """Work of the busiest place of a member: no record of it can be done elsewhere."""
    parallel: int
    waits: Waits
    key_means: KeyMeans | None
    """None: no record has a key."""
    members: tuple[MemberResult, ...]
    heavy: tuple[KeyResult, ...]

    @property
    def rate(self) -> float:
        """Records per second, from the first arrival to the last end."""
        return 1000 * self.records / self.span_ms if self.span_ms else math.inf

    @property
    def capacity(self) -> float:
        """Records per second of these keys that the group can do at most, with work always there.

        Where as many arrive, queues grow without a bound.
        """
        return 1000 * self.records / self.busiest_ms if self.busiest_ms else math.inf

    @property
    def imbalance(self) -> float:
        """Work of the busiest place, in times of the mean of all."""
        places = self.scenario.members * self.parallel
        return self.busiest_ms * places / self.work_ms if self.work_ms else 1.0

    @property
    def utilisation(self) -> float:
        """Part of its time that a member works, on average."""
        places = self.scenario.members * self.parallel
        return self.work_ms / (places * self.span_ms) if self.span_ms else 1.0

    @property
    def member_hours(self) -> float:
        """Members times hours, from the first arrival to the last end."""
        return self.scenario.members * self.span_ms / MS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFacts:
    """Facts of the records, which all scenarios share."""

    partition_count: int
    records: int
    bytes: int
    first_us: int
    """Time of the first record, since 1970."""
    last_us: int
    raised: int
    """Records with an earlier time than one in front of them: they take the later one."""
    raised_max_us: int
    work_us: int

    @property
    def rate(self) -> float | None:
        """Records per second that were produced; None: all have one time."""
        span_us = self.last_us - self.first_us
        return 1e6 * self.records / span_us if span_us else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The answer."""

    topic: str
    request: SimulationRequest
    facts: RecordFacts
    results: tuple[ScenarioResult, ...]


def expect_between(name: str, value: float, low: float, high: float) -> None:
    """Raises: ConfigInvalid, the value is not in the interval; a NaN is in none."""
    if not low <= value <= high:
        raise ConfigInvalid(f"{name}: expected {low:g} to {high:g}")


def layouts_of(request: SimulationRequest, partition_count: int) -> tuple[LaneLayout, ...]:
    """Lanes of the scenarios: whole partitions first, then each number of lanes, or the plan's.

    Raises:
        ConfigInvalid: the plan is of a topic with other partitions.
    """
    whole = LaneLayout(partition_count, 1)
    if request.plan is None:
        return whole, *(LaneLayout(partition_count, count) for count in request.lanes)
    if request.plan.partition_count != partition_count:
        count = request.plan.partition_count
        raise ConfigInvalid(f"--plan: has {count} partitions, the topic has {partition_count}")
    return whole, request.plan.layout()


def list_scenarios(
    request: SimulationRequest, layouts: Sequence[LaneLayout]
) -> tuple[SimulatedGroup, ...]:
    """Today's groups, with as many members as work at most, then each pair of members and lanes.

    Raises:
        ConfigInvalid: all lanes of all scenarios are too many.
    """
    partition_count = layouts[0].partition_count
    working = sorted({min(count, partition_count) for count in request.members})
    pairs: list[tuple[Way, int, int]] = [("today", count, 0) for count in working]
    pairs += [
        ("keylane", count, layout)
        for layout in range(1, len(layouts))
        for count in sorted(request.members)
    ]
    found = tuple(
        SimulatedGroup(number, way, count, layouts[layout].lane_count, layout)
        for number, (way, count, layout) in enumerate(pairs)
    )
    owners = sum(layouts[one.layout].index_count for one in found)
    if owners > OWNERS_MAX:
        raise ConfigInvalid(f"{owners:,} lanes in all scenarios together, at most {OWNERS_MAX:,}")
    return found


def cheapest_within(simulation: Simulation, wait_ms: float) -> ScenarioResult | None:
    """The scenario on lanes with fewest members, then lanes, whose p99 is within `wait_ms`."""
    fit = [
        one
        for one in simulation.results
        if one.scenario.way == "keylane" and one.waits.p99_ms <= wait_ms
    ]
    return min(fit, key=lambda one: (one.scenario.members, one.scenario.lanes), default=None)
