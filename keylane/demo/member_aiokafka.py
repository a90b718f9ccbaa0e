"""A member on aiokafka.

`getmany` waits by itself while lanes change hands, so nothing is read between the last commit of a
lane and its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from keylane.demo.member import BATCH_RECORDS_MAX, POLL_MS, MemberProgress, Seat


def consume(progress: MemberProgress, seat: Seat, is_stopping: Callable[[], bool]) -> None:
    """Read the topic as a member of the group until `is_stopping`; then commit and leave."""
    logging.disable(logging.CRITICAL)  # the show kills servers on purpose
    asyncio.run(_Member(progress, seat).run(is_stopping))


class _Member(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka ships no types
    """`_committing` is held by one commit at a time: the loop's own, or a rebalance's.

    `_leaving`: it reads no more, whatever the group still assigns before it has left.
    """

    def __init__(self, progress: MemberProgress, seat: Seat) -> None:
        self._progress, self._seat = progress, seat
        self._committing = asyncio.Lock()
        self._leaving = False
        self._consumer: Any = None

    async def run(self, is_stopping: Callable[[], bool]) -> None:
        self._consumer = AIOKafkaConsumer(
            partition_assignment_strategy=(RangePartitionAssignor,), **self._seat.settings()
        )
        self._consumer.subscribe([self._seat.topic], listener=self)
        await self._consumer.start()
        while not is_stopping():
            await self._turn()
        await self._commit()
        # `stop` leaves the group without a word to the listener. Reported here, since the next
        # member may have the lanes long before the parent sees the end of this process.
        self._leaving = True
        self._progress.released(partition.partition for partition in self._consumer.assignment())
        await self._consumer.stop()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Commit what was processed, then report."""
        await self._commit()
        self._progress.released(partition.partition for partition in revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Report which lanes are read from now on."""
        if not self._leaving:
            self._progress.assigned(partition.partition for partition in assigned)

    async def _turn(self) -> None:
        try:
            batches = await self._consumer.getmany(
                timeout_ms=POLL_MS, max_records=BATCH_RECORDS_MAX
            )
        except KafkaError as error:
            if not error.retriable:
                raise
            return  # of a connection; the next turn tries again
        for partition, records in batches.items():
            for record in records:
                self._progress.process(partition.partition, record.offset, record.key, record.value)
        self._progress.report()
        if self._progress.commit_is_due(time.monotonic()):
            await self._commit()

    async def _commit(self) -> None:
        async with self._committing:
            with self._progress.committing(KafkaError) as wanted:
                topic = self._seat.topic
                offsets = {TopicPartition(topic, lane): at for lane, at in wanted.items()}
                if offsets:
                    await self._consumer.commit(offsets)
