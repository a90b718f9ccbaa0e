"""Report what a consumer does to an audit topic: for aiokafka, on its event loop.

The order of calls is that of `reporter`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from keylane.audit.record import GENERATION_UNKNOWN, Message, PlaceOf, ReportBook
from keylane.audit.reporter import RECORDS_MAX, TIMEOUT_S, now_us
from keylane.errors import AuditUnwritten


class AsyncAuditReporter:
    """Writes what one member does. `start` it before, `close` it after, or use `async with`.

    Bounded: `processed` waits for the acks when `records_max` records lack them.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        member: str,
        place_of: PlaceOf,
        records_max: int = RECORDS_MAX,
        timeout_s: float = TIMEOUT_S,
        **settings: Any,
    ) -> None:
        """`settings` are those of AIOKafkaProducer, such as `security_protocol`."""
        self._topic, self._timeout_s = topic, timeout_s
        self._records_max = records_max
        self._member = f"{member}/{uuid.uuid4().hex[:8]}"
        self._place_of = place_of
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=True,
            compression_type="lz4",
            linger_ms=5,
            **settings,
        )
        self._book: ReportBook | None = None
        self._waiting: list[asyncio.Future[Any]] = []

    async def start(self) -> None:
        """Connect, and ask for the audit topic's partitions.

        Raises:
            AuditUnwritten: the audit topic does not exist, or no broker answers.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._producer.start()
                partitions = await self._producer.partitions_for(self._topic)
        except (KafkaError, TimeoutError) as error:
            await self._producer.stop()
            raise AuditUnwritten(f"{self._topic}: {type(error).__name__}") from None
        self._book = ReportBook(
            member=self._member,
            place_of=self._place_of,
            audit_partition_count=len(partitions),
        )

    async def assigned(self, lanes: Iterable[int], *, generation: int = GENERATION_UNKNOWN) -> None:
        """The member owns `lanes` from now on."""
        await self._write(self._opened.assigned(lanes, now_us=now_us(), generation=generation))

    async def processed(self, lane: int, offset: int, key: bytes | None) -> None:
        """The work of one record is done; waits while the buffer is full.

        Raises:
            AuditUnwritten: an earlier report failed, or the buffer stays full.
        """
        await self._write([self._opened.processed(lane, offset, key, now_us=now_us())])

    async def committed(self, positions: Mapping[int, int]) -> None:
        """The group has confirmed these positions (offset of the next record), by lane."""
        await self._write(self._opened.committed(positions, now_us=now_us()))

    async def flush(self) -> None:
        """Wait until all that was reported is acknowledged; call it before every commit.

        Raises:
            AuditUnwritten: it is not; what was processed since must not be committed.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.gather(*waiting)
        except (KafkaError, TimeoutError) as error:
            raise AuditUnwritten(f"{self._topic}: {type(error).__name__}") from None

    async def close(self) -> None:
        """Flush and disconnect. Raises as `flush` does."""
        try:
            await self.flush()
        finally:
            await self._producer.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _opened(self) -> ReportBook:
        assert self._book is not None, "start() comes first"
        return self._book

    async def _write(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if len(self._waiting) >= self._records_max:
                await self.flush()
            try:
                sent = await self._producer.send(
                    self._topic, message.value, message.key, partition=message.partition
                )
            except KafkaError as error:
                raise AuditUnwritten(f"{self._topic}: {type(error).__name__}") from None
            self._waiting.append(sent)
