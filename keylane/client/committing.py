"""Commits what is done: on a timer, when many ranges gather, and when the application says so."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from keylane.client import errors as e
from keylane.client import offset_calls as calls
from keylane.client.cluster import ClusterClient
from keylane.client.fetcher import Fetcher
from keylane.client.metrics import Metrics
from keylane.client.offset_calls import NO_OFFSET, CommitEntry, CommitMember, CommitReply
from keylane.client.reading import Reading
from keylane.client.settings import ConsumerSettings
from keylane.client.values import TopicPartition
from keylane.errors import KeylaneError
from keylane.tasks import spawn

log = logging.getLogger("keylane.client.commits")

DEADLINE_S: Final = 60.0
"""Time in which a commit is tried again: Kafka's default.api.timeout.ms."""
GIVE_WAY_PAUSE_S_MIN: Final = 1.0
GIVE_WAY_PAUSE_S_MAX: Final = 5.0
"""Pauses before a member gives way once more: they double while that was of no help, for each time
is a rebalance. They are short again after ten of them in which it did not. A commit waits that long
at most, and so do a revoke and a stop behind it."""
CALM_PAUSES: Final = 10


class Owner(Protocol):
    """The consumer that commits."""

    def member(self) -> CommitMember:
        """Return the member that requests name; it changes as the group does."""

    def is_lost(self, part: TopicPartition) -> bool:
        """Return whether a partition belonged to this consumer, and does not now."""

    async def rejoin(self) -> None:
        """Join the group anew, after an error that a commit met."""

    async def give_way(self) -> bool:
        """Lose all, and join the group anew: too much is done behind a record that is not.

        False: it is in no group.
        """


class Committer:
    """Sends commits, one at a time, so that they arrive in order."""

    def __init__(
        self,
        cluster: ClusterClient,
        settings: ConsumerSettings,
        fetcher: Fetcher,
        metrics: Metrics,
        owner: Owner,
    ) -> None:
        self._cluster, self._settings, self._fetcher = cluster, settings, fetcher
        self._metrics, self._owner = metrics, owner
        self._lock = asyncio.Lock()
        self._soon = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._now_s = asyncio.get_running_loop().time
        self._range_count = 0
        """Ranges that are done and not committed, or more."""
        self._give_way_pause_s, self._give_way_from_s = 0.0, -math.inf
        self.fatal: KeylaneError | None = None
        """The error of a commit in the background, where trying again is of no use."""

    @property
    def sends_ranges(self) -> bool:
        """Commits have the ranges that are done, not only the offset below which all is done."""
        return self._cluster.has_ranges and self._settings.allow_individual_commit

    # -- in the background ----------------------------------------------------------------

    def start(self) -> None:
        """Begin to commit on a timer, where that is wanted."""
        if self._settings.enable_auto_commit and self._settings.group_id is not None:
            self._running = spawn(self._run(), "keylane client: commits")

    async def close(self) -> None:
        """Stop the timer; a commit that is on its way is waited for."""
        if self._running is not None:
            async with self._lock:
                self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def note_done(self, range_count: int) -> None:
        """Commit without waiting for the timer when many ranges have gathered.

        range_count: those that came, less those that others joined. What commits take away, and
        lost partitions, is seen when the sum of these is too high: then all are counted.
        """
        self._range_count += range_count
        most = self._settings.max_num_ranges_to_commit
        if self._range_count <= most or not self.sends_ranges or self._soon.is_set():
            return
        readings = self._fetcher.readings.values()
        self._range_count = sum(
            each.progress.range_count for each in readings if each.progress is not None
        )
        if self._range_count > most:
            self._soon.set()

    async def _run(self) -> None:
        while True:
            self._soon.clear()
            try:
                async with asyncio.timeout(self._settings.auto_commit_interval_ms / 1000):
                    await self._soon.wait()
            except TimeoutError:
                pass  # the timer
            try:
                await self.commit_done(list(self._fetcher.readings.values()))
            except e.PartitionLost as error:
                log.info("commit of a partition that was lost error=%s", error)
            except KeylaneError as error:
                log.warning("commit failed error=%s", error)
                if not error.retriable:
                    self.fatal = error
                    self._fetcher.arrived.set()

    # -- commits --------------------------------------------------------------------------

    async def commit_done(self, readings: Collection[Reading]) -> None:
        """Commit what is done of these and not committed.

        Raises: as `send` does.
        """
        async with self._lock:
            while True:
                try:
                    for request in calls.split_entries(self._entries(readings)):
                        await self._send(request, is_renewed=True)
                except e.RangesFull:
                    if not self._owner.member().member_id:
                        raise
                    # Others may make room, and what ends meanwhile joins ranges: made anew.
                    await asyncio.sleep(self._settings.retry_backoff_s)
                else:
                    return

    async def send(self, entries: Sequence[CommitEntry]) -> None:
        """Commit these.

        Raises: PartitionLost, IndividualCommitNotAllowed, GroupDenied, TopicDenied, BrokerRefused;
        RangesFull, without a group's member; CoordinatorUnavailable, Disconnected when a minute
        did not help.
        """
        async with self._lock:
            for request in calls.split_entries(entries):
                await self._send(request)

    def _entries(self, readings: Collection[Reading]) -> list[CommitEntry]:
        found = []
        for reading in readings:
            progress = reading.progress
            if progress is None or self._fetcher.readings.get(reading.part) is not reading:
                continue
            if self.sends_ranges:
                if progress.start is not None:
                    found.append(CommitEntry(reading.part, progress.start, (), reading.key_ranges))
                ranges = tuple(progress.ranges_to_commit(progress.range_count))
                if ranges:
                    entry = CommitEntry(reading.part, NO_OFFSET, ranges, reading.key_ranges)
                    found.append(entry)
            elif progress.has_plain_news:
                offset = progress.plain_offset()
                found.append(CommitEntry(reading.part, offset, (), reading.key_ranges))
        return found

    async def _send(self, request: Sequence[CommitEntry], *, is_renewed: bool = False) -> None:
        """Send a request until every partition of it is committed, or cannot be.

        is_renewed: it is made anew where there was no room: more is done then, and ranges join.
        """
        until_s = self._now_s() + DEADLINE_S
        rest = list(request)
        readings = {entry.part: self._fetcher.readings.get(entry.part) for entry in rest}
        while rest:
            member = self._owner.member()
            outcomes: Mapping[TopicPartition, CommitReply] = {}
            problem: KeylaneError | None = None
            try:
                outcomes = await calls.commit(self._cluster, member, rest)
            except (e.Disconnected, e.CoordinatorUnavailable) as error:
                problem = error
            retried = []
            for entry in rest:
                outcome = outcomes.get(entry.part)
                if outcome is None:
                    retried.append(entry)
                elif not self._take(entry, outcome, member):
                    code, draft = outcome.error_code, outcome.draft_code
                    if not isinstance(problem, e.RangesFull):
                        problem = e.error_of(code, calls.place_of(entry.part), draft_code=draft)
                    retried.append(entry)
            rest = retried
            if not rest:
                self._metrics.commits += 1
                return
            self._metrics.commit_failures += 1
            self._check_kept(readings, rest)
            if self._now_s() > until_s:
                raise problem or e.CoordinatorUnavailable(f"group {member.group_id}: no answer")
            if isinstance(problem, e.RangesFull):
                await self._give_way(member, problem)
                if is_renewed:
                    raise problem
            await asyncio.sleep(self._settings.retry_backoff_s)

    async def _give_way(self, member: CommitMember, problem: e.RangesFull) -> None:
        """Let other members go on; do nothing within a pause: others may make room meanwhile.

        Raises: PartitionLost; RangesFull, it is in no group.
        """
        if not member.member_id:
            raise problem
        if not self._may_give_way():
            return
        log.warning(
            "the group has too many ranges of records that are done, so this member joins "
            "anew and the records before them are read again group_id=%s "
            "remedy=finish slow records, or raise individual_commits_max",
            member.group_id,
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                has_group = await self._owner.give_way()
        except TimeoutError:  # all is lost, and the membership goes on to look for a coordinator
            has_group = True
        if not has_group:
            raise problem
        raise e.PartitionLost("the group had no room for what was done: it is read again")

    def _may_give_way(self) -> bool:
        """Return whether the pause since the last time is over; a next one begins then."""
        now_s = self._now_s()
        if now_s < self._give_way_from_s:
            return False
        calm_s = CALM_PAUSES * self._give_way_pause_s
        doubled_s = 2 * self._give_way_pause_s if now_s < self._give_way_from_s + calm_s else 0.0
        self._give_way_pause_s = min(GIVE_WAY_PAUSE_S_MAX, max(GIVE_WAY_PAUSE_S_MIN, doubled_s))
        self._give_way_from_s = now_s + self._give_way_pause_s
        return True

    def _check_kept(
        self, readings: Mapping[TopicPartition, Reading | None], entries: Iterable[CommitEntry]
    ) -> None:
        """Raise PartitionLost for one that was lost, though it may be here once more.

        readings: of the time when the commit began.
        """
        for part in (entry.part for entry in entries):
            before = readings[part]
            is_new = before is not None and self._fetcher.readings.get(part) is not before
            if is_new or self._owner.is_lost(part):
                place = calls.place_of(part)
                raise e.PartitionLost(f"{place} was lost before its commit was answered")

    def _take(self, entry: CommitEntry, outcome: CommitReply, member: CommitMember) -> bool:
        """Take the answer for one partition. False: it is to be sent again.

        Raises: what no second try helps with.
        """
        code, draft = outcome.error_code, outcome.draft_code
        reading = self._fetcher.readings.get(entry.part)
        progress = None if reading is None else reading.progress
        if code == e.NONE or draft == e.OFFSET_TOO_OLD:
            if reading is not None and progress is not None:
                if entry.ranges:
                    progress.committed(entry.ranges, outcome.stable_offset)
                    self._metrics.committed_ranges += len(entry.ranges)
                else:
                    progress.plain_committed(entry.offset)
                reading.pass_to(outcome.stable_offset + 1)
            return True
        if draft in (e.INDIVIDUAL_COMMIT_NOT_ALLOWED, e.RANGE_FETCH_NOT_ALLOWED):
            raise e.error_of(code, calls.place_of(entry.part), draft_code=draft)
        if code in e.COORDINATOR_LOST:
            self._cluster.coordinator_lost(member.group_id)
            return False
        if code in e.COORDINATOR_BUSY or code in (e.REBALANCE_IN_PROGRESS, e.STALE_MEMBER_EPOCH):
            return False
        if code == e.ILLEGAL_GENERATION and self._owner.member().is_moving:
            return False  # it has what it claimed in the next generation, too
        if code in e.MEMBER_GONE:
            if tuple(_identity(self._owner.member())) != tuple(_identity(member)):
                return False  # it has joined again meanwhile
            spawn(self._join_again(), "keylane client: rejoin")
            place = calls.place_of(entry.part)
            raise e.PartitionLost(f"{place}: the group went on without this member")
        raise e.error_of(code, calls.place_of(entry.part))

    async def _join_again(self) -> None:
        try:
            await self._owner.rejoin()
        except KeylaneError as error:
            log.warning("not joined again error=%s", error)


def _identity(member: CommitMember) -> tuple[str, int]:
    return member.member_id, member.epoch_or_generation
