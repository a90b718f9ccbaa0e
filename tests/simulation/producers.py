"""Producers that write to Kafka directly: records with and without keys, and transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster, Partition
    from tests.simulation.scenario import TopicPlan
    from tests.simulation.world import World

TRANSACTIONAL = 0x10
TRANSACTION_S = 1.5
"""Seconds that a transaction is open, at most."""
COMMIT_SHARE = 0.6


class RecordBook(Protocol):
    """A judge that knows all records."""

    def next_number(self) -> int:
        """Return the next record's number."""

    def wrote(self, partition: Partition, offset: int, key: str, number: int) -> None:
        """Note a record."""

    def aborted(self, numbers: Sequence[int]) -> None:
        """Note records whose transaction was aborted."""


@dataclass
class _Transaction:
    producer_id: int
    partition: Partition
    first: int
    numbers: list[int] = field(default_factory=list)


class Producers:
    """The producers of a run."""

    def __init__(
        self, world: World, cluster: Cluster, brokers: dict[int, Broker], judgement: RecordBook
    ) -> None:
        self._world, self._cluster, self._brokers = world, cluster, brokers
        self._judgement = judgement
        self._open: list[_Transaction] = []
        self._next_id = 1

    @property
    def has_open(self) -> bool:
        """Return whether a transaction is not decided yet."""
        return bool(self._open)

    def write_on(self, plan: TopicPlan, until_s: float) -> None:
        """A batch now and then."""
        if self._world.now_s > until_s:
            return
        rng = self._world.rng
        partition = rng.choice(self._cluster.topics[plan.name].partitions)
        leader = self._brokers.get(partition.leader_id)
        if leader is not None and not leader.is_hung:
            if rng.random() < plan.transactions:
                self._write_in_transaction(plan, partition)
            else:
                self._write(plan, partition)
            partition.wake()
        pause_s = rng.expovariate(plan.batches_per_s)
        self._world.after(pause_s, lambda: self.write_on(plan, until_s))

    def _write(self, plan: TopicPlan, partition: Partition, **fields: int) -> list[int]:
        rng, log = self._world.rng, partition.log
        base, records, numbers = log.end, [], []
        for delta in range(rng.choice((1, 1, 2, 5))):
            number = self._judgement.next_number()
            key = f"k{rng.randrange(plan.keys)}"
            records.append((key.encode(), f"#{number}".encode()))
            self._judgement.wrote(partition, base + delta, key, number)
            numbers.append(number)
        log.append(*records, **fields)
        self._world.report(f"producer: {plan.name}-{partition.index} {base} to {log.end - 1}")
        return numbers

    def _write_in_transaction(self, plan: TopicPlan, partition: Partition) -> None:
        rng = self._world.rng
        producer_id, self._next_id = self._next_id, self._next_id + 1
        transaction = _Transaction(producer_id, partition, partition.log.end)
        self._open.append(transaction)
        self._note_stable(partition)

        def write() -> None:
            fields = {"flags": TRANSACTIONAL, "producer_id": producer_id, "producer_epoch": 0}
            transaction.numbers += self._write(plan, partition, **fields)
            partition.wake()

        write()
        open_s = TRANSACTION_S * rng.random()
        if rng.random() < 0.5:
            self._world.after(open_s / 2, lambda: self._while_open(transaction, write))
        is_commit = rng.random() < COMMIT_SHARE
        self._world.after(open_s, lambda: self._end(transaction, is_commit=is_commit))

    def _while_open(self, transaction: _Transaction, write: Callable[[], None]) -> None:
        if transaction in self._open and transaction.partition.leader_id >= 0:
            write()

    def _end(self, transaction: _Transaction, *, is_commit: bool) -> None:
        if transaction not in self._open:
            return
        partition = transaction.partition
        if partition.leader_id < 0:
            self._world.after(1.0, lambda: self._end(transaction, is_commit=is_commit))
            return
        self._open.remove(transaction)
        log = partition.log
        if not is_commit:
            log.aborted.append((transaction.producer_id, transaction.first, log.end))
            self._judgement.aborted(transaction.numbers)
        log.append_marker(transaction.producer_id, commit=is_commit)
        self._note_stable(partition)
        partition.wake()

    def _note_stable(self, partition: Partition) -> None:
        firsts = [each.first for each in self._open if each.partition is partition]
        partition.log.last_stable = min(firsts) if firsts else None

    def note_cut(self, partition: Partition) -> None:
        """The log has lost its end: what began there is gone, and so are markers."""
        log = partition.log
        self._open = [
            each for each in self._open if each.partition is not partition or each.first < log.end
        ]
        reopened = [each for each in log.aborted if each[1] < log.end <= each[2]]
        log.aborted = [each for each in log.aborted if each[2] < log.end]
        for producer_id, first, _ in reopened:
            # The coordinator writes the marker again.
            log.aborted.append((producer_id, first, log.end))
            log.append_marker(producer_id, commit=False)
        self._note_stable(partition)
