"""The Python consumer on a plain Kafka: reads what stock producers wrote, commits as others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from keylane.client import Consumer, TopicPartition
from keylane.client import errors as e
from keylane.client.raw_headers import headers
from keylane.client.values import ConsumerRecord
from keylane.embedded import EmbeddedKafka
from tests.integration.conftest import KeylaneFactory, TopicFactory
from tests.integration.harness import CODECS


@asynccontextmanager
async def consuming(bootstrap: str, *topics: str, **options: Any) -> AsyncIterator[Consumer]:
    async with Consumer(
        *topics, bootstrap_servers=bootstrap, auto_offset_reset="earliest", **options
    ) as consumer:
        yield consumer


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 -- of another process
        await asyncio.sleep(0.02)


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Read so many records."""
    found: list[ConsumerRecord] = []
    while len(found) < count:
        records = await consumer.getmany(timeout_ms=30_000)
        assert records.count, f"{len(found)} of {count} records came"
        found += records.all()
    return found


def fill(bootstrap: str, topic: str, count: int, **options: Any) -> None:
    """Write records with keys, every third one with headers, every fifth one without a value."""
    # A leader that is new refuses the first batches, which must not come behind later ones.
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    producer = Producer({**settings, **options})
    for index in range(count):
        producer.produce(
            topic,
            None if index % 5 == 0 else b"value-%d" % index,
            key=b"key-%d" % index,
            headers=[("a", b"%d" % index), ("b", None)] if index % 3 == 0 else None,
            timestamp=1_700_000_000_000 + index,
            partition=0,
        )
    producer.flush()


@pytest.mark.parametrize("codec", CODECS)
async def test_records_come_as_they_were_written(
    kafka: str, topic: TopicFactory, codec: str
) -> None:
    """Offsets, times, keys, values and headers, in every codec."""
    name = topic(codec)
    fill(kafka, name, 3_000, **{"compression.type": codec})

    async with consuming(kafka, name) as consumer:
        found = await read(consumer, 3_000)

    assert [record.offset for record in found] == list(range(3_000))
    assert [record.timestamp_ms for record in found] == [
        1_700_000_000_000 + index for index in range(3_000)
    ]
    for index, record in enumerate(found):
        assert record.key == b"key-%d" % index
        assert record.value == (None if index % 5 == 0 else b"value-%d" % index)
        expected = (("a", b"%d" % index), ("b", None)) if index % 3 == 0 else ()
        assert headers(record) == expected


async def test_a_group_goes_on_where_it_committed(kafka: str, topic: TopicFactory) -> None:
    """Without members, by `assign`: generation -1; a plain offset for records done in a row."""
    name = topic()
    fill(kafka, name, 100)
    part = TopicPartition(name, 0)

    async with consuming(kafka, group_id=name, enable_auto_commit=False) as consumer:
        consumer.assign([part])
        assert await consumer.committed(part) is None
        found = await read(consumer, 100)
        consumer.mark_done(*found[:40], *found[60:])
        await consumer.commit()
        committed = await consumer.committed(part)
    assert committed is not None and committed.offset == 40
    async with consuming(kafka, group_id=name) as consumer:
        consumer.assign([part])
        assert [record.offset for record in await read(consumer, 60)] == list(range(40, 100))
    async with consuming(kafka, group_id=name) as consumer:
        consumer.assign([part])
        assert await consumer.position(part) == 100


async def test_aborted_records_are_not_read(kafka: str, topic: TopicFactory) -> None:
    """read_committed skips them and the markers; read_uncommitted has all."""
    name = topic()
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": name})
    producer.init_transactions()
    for turn in range(6):
        producer.begin_transaction()
        for index in range(10):
            producer.produce(name, b"%d-%d" % (turn, index), partition=0)
        producer.flush()
        if turn % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    part = TopicPartition(name, 0)

    async with consuming(kafka, name, isolation_level="read_committed") as consumer:
        found = await read(consumer, 30)
        # The coordinator answers before the last marker is written, and no record is behind it.
        while (position := await consumer.position(part)) < 66:
            found += (await consumer.getmany(timeout_ms=300)).all()
    async with consuming(kafka, name) as consumer:
        everything = await read(consumer, 60)

    assert [record.value for record in found] == [
        b"%d-%d" % (turn, index) for turn in (0, 2, 4) for index in range(10)
    ]
    assert position == 66
    assert len(everything) == 60


async def test_offsets_by_time_and_ends(kafka: str, topic: TopicFactory) -> None:
    """Beginning, end, the first record at or after a time; none after the last."""
    name = topic(partitions=2)
    fill(kafka, name, 50)
    part, other = TopicPartition(name, 0), TopicPartition(name, 1)

    async with consuming(kafka) as consumer:
        consumer.assign([part, other])

        assert await consumer.beginning_offsets([part, other]) == {part: 0, other: 0}
        assert await consumer.end_offsets([part, other]) == {part: 50, other: 0}
        times = {part: 1_700_000_000_020, other: 0}
        found = await consumer.offsets_for_times(times)
        assert found == {part: (20, 1_700_000_000_020), other: None}
        with pytest.raises(e.TopicUnknown):
            await consumer.end_offsets([TopicPartition(name, 7)])
        consumer.seek(part, 45)
        assert (await consumer.getone()).offset == 45


async def test_records_come_while_they_are_written(kafka: str, topic: TopicFactory) -> None:
    """A poll that waits gets them without another one."""
    name = topic()
    async with consuming(kafka, name) as consumer:
        await consumer.position(TopicPartition(name, 0))
        waiting = asyncio.ensure_future(consumer.getmany(timeout_ms=60_000))  # noqa: TID251
        await asyncio.to_thread(fill, kafka, name, 1)

        assert (await waiting).count == 1


async def test_a_broker_that_starts_again_is_read_on(own_broker: EmbeddedKafka) -> None:
    """The connection is lost and made again; no record is missing, none comes twice."""
    name = "restarted"
    await asyncio.to_thread(fill, own_broker.bootstrap, name, 10)
    async with consuming(own_broker.bootstrap) as consumer:
        consumer.assign([TopicPartition(name, 0)])
        found = await read(consumer, 10)
        own_broker.kill()
        await asyncio.to_thread(own_broker.start)
        await asyncio.to_thread(fill, own_broker.bootstrap, name, 10)

        found += await read(consumer, 10)

    assert [record.offset for record in found] == list(range(20))


async def test_no_bootstrap_server_is_an_error_that_names_them() -> None:
    """As soon as the consumer starts."""
    with pytest.raises(e.ClusterUnreachable, match=r"127\.0\.0\.1:[12] .*127\.0\.0\.1:[12] "):
        await Consumer("t", bootstrap_servers=["127.0.0.1:1", "127.0.0.1:2"]).start()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_two_members_share_a_topic(kafka: str, topic: TopicFactory, protocol: str) -> None:
    """Each has two partitions, also of what is written then; nothing comes twice or is missing."""
    name = topic(protocol, partitions=4)
    options: dict[str, Any] = {
        "group_id": name, "group_protocol": protocol, "heartbeat_interval_ms": 300,
    }  # fmt: skip
    seen: list[tuple[int, int]] = []
    ends = asyncio.Event()

    async def consume(consumer: Consumer) -> None:
        while not ends.is_set():
            records = await consumer.getmany(timeout_ms=100)
            seen.extend((record.partition, record.offset) for record in records.all())

    def write() -> None:
        producer = Producer({"bootstrap.servers": kafka})
        for index in range(400):
            producer.produce(name, b"v", partition=index % 4)
        producer.flush()

    await asyncio.to_thread(write)
    async with consuming(kafka, name, **options) as first:
        reading = [asyncio.ensure_future(consume(first))]  # noqa: TID251
        await until(lambda: len(seen) >= 400)
        async with consuming(kafka, name, **options) as second:
            reading.append(asyncio.ensure_future(consume(second)))  # noqa: TID251
            # The answers of one rebalance come to the members one after the other.
            await until(lambda: [len(each.assignment()) for each in (first, second)] == [2, 2])
            shares = [first.assignment(), second.assignment()]
            await asyncio.to_thread(write)
            await until(lambda: len(seen) >= 800)
            ends.set()
            await asyncio.gather(*reading)

    assert sorted(seen) == [(part, offset) for part in range(4) for offset in range(200)]
    assert not shares[0] & shares[1]


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_lanes_are_read_through_keylane(
    keylane: KeylaneFactory, kafka: str, topic: TopicFactory, protocol: str
) -> None:
    """Four lanes of each of two partitions, each key in one lane; the offsets end in Kafka."""
    name = topic(f"lanes-{protocol}", partitions=2)
    proxy = await asyncio.to_thread(keylane, f"{name}=4")
    producer = Producer({"bootstrap.servers": kafka})
    for index in range(600):
        producer.produce(name, b"%d" % index, key=b"key-%d" % (index % 30))
    await asyncio.to_thread(producer.flush)

    async with consuming(
        proxy.bootstrap, name, group_id=name, group_protocol=protocol, auto_commit_interval_ms=100
    ) as consumer:
        found = await read(consumer, 600)
        assert len(consumer.assignment()) == 8
    lanes: dict[bytes | None, set[int]] = {}
    for record in found:
        lanes.setdefault(record.key, set()).add(record.partition)
    assert all(len(of_key) == 1 for of_key in lanes.values())
    assert len({lane for of_key in lanes.values() for lane in of_key}) > 4
    assert sorted(int(record.value or b"") for record in found) == list(range(600))
    async with consuming(kafka, group_id=name) as consumer:
        parts = [TopicPartition(name, 0), TopicPartition(name, 1)]
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        committed = {part: await consumer.committed(part) for part in parts}
    assert {part: each and each.offset for part, each in committed.items()} == ends
