"""Records that wait for work, and their turn: one of a key at a time, keys side by side.

In: records of polls, ends of work, times. Out: the next record to work on. Time is an argument.
The order is that of a partition (KIP draft "Cooperative consumer processing semantic": order by
key): a key in two partitions is two keys.

Of the keys whose turn has come, the one with most records behind it goes first (docs/decisions/050;
Tassiulas, Ephremides 1992: "Stability properties of constrained queueing systems"), within a bound:
a record in line is passed by so many others at most.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final, Literal

from keylane.client.values import ConsumerRecord, TopicPartition

Order = Literal["key", "partition", "none"]
ORDERS: Final[tuple[Order, ...]] = ("key", "partition", "none")
RECORD_BYTES: Final = 400
"""Memory of a waiting record besides key, value and headers: measured with CPython 3.11."""
_ALL: Final = b""
"""The one chain of a partition, with order="partition"."""


def size_of(record: ConsumerRecord) -> int:
    """Return the bytes that a held record counts with."""
    _, _, _, _, key, value, headers, _ = record
    return RECORD_BYTES + len(key or b"") + len(value or b"") + len(headers)


class Work:
    """One record whose turn has come: ready, at work, or waiting for a further attempt."""

    __slots__ = (
        "attempts",
        "key",
        "partition",
        "record",
        "size_bytes",
        "term",
        "turn",
        "undelivered",
    )

    def __init__(
        self,
        record: ConsumerRecord,
        key: bytes | None,
        partition: _Partition,
        size_bytes: int,
        turn: int,
    ) -> None:
        self.record, self.key, self.partition = record, key, partition
        self.size_bytes, self.turn = size_bytes, turn
        """turn: how many records had been taken when this one came into line."""
        self.term = partition.term
        self.attempts = 0
        """Failed ones."""
        self.undelivered: Exception | None = None
        """The last error, while the record's dead letter is still to be written."""


class _Partition:
    """Records of one partition that wait and are at work.

    `chains` has the keys with a record ready, at work or waiting for an attempt; behind it stand
    the later records of the key, in the order of arrival; None: there are none.
    """

    __slots__ = ("at_work", "chains", "is_held", "queued", "queued_bytes", "term", "unfinished")

    def __init__(self) -> None:
        self.chains: dict[bytes, deque[ConsumerRecord] | None] = {}
        self.queued = self.queued_bytes = 0
        self.at_work = 0
        """Of any term."""
        self.unfinished = 0
        """At work and of this term."""
        self.term = 0
        """Goes up when the partition is lost: what was at work then is of an earlier one."""
        self.is_held = False


class WorkQueues:
    """The scheduler. Each call is O(1) per record, or O(log n) where a key has more than the mean.

    Drops cost the count of queued records.

    passed_max: records that go before one that came into line earlier, at most.

    Invariants (`check`): a chained key has one record that is ready, at work or waits for an
    attempt; counts and bytes are those of the records held; nothing of a held partition is queued.
    """

    def __init__(self, order: Order = "key", passed_max: int = 1000) -> None:
        self._is_by_key, self._is_by_partition = order == "key", order == "partition"
        self._passed_max = passed_max
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._ready: deque[Work] = deque()
        """In line, in the order of their turns."""
        self._ahead: list[tuple[float, int, Work]] = []
        """In line, with more behind them than the mean key: a heap of the turn from which on each
        would have stood there else, the turn of its arrival less what it may pass."""
        self._ahead_number = 0
        self._turn = 0
        """Records taken so far."""
        self._key_count = 0
        """Keys with a record that waits or is at work."""
        self._retries: list[tuple[float, int, Work]] = []
        self._retry_number = 0
        self.queued_count = 0
        """Records that wait: for their turn, for a free worker, for an attempt."""
        self.at_work_count = 0
        """Records taken and not finished, those of lost partitions included."""
        self.held_bytes = 0
        """Of both."""
        self.added_count = self.added_bytes = 0
        self.is_closed = False
        """True: records that are added are dropped."""

    def add(self, records: Iterable[ConsumerRecord]) -> int:
        """Take the records of a poll; those of held partitions are dropped. Return their count.

        Records of a partition come in the order of their offsets.
        """
        if self.is_closed:
            return 0
        topic, number = "", -1
        partition = _Partition()
        ready, by_key, by_partition = self._ready, self._is_by_key, self._is_by_partition
        count = bytes_added = 0
        for record in records:
            if record[1] != number or record[0] != topic:
                topic, number = record[0], record[1]
                place = TopicPartition(topic, number)
                partition = self._partitions.setdefault(place, _Partition())
            if partition.is_held:
                continue
            size_bytes = size_of(record)
            count += 1
            bytes_added += size_bytes
            partition.queued += 1
            partition.queued_bytes += size_bytes
            key = record[4] if by_key else _ALL if by_partition else None
            if key is not None:
                chains = partition.chains
                if key in chains:
                    waiting = chains[key]
                    if waiting is None:
                        chains[key] = waiting = deque()
                    waiting.append(record)
                    continue
                chains[key] = None
                self._key_count += 1
            ready.append(Work(record, key, partition, size_bytes, self._turn))
        self.queued_count += count
        self.held_bytes += bytes_added
        self.added_count += count
        self.added_bytes += bytes_added
        return count

    def take(self) -> Work | None:
        """Return the next record to work on; None: none may start now."""
        ready, ahead = self._ready, self._ahead
        if ahead and (not ready or ahead[0][0] < ready[0].turn):
            work = heapq.heappop(ahead)[2]
        elif ready:
            work = ready.popleft()
        else:
            return None
        self._turn += 1
        partition = work.partition
        partition.queued -= 1
        partition.queued_bytes -= work.size_bytes
        partition.at_work += 1
        partition.unfinished += 1
        self.queued_count -= 1
        self.at_work_count += 1
        return work

    def finished(self, work: Work) -> bool:
        """End the work on a record; the next of its key has its turn.

        False: the partition was lost meanwhile, so the outcome does not count.
        """
        partition = work.partition
        partition.at_work -= 1
        self.at_work_count -= 1
        self.held_bytes -= work.size_bytes
        is_current = work.term == partition.term
        if is_current:
            partition.unfinished -= 1
        key = work.key
        if key is not None:
            waiting = partition.chains[key]
            if waiting:
                record = waiting.popleft()
                self._line_up(
                    Work(record, key, partition, size_of(record), self._turn), len(waiting)
                )
            else:
                del partition.chains[key]
                self._key_count -= 1
        return is_current

    def _line_up(self, work: Work, behind_count: int) -> None:
        """Give a record its place in line, by what waits behind it in terms of the mean key."""
        weight = behind_count * self._key_count
        if weight <= self.queued_count:
            self._ready.append(work)
            return
        self._ahead_number += 1
        turn = self._turn - min(weight, self._passed_max)
        heapq.heappush(self._ahead, (turn, self._ahead_number, work))

    def retry(self, work: Work, due_s: float) -> bool:
        """Let a record that failed wait until `due_s`, and its key with it.

        False: its partition is lost or held, so there is no further attempt here. `finished` is
        the answer to that, and the record is not done.
        """
        partition = work.partition
        if work.term != partition.term or partition.is_held or self.is_closed:
            return False
        partition.at_work -= 1
        partition.unfinished -= 1
        partition.queued += 1
        partition.queued_bytes += work.size_bytes
        self.at_work_count -= 1
        self.queued_count += 1
        self._retry_number += 1
        heapq.heappush(self._retries, (due_s, self._retry_number, work))
        return True

    @property
    def retry_due_s(self) -> float | None:
        """Time of the next further attempt; None: none waits."""
        return self._retries[0][0] if self._retries else None

    def wake(self, now_s: float) -> int:
        """Let the attempts begin whose time has come; return their count."""
        count = 0
        while self._retries and self._retries[0][0] <= now_s:
            work = heapq.heappop(self._retries)[2]
            work.turn = self._turn
            self._ready.append(work)
            count += 1
        return count

    def hold(self, places: Collection[TopicPartition]) -> list[ConsumerRecord]:
        """Let nothing more of these begin, until `unhold`; what is at work goes on.

        Returns the records that waited; they are dropped.
        """
        partitions = [self._partitions.setdefault(place, _Partition()) for place in places]
        for partition in partitions:
            partition.is_held = True
        return self._drop(partitions)

    def unhold(self, places: Collection[TopicPartition]) -> None:
        """Take records of these again: they are this member's anew, or no more."""
        for place in places:
            partition = self._partitions.get(place)
            if partition is not None:
                partition.is_held = False
                if not partition.at_work and not partition.queued:
                    del self._partitions[place]

    def lose(self, places: Collection[TopicPartition]) -> list[ConsumerRecord]:
        """Drop all of these; what is at work of them does not count any more.

        A key that is at work stays taken until that has ended, even if the partition comes back.
        Returns the records that waited.
        """
        known = {place: self._partitions[place] for place in places if place in self._partitions}
        dropped = self._drop(known.values())
        for place, partition in known.items():
            partition.term += 1
            partition.unfinished = 0
            partition.is_held = False
            if not partition.at_work:
                del self._partitions[place]
        return dropped

    def close(self) -> list[ConsumerRecord]:
        """Drop what waits, and whatever is added from now on; return it."""
        self.is_closed = True
        return self._drop(self._partitions.values())

    def unfinished_count(self, place: TopicPartition) -> int:
        """Return the records of a partition that are at work, and whose outcome counts."""
        partition = self._partitions.get(place)
        return partition.unfinished if partition is not None else 0

    def waiting_count(self, place: TopicPartition) -> int:
        """Return the records of a partition that wait."""
        partition = self._partitions.get(place)
        return partition.queued if partition is not None else 0

    @property
    def ready_count(self) -> int:
        """Records that a free worker may take now."""
        return len(self._ready) + len(self._ahead)

    @property
    def retry_count(self) -> int:
        """Records that wait for a further attempt."""
        return len(self._retries)

    def keys_waiting_count(self) -> int:
        """Return the keys with records behind one that is not finished. Cost: all keys held."""
        return sum(
            1 for each in self._partitions.values() for waiting in each.chains.values() if waiting
        )

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold. Cost: all records held."""
        heads = [*self._ready, *(work for _, _, work in [*self._ahead, *self._retries])]
        taken = [(id(work.partition), work.key) for work in heads if work.key is not None]
        assert len(taken) == len(set(taken)), "a key twice"
        behind = 0
        for partition in self._partitions.values():
            own = [work for work in heads if work.partition is partition]
            waiting = [record for each in partition.chains.values() for record in each or ()]
            behind += len(waiting)
            assert partition.queued == len(own) + len(waiting)
            assert partition.queued_bytes == sum(
                size_of(record) for record in [*waiting, *(work.record for work in own)]
            )
            assert not (partition.is_held and partition.queued), "a held partition has a queue"
            assert 0 <= partition.unfinished <= partition.at_work
        assert self.queued_count == len(heads) + behind
        assert self._key_count == sum(len(each.chains) for each in self._partitions.values())

    def _drop(self, dropped: Collection[_Partition]) -> list[ConsumerRecord]:
        gone = {id(partition) for partition in dropped}
        heads = [work for work in self._ready if id(work.partition) in gone]
        self._ready = deque(work for work in self._ready if id(work.partition) not in gone)
        for heap in (self._ahead, self._retries):
            heads += [work for _, _, work in heap if id(work.partition) in gone]
            heap[:] = [each for each in heap if id(each[2].partition) not in gone]
            heapq.heapify(heap)
        records: list[ConsumerRecord] = []
        for work in heads:
            records.append(work.record)
            if work.key is not None:
                records += work.partition.chains.pop(work.key) or ()
                self._key_count -= 1
        for partition in dropped:
            for key, waiting in partition.chains.items():  # their first one is at work
                records += waiting or ()
                partition.chains[key] = None
            self.queued_count -= partition.queued
            self.held_bytes -= partition.queued_bytes
            partition.queued = partition.queued_bytes = 0
        return records
