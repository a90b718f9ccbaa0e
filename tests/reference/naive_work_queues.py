"""The scheduler of the workers, written to be read: a list of records, searched each time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers.queue import Order


@dataclass
class Entry:
    record: ConsumerRecord
    is_at_work: bool = False
    is_stale: bool = False
    due_s: float | None = None
    turn: int = 0
    rank: tuple[int, ...] = ()
    """In line: the lower goes first. Empty: it is not in line."""
    retry_number: int = 0


class NaiveWorkQueues:
    def __init__(self, order: Order, passed_max: int) -> None:
        self.order, self.passed_max = order, passed_max
        self.taken_count = self.number = 0
        self.pressures: dict[TopicPartition, float] = {}
        self.entries: list[Entry] = []
        self.held: set[TopicPartition] = set()
        self.is_closed = False

    def add(self, records: list[ConsumerRecord]) -> int:
        if self.is_closed:
            return 0
        taken = [Entry(each) for each in records if each.topic_partition not in self.held]
        first = len(self.entries)
        self.entries += taken
        for number in range(first, len(self.entries)):
            if self._is_first(number):
                self._line_up(self.entries[number])
        grown: list[Entry] = []
        for entry in taken:
            head = next(
                each for each in self.entries if each is entry or self._shares_turn(each, entry)
            )
            if head is not entry and head.rank and not any(head is each for each in grown):
                grown.append(head)
        for head in grown:
            self._go_ahead(head)
        return len(taken)

    def startable(self) -> list[ConsumerRecord]:
        """Records with nothing unfinished of their key before them, in line."""
        return [
            entry.record
            for entry in sorted(
                (each for each in self.entries if each.rank),
                key=lambda each: each.rank,
            )
        ]

    def _line_up(self, entry: Entry) -> None:
        """Give a rank to an entry that may start now: behind all that are there."""
        self.number += 1
        entry.turn = self.taken_count
        entry.rank = (entry.turn, 0, self.number)

    def _go_ahead(self, entry: Entry) -> None:
        """Above the mean, an entry counts as if it had come by its weight earlier.

        The weight is what is behind it, in terms of the mean over all keys.
        """
        behind = sum(self._shares_turn(entry, each) for each in self.entries) - 1
        pressure = self.pressures.get(entry.record.topic_partition, 1.0)
        weight = int(behind * self._key_count() * pressure)
        turns = self.passed_max * weight // (self.passed_max + weight)
        rank = (entry.turn - turns, 1, self.number + 1)
        if weight > sum(not each.is_at_work for each in self.entries) and rank[0] < entry.rank[0]:
            self.number += 1
            entry.rank = rank

    def _key_count(self) -> int:
        return sum(
            self._shares_turn(entry, entry) and self._is_first(number)
            for number, entry in enumerate(self.entries)
        )

    def _is_first(self, number: int) -> bool:
        entry = self.entries[number]
        return not any(self._shares_turn(entry, before) for before in self.entries[:number])

    def _shares_turn(self, one: Entry, other: Entry) -> bool:
        if one.record.topic_partition != other.record.topic_partition or self.order == "none":
            return False
        return self.order == "partition" or (
            one.record.key is not None and one.record.key == other.record.key
        )

    def start(self, record: ConsumerRecord) -> None:
        entry = self._entry(record, is_at_work=False)
        entry.is_at_work, entry.rank = True, ()
        self.taken_count += 1

    def finish(self, record: ConsumerRecord) -> bool:
        entry = self._entry(record, is_at_work=True)
        self.entries.remove(entry)
        for each in self.entries:
            if self._shares_turn(each, entry):
                self._line_up(each)
                self._go_ahead(each)
                break
        return not entry.is_stale

    def retry(self, record: ConsumerRecord, due_s: float) -> bool:
        entry = self._entry(record, is_at_work=True)
        if entry.is_stale or record.topic_partition in self.held or self.is_closed:
            return False
        entry.is_at_work, entry.due_s = False, due_s
        self.number += 1
        entry.retry_number = self.number
        return True

    def wake(self, now_s: float) -> None:
        due = [each for each in self.entries if each.due_s is not None and each.due_s <= now_s]
        for entry in sorted(due, key=lambda each: (each.due_s, each.retry_number)):
            entry.due_s = None
            self._line_up(entry)
            if self._shares_turn(entry, entry):
                self._go_ahead(entry)

    def drop(self, places: Collection[TopicPartition]) -> list[ConsumerRecord]:
        gone = [
            entry
            for entry in self.entries
            if entry.record.topic_partition in places and not entry.is_at_work
        ]
        self.entries = [entry for entry in self.entries if not any(entry is each for each in gone)]
        return [entry.record for entry in gone]

    def lose(self, places: Collection[TopicPartition]) -> list[ConsumerRecord]:
        for entry in self.entries:
            if entry.record.topic_partition in places:
                entry.is_stale = True
        self.held -= set(places)
        return self.drop(places)

    def unfinished_count(self, place: TopicPartition) -> int:
        return sum(
            1
            for each in self.entries
            if each.record.topic_partition == place and each.is_at_work and not each.is_stale
        )

    def _entry(self, record: ConsumerRecord, *, is_at_work: bool) -> Entry:
        return next(
            each for each in self.entries if each.record is record and each.is_at_work == is_at_work
        )
