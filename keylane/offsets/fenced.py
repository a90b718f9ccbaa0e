"""One partition of the journal as its owner writes it: transactions that fence who wrote before.

In:    `JournalRecord`s of one partition.  Out: committed records, or why they are not.
Next:  `offsets.owned` keeps one of these for each partition that this node serves.
Shell: asyncio, aiokafka.
Source: KIP-98 (transactions, fencing by transactional id); docs/decisions/019.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import IllegalOperation, KafkaError, ProducerFenced

from keylane.errors import KeylaneError, NotCoordinator, UpstreamLost
from keylane.offsets.journal import JournalRecord
from keylane.offsets.store import APPEND_TIMEOUT_S, BATCH_BYTES, describe_loss, retrieve, send
from keylane.proxy.tasks import spawn

TRANSACTIONAL_ID_PREFIX: Final = "keylane-ic-"
"""One id per partition for all nodes: whoever opens it fences who had it before."""
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""How long what a dead owner left open holds readers back; the next owner ends it sooner."""

BROKEN: Final = (KafkaError, IllegalOperation, AssertionError)
"""What aiokafka's producer raises; the last two when its state broke between two calls."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Records of one `append`, and who waits for them."""

    records: Sequence[JournalRecord]
    done: asyncio.Future[None]


class FencedJournal:
    """Appends to one partition as transactions of one producer. Use: `open`, `append`, `close`.

    Appends that come while a transaction is under way are committed together by the next one.
    After any failure it is broken for good: whether the last transaction counts is settled by
    opening another one for the partition, which ends it one way or the other, and by reading it.
    Invariant: a transaction is begun only while it is not broken; one at a time.
    """

    def __init__(
        self,
        partition: int,
        *,
        options: Callable[[], Mapping[str, Any]],
        append_timeout_s: float = APPEND_TIMEOUT_S,
        on_append: Callable[[int, float, bool], None] = lambda *_: None,
    ) -> None:
        """`options` gives arguments of aiokafka clients, and may raise UpstreamLost."""
        self.partition = partition
        self._options, self._append_timeout_s = options, append_timeout_s
        self._on_append = on_append
        self._producer: AIOKafkaProducer | None = None
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self._failure: KeylaneError | None = None

    @property
    def is_broken(self) -> bool:
        """Nothing can be appended any more: fenced, failed, or closed."""
        return self._failure is not None

    async def open(self) -> None:
        """Fence who wrote before: his open transaction is aborted, or committed if it was to be.

        Raises: UpstreamLost.
        """
        producer = AIOKafkaProducer(
            **self._options(),
            acks="all",
            transactional_id=f"{TRANSACTIONAL_ID_PREFIX}{self.partition}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_batch_size=BATCH_BYTES,
        )
        try:
            async with asyncio.timeout(self._append_timeout_s):
                await producer.start()
        except TimeoutError:
            await _close(producer)
            reason = (
                f"journal partition {self.partition} not opened in {self._append_timeout_s:g} s"
            )
            raise UpstreamLost(reason) from None
        except KafkaError as error:
            await _close(producer)
            raise describe_loss(f"opening journal partition {self.partition}", error) from None
        except BaseException:
            await _close(producer)
            raise
        self._producer = producer

    async def append(self, records: Sequence[JournalRecord]) -> None:
        """Write records in order and wait until their transaction is committed.

        Raises:
            NotCoordinator: another node has taken over, or the journal broke before.
            UpstreamLost: not acknowledged in time, or refused; it may be there or not.
        """
        if not records:
            return
        assert all(record.partition == self.partition for record in records), "of this partition"
        if self._failure is not None:
            raise _again(NotCoordinator(str(self._failure)))
        loop = asyncio.get_running_loop()
        started_s, waiting = loop.time(), _Waiting(records, loop.create_future())
        waiting.done.add_done_callback(retrieve)
        self._waiting.append(waiting)
        if self._writer is None:
            self._writer = spawn(self._write_all(), f"journal partition {self.partition}")
        is_acknowledged = False
        try:
            # A caller that goes away must not take along what others wait for.
            await asyncio.shield(waiting.done)
            is_acknowledged = True
        finally:
            self._on_append(len(records), loop.time() - started_s, is_acknowledged)

    async def close(self) -> None:
        """Take nothing more, end what is under way, and close; for as long as brokers take."""
        self._fail(NotCoordinator(f"journal partition {self.partition} is closed"))
        if self._writer is not None:
            await asyncio.wait([self._writer])
        await self._close_producer()

    async def _write_all(self) -> None:
        while self._waiting and self._failure is None:
            taken, self._waiting = self._waiting, []
            error = await self._write([record for each in taken for record in each.records])
            for each in taken:
                if error is None:
                    each.done.set_result(None)
                else:
                    each.done.set_exception(_again(error))
            if error is not None:
                self._fail(error)
                await self._close_producer()
        self._writer = None

    async def _write(self, records: Sequence[JournalRecord]) -> KeylaneError | None:
        """One transaction; what went wrong, None for nothing."""
        producer = self._producer
        assert producer is not None, "open comes first"
        try:
            async with asyncio.timeout(self._append_timeout_s):
                await producer.begin_transaction()
                acks = [await send(producer, record) for record in records]
                # aiokafka would commit what is left of a transaction when a part of it failed.
                await asyncio.wait(acks)
                for ack in acks:
                    ack.result()
                await producer.commit_transaction()
        except ProducerFenced:
            return NotCoordinator(f"journal partition {self.partition} was taken over")
        except TimeoutError:
            return UpstreamLost(f"no ack from the journal in {self._append_timeout_s:g} s")
        except BROKEN as error:
            return describe_loss("appending to the journal", error)
        return None

    def _fail(self, error: KeylaneError) -> None:
        if self._failure is None:
            self._failure = error
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.done.set_exception(NotCoordinator(str(error)))

    async def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await _close(producer)


async def _close(producer: AIOKafkaProducer) -> None:
    """Close for good. As long as no broker answers, it waits: nothing else ends its tasks."""
    try:
        # The error was told already.
        with suppress(*BROKEN):
            await producer.stop()
    finally:
        await producer.client.close()  # which `stop` leaves out when it fails


def _again(error: KeylaneError) -> KeylaneError:
    """An exception of its own for each who waits: its traceback grows where it is raised."""
    return type(error)(str(error))
