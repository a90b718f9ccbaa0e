"""The individual commit journal in Kafka: loaded once, appended to for as long as we run.

Source: KIP-98 (idempotent producer).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from keylane.errors import UpstreamLost
from keylane.journal.journal_reads import (
    Cuts,
    OnAck,
    OnAppend,
    describe_loss,
    timed_append,
    tried_again,
)
from keylane.journal.journal_topic import ensure_journal_topic
from keylane.journal.own_topic import OwnTopicClients, close_consumer, end_within
from keylane.journal.set_aside import SetAside
from keylane.offsets.records.journal import TOPIC_NAME, JournalRecord
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import INDIVIDUAL_COMMITS_MAX
from keylane.tasks import spawn

log = logging.getLogger("keylane.offsets")

APPEND_TIMEOUT_S: Final = 30.0
"""Kafka clients' `request.timeout.ms` default."""
LOAD_STALLED_S: Final = 30.0
"""A load that gets nothing for this time is given up."""
STOP_S: Final = 0.1
"""Wait for a consumer that is done; its connections may take longer to close."""
POLL_MS: Final = 1_000
BATCH_BYTES: Final = 128 * 1024
"""Commits of many groups that wait for one ack share a batch; 8 times aiokafka's default."""
LOAD_BYTES_MAX: Final = 8 * 1024**2
"""Bound on what one fetch of the load brings, over all partitions."""


class JournalStore:
    """Reads the whole journal at start, then appends with acks from all in-sync replicas.

    `append` may be called concurrently; records of one call, and of calls that follow each other,
    reach a partition in order. Batches that wait for a broker are retried in order by the same
    idempotent producer, so a late one cannot overtake its successor.
    """

    def __init__(
        self,
        clients: OwnTopicClients,
        *,
        append_timeout_s: float = APPEND_TIMEOUT_S,
        on_append: OnAppend = lambda *_: None,
    ) -> None:
        self.clients = clients
        self.append_timeout_s = append_timeout_s
        self.on_append = on_append
        self._cuts = Cuts(is_shared=True)  # by nodes beside others
        self._producer: AIOKafkaProducer | None = None
        self._opening = asyncio.Lock()
        self._is_stopped = False

    async def start(self, *, individual_commits_max: int = INDIVIDUAL_COMMITS_MAX) -> OffsetTable:
        """Make the topic if it is missing, read it to its end, and return what it holds.

        Raises:
            UpstreamLost: the cluster cannot be reached for START_TIMEOUT_S, refuses, or stops
                answering.
        """
        table = await self.read(individual_commits_max=individual_commits_max, is_moving=False)
        await tried_again("opening the journal", self._opened)
        await self.append(table.take_orphan_tombstones())
        return table

    async def read(
        self, *, individual_commits_max: int = INDIVIDUAL_COMMITS_MAX, is_moving: bool = True
    ) -> OffsetTable:
        """Same as `start`, without a producer: nothing is written but a topic that is missing.

        is_moving: others write meanwhile, and states are not to be answered by.
        Raises: UpstreamLost.
        """

        async def load() -> OffsetTable:
            table = OffsetTable(
                partition_count=await self.ensure_topic(),
                individual_commits_max=individual_commits_max,
            )
            await read_partitions(self.clients, range(table.partition_count), table)
            return table

        table = await tried_again("loading the journal", load)
        finish_load(table, self.clients.set_aside, is_moving=is_moving)
        return table

    async def prepare(self) -> int:
        """Make the topic if it is missing; its partition count. Raises: UpstreamLost."""
        return await tried_again("preparing the journal", self.ensure_topic)

    async def read_fenced(
        self, ends_min: Mapping[int, int], *, partition_count: int, individual_commits_max: int
    ) -> OffsetTable:
        """Read partitions, each at least up to its end in `ends_min`. Raises: UpstreamLost."""
        table = OffsetTable(
            partition_count=partition_count, individual_commits_max=individual_commits_max
        )
        try:
            ends = await read_partitions(self.clients, ends_min, table)
        except KafkaError as error:
            raise describe_loss(f"loading journal partitions {[*ends_min]}", error) from None
        for partition, end_min in ends_min.items():
            if ends[partition] < end_min:
                end = ends[partition]
                raise UpstreamLost(f"journal partition {partition} ends at {end}, not at {end_min}")
        only = next(iter(ends_min)) if len(ends_min) == 1 else None
        finish_load(table, self.clients.set_aside, only)
        return table

    @property
    def cuts(self) -> int:
        """Number of times that the journal did not go on where it was left."""
        return self._cuts.count

    async def append(self, records: Sequence[JournalRecord]) -> None:
        """Write records in order and wait until all in-sync replicas have them.

        After an error each of them may have been written or not; the caller repeats them with the
        next append.

        Raises:
            UpstreamLost: not acknowledged in time, or refused.
        """
        if not records:
            return
        async with timed_append(len(records), self.on_append):
            await self._append(records)

    async def _append(self, records: Sequence[JournalRecord]) -> None:
        producer: AIOKafkaProducer | None = None
        try:
            async with asyncio.timeout(self.append_timeout_s):
                producer = await self._opened()
                await append_all(producer, records, self._cuts.note)
        except TimeoutError:
            raise UpstreamLost(f"no ack from the journal in {self.append_timeout_s:g} s") from None
        except KafkaError as error:
            await self._discard(producer)
            raise describe_loss("appending to the journal", error) from None

    async def stop(self) -> None:
        """Send what waits, within the append time-out, and close."""
        self._is_stopped = True
        async with self._opening:
            if self._producer is not None:
                await self._close(self._producer)
                self._producer = None

    async def ensure_topic(self) -> int:
        """Make the topic if it is missing; its partition count. Raises: as `administer`."""
        return await self.clients.administer(ensure_journal_topic)

    async def _opened(self) -> AIOKafkaProducer:
        """Return the producer, a new one when there is none."""
        async with self._opening:
            if self._is_stopped:
                raise UpstreamLost("the journal is closed")
            if self._producer is None:
                self._producer = await self.clients.open_producer(
                    self._close, batch_bytes=BATCH_BYTES
                )
            return self._producer

    async def _discard(self, producer: AIOKafkaProducer | None) -> None:
        """Close a producer that failed: its sequence is broken. The next call opens another."""
        async with self._opening:
            if producer is not None and self._producer is producer:
                self._producer = None
                await self._close(producer)

    async def _close(self, producer: AIOKafkaProducer) -> None:
        await end_within(producer.stop(), self.append_timeout_s)


async def read_partitions(
    clients: OwnTopicClients, numbers: Iterable[int], table: OffsetTable
) -> dict[int, int]:
    """Apply to `table` what journal partitions hold by now; return where each ends.

    Raises: UpstreamLost, KafkaError.
    """
    consumer = clients.make_consumer(
        isolation_level="read_committed", fetch_max_bytes=LOAD_BYTES_MAX
    )
    try:
        await consumer.start()
        partitions = [TopicPartition(TOPIC_NAME, number) for number in numbers]
        consumer.assign(partitions)
        # Read-committed: the end is the last stable offset, behind which nothing is whole.
        ends = await consumer.end_offsets(partitions)
        starts = await consumer.beginning_offsets(partitions)
        await _read_to(consumer, starts, ends, table)
        return {place.partition: end for place, end in ends.items()}
    finally:
        # Beside us: a TLS connection that is closed while an answer comes takes up to 30 s.
        stopping = spawn(_stop(consumer), "end of a load")
        await asyncio.wait({stopping}, timeout=STOP_S)


async def _stop(consumer: AIOKafkaConsumer) -> None:
    with suppress(KafkaError):  # what was read is complete
        await close_consumer(consumer)


def finish_load(
    table: OffsetTable,
    set_aside: SetAside,
    partition: int | None = None,
    *,
    is_moving: bool = False,
) -> None:
    """Make states of what was read, and log what was found; of one partition, or of all."""
    report = table.finish_load(is_moving=is_moving)
    for damaged in report.damaged:
        set_aside.note(TOPIC_NAME, damaged)
    set_aside.note_more(TOPIC_NAME, report.damaged_count - len(report.damaged))
    log.info(
        "journal loaded partition=%s states=%d ranges=%d damaged=%d orphans=%d",
        "all" if partition is None else partition,
        report.state_count,
        report.range_count,
        report.damaged_count,
        report.orphan_count,
    )


async def _read_to(
    consumer: AIOKafkaConsumer,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    table: OffsetTable,
) -> None:
    """Apply everything from `starts` up to `ends`. Raises: UpstreamLost, KafkaError."""
    positions = dict(starts)
    for partition, start in starts.items():
        consumer.seek(partition, start)
    clock = asyncio.get_running_loop().time
    moved_s = clock()
    while wanted := [tp for tp in ends if positions[tp] < ends[tp]]:
        # Without the partitions that are done, whose appended records would be read without end.
        batches = await consumer.getmany(*wanted, timeout_ms=POLL_MS)
        for partition, records in batches.items():
            for record in records:
                table.apply(partition.partition, record.offset, record.key, record.value)
        before = sum(positions.values())
        positions.update({tp: await consumer.position(tp) for tp in wanted})
        if sum(positions.values()) > before:
            moved_s = clock()
        elif clock() - moved_s > LOAD_STALLED_S:
            raise UpstreamLost(f"the journal gave nothing for {LOAD_STALLED_S:g} s")


async def append_all(
    producer: AIOKafkaProducer, records: Sequence[JournalRecord], on_ack: OnAck
) -> list[Any]:
    """Write records in order, wait for all acks, and return them. Raises: KafkaError."""
    acks = [await _send(producer, record, on_ack) for record in records]
    # Not `gather`: a caller that goes away must not cancel what others share.
    await asyncio.wait(acks)
    return [ack.result() for ack in acks]


async def _send(
    producer: AIOKafkaProducer, record: JournalRecord, on_ack: OnAck
) -> asyncio.Future[Any]:
    """Hand a record to the producer; the future ends with the ack."""
    ack: asyncio.Future[Any] = await producer.send(
        TOPIC_NAME, record.value, key=record.key, partition=record.partition
    )
    # In the order of the log, whichever task waits for which.
    ack.add_done_callback(partial(_retrieve, on_ack))
    return ack


def _retrieve(on_ack: OnAck, ack: asyncio.Future[Any]) -> None:
    """Look at the outcome, so that one without a waiting task is not reported."""
    if not ack.cancelled() and ack.exception() is None:
        on_ack(int(ack.result().partition), int(ack.result().offset))
