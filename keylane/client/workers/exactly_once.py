"""Consume, transform, produce: each record's results and its offset in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers.executors import Handler
from keylane.client.workers.ledger import DoneLedger
from keylane.client.workers.run import Workers
from keylane.client.workers.settings import WorkerOptions
from keylane.client.workers.source import Seekable
from keylane.client.workers.transactions import TransactionalProducer, Transactions
from keylane.errors import ConfigInvalid


class ExactlyOnce(Workers):
    """Workers whose handler returns what to write: an iterable of (topic, key, value[, headers]).

    Each `commit_interval_s`, one transaction has the results of finished records, in the order of
    offsets, and the offsets behind them. Readers with isolation_level="read_committed" see each
    result once. A record behind one that is not finished waits with its results.

    A transaction that is aborted has its records worked again, from the committed offsets. Dead
    letters are written outside of transactions: one may be there twice.

    Offsets are committed without the member's epoch, as aiokafka's producer does it (KIP-98): one
    producer with the same transactional id per member, so that a former one is fenced.

    Raises: ConfigInvalid, HandlerInvalid.
    """

    def __init__(
        self,
        source: Seekable,
        handle: Handler,
        producer: TransactionalProducer,
        **options: Unpack[WorkerOptions],
    ) -> None:
        if source.settings.group_id is None:
            raise ConfigInvalid("group_id: exactly-once needs a group")
        if getattr(source.settings, "enable_auto_commit", False):
            raise ConfigInvalid(
                "enable_auto_commit: exactly-once needs False, so that transactions alone commit"
            )
        if options.get("commit_interval_s") == 0:
            raise ConfigInvalid("commit_interval_s: a transaction for each record is not offered")
        self._seekable, self._producer, self._group = source, producer, source.settings.group_id
        super().__init__(source, handle, **options)

    def _make_ledger(self) -> DoneLedger:
        self._transactions = Transactions(
            self._producer, self._group, self.tallies, max(1, self._queued_max // 2)
        )
        return self._transactions

    def _took(self, records: Iterable[ConsumerRecord]) -> Iterable[ConsumerRecord]:
        leaving, took = self._leaving, self._transactions.took
        taken = list(records)
        for record in taken:
            if record.topic_partition not in leaving:
                took(record)
        return taken

    async def _prepare_poll(self) -> None:
        """After an abort: drop all, and begin again where the group's offsets are."""
        if not self._transactions.must_redo:
            return
        places = self._transactions.next_offsets()
        self._queues.lose(places)
        if self._executor.can_cancel:
            self._pool.cancel(places.keys())
        for place, offset in places.items():
            if place not in self._source.assignment():
                continue
            committed = await self._seekable.committed(place)
            if place in self._source.assignment():  # it may have been lost meanwhile
                self._seekable.seek(place, committed.offset if committed is not None else offset)
        self._hold_again(places)
        self._transactions.redone()

    def _hold_again(self, places: Iterable[TopicPartition]) -> None:
        self._queues.hold([place for place in places if place in self._leaving])
