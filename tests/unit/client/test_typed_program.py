"""A user's program, for type checkers: `assert_type` says what each public call gives.

mypy checks it with the rest of the tree. It runs only as far as no broker is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_type

import numpy as np
from aiokafka import AIOKafkaProducer
from numpy.typing import NDArray

import keylane
from keylane import assign
from keylane.client import (
    Committed,
    Consumer,
    ConsumerRecord,
    RebalanceListener,
    TopicPartition,
)
from keylane.client.errors import PartitionLost
from keylane.client.raw_headers import headers
from keylane.client.records import RecordList, Records
from keylane.client.workers import (
    DeadLetters,
    ExactlyOnce,
    Output,
    Retry,
    ShareSource,
    Workers,
    WorkFailed,
)
from keylane.keyrange.space import KeyRange

PART = TopicPartition("orders", 0)
Keys = dict[TopicPartition, tuple[KeyRange, ...]]


class Listener(RebalanceListener):
    """Overrides one method with ranges, and one without."""

    def __init__(self) -> None:
        self.owned: Keys = {}

    async def on_partitions_with_ranges_assigned(self, ranges: Keys) -> None:
        self.owned |= ranges

    async def on_partitions_revoked(self, parts: frozenset[TopicPartition]) -> None:
        for part in parts:
            self.owned.pop(part, None)


async def read(consumer: Consumer) -> None:
    """Polls, commits, positions."""
    records = await consumer.getmany(PART, timeout_ms=500, max_records=100)
    assert_type(records, Records)
    for part, of_part in records.items():
        assert_type(part, TopicPartition)
        assert_type(of_part, RecordList)
        assert_type(of_part.values, list[bytes | None])
        assert_type(of_part.offsets, NDArray[np.int64])
        assert_type(of_part[0], ConsumerRecord)
    for record in records.all():
        assert_type(record.key, bytes | None)
        assert_type(headers(record), tuple[tuple[str, bytes | None], ...])
        consumer.mark_done(record)
    assert_type(await consumer.getone(), ConsumerRecord)
    async for each in consumer:
        assert_type(each, ConsumerRecord)
        break
    await commit(consumer, list(records.all()))
    assert_type(await consumer.position(PART), int)
    assert_type(await consumer.beginning_offsets([PART]), dict[TopicPartition, int])
    found = await consumer.offsets_for_times({PART: 0})
    assert_type(found, dict[TopicPartition, tuple[int, int] | None])
    consumer.pause(*consumer.assignment())
    consumer.assign([PART])
    consumer.assign({PART: [KeyRange(0, 99)], TopicPartition("orders", 1): ()})
    assert_type(consumer.key_ranges(), Keys)


async def commit(consumer: Consumer, records: list[ConsumerRecord]) -> None:
    """Every form of a commit."""
    try:
        await consumer.commit()
        await consumer.commit(records)
        await consumer.commit(record for record in records)
        await consumer.commit({PART: 7})
        await consumer.commit({PART: [(3, 5), (8, 8)]})
        offsets: dict[TopicPartition, int] = {PART: 7}
        await consumer.commit(offsets)
        ranges: dict[TopicPartition, list[tuple[int, int]]] = {PART: [(3, 5)]}
        await consumer.commit(ranges)
    except PartitionLost as error:
        assert_type(error.retriable, bool)
    committed = await consumer.committed(PART)
    if committed is not None:
        assert_type(committed, Committed)
        assert_type(committed.ranges, tuple[tuple[int, int], ...])


async def work(record: ConsumerRecord) -> None:
    """A handler on the loop."""


def work_in_thread(record: ConsumerRecord) -> int:
    """A handler in threads."""
    return len(record.value or b"")


async def transform(record: ConsumerRecord) -> list[Output]:
    """A handler whose results are written."""
    return [Output("bills", record.key, record.value)]


async def write_letter(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> None:
    """What writes dead letters."""


async def run_workers(producer: AIOKafkaProducer) -> None:
    """Workers over both kinds of source, and exactly once."""
    letters = DeadLetters("orders-dead", write_letter)
    async with Consumer("orders", group_id="billing", listener=Listener()) as consumer:
        async with Workers(consumer, work, retry=Retry(attempts=3), dead_letters=letters) as same:
            assert_type(same, Workers)
            try:
                await same.run()
            except WorkFailed as failure:
                assert_type(failure.offset, int)
        letters = DeadLetters("orders-dead", producer)
        Workers(consumer, work_in_thread, executor="threads", dead_letters=letters)
        ExactlyOnce(consumer, transform, producer, concurrency=8, order="partition")
    async with (
        ShareSource({"group.id": "billing"}, ["orders"]) as source,
        Workers(source, work) as workers,
    ):
        await workers.run()


def test_assign_has_the_type_of_what_it_returns() -> None:
    """Both names of it."""
    plan = keylane.assign({"orders": 2}, ["a", "b"], strategy="round-robin")
    again = assign({"orders": 2}, 2)

    assert_type(plan, dict[str, dict[tuple[str, int], tuple[KeyRange, ...]]])
    assert set(plan) == {"a", "b"} and len(again) == 2


def test_options_are_checked_by_name() -> None:
    """A wrong name or kind is an error to a type checker."""
    options: Mapping[str, Any] = {"no_such_option": 1}

    consumer = Consumer("orders", group_id="billing", max_poll_records=10)

    assert_type(consumer.settings.max_poll_records, int)
    assert "no_such_option" in options
