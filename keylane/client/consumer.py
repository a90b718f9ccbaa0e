"""The Python consumer: records of topics, partitions, lanes or ranges of keys; asyncio.

Names are aiokafka's where it has the same. It works with any Kafka; through keylane it commits
offsets one by one and reads ranges of keys.
Source: KafkaConsumer of Apache Kafka 4.3; aiokafka 0.14; KIP draft "Cooperative consumer processing
semantic"; KIP-983 (delayed revoke).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, Unpack

from keylane.client import errors as e
from keylane.client.revocation import by_ranges, parts_within
from keylane.client.settings import ConsumerOptions, ConsumerSettings
from keylane.client.values import Committed, ConsumerRecord, KeyRanges, TopicPartition
from keylane.errors import ConfigInvalid
from keylane.keyrange.space import WHOLE, KeyRange, merge_ranges

if TYPE_CHECKING:
    from types import TracebackType

    from keylane.client.cluster import ClusterClient
    from keylane.client.group_link import Assignments, Group
    from keylane.client.listener import RebalanceListener
    from keylane.client.records import Records
    from keylane.client.session import ConsumerSession

Parts = frozenset[TopicPartition]
OffsetOrRanges = int | Sequence[tuple[int, int]]
_EARLIEST: Final = -2
_LATEST: Final = -1


class Consumer:
    """Reads records, for one task at a time.

    Records are done when the next poll begins, or when `mark_done` says so, if that is ever called.
    What is done is committed on a timer (`enable_auto_commit`), and by `commit`.

    Use: `async with Consumer("orders", group_id="billing") as consumer`, then iterate, or call
    `getmany`. Options are the fields of `ConsumerSettings`.
    """

    def __init__(
        self,
        *topics: str,
        listener: RebalanceListener | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Raises: ConfigInvalid, naming the option."""
        self.settings: ConsumerSettings = ConsumerSettings(**options)
        self._topics = frozenset(topics)
        self._pattern: str | None = None
        self._assigned: dict[TopicPartition, KeyRanges] = {}
        self._listener = listener
        self._session: ConsumerSession | None = None

    # -- start and end --------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and join the group if topics are subscribed to.

        Raises: ClusterUnreachable, AuthenticationFailed, KeyRangesUnsupported, TopicUnknown
        without a group, ConfigInvalid when it is started already.
        """
        if self._session is not None:
            raise ConfigInvalid("the consumer is started already")
        # Connections, codecs and kernels are loaded with the first consumer.
        from keylane.client.cluster import ClusterClient  # noqa: PLC0415
        from keylane.client.session import ConsumerSession  # noqa: PLC0415

        session = ConsumerSession(self.settings, ClusterClient(self.settings), self._make_group)
        session.listener = self._listener
        await session.start()
        self._session = session
        try:
            if self._assigned:
                await session.look_for({part.topic for part in self._assigned})
                session.assign(self._assigned)
            elif self._topics or self._pattern is not None:
                await session.subscribe(self._topics, self._pattern)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Commit what is done (with `enable_auto_commit`), leave the group, close connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._session is not None:
            self._session.forget_given()  # what the last poll gave may not be done
        await self.stop()

    def _make_group(
        self,
        cluster: ClusterClient,
        assignments: Assignments,
        topics: Collection[str],
        pattern: str | None,
    ) -> Group:
        from keylane.client.group.membership import GroupMembership  # noqa: PLC0415
        from keylane.client.group.settings import GroupSettings  # noqa: PLC0415

        settings = self.settings
        assert settings.group_id is not None, "a member has a group"
        of_group = GroupSettings(
            group_id=settings.group_id,
            group_protocol=settings.group_protocol,
            topics=frozenset(topics),
            pattern=pattern,
            instance_id=settings.group_instance_id,
            rack=settings.client_rack or None,
            session_timeout_s=settings.session_timeout_ms / 1000,
            heartbeat_interval_s=settings.heartbeat_interval_ms / 1000,
            rebalance_timeout_s=settings.max_poll_interval_ms / 1000,
            metadata_max_age_s=settings.metadata_max_age_ms / 1000,
            allow_individual_commit=settings.allow_individual_commit,
        )
        return GroupMembership(cluster, of_group, assignments)

    def _running(self) -> ConsumerSession:
        if self._session is None:
            raise e.ConsumerStopped("the consumer is not started, or was stopped")
        return self._session

    # -- what is read ---------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics, with a group; in the place of what was subscribed to before.

        pattern: a regular expression of whole names, in the place of `topics`.
        Raises: ConfigInvalid, both or none are given, or partitions are assigned.
        """
        names = frozenset(topics)
        if bool(names) == (pattern is not None):
            raise ConfigInvalid("subscribe takes topics, or a pattern")
        if self._assigned:
            raise ConfigInvalid("partitions are assigned: a consumer has these or subscribes")
        self._topics, self._pattern = names, pattern
        if listener is not None:
            self._listener = listener
        if self._session is not None:
            self._session.listener = self._listener
            await self._session.subscribe(names, pattern)

    async def unsubscribe(self) -> None:
        """Read nothing; leaves the group."""
        self._topics, self._pattern, self._assigned = frozenset(), None, {}
        if self._session is not None:
            await self._session.unsubscribe()

    def assign(
        self, parts: Mapping[TopicPartition, Sequence[KeyRange]] | Iterable[TopicPartition]
    ) -> None:
        """Read these partitions without a group's assignment, and nothing else.

        A mapping has the keys to read of each of the broker's partitions, none for all of them.
        Raises: ConfigInvalid, topics are subscribed to; KeyRangesUnsupported, not through keylane.
        """
        if self._topics or self._pattern is not None:
            raise ConfigInvalid("topics are subscribed to: a consumer has these or is assigned")
        if isinstance(parts, Mapping):
            self._assigned = {
                TopicPartition(*part): merge_ranges(ranges) or WHOLE
                for part, ranges in parts.items()
            }
        else:
            self._assigned = {TopicPartition(*part): () for part in parts}
        if self._session is not None:
            self._session.assign(self._assigned)

    def assignment(self) -> Parts:
        """Return the partitions of this consumer; lane indexes where topics have lanes."""
        return frozenset(self._running().fetcher.readings)

    def key_ranges(self) -> dict[TopicPartition, KeyRanges]:
        """Return the broker's partitions behind the assignment, with their keys; () is all."""
        session = self._running()
        return session.ranges_of(session.fetcher.readings)

    # -- records --------------------------------------------------------------------------

    async def getmany(
        self,
        *parts: TopicPartition,
        timeout_ms: float = 0,
        max_records: int | None = None,
        max_partition_records: int | None = None,
    ) -> Records:
        """Return records of each partition, or of these; none when the time is over.

        Returns early without any when the group asks for partitions: see `to_be_revoked`.
        max_records: None is `max_poll_records`. max_partition_records: of each partition, so that
        more of them have records here; None: as many.
        Raises: RecordsCorrupt, OffsetMissing, TopicDenied, GroupDenied, and other errors of
        `keylane.client.errors`, when there are no records before them.
        """
        session = self._running()
        count = self.settings.max_poll_records if max_records is None else max_records
        part_count = None if max_partition_records is None else max(1, max_partition_records)
        records = await session.poll(parts, timeout_ms / 1000, max(1, count), part_count)
        session.metrics.records += records.count
        return records

    async def getone(self, *parts: TopicPartition) -> ConsumerRecord:
        """Wait for a record and return it. Raises: as `getmany` does."""
        session = self._running()
        record = await session.poll_one(parts)
        session.metrics.records += 1
        return record

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        if self._session is None:
            raise StopAsyncIteration
        return await self.getone()

    # -- done and committed ---------------------------------------------------------------

    def mark_done(self, *records: ConsumerRecord) -> None:
        """Note that these are processed, in any order; from the first call on, nothing else is.

        Those of partitions that are lost change nothing.
        """
        session = self._running()
        session.uses_marks = True
        by_part: dict[tuple[str, int], list[int]] = {}
        for record in records:
            by_part.setdefault(record[:2], []).append(record[2])
        range_count = 0
        for part, offsets in by_part.items():
            reading = session.fetcher.readings.get(TopicPartition(*part))
            if reading is not None and reading.progress is not None:
                range_count -= reading.progress.range_count
                reading.progress.done(offsets)
                range_count += reading.progress.range_count
        session.committer.note_done(range_count)

    async def commit(
        self,
        what: Mapping[TopicPartition, OffsetOrRanges] | Iterable[ConsumerRecord] | None = None,
    ) -> None:
        """Commit what is done and not committed yet.

        what: None, all of it; where `mark_done` was never called, what polls gave is done.
        Records: these are done, and what is done of their partitions is committed.
        A mapping: the next offset to read, or ranges of offsets that are done, first and last.

        Raises: PartitionLost, GroupMissing, IndividualCommitNotAllowed, and what
        `Committer.send` does.
        """
        session = self._running()
        session.member()  # without a group there is nothing to commit to
        if isinstance(what, Mapping):
            await session.committer.send(session.entries(what))
            return
        readings = list(session.fetcher.readings.values())
        if what is not None:
            records = list(what)
            parts = {record.topic_partition for record in records}
            readings = [session.reading(part) for part in sorted(parts)]
            self.mark_done(*records)
        elif not session.uses_marks:
            session.finish_given()
        await session.committer.commit_done(readings)

    async def committed(self, part: TopicPartition) -> Committed | None:
        """Return what the group has committed; None: nothing.

        Raises: GroupMissing, CoordinatorUnavailable, GroupDenied, TopicDenied.
        """
        return await self._running().committed(part)

    # -- positions ------------------------------------------------------------------------

    async def position(self, part: TopicPartition) -> int:
        """Return the offset of the next record, found first if need be. Raises: NotAssigned."""
        session = self._running()
        return await session.positions.of(session.reading(part))

    def current_lag(self, part: TopicPartition) -> int | None:
        """Return the offsets from the position to the end of the log, as the last answer said.

        The end is that of what may be read: with read_committed the last stable offset. None: it is
        not known yet. A lane's are offsets of its partition, so those of other lanes count, too.
        Source: KIP-695. Raises: NotAssigned.
        """
        session = self._running()
        return session.fetcher.lag(session.reading(part))

    def seek(self, part: TopicPartition, offset: int) -> None:
        """Go on at this offset. Raises: NotAssigned, ValueError for an offset below 0."""
        if offset < 0:
            raise ValueError(f"offset {offset}: below 0")
        session = self._running()
        session.reading(part).seek(offset)
        session.fetcher.wake()

    def seek_to_beginning(self, *parts: TopicPartition) -> None:
        """Go on at the start of the log, of these partitions or of all. Raises: NotAssigned."""
        self._seek_to(_EARLIEST, parts)

    def seek_to_end(self, *parts: TopicPartition) -> None:
        """Go on at the end of the log, of these partitions or of all. Raises: NotAssigned."""
        self._seek_to(_LATEST, parts)

    def _seek_to(self, end: int, parts: Collection[TopicPartition]) -> None:
        session = self._running()
        for part in parts or self.assignment():
            session.reading(part).lose_position(end)
        session.positions.wake()

    def pause(self, *parts: TopicPartition) -> None:
        """Give no records of these, and fetch none. Raises: NotAssigned."""
        for part in parts:
            self._running().reading(part).is_paused = True

    def resume(self, *parts: TopicPartition) -> None:
        """Give records of these again. Raises: NotAssigned."""
        session = self._running()
        for part in parts:
            session.reading(part).is_paused = False
        session.fetcher.arrived.set()
        session.fetcher.wake()

    def paused(self) -> Parts:
        """Return the partitions that are paused."""
        readings = self._running().fetcher.readings
        return frozenset(part for part, reading in readings.items() if reading.is_paused)

    async def beginning_offsets(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each log. Raises: TopicUnknown, TopicDenied."""
        return await self._ends(_EARLIEST, parts)

    async def end_offsets(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset behind each log's last record. Raises: TopicUnknown, TopicDenied."""
        return await self._ends(_LATEST, parts)

    async def _ends(self, end: int, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = await self._running().offsets_at(dict.fromkeys(parts, end))
        return {part: each.offset for part, each in found.items()}

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """Return the offset and timestamp of the first record at or after each time.

        None: there is no such record. Raises: TopicUnknown, TopicDenied.
        """
        found = await self._running().offsets_at(times_ms)
        return {
            part: None if each.offset < 0 else (each.offset, each.timestamp_ms)
            for part, each in found.items()
        }

    # -- revocation -----------------------------------------------------------------------

    def to_be_revoked(self) -> Parts:
        """Return the partitions that are given up when the next poll begins."""
        return self._running().assignments.revocations.to_be_revoked

    def lost(self) -> Parts:
        """Return the partitions that went to other members since this poll began."""
        return self._running().assignments.revocations.lost

    def delay_revoke(self, parts: Iterable[TopicPartition]) -> bool:
        """Keep partitions for one poll more; False: one of them is lost already."""
        return self._running().assignments.revocations.delay(parts)

    def to_be_revoked_ranges(self) -> dict[TopicPartition, KeyRanges]:
        """Return `to_be_revoked` as the broker's partitions with their keys; () is all."""
        return self._running().ranges_of(self.to_be_revoked())

    def lost_ranges(self) -> dict[TopicPartition, KeyRanges]:
        """Return `lost` as the broker's partitions with their keys; () is all."""
        return by_ranges(self.lost(), self._running().assignments.lost_lanes)

    def delay_revoke_ranges(self, ranges: Mapping[TopicPartition, Sequence[KeyRange]]) -> bool:
        """Do as `delay_revoke` for what lies within these keys of the broker's partitions.

        No key range is all keys of a partition. What is within only in part is not delayed.
        """
        assignments = self._running().assignments
        wanted = {TopicPartition(*part): tuple(keys) for part, keys in ranges.items()}
        return self.delay_revoke(parts_within(wanted, assignments.lanes | assignments.lost_lanes))

    def metrics(self) -> dict[str, float]:
        """Return counters since the start, and what waits now, by name."""
        session = self._running()
        readings = session.fetcher.readings.values()
        return session.metrics.values() | {
            "partitions": float(len(readings)),
            "records_open": float(
                sum(each.progress.open_count for each in readings if each.progress is not None)
            ),
            "buffered_bytes": float(session.fetcher.buffered_bytes),
            "records_behind": float(sum(session.fetcher.lag(reading) or 0 for reading in readings)),
        }
