"""A member with `Workers` of `keylane.client`: 16 records at once, each key in order.

Records of a lane end out of order, so each is reported and committed by its own offset.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from keylane.client.consumer import Consumer, OffsetOrRanges
from keylane.client.listener import Parts, RebalanceListener
from keylane.client.records import Records
from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers import Workers
from keylane.demo.events import Delivered, OrderBatch, RecordsCommitted
from keylane.demo.member import (
    COMMIT_INTERVAL_S,
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    MemberProgress,
    Seat,
)
from keylane.demo.orders import OrderRun, read_order

CONCURRENCY: Final = 16
WORK_S: Final = 0.005
"""Each order waits this long, as for another system: the most frequent customer has some 50 orders
per second, and a member 250."""


def consume(progress: MemberProgress, seat: Seat, is_stopping: Callable[[], bool]) -> None:
    """Work on the topic as a member of the group until `is_stopping`; then commit and leave."""
    logging.disable(logging.CRITICAL)  # the show kills servers on purpose
    asyncio.run(work(RecordProgress(progress), seat, is_stopping))


async def work(progress: RecordProgress, seat: Seat, is_stopping: Callable[[], bool]) -> None:
    """Run workers over a consumer that reports what it marks and commits."""
    handler = OrderHandler(progress)
    async with (
        ReportingConsumer(progress, seat, is_stopping) as consumer,
        Workers(
            consumer,
            handler,
            concurrency=CONCURRENCY,
            commit_interval_s=COMMIT_INTERVAL_S,
            signals=False,  # Ctrl-C is the parent's to handle
            progress=False,
        ) as workers,
    ):
        consumer.on_stop = workers.stop
        await workers.run()


class RecordProgress:
    """Collects records that end out of order, reports them, and knows which wait for a commit.

    Used on one event loop. Invariant: `waiting` holds offsets of reported records only, of lanes
    that the member owns.
    """

    def __init__(self, progress: MemberProgress) -> None:
        self._progress = progress
        self._new: list[OrderBatch] = []
        self._terms: dict[int, int] = {}
        """By lane of this member: which of its assignments it is of."""
        self._assigned_count = 0
        self.waiting: dict[int, set[int]] = {}

    def term_of(self, lane: int) -> int | None:
        """Return the lane's assignment; None: the lane is not this member's."""
        return self._terms.get(lane)

    def process(self, record: ConsumerRecord) -> None:
        """Do the work of one order: here, to remember it until `report`."""
        assert record.key is not None and record.value is not None, "each order has both"
        customer, number = read_order(record.key, record.value)
        run = OrderRun(customer, number, 1)
        self._new.append(OrderBatch(record.partition, record.offset, record.offset, (run,)))

    def report(self) -> None:
        """Write what was processed since the last call."""
        if self._new:
            new, self._new = self._new, []
            self._progress.emit(Delivered(self._progress.member, time.monotonic_ns(), tuple(new)))

    def mark(self, records: Iterable[ConsumerRecord]) -> None:
        """Let reported records wait for a commit, where their lanes are this member's."""
        for record in records:
            if record.partition in self._terms:
                self.waiting.setdefault(record.partition, set()).add(record.offset)

    def committed(self, wanted: Mapping[int, frozenset[int]]) -> None:
        """The group has confirmed these; what went away meanwhile is another member's to judge."""
        records = []
        for lane, offsets in wanted.items():
            if lane in self.waiting:
                records.append((lane, tuple(sorted(offsets & self.waiting[lane]))))
                self.waiting[lane] -= offsets
        if records:
            self._progress.emit(
                RecordsCommitted(self._progress.member, time.monotonic_ns(), tuple(records))
            )

    def commit_failed(self, wanted: Mapping[int, frozenset[int]], reason: str) -> None:
        """A commit failed, or its outcome is not known; its records go on waiting."""
        self._progress.commit_failed(wanted.keys() & self._terms.keys(), reason)

    def assigned(self, lanes: Iterable[int]) -> None:
        """The member owns `lanes` from now on."""
        taken = tuple(lanes)
        self._assigned_count += 1
        self._terms.update(dict.fromkeys(taken, self._assigned_count))
        self._progress.assigned(taken)

    def released(self, lanes: Iterable[int], *, lost: bool = False) -> None:
        """The member owns `lanes` no longer; what was processed of them is reported before."""
        gone = tuple(lanes)
        self.report()
        for lane in gone:
            self._terms.pop(lane, None)
            self.waiting.pop(lane, None)
        self._progress.released(gone, lost=lost)


class OrderHandler:
    """The handler of the workers: waits as for another system, then processes the order."""

    def __init__(self, progress: RecordProgress, work_s: float = WORK_S) -> None:
        self._progress, self._work_s = progress, work_s

    async def __call__(self, record: ConsumerRecord) -> None:
        """Work on a record, unless its lane is lost meanwhile."""
        term = self._progress.term_of(record.partition)
        await asyncio.sleep(self._work_s)
        if self._progress.term_of(record.partition) != term:
            # Another member has the lane: it has this order, too. The workers cancel this one.
            await asyncio.get_running_loop().create_future()
        self._progress.process(record)


class ReportingListener(RebalanceListener):
    """Reports lanes that come and go."""

    def __init__(self, progress: RecordProgress) -> None:
        self._progress = progress

    async def on_partitions_assigned(self, parts: Parts) -> None:
        """Report which lanes are read from now on."""
        self._progress.assigned(part.partition for part in parts)

    async def on_partitions_revoked(self, parts: Parts) -> None:
        """Report lanes whose work is done and committed."""
        self._progress.released(part.partition for part in parts)

    async def on_partitions_lost(self, parts: Parts) -> None:
        """Report lanes that went to others."""
        self._progress.released((part.partition for part in parts), lost=True)


class ReportingConsumer(Consumer):
    """A consumer that reports records before they may be committed, and commits with an answer."""

    def __init__(
        self, progress: RecordProgress, seat: Seat, is_stopping: Callable[[], bool]
    ) -> None:
        super().__init__(
            seat.topic,
            listener=ReportingListener(progress),
            bootstrap_servers=seat.bootstrap,
            group_id=seat.group,
            client_id=seat.client_id,
            # Its session time-out is the member's; that of the consumer protocol is the broker's.
            group_protocol="classic",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        self._progress, self._is_stopping = progress, is_stopping
        self.on_stop: Callable[[], None] = lambda: None

    async def getmany(
        self,
        *parts: TopicPartition,
        timeout_ms: float = 0,
        max_records: int | None = None,
        max_partition_records: int | None = None,
    ) -> Records:
        """Poll; stop where the parent asks for it."""
        records = await super().getmany(
            *parts,
            timeout_ms=timeout_ms,
            max_records=max_records,
            max_partition_records=max_partition_records,
        )
        if self._is_stopping():
            self.on_stop()
        return records

    def mark_done(self, *records: ConsumerRecord) -> None:
        """Report, then mark."""
        self._progress.report()
        self._progress.mark(records)
        super().mark_done(*records)

    async def commit(
        self,
        what: Mapping[TopicPartition, OffsetOrRanges] | Iterable[ConsumerRecord] | None = None,
    ) -> None:
        """Commit all that is marked, and report the outcome."""
        waiting = self._progress.waiting
        wanted = {lane: frozenset(offsets) for lane, offsets in waiting.items() if offsets}
        try:
            await super().commit(what)
        except BaseException as error:
            self._progress.commit_failed(wanted, type(error).__name__)
            raise
        self._progress.committed(wanted)
