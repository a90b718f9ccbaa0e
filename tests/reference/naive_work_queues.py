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


class NaiveWorkQueues:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.entries: list[Entry] = []
        self.held: set[TopicPartition] = set()
        self.is_closed = False

    def add(self, records: list[ConsumerRecord]) -> int:
        if self.is_closed:
            return 0
        taken = [Entry(each) for each in records if each.topic_partition not in self.held]
        self.entries += taken
        return len(taken)

    def startable(self) -> list[ConsumerRecord]:
        """Records with nothing unfinished of their key before them."""
        return [
            entry.record
            for number, entry in enumerate(self.entries)
            if not entry.is_at_work
            and entry.due_s is None
            and not any(self._shares_turn(entry, before) for before in self.entries[:number])
        ]

    def _shares_turn(self, one: Entry, other: Entry) -> bool:
        if one.record.topic_partition != other.record.topic_partition or self.order == "none":
            return False
        return self.order == "partition" or (
            one.record.key is not None and one.record.key == other.record.key
        )

    def start(self, record: ConsumerRecord) -> None:
        self._entry(record, is_at_work=False).is_at_work = True

    def finish(self, record: ConsumerRecord) -> bool:
        entry = self._entry(record, is_at_work=True)
        self.entries.remove(entry)
        return not entry.is_stale

    def retry(self, record: ConsumerRecord, due_s: float) -> bool:
        entry = self._entry(record, is_at_work=True)
        if entry.is_stale or record.topic_partition in self.held or self.is_closed:
            return False
        entry.is_at_work, entry.due_s = False, due_s
        return True

    def wake(self, now_s: float) -> None:
        for entry in self.entries:
            if entry.due_s is not None and entry.due_s <= now_s:
                entry.due_s = None

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
