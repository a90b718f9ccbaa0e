"""Samples groups and topics by itself, with or without a viewer: progress, history, summaries.

Every STEP_S it looks at groups with members at this node, then at others that have offsets here;
where there are too many, at those first that were sampled the longest ago.

Cost: at most one group in GROUP_PAUSE_S, so 10 groups and some 30 questions to brokers per second;
and a pause of 50 times the work that the lanes of a group are, so a fiftieth of the event loop.
Memory: that of `progress`, `history` and `scans.log_times`, and a kilobyte for each group.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from keylane.bounded import BoundedDict
from keylane.errors import KeylaneError, NotCoordinator
from keylane.proxy.control.describe import GroupReport
from keylane.proxy.control.watch.history import STEP_S, History, MemberSample, Pair
from keylane.proxy.control.watch.progress import LaneRecords, ProgressBook
from keylane.proxy.control.watch.summary import GroupSummary, summarize
from keylane.proxy.groups.group_plans import identity_of
from keylane.proxy.runtime.event_log import EventLog
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.watch")

ACTIVE_MAX: Final = 100
"""Groups with members here that are looked at in one step."""
OTHERS_MAX: Final = 20
"""Other groups that are."""
GROUP_PAUSE_S: Final = 0.1
LOOP_SHARE: Final = 1 / 50
LANE_COST_S: Final = 30e-6
"""Work for one lane, on a slow machine; 20 us were measured."""
GROUP_COST_S: Final = 2e-3
DESCRIBE_S_MAX: Final = 5.0
"""A group that takes longer stays as it was, so that the others are looked at."""
SUMMARIES_MAX: Final = 10_000
SETTLED: Final = frozenset({"Stable", "Empty"})
"""States in which a group's members are those that it goes on with."""


class Describes(Protocol):
    """Part of `GroupDescriber`."""

    async def describe(self, group: str) -> GroupReport | None:
        """Return a report; None: there is no such group. Raises: KeylaneError."""


class GroupNamesNow(Protocol):
    """Groups that this node may look at."""

    def __call__(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return those with members here, and the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBooks:
    """The books that samples are noted in."""

    progress: ProgressBook
    history: History
    loads: LaneLoads
    records: LaneRecords
    event_log: EventLog


class Sampler:
    """Use: `run`, as a watched task. `summaries` has the last look at each group."""

    def __init__(
        self,
        describer: Describes,
        books: SampleBooks,
        *,
        names: GroupNamesNow,
        views: Callable[[], Iterable[View]],
        now_ms: Callable[[], int],
    ) -> None:
        """now_ms: gives the time in ms since 1970."""
        self._describer, self._books = describer, books
        self._names, self._views, self._now_ms = names, views, now_ms
        self.summaries: BoundedDict[str, GroupSummary] = BoundedDict(SUMMARIES_MAX)
        self._sampled_s: dict[str, float] = {}

    async def run(self) -> None:
        """Sample again and again."""
        while True:
            due_s = time.monotonic() + STEP_S
            await self.step()
            # A step may take longer than its time: a pause is left to others even then.
            await asyncio.sleep(max(GROUP_PAUSE_S, due_s - time.monotonic()))

    async def step(self) -> None:
        """Look at those groups whose turn it is, and at all topics."""
        active, others = self._names()
        self._forget({*active, *others})
        for group in [*self._oldest(active, ACTIVE_MAX), *self._oldest(others, OTHERS_MAX)]:
            lanes = await self.sample(group)
            cost_s = GROUP_COST_S + LANE_COST_S * lanes
            await asyncio.sleep(max(GROUP_PAUSE_S, cost_s / LOOP_SHARE))
        await self._sample_topics()

    async def sample(self, group: str) -> int:
        """Look at one group; return the number of its lanes."""
        books = self._books
        self._sampled_s[group] = time.monotonic()
        members = books.event_log.members_of(group)
        bound = asyncio.timeout(DESCRIBE_S_MAX)
        try:
            async with bound:
                report = await self._describer.describe(group)
        except NotCoordinator:
            self.summaries.pop(group, None)  # another node serves it
            return 0
        except (KeylaneError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and not bound.expired():
                raise  # of a part inside, and a bug there
            reason = str(error) or "no answer in time"
            log.debug("group cannot be sampled group=%s reason=%s", group, reason)
            return 0
        if report is None:
            self.summaries.pop(group, None)
            return 0
        now_s, now_ms = time.monotonic(), self._now_ms()
        if report.lanes:
            books.progress.note(group, report.lanes, books.records, now_s)
        self.summaries[group] = summarize(report, now_ms)
        if report.share is None:
            self._note_history(report, now_ms)
            is_newest = books.event_log.members_of(group) is members
            if report.state in SETTLED and is_newest:
                labels = {
                    identity_of(each.member_id, each.instance_id): label_of(
                        each.instance_id, each.client_id, each.member_id
                    )
                    for each in report.members
                }
                books.event_log.note_members(group, labels, is_first=False)
        return len(report.lanes)

    def _note_history(self, report: GroupReport, now_ms: int) -> None:
        self._books.history.note_group(
            report.group,
            now_ms,
            Pair(report.lag, report.consumed_per_s),
            {
                each.member_id: MemberSample(
                    label_of(each.instance_id, each.client_id, each.member_id),
                    each.lag,
                    each.consumed_per_s,
                )
                for each in report.members
            },
        )

    async def _sample_topics(self) -> None:
        loads, now_ms = self._books.loads, self._now_ms()
        for view in list(self._views()):
            flow = Pair(
                sum(loads.bytes_per_s(view).values()), sum(loads.records_per_s(view).values())
            )
            self._books.history.note_topic(view.name, now_ms, flow)
            # Two passes over the lanes of a topic, 2e-7 s for each: others have the loop meanwhile.
            await asyncio.sleep(2e-7 * view.layout.index_count / LOOP_SHARE)

    def _oldest(self, groups: Sequence[str], count: int) -> list[str]:
        if len(groups) <= count:
            return list(groups)
        return heapq.nsmallest(
            count, groups, key=lambda group: self._sampled_s.get(group, float("-inf"))
        )

    def _forget(self, present: set[str]) -> None:
        """Forget groups that are gone."""
        self._sampled_s = {k: v for k, v in self._sampled_s.items() if k in present}
        for group in [group for group in self.summaries if group not in present]:
            del self.summaries[group]
        self._books.progress.keep(present)


def label_of(instance_id: str | None, client_id: str, member_id: str) -> str:
    """Return a member's name to people."""
    return instance_id or client_id or member_id
