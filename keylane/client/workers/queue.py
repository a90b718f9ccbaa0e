"""Records that wait for work, and their turn: one of a key at a time, keys side by side.

In: records of polls, ends of work, times. Out: the next record to work on. Time is an argument.
The order is that of a partition (KIP draft "Cooperative consumer processing semantic": order by
key): a key in two partitions is two keys.

Of the keys whose turn has come, the one with most records behind it goes first, within a bound
(docs/decisions/050; Tassiulas, Ephremides 1992: "Stability properties of constrained queueing
systems and scheduling policies for maximum throughput in multihop radio networks").
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
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
        "behind",
        "is_in_line",
        "key",
        "partition",
        "rank",
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
        self.size_bytes = size_bytes
        self.term = partition.term
        self.behind: deque[ConsumerRecord] | None = None
        """Later records of the key, in the order of arrival; None: there are none."""
        self.turn = self.rank = turn
        """turn: how many records had been taken when this one came into line. rank: the turn that
        it counts with, which is lower where many are behind it."""
        self.is_in_line = True
        self.attempts = 0
        """Failed ones."""
        self.undelivered: Exception | None = None
        """The last error, while the record's dead letter is still to be written."""

    def again(self, turn: int) -> Work:
        """Return the same work, in line for a further attempt."""
        work = Work(self.record, self.key, self.partition, self.size_bytes, turn)
        work.term, work.behind = self.term, self.behind
        work.attempts, work.undelivered = self.attempts, self.undelivered
        return work


class _Partition:
    """Records of one partition that wait and are at work.

    `heads` has the work of each key that is in line, in progress or waiting for an attempt.
    """

    __slots__ = (
        "at_work",
        "heads",
        "is_held",
        "low",
        "pressure",
        "queued",
        "queued_bytes",
        "term",
        "unfinished",
    )

    def __init__(self, pressure: float) -> None:
        self.heads: dict[bytes, Work] = {}
        self.queued = self.queued_bytes = 0
        self.low = -1
        """Of `queued`: that few are worth a call."""
        self.pressure = pressure
        """A record behind counts as so many, for those that are not polled yet."""
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

    passed_max: records that go before one that came into line earlier, at most. on_low: see
    `watch`.

    Invariants (`check`): a key has one record that is in line, at work or waits for an attempt; all
    others are behind it; counts and bytes are those of the records held; nothing of a held
    partition is queued.
    """

    def __init__(self, order: Order = "key", passed_max: int = 1000) -> None:
        self._is_by_key, self._is_by_partition = order == "key", order == "partition"
        self.passed_max = passed_max
        self.on_low: Callable[[], None] = _nothing
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._pressures: Mapping[TopicPartition, float] = {}
        self._ready: deque[Work] = deque()
        """Works in the order of their turns."""
        self._ahead: list[tuple[float, int, Work]] = []
        """A heap by rank of those with more behind them than the mean key; a work may be in both,
        and is passed over where it is not in line any more."""
        self._ahead_number = 0
        self.ready_count = 0
        """Records that a free worker may take now."""
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
        partition = _Partition(1.0)
        ready, by_key, by_partition = self._ready, self._is_by_key, self._is_by_partition
        count = bytes_added = 0
        grown: dict[Work, None] = {}
        for record in records:
            if record[1] != number or record[0] != topic:
                topic, number = record[0], record[1]
                place = TopicPartition(topic, number)
                partition = self._partition(place)
            if partition.is_held:
                continue
            size_bytes = size_of(record)
            count += 1
            bytes_added += size_bytes
            partition.queued += 1
            partition.queued_bytes += size_bytes
            key = record[4] if by_key else _ALL if by_partition else None
            if key is not None and key in partition.heads:
                head = partition.heads[key]
                if head.behind is None:
                    head.behind = deque()
                head.behind.append(record)
                if head.is_in_line:
                    grown[head] = None
                continue
            work = Work(record, key, partition, size_bytes, self._turn)
            ready.append(work)
            self.ready_count += 1
            if key is not None:
                partition.heads[key] = work
                self._key_count += 1
        self.queued_count += count
        self.held_bytes += bytes_added
        self.added_count += count
        self.added_bytes += bytes_added
        for work in grown:
            self._go_ahead(work)
        if len(self._ready) + len(self._ahead) > 2 * self.ready_count:
            self._tidy()
        return count

    def take(self) -> Work | None:
        """Return the next record to work on; None: none may start now."""
        ready, ahead = self._ready, self._ahead
        while ready and not ready[0].is_in_line:
            ready.popleft()
        while ahead and not ahead[0][2].is_in_line:
            heapq.heappop(ahead)
        if ahead and (not ready or ahead[0][0] < ready[0].turn):
            work = heapq.heappop(ahead)[2]
        elif ready:
            work = ready.popleft()
        else:
            return None
        work.is_in_line = False
        self.ready_count -= 1
        self._turn += 1
        partition = work.partition
        partition.queued -= 1
        partition.queued_bytes -= work.size_bytes
        partition.at_work += 1
        partition.unfinished += 1
        self.queued_count -= 1
        self.at_work_count += 1
        if partition.queued <= partition.low:
            self.on_low()
        return work

    def watch(self, places: Collection[TopicPartition], low_count: int) -> None:
        """Call `on_low` with each record taken of these that leaves so few waiting, or fewer."""
        for partition in self._partitions.values():
            partition.low = -1
        for place in places:
            if place in self._partitions:
                self._partitions[place].low = low_count

    def press(self, pressures: Mapping[TopicPartition, float]) -> None:
        """Let each record behind a key of these count as so many, from now on; 1 of all others."""
        self._pressures = pressures
        for place, partition in self._partitions.items():
            partition.pressure = pressures.get(place, 1.0)

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
            behind = work.behind
            if behind:
                record = behind.popleft()
                head = Work(record, key, partition, size_of(record), self._turn)
                partition.heads[key] = head
                self.ready_count += 1
                head.behind = behind
                if not self._go_ahead(head):
                    self._ready.append(head)
            else:
                del partition.heads[key]
                self._key_count -= 1
        return is_current

    def _go_ahead(self, work: Work) -> bool:
        """Give a record in line a better rank, where its key has more than the mean behind it."""
        weight = int(len(work.behind or ()) * self._key_count * work.partition.pressure)
        # The more the better, but never by `passed_max`: cut off there, hot keys would take turns.
        rank = work.turn - self.passed_max * weight // (self.passed_max + weight)
        if weight <= self.queued_count or rank >= work.rank:
            return False
        work.rank = rank
        self._ahead_number += 1
        heapq.heappush(self._ahead, (rank, self._ahead_number, work))
        return True

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
            work = heapq.heappop(self._retries)[2].again(self._turn)
            if work.key is not None:
                work.partition.heads[work.key] = work
            if not self._go_ahead(work):
                self._ready.append(work)
            self.ready_count += 1
            count += 1
        return count

    def hold(self, places: Collection[TopicPartition]) -> list[ConsumerRecord]:
        """Let nothing more of these begin, until `unhold`; what is at work goes on.

        Returns the records that waited; they are dropped.
        """
        partitions = [self._partition(place) for place in places]
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
    def retry_count(self) -> int:
        """Records that wait for a further attempt."""
        return len(self._retries)

    def keys_waiting_count(self) -> int:
        """Return the keys with records behind one that is not finished. Cost: all keys held."""
        return sum(
            1 for each in self._partitions.values() for head in each.heads.values() if head.behind
        )

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold. Cost: all records held."""
        line = self._line()
        heads = [*line, *(work for _, _, work in self._retries)]
        assert self.ready_count == len(line)
        taken = [(id(work.partition), work.key) for work in heads if work.key is not None]
        assert len(taken) == len(set(taken)), "a key twice"
        behind = 0
        for partition in self._partitions.values():
            own = [work for work in heads if work.partition is partition]
            waiting = [each for head in partition.heads.values() for each in head.behind or ()]
            behind += len(waiting)
            assert {id(partition.heads[work.key]) for work in own if work.key is not None} == {
                id(work) for work in own if work.key is not None
            }
            assert partition.queued == len(own) + len(waiting)
            assert partition.queued_bytes == sum(
                size_of(record) for record in [*waiting, *(work.record for work in own)]
            )
            assert not (partition.is_held and partition.queued), "a held partition has a queue"
            assert 0 <= partition.unfinished <= partition.at_work
        assert self.queued_count == len(heads) + behind
        assert self._key_count == sum(len(each.heads) for each in self._partitions.values())

    def _partition(self, place: TopicPartition) -> _Partition:
        partition = self._partitions.get(place)
        if partition is None:
            partition = self._partitions[place] = _Partition(self._pressures.get(place, 1.0))
        return partition

    def _drop(self, dropped: Collection[_Partition]) -> list[ConsumerRecord]:
        gone = {id(partition) for partition in dropped}
        heads = [work for work in self._line() if id(work.partition) in gone]
        self.ready_count -= len(heads)
        heads += [work for _, _, work in self._retries if id(work.partition) in gone]
        self._retries = [each for each in self._retries if id(each[2].partition) not in gone]
        heapq.heapify(self._retries)
        records: list[ConsumerRecord] = []
        for work in heads:
            work.is_in_line = False
            records.append(work.record)
            records += work.behind or ()
            if work.key is not None:
                del work.partition.heads[work.key]
                self._key_count -= 1
        for partition in dropped:
            for head in partition.heads.values():  # at work
                records += head.behind or ()
                head.behind = None
            self.queued_count -= partition.queued
            self.held_bytes -= partition.queued_bytes
            partition.queued = partition.queued_bytes = 0
        return records

    def _tidy(self) -> None:
        """Let go of works that were taken by their other entry: they hold records in memory."""
        self._ready = deque(work for work in self._ready if work.is_in_line)
        self._ahead = [each for each in self._ahead if each[2].is_in_line]
        heapq.heapify(self._ahead)

    def _line(self) -> list[Work]:
        """Return the works in line, each once."""
        works = [*self._ready, *(work for _, _, work in self._ahead)]
        return list({id(work): work for work in works if work.is_in_line}.values())


def _nothing() -> None:
    pass
