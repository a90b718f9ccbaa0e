"""Dead letters: copies of records that are not delivered again, with the reason in headers.

Source: KIP-1191 (names of headers, and the partition: that of the record by the count of the dead
letter topic); docs/decisions/048.

A letter is written, and acknowledged by all in-sync replicas, before the broker learns that the
record is at its end. After a crash between the two it is written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.record.memory_records import MemoryRecords

from keylane.errors import UpstreamLost
from keylane.journal.own_topic import OwnTopicClients, close_producer, describe_error
from keylane.proxy.share.broker_session import SharedPlace

log = logging.getLogger("keylane.share")

HEADER: Final = "__dlq.errors."
BATCH_BYTES: Final = 1024 * 1024
WRITE_S: Final = 30.0
REJECTED: Final = "rejected by a member"
LIMIT_REACHED: Final = "deliveries are used up"


class Letter(NamedTuple):
    """A record that is at its end; `batch` holds it alone, or others at other offsets too."""

    offset: int
    delivery_count: int
    reason: str
    batch: bytes


def headers_of(place: SharedPlace, letter: Letter) -> list[tuple[str, bytes]]:
    """Return the headers that are added to those of the record."""
    values = {
        "topic": place.topic,
        "partition": place.partition,
        "offset": letter.offset,
        "group": place.group,
        "delivery.count": letter.delivery_count,
        "message": letter.reason,
    }
    return [(HEADER + name, str(value).encode()) for name, value in values.items()]


def read_record(batch: bytes, offset: int) -> Any:
    """Return the record at an offset, as aiokafka reads it."""
    return next(each for each in _records(batch) if each.offset == offset)


def _records(batch: bytes) -> Iterator[Any]:
    records = MemoryRecords(batch)
    while records.has_next():
        found = records.next_batch()
        if found is not None:
            yield from found


class LetterWriter:
    """One producer for all dead letter topics, opened when the first letter is written."""

    def __init__(self, clients: OwnTopicClients) -> None:
        self._clients = clients
        self._producer: AIOKafkaProducer | None = None
        self._opening = asyncio.Lock()

    async def write(self, topic: str, place: SharedPlace, letters: Sequence[Letter]) -> None:
        """Write letters, and wait until all in-sync replicas have them. Raises: UpstreamLost."""
        try:
            async with asyncio.timeout(WRITE_S):
                producer = await self._open()
                partitions = await producer.partitions_for(topic)
                partition = place.partition % max(1, len(partitions))
                sent = [
                    await self._send(producer, topic, partition, place, each) for each in letters
                ]
                await asyncio.gather(*sent)
        except (KafkaError, TimeoutError) as error:
            await self.stop()
            text = describe_error(error)
            raise UpstreamLost(f"dead letters are not written topic={topic}: {text}") from None

    async def _send(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        partition: int,
        place: SharedPlace,
        letter: Letter,
    ) -> asyncio.Future[Any]:
        record = read_record(letter.batch, letter.offset)
        sent: asyncio.Future[Any] = await producer.send(
            topic,
            record.value,
            record.key,
            partition=partition,
            timestamp_ms=record.timestamp,
            headers=[*record.headers, *headers_of(place, letter)],
        )
        return sent

    async def _open(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is None:
                self._producer = await self._clients.open_producer(
                    close_producer, batch_bytes=BATCH_BYTES
                )
            return self._producer

    async def stop(self) -> None:
        """Close the producer; the next letter opens another."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer)
