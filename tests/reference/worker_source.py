"""A source for the workers without Kafka: its logs, polls and rebalances are the test's own.

Revokes follow KIP-983: asked, completed by the next poll, or delayed to the one after it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence

from keylane.client.values import Committed, ConsumerRecord, TopicPartition
from keylane.client.workers.source import PlainSettings, SourceSettings

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


def make_record(
    place: TopicPartition, offset: int, key: bytes | None, value: bytes = b"", headers: bytes = b""
) -> ConsumerRecord:
    return ConsumerRecord(place.topic, place.partition, offset, 0, key, value, headers)


def make_records(place: TopicPartition, keys: Sequence[bytes | None]) -> list[ConsumerRecord]:
    """A record for each key, from offset 0 on."""
    return [make_record(place, offset, key) for offset, key in enumerate(keys)]


class FakeSource:
    """Logs in memory. `done`, `commits`, `given_up` and `polls` are what the workers did."""

    settings: SourceSettings = PlainSettings("billing")

    def __init__(self, *records: ConsumerRecord) -> None:
        self.logs: dict[TopicPartition, list[ConsumerRecord]] = defaultdict(list)
        self.positions: dict[TopicPartition, int] = {}
        self.done: list[ConsumerRecord] = []
        self.marks_made = 0
        self.commits: list[frozenset[tuple[TopicPartition, int]]] = []
        self.commit_errors: list[Exception] = []
        self.poll_errors: list[Exception] = []
        self.polls: list[tuple[float, frozenset[TopicPartition]]] = []
        """Time of each, and what was paused then."""
        self.given_up: list[tuple[TopicPartition, int]] = []
        """Partitions whose revoke was completed, with the number of commits before."""
        self.offsets: dict[TopicPartition, int] = {}
        """Committed, where a test sets them."""
        self.seeks: list[tuple[TopicPartition, int]] = []
        self._paused: set[TopicPartition] = set()
        self._next: set[TopicPartition] = set()
        self._thereafter: set[TopicPartition] = set()
        self._lost: set[TopicPartition] = set()
        self._news = asyncio.Event()
        self.append(*records)

    def append(self, *records: ConsumerRecord) -> None:
        for record in records:
            place = record.topic_partition
            self.logs[place].append(record)
            self.positions.setdefault(place, 0)
        self._news.set()

    def assign(self, place: TopicPartition, position: int = 0) -> None:
        self.positions[place] = position
        self._news.set()

    def ask_back(self, *places: TopicPartition) -> None:
        self._next |= set(places) & self.positions.keys()
        self._news.set()

    def lose(self, *places: TopicPartition) -> None:
        for place in places:
            self.positions.pop(place, None)
            self._paused.discard(place)
        self._next -= set(places)
        self._thereafter -= set(places)
        self._lost |= set(places)
        self._news.set()

    async def getmany(
        self,
        *partitions: TopicPartition,
        timeout_ms: int = 0,
        max_records: int | None = None,
        max_partition_records: int | None = None,
    ) -> list[ConsumerRecord]:
        loop = asyncio.get_running_loop()
        self.polls.append((loop.time(), frozenset(self._paused)))
        if self.poll_errors:
            raise self.poll_errors.pop(0)
        for place in self._next:
            self.given_up.append((place, len(self.commits)))
            del self.positions[place]
            self._paused.discard(place)
        self._next, self._thereafter = self._thereafter, set()
        self._lost = set()
        ends_s = loop.time() + timeout_ms / 1000
        while True:
            self._news.clear()
            count_max = max_records or 500
            records = self._take(count_max, max_partition_records or count_max)
            left_s = ends_s - loop.time()
            if records or self._next or self._lost or left_s <= 0:
                return records
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                return []

    def _take(self, count_max: int, of_each_max: int) -> list[ConsumerRecord]:
        taken: list[ConsumerRecord] = []
        for place, position in self.positions.items():
            if place in self._paused or place in self._next | self._thereafter:
                continue
            count = min(count_max - len(taken), of_each_max)
            found = self.logs[place][position : position + count]
            self.positions[place] += len(found)
            taken += found
        return taken

    def mark_done(self, *records: ConsumerRecord) -> None:
        self.marks_made += 1
        self.done += [each for each in records if each.topic_partition in self.positions]

    async def commit(self) -> None:
        await asyncio.sleep(0)
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        self.commits.append(frozenset((each.topic_partition, each.offset) for each in self.done))

    async def committed(self, partition: TopicPartition, /) -> Committed | None:
        offset = self.offsets.get(partition)
        return None if offset is None else Committed(offset)

    def seek(self, partition: TopicPartition, offset: int, /) -> None:
        self.seeks.append((partition, offset))
        self.assign(partition, offset)

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.positions)

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused)

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused |= set(partitions)
        self._news.set()

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused -= set(partitions)
        self._news.set()

    def to_be_revoked(self) -> frozenset[TopicPartition]:
        return frozenset(self._next)

    def lost(self) -> frozenset[TopicPartition]:
        return frozenset(self._lost)

    def delay_revoke(self, partitions: Collection[TopicPartition], /) -> bool:
        delayed = self._next & set(partitions)
        self._next -= delayed
        self._thereafter |= delayed
        return not self._lost & set(partitions)
