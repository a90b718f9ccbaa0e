"""A member on confluent-kafka (librdkafka)."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.cimpl import Message

from keylane.audit.reporter import generation_of
from keylane.demo.member import (
    BATCH_RECORDS_MAX,
    POLL_MS,
    RECONNECT_BACKOFF_MAX_MS,
    MemberProgress,
    Seat,
)


def consume(progress: MemberProgress, seat: Seat, is_stopping: Callable[[], bool]) -> None:
    """Read the topic as a member of the group until `is_stopping`; then commit and leave."""
    consumer = Consumer(
        {
            **{name.replace("_", "."): value for name, value in seat.settings().items()},
            "partition.assignment.strategy": "range",
            "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MAX_MS,
            # Bounds what waits in this process, so that new members find work to take over.
            "queued.max.messages.kbytes": 4096,
            "log_level": 0,
        }
    )

    def on_revoke(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
        progress.report()
        _commit(consumer, progress, seat.topic)
        progress.released(p.partition for p in partitions)

    consumer.subscribe(
        [seat.topic],
        on_assign=lambda _, partitions: progress.assigned(
            (p.partition for p in partitions), generation=generation_of(consumer)
        ),
        on_revoke=on_revoke,
        on_lost=lambda _, lost: progress.released((p.partition for p in lost), lost=True),
    )
    while not is_stopping():
        message = consumer.poll(POLL_MS / 1000)
        count = 0
        while message is not None and count < BATCH_RECORDS_MAX:
            _process(progress, message)
            count += 1
            message = consumer.poll(0)
        if message is not None:
            _process(progress, message)
        progress.report()
        if progress.commit_is_due(time.monotonic()):
            _commit(consumer, progress, seat.topic)
    consumer.close()  # revokes, and so commits


def _process(progress: MemberProgress, message: Message) -> None:
    if message.error() is not None:
        return  # of a connection; librdkafka goes on by itself
    lane, offset = message.partition(), message.offset()
    key, value = message.key(), message.value()
    assert lane is not None and offset is not None  # a message without error has both
    assert isinstance(key, bytes) and isinstance(value, bytes)  # as the producer wrote them
    progress.process(lane, offset, key, value)


def _commit(consumer: Consumer, progress: MemberProgress, topic: str) -> None:
    wanted = dict(progress.waiting)
    if not wanted:
        return
    offsets = [TopicPartition(topic, lane, position) for lane, position in wanted.items()]
    try:
        answers = consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as error:
        progress.commit_failed(wanted, error.args[0].name())
        return
    failed = {answer.partition: answer.error for answer in answers if answer.error is not None}
    if failed:
        progress.commit_failed(failed, next(iter(failed.values())).name())
    progress.committed({lane: at for lane, at in wanted.items() if lane not in failed})
