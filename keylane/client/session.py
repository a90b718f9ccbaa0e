"""A consumer that runs: its connections, what it reads, its group, and one poll.

`Consumer` is the application's side of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from keylane.client import errors as e
from keylane.client import offset_calls as calls
from keylane.client.cluster import ClusterClient
from keylane.client.committing import Committer
from keylane.client.fetcher import Fetcher
from keylane.client.group_link import Assignments, Group
from keylane.client.listener import RebalanceListener, notify
from keylane.client.metrics import Metrics
from keylane.client.positions import WORTH_A_RETRY, Positions
from keylane.client.reading import Reading
from keylane.client.records import RecordList, Records
from keylane.client.revocation import by_ranges
from keylane.client.settings import ConsumerSettings
from keylane.client.values import Committed, ConsumerRecord, KeyRanges, TopicPartition
from keylane.errors import KeylaneError
from keylane.kernel import library
from keylane.keyrange.space import WHOLE

log = logging.getLogger("keylane.client")

CALL_TIMEOUT_S = 60.0
"""Kafka's default.api.timeout.ms: for how long a look at offsets is tried again."""
MakeGroup = Callable[[ClusterClient, Assignments, Collection[str], str | None], Group]


class ConsumerSession:
    """Everything of a consumer between its start and its end."""

    def __init__(
        self, settings: ConsumerSettings, cluster: ClusterClient, make_group: MakeGroup
    ) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.listener: RebalanceListener | None = None
        self.cluster = cluster
        self.fetcher = Fetcher(self.cluster, settings, self.metrics, self._on_reset)
        self.positions = Positions(self.cluster, settings, self.fetcher)
        self.assignments = Assignments(
            self.fetcher,
            self.metrics,
            self._on_reset,
            allow_ranges=settings.allow_individual_commit,
        )
        self.positions.on_lanes = self.assignments.note_lanes
        self.committer = Committer(self.cluster, settings, self.fetcher, self.metrics, self)
        self.uses_marks = False
        """The application says itself what is done."""
        self.group: Group | None = None
        self._make_group = make_group
        self._given: set[Reading] = set()
        """Those that gave records that do not count as done yet, by themselves."""
        self._last_part: TopicPartition | None = None
        self._now_s = asyncio.get_running_loop().time

    # -- start and end --------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. Raises: ClusterUnreachable."""
        try:
            await self.cluster.start()
            await asyncio.to_thread(library.load)
        except BaseException:
            await self.close()
            raise
        self.fetcher.start()
        self.positions.start()
        self.committer.start()

    async def close(self) -> None:
        """Commit what is done, leave the group, close all connections.

        Where none are marked, records that the last poll gave are done, unless `forget_given`.
        """
        try:
            await self.committer.close()
            if self.settings.enable_auto_commit and self.settings.group_id is not None:
                if not self.uses_marks:
                    self.finish_given()
                await self._commit_quietly(list(self.fetcher.readings.values()))
            if self.group is not None:
                known = self.assignments.announced(list(self.assignments.lanes))
                await notify(self.listener, "revoked", frozenset(known), self._ranges(known))
                await self.group.leave()
        finally:
            await self.positions.close()
            await self.fetcher.close()
            await self.cluster.close()

    # -- what is read ---------------------------------------------------------------------

    async def look_for(self, topics: Collection[str]) -> None:
        """Learn the leaders of topics before they are read. Raises: Disconnected."""
        self.cluster.want(topics)
        await self.cluster.refresh()

    async def subscribe(self, topics: Collection[str], pattern: str | None) -> None:
        """Join the group, or read all partitions of the topics where there is none.

        Raises: TopicUnknown, only without a group.
        """
        await self.look_for(topics)
        if self.settings.group_id is None:
            await self._assign_all(topics, pattern)
        elif self.group is None:
            self.group = self._make_group(self.cluster, self.assignments, topics, pattern)
            await self.group.start()
        else:
            self.group.subscribe(topics, pattern)

    async def _assign_all(self, topics: Collection[str], pattern: str | None) -> None:
        from re import fullmatch  # noqa: PLC0415 -- here alone

        if pattern is not None:
            topics = [name for name in await self.cluster.topics() if fullmatch(pattern, name)]
        parts = []
        for topic in topics:
            found = await self.cluster.partitions_of(topic)
            if not found:
                raise e.TopicUnknown(f"topic {topic}: no broker knows it")
            parts += [TopicPartition(topic, partition) for partition in found]
        self.assign(dict.fromkeys(parts, ()))

    def assign(self, parts: Mapping[TopicPartition, KeyRanges]) -> None:
        """Read these, and nothing else; () is a partition or lane index as it stands.

        Raises: KeyRangesUnsupported.
        """
        if not self.cluster.has_ranges:
            if any(ranges not in ((), WHOLE) for ranges in parts.values()):
                raise e.KeyRangesUnsupported("ranges of keys need keylane: the brokers have none")
            parts = dict.fromkeys(parts, ())
        old = self.fetcher.readings
        self.cluster.want({part.topic for part in parts})
        self.assignments.gone.update(set(old).difference(parts))
        self.assignments.gone.difference_update(parts)
        self.assignments.lanes = dict.fromkeys(parts)
        self.fetcher.readings = {
            part: old[part]
            if part in old and old[part].key_ranges == ranges
            else Reading(part, ranges)
            for part, ranges in parts.items()
        }
        self._on_reset()

    async def unsubscribe(self) -> None:
        """Give everything up, and leave the group."""
        if self.group is not None:
            group, self.group = self.group, None
            await group.leave()
        self.assignments.remove(list(self.fetcher.readings))

    def reading(self, part: TopicPartition) -> Reading:
        """Return the state of a partition. Raises: PartitionLost, NotAssigned."""
        found = self.fetcher.readings.get(part)
        if found is None:
            if self.is_lost(part):
                raise e.PartitionLost(f"{calls.place_of(part)} belongs to another member")
            raise e.NotAssigned(f"{calls.place_of(part)} is not assigned")
        return found

    def _on_reset(self) -> None:
        self.fetcher.forget_logs()
        self.positions.wake()
        self.fetcher.wake()

    def ranges_of(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, KeyRanges]:
        """Return the broker's partitions behind parts of this consumer, with their keys."""
        return self._ranges({part: self.assignments.lanes.get(part) for part in parts})

    def _ranges(self, lanes: Mapping[TopicPartition, object]) -> dict[TopicPartition, KeyRanges]:
        found = by_ranges(lanes, lanes)  # type: ignore[arg-type]  # of LaneRange | None
        for part in lanes:
            reading = self.fetcher.readings.get(part)
            if reading is not None and reading.key_ranges:
                found[part] = reading.key_ranges
        return found

    # -- the owner of commits -------------------------------------------------------------

    def member(self) -> calls.CommitMember:
        """Return the member that commits name. Raises: GroupMissing."""
        if self.group is not None:
            return self.group.member
        if self.settings.group_id is None:
            raise e.GroupMissing("the call needs a group_id")
        return calls.LoneMember(self.settings.group_id)

    def is_lost(self, part: TopicPartition) -> bool:
        """Return whether a partition was of this consumer, and is not now."""
        return part in self.assignments.gone

    async def rejoin(self) -> None:
        """Join the group anew."""
        if self.group is not None:
            await self.group.rejoin()

    async def give_way(self) -> bool:
        """Lose all, and join the group anew: other members may go on instead. False: no group."""
        if self.group is None:
            return False
        await self.group.give_way()
        return True

    def entries(
        self, what: Mapping[TopicPartition, int | Sequence[tuple[int, int]]]
    ) -> list[calls.CommitEntry]:
        """Return the commit of what an application names.

        Raises: PartitionLost; KeyRangesUnsupported for ranges that do not go through keylane.
        """
        found = []
        for part, done in what.items():
            if self.is_lost(part) or self.group is not None:
                self.reading(part)
            reading = self.fetcher.readings.get(part)
            keys: KeyRanges = () if reading is None else reading.key_ranges
            if isinstance(done, int):
                found.append(calls.CommitEntry(part, done, (), keys))
            elif self.committer.sends_ranges:
                ranges = tuple((first, last) for first, last in done)
                found.append(calls.CommitEntry(part, calls.NO_OFFSET, ranges, keys))
            else:
                text = "offsets one by one need keylane, and allow_individual_commit"
                raise e.KeyRangesUnsupported(f"{calls.place_of(part)}: {text}")
        return found

    # -- one poll -------------------------------------------------------------------------

    async def poll(
        self,
        parts: Collection[TopicPartition],
        timeout_s: float,
        count_max: int,
        part_count_max: int | None,
    ) -> Records:
        """Return records, or none when the time is over or the group wants something back.

        part_count_max: of each partition; None: `count_max`.
        """
        each_max = count_max if part_count_max is None else part_count_max
        lists: dict[TopicPartition, RecordList] = {}
        left = count_max

        def take(reading: Reading) -> int:
            nonlocal left
            found = reading.take(min(left, each_max))
            if found is not None:
                lists[reading.part] = found
                left -= len(found)
            return left

        await self._poll(parts, timeout_s, take)
        return Records(lists)

    async def poll_one(self, parts: Collection[TopicPartition]) -> ConsumerRecord:
        """Wait for a record and return it."""
        found: list[ConsumerRecord] = []

        def take(reading: Reading) -> int:
            record = reading.take_one()
            if record is not None:
                found.append(record)
            return 1 - len(found)

        while not found:
            await self._poll(parts, self.settings.max_poll_interval_ms / 2000, take)
        return found[0]

    async def _poll(
        self, parts: Collection[TopicPartition], timeout_s: float, take: Callable[[Reading], int]
    ) -> None:
        """Have `take` called with readings until it wants no more (0), or something else is due."""
        await self._begin_poll()
        until_s = self._now_s() + timeout_s
        requests = self.assignments.requests
        same_poll = self.settings.revoke_completion == "same-poll"
        while True:
            self._raise_fatal()
            self.fetcher.arrived.clear()
            if self.assignments.has_news:
                await self._announce()
            if same_poll and self.assignments.revocations.to_be_revoked:
                await self._complete(self.assignments.revocations.to_be_revoked)
            if self._gather(parts, take):
                return
            if self._now_s() >= until_s:
                if timeout_s == 0:  # a loop of such polls must not stop all else
                    await asyncio.sleep(0)
                    self._gather(parts, take)
                return
            if not same_poll and self.assignments.requests != requests:
                return
            try:
                async with asyncio.timeout_at(until_s):
                    await self.fetcher.arrived.wait()
            except TimeoutError:
                continue

    async def _begin_poll(self) -> None:
        self.metrics.polls += 1
        if self.group is not None:
            self.group.note_poll()
        if self._given and not self.uses_marks and self.settings.enable_auto_commit:
            self.committer.note_done(self.finish_given())
        if not self.settings.allow_individual_commit:
            self.assignments.refuse_parts(self._now_s(), self.settings.max_poll_interval_ms / 1000)
        complete = self.assignments.begin_poll()
        if complete:
            await self._complete(complete)

    def forget_given(self) -> None:
        """Leave undone what the polls before gave."""
        self._given.clear()

    def finish_given(self) -> int:
        """Count what the polls before gave as done; return by how many ranges that is more."""
        range_count = 0
        for reading in self._given:
            if reading.progress is not None:
                range_count -= reading.progress.range_count
                reading.progress.done_all()
                range_count += reading.progress.range_count
        self._given.clear()
        return range_count

    def _raise_fatal(self) -> None:
        for holder in (self.assignments, self.committer):
            if holder.fatal is not None:
                error, holder.fatal = holder.fatal, None
                raise error

    async def _announce(self) -> None:
        """Notify the listener of what was lost and what was assigned."""
        for event, lanes in (
            ("lost", self.assignments.take_lost()),
            ("assigned", self.assignments.take_new()),
        ):
            await notify(self.listener, event, frozenset(lanes), self._ranges(lanes))

    async def _complete(self, parts: Collection[TopicPartition]) -> None:
        """Commit what is done of these, give them up, and let the group know."""
        readings = [self.fetcher.readings[part] for part in parts if part in self.fetcher.readings]
        if self.settings.enable_auto_commit:
            await self._commit_quietly(readings)
        known = self.assignments.announced(parts)
        await notify(self.listener, "revoked", frozenset(known), self._ranges(known))
        self.assignments.remove(parts)
        self.assignments.revocations.drop(parts)
        self.metrics.revoked += len(known)
        if self.group is not None:
            self.group.release(parts)

    async def _commit_quietly(self, readings: Sequence[Reading]) -> None:
        """Commit on the way out: a failure is logged, the records come again elsewhere."""
        try:
            await self.committer.commit_done(readings)
        except KeylaneError as error:
            log.warning("commit failed, records may be read again error=%s", error)

    def _gather(self, parts: Collection[TopicPartition], take: Callable[[Reading], int]) -> bool:
        """Take records, beginning behind the partition that the last poll ended with.

        Returns whether there were some. Raises: the error of a partition, if there were none.
        """
        readings = self.fetcher.readings
        hidden = self.assignments.hidden()
        wanted = [
            reading
            for part, reading in readings.items()
            if reading.has_records and part not in hidden and (not parts or part in parts)
        ]
        if not wanted:
            return False
        if self._last_part is not None and len(wanted) > 1:
            order = [reading.part for reading in readings.values()]
            start = order.index(self._last_part) if self._last_part in order else -1
            place = {part: (index - start - 1) % len(order) for index, part in enumerate(order)}
            wanted.sort(key=lambda reading: place[reading.part])
        has_some = False
        for reading in wanted:
            if reading.error is not None:
                if not has_some:
                    error, reading.error = reading.error, None
                    self.fetcher.wake()
                    raise error
                continue
            before = reading.waiting_bytes
            left = take(reading)
            self._given.add(reading)
            has_some = True
            self._last_part = reading.part
            if reading.waiting_bytes < before:
                self.fetcher.wake()
            if left <= 0:
                break
        return has_some

    # -- offsets --------------------------------------------------------------------------

    async def committed(self, part: TopicPartition) -> Committed | None:
        """Return what the group has committed of a partition; None: nothing.

        Raises: GroupMissing, CoordinatorUnavailable, GroupDenied, TopicDenied, BrokerRefused.
        """
        group_id = self.member().group_id
        reading = self.fetcher.readings.get(part)
        keys = {part: () if reading is None else reading.key_ranges}
        until_s = self._now_s() + CALL_TIMEOUT_S
        while True:
            try:
                found, errors, _ = await calls.fetch_committed(self.cluster, group_id, keys)
            except (e.Disconnected, e.CoordinatorUnavailable) as error:
                log.info("offsets not found group_id=%s error=%s", group_id, error)
                found, errors = {}, {part: e.COORDINATOR_NOT_AVAILABLE}
            if part in found:
                return found[part]
            if e.COORDINATOR_LOST.intersection(errors.values()):
                self.cluster.coordinator_lost(group_id)
            refused = calls.first_error(errors, group_id, WORTH_A_RETRY)
            if refused is not None:
                raise refused
            if self._now_s() > until_s:
                raise e.CoordinatorUnavailable(f"group {group_id}: no answer")
            await asyncio.sleep(self.settings.retry_backoff_s)

    async def offsets_at(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, calls.FoundOffset]:
        """Return the first offset of each partition at or after a time, or an end of the log.

        Raises: TopicUnknown, TopicDenied, BrokerRefused, Disconnected.
        """
        if any(self.cluster.leader_of(part) is None for part in times_ms):
            await self.cluster.refresh()
        rest, result = dict(times_ms), dict[TopicPartition, calls.FoundOffset]()
        until_s = self._now_s() + CALL_TIMEOUT_S
        while rest:
            found, errors = await calls.list_offsets(self.cluster, rest, self.settings.isolation)
            result |= found
            rest = {part: time for part, time in rest.items() if part not in found}
            error = calls.first_error(errors, "", WORTH_A_RETRY)
            if error is not None:
                raise error
            if not rest:
                break
            if self._now_s() > until_s:
                part, code = next(iter(errors.items()))
                raise e.error_of(code, calls.place_of(part))
            await self.cluster.refresh()
            for part in rest:
                if part.partition not in await self.cluster.partitions_of(part.topic):
                    raise e.TopicUnknown(f"{calls.place_of(part)}: no broker knows it")
            await asyncio.sleep(self.settings.retry_backoff_s)
        return result
