"""Report what a consumer does to an audit topic: for confluent-kafka and other blocking clients.

The order that makes the audit true is the caller's to keep:

    reporter.assigned(lanes)            when lanes are assigned
    reporter.processed(lane, ...)       after each record's work is done
    reporter.flush()                    before each commit, and before lanes are given up
    consumer.commit(...)
    reporter.committed(positions)       after the group has confirmed it

Then the reports of a killed member are a beginning of what it did, and what another member
processes again was never committed.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.cimpl import Message as Delivered

from keylane.audit.record import GENERATION_UNKNOWN, Message, PlaceOf, ReportBook
from keylane.errors import AuditUnwritten

RECORDS_MAX: Final = 20_000
"""Records that wait in memory, some 5 MB: 0.2 s of work of a member that does 100,000 a second."""
TIMEOUT_S: Final = 30.0
"""Time that a flush waits for the acks: a leader change takes seconds."""
METADATA_MAGIC: Final = b"CGMDv2:"
"""Start of librdkafka's group metadata; the generation follows (rdkafka_cgrp.c)."""
SETTINGS: Final[dict[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,  # else a retry reorders, and the audit finds disorder
    "compression.type": "lz4",
    "linger.ms": 5,
    "delivery.report.only.error": True,
}


class AuditReporter:
    """Writes what one member does. Used from one thread.

    Bounded: `processed` waits when `records_max` records are not acknowledged yet.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        *,
        member: str,
        place_of: PlaceOf,
        records_max: int = RECORDS_MAX,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`settings` are librdkafka's, `bootstrap.servers` at least.

        Raises:
            AuditUnwritten: the audit topic does not exist, or no broker answers.
        """
        self._topic, self._timeout_s = topic, timeout_s
        self._failure: KafkaError | None = None
        self._producer = Producer(
            {
                **SETTINGS,
                "queue.buffering.max.messages": records_max,
                **settings,
                "on_delivery": self._note_delivery,
            }
        )
        self._book = ReportBook(
            member=f"{member}/{uuid.uuid4().hex[:8]}",
            place_of=place_of,
            audit_partition_count=self._count_partitions(),
        )

    def assigned(self, lanes: Iterable[int], *, generation: int = GENERATION_UNKNOWN) -> None:
        """The member owns `lanes` from now on."""
        messages = self._book.assigned(lanes, now_us=now_us(), generation=generation)
        self._write_all(messages)

    def processed(self, lane: int, offset: int, key: bytes | None) -> None:
        """The work of one record is done; waits while the buffer is full.

        Raises:
            AuditUnwritten: an earlier report failed, or the buffer stays full.
        """
        self._write(self._book.processed(lane, offset, key, now_us=now_us()))

    def committed(self, positions: Mapping[int, int]) -> None:
        """The group has confirmed these positions (offset of the next record), by lane."""
        self._write_all(self._book.committed(positions, now_us=now_us()))

    def flush(self) -> None:
        """Wait until all that was reported is acknowledged; call it before every commit.

        Raises:
            AuditUnwritten: it is not, within the time-out; what was processed since the last
                flush must not be committed.
        """
        left = self._producer.flush(self._timeout_s)
        self._raise_failure()
        if left:
            raise AuditUnwritten(f"{self._topic}: {left} reports without ack in {self._timeout_s}s")

    def close(self) -> None:
        """Flush. Raises as `flush` does."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._write(message)

    def _write(self, message: Message) -> None:
        self._raise_failure()
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    key=message.key,
                    value=message.value,
                    partition=message.partition,
                )
            except BufferError:
                if time.monotonic() > deadline_s:
                    raise AuditUnwritten(f"{self._topic}: the buffer stays full") from None
                self._producer.poll(0.1)
            else:
                return

    def _note_delivery(self, error: KafkaError | None, _: Delivered) -> None:
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise AuditUnwritten(f"{self._topic}: {self._failure.str()}")

    def _count_partitions(self) -> int:
        try:
            found = self._producer.list_topics(self._topic, timeout=self._timeout_s)
        except KafkaException as error:
            raise AuditUnwritten(f"{self._topic}: {error.args[0].str()}") from None
        reported = found.topics[self._topic]
        if reported.error is not None:
            raise AuditUnwritten(f"{self._topic}: {reported.error.str()}")
        return len(reported.partitions)


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def generation_of(consumer: Consumer) -> int:
    """Generation of a confluent-kafka consumer's group membership; -1 when it has none."""
    metadata = consumer.consumer_group_metadata()
    found = metadata if isinstance(metadata, bytes) else b""
    start = len(METADATA_MAGIC)
    if not found.startswith(METADATA_MAGIC) or len(found) < start + 4:
        return GENERATION_UNKNOWN
    # librdkafka copies its own int32: the machine's byte order.
    return int.from_bytes(found[start : start + 4], sys.byteorder, signed=True)
