"""Offset ranges and key ranges by the Python consumer, through a real keylane."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer

from keylane.client import (
    Consumer,
    ConsumerRecord,
    IndividualCommitNotAllowed,
    KeyRange,
    RangeFetchNotAllowed,
    TopicPartition,
)
from keylane.keyrange.hash import key_hash
from keylane.keyrange.space import HASH_MAX
from tests.integration.harness import produce
from tests.integration.keylane_process import PATIENCE
from tests.integration.range_wire import RangeWire, Standing
from tests.integration.test_group_handover import stable_offsets

LOWER, UPPER = KeyRange(0, HASH_MAX // 2), KeyRange(HASH_MAX // 2 + 1, HASH_MAX)
KEYS = [f"key-{number}" for number in range(20)]
WAIT_S = 20.0 * PATIENCE


@pytest.fixture
def group() -> str:
    return f"client-{uuid.uuid4()}"


def options(bootstrap: str, group: str | None, **more: Any) -> dict[str, Any]:
    """Options of a consumer that commits only by call."""
    return {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        **more,
    }


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """So many records, and no more that are waiting."""
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += (await consumer.getmany(timeout_ms=500)).all()
    return found + list((await consumer.getmany(timeout_ms=200)).all())


def filled(kafka: str, topic: Any, count: int = 100) -> str:
    """A topic of one partition and so many records."""
    name: str = topic("orders", partitions=1)
    produce(kafka, name, KEYS, count // len(KEYS))
    return name


@pytest.mark.parametrize("shares", [True, False])
async def test_records_that_are_committed_do_not_come_again(
    kafka, keylane, topic, group, *, shares
) -> None:
    """S=40 with [43-45] and [48-49] of 51 offsets: 41, 42, 46, 47, 50 come, and are committed."""
    name: str = topic("plain", partitions=1)
    produce(kafka, name, [f"key-{number}" for number in range(51)], 1)
    proxy = keylane()
    with RangeWire(proxy.bootstrap) as wire:
        assert wire.commit(group, name, 0, offset=41, key_ranges=()).code == 0
        assert wire.commit(group, name, 0, [(43, 45), (48, 49)]).stable_offset == 40

        settings = options(proxy.bootstrap, group, allow_individual_commit=shares)
        async with Consumer(name, **settings) as consumer:
            records = await read(consumer, 5)
            assert [record.offset for record in records] == [41, 42, 46, 47, 50]
            consumer.mark_done(*records)
            await consumer.commit()

        assert wire.standing(group, name, 0) == Standing(51, (), 50)
    assert stable_offsets(kafka, group, name, 1) == [51]


@pytest.mark.parametrize("protocol", [None, "consumer", "classic"])
async def test_records_of_a_lane_that_are_committed_do_not_come_again(
    kafka, keylane, topic, group, protocol
) -> None:
    """The same of the second lane of two, which has all records; alone and in a group."""
    name: str = topic("orders", partitions=1)
    produce(kafka, name, [key for key in KEYS if UPPER.contains(key_hash(key.encode()))][:3], 17)
    proxy = keylane(f"{name}=2")
    lane = TopicPartition(name, 1)
    more = {} if protocol is None else {"group_protocol": protocol}
    with RangeWire(proxy.bootstrap) as wire:
        assert wire.commit(group, name, 1, offset=41).code == 0
        assert wire.commit(group, name, 1, [(43, 45), (48, 49)]).code == 0

        topics = [] if protocol is None else [name]
        consumer = Consumer(*topics, **options(proxy.bootstrap, group, **more))
        if protocol is None:
            consumer.assign([lane])
        async with consumer:
            records = await read(consumer, 5)
            assert [(r.partition, r.offset) for r in records] == [
                (1, offset) for offset in (41, 42, 46, 47, 50)
            ]
            before = await consumer.committed(lane)
            assert before is not None
            assert (before.offset, before.ranges) == (41, ((43, 45), (48, 49)))
            assert await consumer.position(lane) == 51
            consumer.mark_done(*records)
            await consumer.commit()
            after = await consumer.committed(lane)
            assert after is not None
            assert (after.offset, after.ranges) == (51, ())

        standing = wire.standing(group, name, 1)
        assert (standing.offset, standing.ranges) == (51, ())


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_lane_goes_on_behind_what_is_done_of_it(
    kafka, keylane, topic, group, protocol
) -> None:
    """Every third record is done by the first member; the second one gets the others only."""
    name = filled(kafka, topic)
    proxy = keylane(f"{name}=4")
    async with Consumer(
        name, **options(proxy.bootstrap, group, group_protocol=protocol)
    ) as consumer:
        records = await read(consumer, 100)
        done = records[::3]
        await consumer.commit(done)
        assert consumer.key_ranges() == {TopicPartition(name, 0): (KeyRange(0, HASH_MAX),)}
    async with Consumer(
        name, **options(proxy.bootstrap, group, group_protocol=protocol)
    ) as consumer:
        rest = await read(consumer, 100 - len(done))
        assert {r.offset for r in rest} == set(range(100)) - {r.offset for r in done}
        assert len(rest) == 100 - len(done)
        await consumer.commit(rest)
    assert stable_offsets(kafka, group, name, 1) == [100]


async def test_a_lane_that_is_paused_falls_behind_with_its_log(
    kafka, keylane, topic, group
) -> None:
    """Its lag is known though nothing is asked for it: answers for others say where it ends."""
    name = filled(kafka, topic)
    proxy = keylane(f"{name}=4")
    async with Consumer(name, **options(proxy.bootstrap, group)) as consumer:
        assert len(await read(consumer, 100)) == 100
        paused, *others = sorted(consumer.assignment())
        consumer.pause(paused)
        # The request that is under way asks for this lane, too. A batch without a record of it
        # would move the lane on.
        answered = consumer.metrics()["fetches"]
        while consumer.metrics()["fetches"] == answered:
            assert not await consumer.getmany(timeout_ms=100)
        produce(kafka, name, KEYS, 5)
        first = KeyRange(0, (HASH_MAX + 1) // 4 - 1)
        keys = [key for key in KEYS if not first.contains(key_hash(key.encode()))]
        await read(consumer, 5 * len(keys))
        # The end that an answer says may be older than the last record.
        while any(map(consumer.current_lag, others)) or consumer.current_lag(paused) != 100:
            assert not await consumer.getmany(timeout_ms=100)
        assert len(others) == 3
        assert consumer.metrics()["records_behind"] == 100


@pytest.mark.parametrize("has_lanes", [False, True])
async def test_two_consumers_share_a_partition_without_a_group(
    kafka, keylane, topic, group, *, has_lanes
) -> None:
    """Half of the keys each: disjoint, complete, and committed up to the log's end."""
    name = filled(kafka, topic)
    accepted = f"accept_range_fetch=[{name}]"
    proxy = keylane(*([f"{name}=4"] if has_lanes else []), args=["--set", accepted])
    part = TopicPartition(name, 0)
    seen: dict[KeyRange, list[ConsumerRecord]] = {}
    for half in (LOWER, UPPER):
        expected = [key for key in KEYS if half.contains(key_hash(key.encode()))]
        consumer = Consumer(**options(proxy.bootstrap, group))
        consumer.assign({part: [half]})
        async with consumer:
            seen[half] = await read(consumer, 5 * len(expected))
            assert {(r.key or b"").decode() for r in seen[half]} == set(expected)
            assert await consumer.position(part) == 100
            assert await consumer.end_offsets([part]) == {part: 100}
            assert await consumer.beginning_offsets([part]) == {part: 0}
            await consumer.commit(seen[half])
            committed = await consumer.committed(part)
            assert committed is not None and committed.offset == 100
    offsets = [record.offset for half in seen.values() for record in half]
    assert sorted(offsets) == list(range(100))
    assert stable_offsets(kafka, group, name, 1) == [100]


@pytest.mark.parametrize("has_lanes", [False, True])
async def test_halves_are_read_at_the_same_time(kafka, keylane, topic, group, *, has_lanes) -> None:
    """Two consumers at once, of two partitions each; the timer commits what is done."""
    name: str = topic("orders", partitions=2)
    for partition in range(2):
        produce(kafka, name, KEYS, 10 * (partition + 1), partition=partition)
    accepted = f"accept_range_fetch=[{name}]"
    proxy = keylane(*([f"{name}=4"] if has_lanes else []), args=["--set", accepted])
    parts = [TopicPartition(name, partition) for partition in range(2)]

    async def read_half(half: KeyRange) -> list[ConsumerRecord]:
        more = {"enable_auto_commit": True, "auto_commit_interval_ms": 100}
        consumer = Consumer(**options(proxy.bootstrap, group, **more))
        consumer.assign({part: [half] for part in parts})
        count = 30 * sum(half.contains(key_hash(key.encode())) for key in KEYS)
        async with consumer:
            records = await read(consumer, count)
            assert [await consumer.position(part) for part in parts] == [200, 400]
        assert all(half.contains(key_hash(record.key or b"")) for record in records)
        return records

    halves = await asyncio.gather(read_half(LOWER), read_half(UPPER))
    places = sorted((r.partition, r.offset) for records in halves for r in records)
    assert places == [(part, offset) for part in range(2) for offset in range(200 * (part + 1))]
    assert stable_offsets(kafka, group, name, 2) == [200, 400]


async def test_two_key_ranges_of_a_partition_are_read_at_once(kafka, keylane, topic, group) -> None:
    """The first and the third quarter: their keys, and no others."""
    name = filled(kafka, topic)
    proxy = keylane(args=["--set", f"accept_range_fetch=[{name}]"])
    quarter = HASH_MAX // 4
    parts = [KeyRange(0, quarter), KeyRange(2 * quarter, 3 * quarter)]
    expected = {k for k in KEYS if any(part.contains(key_hash(k.encode())) for part in parts)}
    consumer = Consumer(**options(proxy.bootstrap, group))
    consumer.assign({TopicPartition(name, 0): parts})
    async with consumer:
        records = await read(consumer, 5 * len(expected))
    assert {(record.key or b"").decode() for record in records} == expected
    assert len(records) == 5 * len(expected)


async def test_a_commit_that_is_not_allowed_is_not_repeated(kafka, keylane, topic, group) -> None:
    """The operator's switch is off: the error comes at once, by its own class."""
    name = filled(kafka, topic)
    proxy = keylane(args=["--set", "accept_individual_commit=false"])
    async with Consumer(name, **options(proxy.bootstrap, group)) as consumer:
        records = await read(consumer, 100)
        with pytest.raises(IndividualCommitNotAllowed):
            await consumer.commit(records)
        assert consumer.metrics()["commit_failures"] == 0, "it was sent once"


async def test_a_topic_that_may_not_be_shared_ends_the_read(kafka, keylane, topic, group) -> None:
    """Ranges of keys are not accepted by default: the next poll says so."""
    name = filled(kafka, topic)
    proxy = keylane()
    consumer = Consumer(**options(proxy.bootstrap, group))
    consumer.assign({TopicPartition(name, 0): [LOWER]})
    async with consumer:
        with pytest.raises(RangeFetchNotAllowed, match=name):
            await consumer.getmany(timeout_ms=1000 * WAIT_S)


@pytest.mark.parametrize(
    ("sharer_first", "protocol"),
    [
        (False, "consumer"),
        pytest.param(False, "classic", marks=pytest.mark.long),
        pytest.param(True, "consumer", marks=pytest.mark.long),
        (True, "classic"),
    ],
)
async def test_a_member_that_shares_nothing_gets_whole_partitions(
    kafka, keylane, topic, group, protocol, *, sharer_first
) -> None:
    """Two partitions of four lanes: of two members one takes no parts, and ends with one."""
    name: str = topic("orders", partitions=2)
    produce(kafka, name, KEYS, 5)
    proxy = keylane(f"{name}=4")
    whole = (KeyRange(0, HASH_MAX),)
    common = options(proxy.bootstrap, group, group_protocol=protocol)
    members = [
        Consumer(name, **common, allow_individual_commit=False),
        Consumer(name, **common),
    ]
    if sharer_first:
        members.reverse()
    async with members[0], asyncio.timeout(WAIT_S):
        while len(members[0].assignment()) < 8:  # alone: all
            await members[0].getmany(timeout_ms=100)
        async with members[1]:
            # A classic member has lanes before it knows their keys, which are () until then.
            while [len(member.assignment()) for member in members] != [4, 4] or any(
                () in member.key_ranges().values() for member in members
            ):
                for member in members:
                    await member.getmany(timeout_ms=100)
            for member in members:
                assert list(member.key_ranges().values()) == [whole]
        while len(members[0].assignment()) < 8:
            await members[0].getmany(timeout_ms=100)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_member_that_shares_nothing_reads_lanes_when_alone(
    kafka, keylane, topic, group, protocol
) -> None:
    """All lanes of its partitions are no parts: every record once, plain offsets committed."""
    name: str = topic("orders", partitions=2)
    produce(kafka, name, KEYS, 5)
    proxy = keylane(f"{name}=4")
    more = {"group_protocol": protocol, "allow_individual_commit": False}
    async with Consumer(name, **options(proxy.bootstrap, group, **more)) as consumer:
        records = await read(consumer, 100)
        assert len(records) == 100
        await consumer.commit()
        ends = await consumer.end_offsets([TopicPartition(name, index) for index in range(2)])
    assert stable_offsets(kafka, group, name, 2) == list(ends.values())


async def test_keys_of_a_later_partition_of_a_topic_with_lanes(
    kafka, keylane, topic, group
) -> None:
    """Its number alone would be a lane of the first partition: the ends are its own."""
    name: str = topic("orders", partitions=2)
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5})
    for number in range(120):
        key = KEYS[number % len(KEYS)]
        producer.produce(name, b"%d" % number, key=key, partition=number >= 20)
    producer.flush()
    proxy = keylane(f"{name}=4")
    part = TopicPartition(name, 1)
    expected = {key for key in KEYS if LOWER.contains(key_hash(key.encode()))}
    consumer = Consumer(**options(proxy.bootstrap, group))
    consumer.assign({part: [LOWER]})
    async with consumer:
        assert await consumer.end_offsets([part]) == {part: 100}
        assert await consumer.beginning_offsets([part]) == {part: 0}
        records = await read(consumer, 5 * len(expected))
        assert {(record.key or b"").decode() for record in records} == expected
        assert len(records) == 5 * len(expected)
        times = {part: records[-1].timestamp_ms}
        found = (await consumer.offsets_for_times(times))[part]
        assert found is not None and 0 <= found[0] <= records[-1].offset
        consumer.seek_to_end(part)
        assert await consumer.position(part) == 100
    consumer = Consumer(**options(proxy.bootstrap, None, auto_offset_reset="latest"))
    consumer.assign({part: [UPPER]})
    async with consumer:
        assert await consumer.position(part) == 100


async def test_no_keys_are_all_of_a_partition_of_a_topic_with_lanes(
    kafka, keylane, topic, group
) -> None:
    """A mapping names the broker's partitions: all of the second one is read and committed."""
    name: str = topic("orders", partitions=2)
    for partition in range(2):
        produce(kafka, name, KEYS, 2 + 3 * partition, partition=partition)
    proxy = keylane(f"{name}=4")
    part = TopicPartition(name, 1)
    consumer = Consumer(**options(proxy.bootstrap, group))
    consumer.assign({part: []})
    async with consumer:
        records = await read(consumer, 100)
        assert sorted(record.offset for record in records) == list(range(100))
        consumer.mark_done(*records[:30], *records[31:])
        await consumer.commit()
        found = await consumer.committed(part)
        assert found is not None
        assert (found.offset, found.ranges) == (30, ((31, 99),))
        await consumer.commit([records[30]])
    assert stable_offsets(kafka, group, name, 2)[1] == 100
