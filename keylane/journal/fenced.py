"""Partitions of the journal as their owner writes them: with a producer epoch that fences others.

Source: KIP-98 (idempotent producer, fencing); docs/decisions/022.

The leader of a partition refuses a batch whose epoch is lower than that of the last one of the
same producer id. So an owner asks the transaction coordinator for the next epoch of an id that all
nodes share per partition, and writes one record with it: no other owner's record can follow it.
What stands before it is read, and from then on each append is one plain idempotent write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerFenced

from keylane.errors import KeylaneError, NotCoordinator, UpstreamLost
from keylane.journal.journal_reads import Cuts, OnAppend, describe_loss, timed_append
from keylane.journal.own_topic import OwnTopicClients, close_producer
from keylane.journal.store import APPEND_TIMEOUT_S, BATCH_BYTES, append_all
from keylane.offsets.records.journal import JournalRecord, write_fence
from keylane.offsets.values import OwnerEpoch


class FencedJournal:
    """Appends to partitions, until another owner has opened them. Use: `open`, `append`, `close`.

    After any failure it is broken for good, as aiokafka's producer may still send what it has.
    Opening the partition anew, behind which none of that can come, and reading it settles which of
    its last records count.
    Invariant: nothing is sent that was appended after it broke.
    """

    def __init__(
        self,
        partitions: Sequence[int],
        clients: OwnTopicClients,
        *,
        next_epoch: Callable[[], Awaitable[tuple[int, int] | None]],
        append_timeout_s: float = APPEND_TIMEOUT_S,
        on_append: OnAppend = lambda *_: None,
    ) -> None:
        """Nothing is asked of Kafka before `open`.

        next_epoch: gives the producer id that all owners share, and its next epoch; None: the
            cluster has no transactions, and no owner is fenced.
        """
        self._partitions = partitions
        self._name = f"journal partition {partitions[0]}" if len(partitions) == 1 else "the journal"
        self._clients, self._next_epoch = clients, next_epoch
        self._append_timeout_s, self._on_append = append_timeout_s, on_append
        self._producer: AIOKafkaProducer | None = None
        self.owner: OwnerEpoch | None = None
        """Owner that it writes as, once it is open; None: no owner is fenced."""
        self._failure: KeylaneError | None = None
        self._cuts = Cuts()
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_broken(self) -> bool:
        """True: nothing can be appended any more, as it is fenced, failed, or closed."""
        return self._failure is not None

    @property
    def cuts(self) -> int:
        """Number of times that a partition did not go on where it was left."""
        return self._cuts.count

    async def open(self, *, now_ms: int) -> dict[int, int]:
        """Fence the owner before; return the offset up to which each partition has to be read.

        Raises: NotCoordinator, when another node did the same a moment later; UpstreamLost.
        """
        epoch = await self._next_epoch()
        self.owner = None if epoch is None else OwnerEpoch(*epoch)
        try:
            async with asyncio.timeout(self._append_timeout_s):
                self._producer = await self._clients.open_producer(
                    close_producer, batch_bytes=BATCH_BYTES, epoch=epoch
                )
        except (KafkaError, TimeoutError) as error:
            raise describe_loss(f"opening {self._name}", error) from None
        fences = await self._append([write_fence(each, now_ms) for each in self._partitions])
        return {int(fence.partition): int(fence.offset) + 1 for fence in fences}

    async def append(self, records: Sequence[JournalRecord]) -> None:
        """Write records in order and wait until all in-sync replicas have them.

        Raises:
            NotCoordinator: another node has taken over, or the journal broke before.
            UpstreamLost: not acknowledged in time, or refused; they may be there or not.
        """
        if not records:
            return
        async with timed_append(len(records), self._on_append):
            await self._append(records)

    async def close(self) -> None:
        """Take nothing more, end what is under way, and close; for as long as brokers take."""
        if self._failure is None:
            self._failure = NotCoordinator(f"{self._name} is closed")
        await self._idle.wait()
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer)

    async def _append(self, records: Sequence[JournalRecord]) -> list[Any]:
        """Append, and return the broker's answer to each record."""
        assert all(record.partition in self._partitions for record in records), "of these"
        producer = self._producer
        if self._failure is not None or producer is None:
            raise NotCoordinator(str(self._failure))
        self._under_way += 1
        self._idle.clear()
        try:
            async with asyncio.timeout(self._append_timeout_s):
                return await append_all(producer, records, self._cuts.note)
        except ProducerFenced:
            raise self._broken(NotCoordinator(f"{self._name} was taken over")) from None
        except TimeoutError:
            reason = f"no ack from the journal in {self._append_timeout_s:g} s"
            raise self._broken(UpstreamLost(reason)) from None
        except KafkaError as error:
            raise self._broken(describe_loss("appending to the journal", error)) from None
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def _broken(self, error: KeylaneError) -> KeylaneError:
        self._failure = error
        return error
