"""The judgement: figures of `speedup` and `costs` for a question, and what follows from them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import Final

import numpy as np

from keylane.advise.costs import (
    Costs,
    find_costs,
    node_records_per_s,
    reader_s_per_record,
)
from keylane.advise.facts import GroupFacts, TopicFacts
from keylane.advise.keys import KeyShare, TopicKeys
from keylane.advise.sample import TopicSample
from keylane.advise.speedup import (
    Speedup,
    deal_lanes,
    direct_parallel,
    find_speedup,
    key_ceiling,
    workers_parallel,
)

LANE_COUNTS: Final = (4, 8, 16, 32, 64, 128, 256)
LANES_TOTAL_MAX: Final = 4_096
"""Lanes of all partitions that are tried without being asked for."""
LANES_GOOD: Final = 0.97
"""Part of the best speed-up that is good enough: fewer lanes are less to look after."""
MEMBERS_MIN: Final = 8
MEMBERS_MAX: Final = 1_024
ROOM: Final = 1.25
"""Times the rate that members are to manage, so that a backlog ends."""
HOT_KEYS: Final = 5
HOT_SHARE_KEYS: Final = 10
CONCURRENCY: Final = 64
"""Records at once in a process of `Workers`, as in docs/performance.md."""
REDRAWS: Final = 60
REDRAWN_LANES_MAX: Final = 30_000
"""Lanes of all redraws together: some seconds."""
WIDE: Final = 0.25
"""An interval that is this part of its figure wide is too wide to plan by."""
HELPS_FROM: Final = 1.25
"""Speed-up over the best plain group below which a proxy is not worth its keep."""
KEYLESS_FROM: Final = 0.99
CALM_BELOW: Final = 0.5
"""Part of its time that a group works at most to have no need of more members."""
SAMPLE_MIN: Final = 1_000
SEED: Final = 19
COST_RATE: Final = 1_000.0
"""Records per second that costs are for where no rate is known."""


class Judgement(StrEnum):
    """The outcome, for programs."""

    HELPS = "helps"
    NO_KEYS = "no-keys"
    HOT_KEY = "hot-key"
    WORK_TOO_SHORT = "work-too-short"
    PARTITIONS_ENOUGH = "partitions-enough"
    KEEPS_UP = "keeps-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceQuestion:
    """Wishes of the user; None: the advice chooses."""

    bootstrap: str
    work_s: float | None = None
    members: int | None = None
    lanes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRates:
    """Records per second for a work per record."""

    work_s: float
    is_estimated: bool
    """True: the work follows from the group's own rate."""
    direct: float
    """One member per partition."""
    lanes: float
    """Members on lanes, one node of keylane between."""
    members_needed: int | None
    """Members that manage what is produced, with some room; None: no number does."""

    @property
    def gain(self) -> float:
        """Speed-up with everything that takes time."""
        return self.lanes / self.direct


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersSpeedup:
    """Figures of `keylane.client.Workers`, in times the work of one record at once."""

    concurrency: int
    direct: float
    """A process per partition on plain Kafka, without keylane."""
    lanes: float
    """As many processes as members, on lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Everything that was found out, and what follows."""

    question: AdviceQuestion
    keys: TopicKeys
    topic: TopicFacts | None
    """None: of a profile."""
    group: GroupFacts | None
    sample: TopicSample | None
    distinct_keys: float | None
    hot_keys: tuple[KeyShare, ...]
    hot_share: float
    """Part of all records that the `HOT_SHARE_KEYS` hottest keys have."""
    direct: float
    """Times the work of one member that one member per partition does."""
    plain: float
    """The same of a plain group with as many members as are asked for."""
    speedup: Speedup
    interval: tuple[float, float] | None
    """Of `speedup.parallel`, 90 of 100 samples; None: everything was counted."""
    ceiling: float | None
    workers: WorkersSpeedup
    rates: WorkRates | None
    costs: Costs
    verdict: Judgement

    @property
    def keeps_up(self) -> bool:
        """Return whether the group has no more lag than comes in a second."""
        group, topic = self.group, self.topic
        if group is None or topic is None or not group.committed_count:
            return False
        return group.lag <= topic.produced_per_s

    @property
    def gain(self) -> float:
        """Speed-up over one member per partition."""
        return self.rates.gain if self.rates else self.speedup.parallel / self.direct

    @property
    def is_sample_small(self) -> bool:
        """Return whether the sample has too few records to plan by."""
        if self.sample is None or self.interval is None:
            return False
        low, high = self.interval
        few = self.sample.record_count < min(SAMPLE_MIN, self.sample.records_in_range)
        return few or high - low > WIDE * self.speedup.parallel


Model = Callable[[int, int], Speedup]
"""Speed-up by members and lanes, each found once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is known before the model is asked."""

    keys: TopicKeys
    topic: TopicFacts | None = None
    group: GroupFacts | None = None
    sample: TopicSample | None = None
    distinct_keys: float | None = None


def give_advice(question: AdviceQuestion, evidence: Evidence) -> Advice:
    """Answer a question about a topic that has records. Same input, same answer."""
    keys, topic, group, sample = evidence.keys, evidence.topic, evidence.group, evidence.sample
    model: Model = cache(partial(find_speedup, keys))
    work_s = question.work_s or (group.work_s if group else None)
    members = question.members or _choose_members(keys, topic, work_s, model)
    lanes = question.lanes or choose_lanes(keys, members, model)
    speedup, hot = model(members, lanes), keys.hot_keys(HOT_SHARE_KEYS)
    rates = None
    if work_s is not None:
        needed = _members_needed(keys, topic, work_s, model)
        rates = find_rates(keys, speedup, work_s, needed, is_estimated=question.work_s is None)
    return Advice(
        question=question,
        keys=keys,
        topic=topic,
        group=group,
        sample=sample,
        distinct_keys=evidence.distinct_keys,
        hot_keys=tuple(hot[:HOT_KEYS]),
        hot_share=sum(key.share for key in hot),
        direct=direct_parallel(keys),
        plain=direct_parallel(keys, members),
        speedup=speedup,
        interval=None if sample is None else _interval(sample, speedup),
        ceiling=key_ceiling(keys),
        workers=_find_workers(keys, members, lanes),
        rates=rates,
        costs=find_costs(
            _cost_rate(topic, rates),
            record_bytes=keys.record_bytes,
            wire_bytes=sample.wire_bytes if sample else keys.record_bytes,
            partitions=len(keys.partitions),
            lanes=lanes,
            members=members,
        ),
        verdict=judge(evidence, speedup, rates),
    )


def choose_lanes(keys: TopicKeys, members: int, model: Model) -> int:
    """Return the fewest lanes per partition that come near to the best speed-up."""
    partition_count = len(keys.partitions)
    counts = [
        count
        for count in LANE_COUNTS
        if count == LANE_COUNTS[0] or count * partition_count <= LANES_TOTAL_MAX
    ]
    reached = {count: model(members, count).parallel for count in counts}
    best = max(reached.values())
    return next(count for count in counts if reached[count] >= LANES_GOOD * best)


def find_rates(
    keys: TopicKeys,
    speedup: Speedup,
    work_s: float,
    members_needed: int | None,
    *,
    is_estimated: bool,
) -> WorkRates:
    """Return records per second: a record takes its work and a reader's own time.

    Lanes pass through one node of keylane, which has a highest rate, too.
    """
    each_s = work_s + reader_s_per_record(keys.record_bytes)
    return WorkRates(
        work_s=work_s,
        is_estimated=is_estimated,
        direct=direct_parallel(keys) / each_s,
        lanes=min(speedup.parallel / each_s, node_records_per_s(keys.record_bytes)),
        members_needed=members_needed,
    )


def judge(evidence: Evidence, speedup: Speedup, rates: WorkRates | None) -> Judgement:
    """Decide whether keylane is the right answer; the strongest reason against it comes first."""
    keys, topic, group = evidence.keys, evidence.topic, evidence.group
    direct, ceiling = direct_parallel(keys), key_ceiling(keys)
    if keys.keyless_share >= KEYLESS_FROM:
        return Judgement.NO_KEYS
    if ceiling is not None and ceiling < HELPS_FROM * direct:
        return Judgement.HOT_KEY
    if rates is not None and rates.gain < HELPS_FROM <= speedup.parallel / direct:
        return Judgement.WORK_TOO_SHORT
    if speedup.parallel < HELPS_FROM * direct_parallel(keys, speedup.members):
        return Judgement.PARTITIONS_ENOUGH
    if rates is not None and topic is not None and group is not None:
        rate = max(topic.produced_per_s, topic.produced_mean_per_s or 0.0)
        is_calm = rate < CALM_BELOW * rates.direct
        if is_calm and group.lag <= rates.direct:  # a second of work
            return Judgement.KEEPS_UP
    return Judgement.HELPS


def command_of(advice: Advice) -> str:
    """Return the command that starts keylane for this."""
    rule = shlex.quote(f"{advice.keys.topic}={advice.speedup.lanes}")
    return f"keylane proxy --bootstrap {advice.question.bootstrap} --lanes {rule}"


def _choose_members(
    keys: TopicKeys, topic: TopicFacts | None, work_s: float | None, model: Model
) -> int:
    """Return members that manage what is produced; a few per partition where that says nothing."""
    least = min(MEMBERS_MAX, max(MEMBERS_MIN, 2 * len(keys.partitions)))
    needed = None if work_s is None else _members_needed(keys, topic, work_s, model)
    return least if needed is None else max(needed, 2)


def _members_needed(
    keys: TopicKeys, topic: TopicFacts | None, work_s: float, model: Model
) -> int | None:
    """Return the fewest members that manage what is produced with some room; None: none do.

    By bisection over the members: the speed-up grows with them, but for chance of a lane or two.
    """
    if topic is None or topic.usual_per_s <= 0:
        return None
    wanted = ROOM * topic.usual_per_s * (work_s + reader_s_per_record(keys.record_bytes))

    def is_enough(members: int) -> bool:
        return model(members, choose_lanes(keys, members, model)).parallel >= wanted

    low = max(1, int(np.ceil(wanted)))  # as many are busy at once
    if low > MEMBERS_MAX or not is_enough(high := min(MEMBERS_MAX, 2 * low)):
        return None
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _cost_rate(topic: TopicFacts | None, rates: WorkRates | None) -> float:
    """Return the rate that costs are for: what is produced, else what members can do."""
    produced = 0.0 if topic is None else topic.usual_per_s
    return produced or (rates.lanes if rates else COST_RATE)


def _find_workers(keys: TopicKeys, members: int, lanes: int) -> WorkersSpeedup:
    count = len(keys.partitions)
    whole, cut = keys.lanes(1), keys.lanes(lanes)
    own = np.arange(count, dtype=np.int64).reshape(count, 1)
    return WorkersSpeedup(
        concurrency=CONCURRENCY,
        direct=workers_parallel(whole, own, count, CONCURRENCY),
        lanes=workers_parallel(cut, deal_lanes(cut, members).settled, members, CONCURRENCY),
    )


def _interval(sample: TopicSample, speedup: Speedup) -> tuple[float, float]:
    """Return between which values the speed-up lies for 90 of 100 samples like this one.

    Lanes are dealt out anew for each: keylane measures loads itself, and better than a sample does.
    """
    chance = np.random.default_rng(SEED)
    lanes = speedup.lanes * len(sample.partitions)
    count = max(10, min(REDRAWS, REDRAWN_LANES_MAX // lanes))
    found = [
        find_speedup(sample.redrawn(chance), speedup.members, speedup.lanes).parallel
        for _ in range(count)
    ]
    low, high = np.quantile(found, (0.05, 0.95))
    return min(float(low), speedup.parallel), max(float(high), speedup.parallel)
