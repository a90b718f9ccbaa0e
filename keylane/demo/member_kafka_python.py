"""A member on kafka-python.

Its callbacks run inside `poll`, while this thread waits there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError

from keylane.demo.member import (
    BATCH_RECORDS_MAX,
    RECONNECT_BACKOFF_MAX_MS,
    MemberProgress,
    Seat,
)

POLL_MS: Final = 5_000
"""Longer than a rebalance: one that ends with a poll leaves the member without lanes
(docs/clients.md). A poll returns at once when there are records."""


def consume(progress: MemberProgress, seat: Seat, is_stopping: Callable[[], bool]) -> None:
    """Read the topic as a member of the group until `is_stopping`; then commit and leave."""
    logging.disable(logging.CRITICAL)  # the show kills servers on purpose
    consumer = KafkaConsumer(
        partition_assignment_strategy=[RangePartitionAssignor],
        reconnect_backoff_max_ms=RECONNECT_BACKOFF_MAX_MS,
        **seat.settings(),
    )
    consumer.subscribe([seat.topic], listener=_Listener(consumer, progress, seat.topic))
    while not is_stopping():
        try:
            batches = consumer.poll(timeout_ms=POLL_MS, max_records=BATCH_RECORDS_MAX)
        except KafkaError as error:
            if not error.retriable:
                raise
            continue  # of a connection; the next turn tries again
        for partition, records in batches.items():
            for record in records:
                progress.process(partition.partition, record.offset, record.key, record.value)
        progress.report()
        if progress.commit_is_due(time.monotonic()):
            _commit(consumer, progress, seat.topic)
    _commit(consumer, progress, seat.topic)
    consumer.close()


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # no types
    """Commits before lanes go; the consumer waits for it and keeps its heartbeat."""

    def __init__(self, consumer: Any, progress: MemberProgress, topic: str) -> None:
        self._consumer, self._progress, self._topic = consumer, progress, topic

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Commit what was processed of the lanes that go."""
        with self._progress.committing(KafkaError) as wanted:
            if wanted:
                await self._consumer.commit_async(_offsets(self._topic, wanted))
        self._progress.released(partition.partition for partition in revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Report which lanes are read from now on."""
        generation = self._consumer.group_metadata().generation_id
        self._progress.assigned((p.partition for p in assigned), generation=generation)

    async def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        """The group went on without this member: a commit would be refused."""
        self._progress.released((partition.partition for partition in lost), lost=True)


def _commit(consumer: Any, progress: MemberProgress, topic: str) -> None:
    with progress.committing(KafkaError) as wanted:
        if wanted:
            consumer.commit(_offsets(topic, wanted))


def _offsets(topic: str, positions: dict[int, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic, lane): OffsetAndMetadata(position, "", -1)
        for lane, position in positions.items()
    }
