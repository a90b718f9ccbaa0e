"""Results of records, in transactions that hold the offsets of just these records.

Source: KIP-98 (transactions), KIP-447 (one producer per process). A transaction takes the results
of a partition up to the first record that is not finished, in the order of offsets: records beyond
it wait for a later one, so that the committed offset stands for exactly what was written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple, Protocol

from keylane.client.raw_headers import Headers
from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers.tallies import Tallies

log = logging.getLogger("keylane.workers")

ABORTS_MAX: Final = 5
"""Transactions in a row that are aborted before the error ends the run."""


class Output(NamedTuple):
    """A record to write, as a handler returns it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class TransactionalProducer(Protocol):
    """The part of aiokafka's producer that is used; it has a transactional id and is started."""

    async def begin_transaction(self) -> None:
        """Begin one."""

    async def send(
        self, topic: str, value: Any = None, key: Any = None, *, headers: Any = None
    ) -> asyncio.Future[Any]:
        """Queue a record; the future ends when brokers have it."""

    async def send_offsets_to_transaction(self, offsets: Any, group_id: str) -> None:
        """Add offsets of the group."""

    async def commit_transaction(self) -> None:
        """End it: all of it counts."""

    async def abort_transaction(self) -> None:
        """End it: none of it counts."""


class _Progress:
    """Offsets of a partition that were taken, and the results of those that are finished."""

    __slots__ = ("next_offset", "results", "taken")

    def __init__(self, first: int) -> None:
        self.taken: deque[int] = deque()
        self.results: dict[int, list[Output]] = {}
        self.next_offset = first
        """Below it all is committed."""

    def prefix(self) -> list[int]:
        """Return the finished offsets that no unfinished one stands before."""
        offsets: list[int] = []
        for offset in self.taken:
            if offset not in self.results:
                break
            offsets.append(offset)
        return offsets

    def drop(self, offsets: list[int]) -> None:
        """Forget these, the first ones: they are committed."""
        for offset in offsets:
            self.taken.popleft()
            del self.results[offset]
        self.next_offset = offsets[-1] + 1


class Transactions:
    """A ledger: a commit is a transaction with results and offsets.

    One that fails is aborted; then `must_redo` is set, and nothing is committed until `redone`.
    """

    def __init__(
        self, producer: TransactionalProducer, group: str, tallies: Tallies, held_max: int
    ) -> None:
        self._producer, self._group, self._tallies = producer, group, tallies
        self._held_max = held_max
        self._partitions: dict[TopicPartition, _Progress] = {}
        self._lock = asyncio.Lock()
        self._aborts = 0
        self.held_count = 0
        self.commit_wanted = asyncio.Event()
        self.must_redo = False

    def took(self, record: ConsumerRecord) -> None:
        """Note a record that is about to be queued."""
        place = record.topic_partition
        progress = self._partitions.get(place)
        if progress is None:
            progress = self._partitions[place] = _Progress(record.offset)
        progress.taken.append(record.offset)

    def done(self, record: ConsumerRecord, result: Any) -> None:
        """Hold what a handler returned: an iterable of `Output`, or None."""
        progress = self._partitions.get(record.topic_partition)
        if progress is None:
            return
        outputs: Iterable[Any] = result if result is not None else ()
        progress.results[record.offset] = [Output(*each) for each in outputs]
        self.held_count += 1
        if self.held_count >= self._held_max:
            self.commit_wanted.set()

    def flush(self) -> None:
        """Nothing: offsets go with transactions, not through the source."""

    def forget(self, places: Collection[TopicPartition]) -> None:
        """Drop the results of these."""
        for place in places:
            progress = self._partitions.pop(place, None)
            if progress is not None:
                self.held_count -= len(progress.results)

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Return where each partition goes on from, by what was committed here."""
        return {place: each.next_offset for place, each in self._partitions.items()}

    def redone(self) -> None:
        """Forget all: positions were set back, and what comes is taken anew."""
        self.forget(list(self._partitions))
        self.must_redo = False

    async def commit(self) -> None:
        """Write one transaction. Raises what aborts it for the fifth time in a row, or cannot."""
        async with self._lock:
            if self.must_redo:
                return
            prefixes = {place: each.prefix() for place, each in self._partitions.items()}
            prefixes = {place: offsets for place, offsets in prefixes.items() if offsets}
            if not prefixes:
                return
            progress = {place: self._partitions[place] for place in prefixes}
            await self._producer.begin_transaction()
            try:
                await self._write(prefixes)
            except (Exception, asyncio.CancelledError) as error:
                self.must_redo = True
                self._tallies.commit_failures += 1
                self._aborts += 1
                await self._producer.abort_transaction()
                if not isinstance(error, Exception) or self._aborts >= ABORTS_MAX:
                    raise
                log.warning("transaction aborted, its records are worked again: %s", error)
                return
            self._aborts = 0
            self._tallies.commits += 1
            for place, offsets in prefixes.items():
                if self._partitions.get(place) is progress[place]:
                    progress[place].drop(offsets)
                    self.held_count -= len(offsets)

    async def _write(self, prefixes: dict[TopicPartition, list[int]]) -> None:
        from aiokafka import TopicPartition as AiokafkaPartition  # noqa: PLC0415 - only here

        sent = [
            await self._producer.send(
                output.topic, output.value, output.key, headers=list(output.headers)
            )
            for place, offsets in prefixes.items()
            for results in (self._partitions[place].results,)
            for offset in offsets
            for output in results[offset]
        ]
        await asyncio.gather(*sent)
        ends = {AiokafkaPartition(*place): each[-1] + 1 for place, each in prefixes.items()}
        await self._producer.send_offsets_to_transaction(ends, self._group)
        await self._producer.commit_transaction()
