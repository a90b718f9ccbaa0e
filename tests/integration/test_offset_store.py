"""The journal's store on a real broker: appended records are there after a restart."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from keylane.embedded import EmbeddedKafka
from keylane.errors import UpstreamLost
from keylane.journal.own_topic import OwnTopicClients
from keylane.journal.store import APPEND_TIMEOUT_S, JournalStore
from keylane.keyrange.key_split import even_split
from keylane.keyrange.lane import LaneLayout
from keylane.offsets.records.journal import (
    TOPIC_NAME,
    JournalRecord,
    LayoutValue,
    RangeKey,
    RangeValue,
    StateKey,
    StepKey,
    ic_partition,
    read_key,
    write_key,
    write_value,
)
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable

TOPIC_ID = uuid.UUID(int=7)
LAYOUT = LaneLayout(partition_count=1, lane_count=4)


def test_states_and_layouts_are_equal_after_a_restart(kafka: str) -> None:
    """Ten groups with lane positions and ranges, and a layout, are loaded as they were saved."""
    keys = [StateKey(f"group-{number}-{uuid.uuid4()}", TOPIC_ID, 0) for number in range(10)]
    layout = LayoutValue(timestamp_ms=1, topic_id=TOPIC_ID, partition_count=1, lane_count=4)

    async def scenario() -> tuple[OffsetTable, OffsetTable]:
        store = JournalStore(OwnTopicClients(kafka))
        table = await store.start()
        await asyncio.gather(*(commit_twice(store, table, key) for key in keys))
        await store.append(table.pin_layout("orders.lanes-4", layout))
        await store.stop()
        return table, await load(kafka)

    table, loaded = asyncio.run(scenario())

    loaded.check()
    assert {key: loaded.get(key) for key in keys} == {key: table.get(key) for key in keys}
    assert all(not loaded.of_group(key.group)[key].unsaved() for key in keys)
    assert loaded.layouts().get("orders.lanes-4") == layout


def test_commits_of_many_lanes_are_steps_and_load_as_they_were_saved(kafka: str) -> None:
    """Three groups beside each other; the brokers' acks say that the log goes on unbroken."""
    keys = [StateKey(f"steps-{number}-{uuid.uuid4()}", TOPIC_ID, 0) for number in range(3)]
    split, kinds = even_split(64), Counter[bool]()

    async def commit(store: JournalStore, table: OffsetTable, key: StateKey) -> None:
        state = OffsetState(committed=0)
        for lane in range(64):
            state.commit_keys((split.key_range(lane),), 100 + lane)
        for number in range(60):
            state = state.copy()
            state.commit_keys((split.key_range(number),), 1000 + number)
            table.put(key, state)
            records = table.records(key, now_ms=1)
            kinds.update(isinstance(read_key(r.key), StepKey) for r in records)
            await store.append(records)
            table.mark_saved(key)

    async def scenario() -> tuple[OffsetTable, OffsetTable, int]:
        store = JournalStore(OwnTopicClients(kafka))
        table = await store.start()
        await asyncio.gather(*(commit(store, table, key) for key in keys))
        await store.stop()
        return table, await load(kafka), store.cuts

    table, loaded, cuts = asyncio.run(scenario())

    assert {key: loaded.get(key) for key in keys} == {key: table.get(key) for key in keys}
    assert cuts == 0
    assert kinds[True] > 100 > kinds[False] > 0


def test_deleted_state_stays_deleted(kafka: str) -> None:
    """After the tombstones of a state were appended, a load does not find it."""
    key = StateKey(f"gone-{uuid.uuid4()}", TOPIC_ID, 0)

    async def scenario() -> OffsetTable:
        store = JournalStore(OwnTopicClients(kafka))
        table = await store.start()
        await commit_twice(store, table, key)
        await store.append(table.tombstones(key))
        await store.stop()
        return await load(kafka)

    assert asyncio.run(scenario()).get(key) is None


def test_journal_topic_is_set_like_consumer_offsets(kafka: str, admin: AdminClient) -> None:
    """Partitions, replication factor and min ISR equal those of __consumer_offsets; compacted."""
    asyncio.run(load(kafka))

    topics = admin.list_topics(timeout=30).topics
    shapes = [
        [len(partition.replicas) for partition in topics[name].partitions.values()]
        for name in (TOPIC_NAME, "__consumer_offsets")
    ]
    ours, primary = (settings(admin, name) for name in (TOPIC_NAME, "__consumer_offsets"))

    assert shapes[0] == shapes[1]
    assert ours["min.insync.replicas"] == primary["min.insync.replicas"]
    assert ours["cleanup.policy"] == "compact"
    assert ours["segment.bytes"] == "10485760"


def test_damaged_and_orphan_records_are_skipped(own_broker: EmbeddedKafka) -> None:
    """Garbage and a range without a state do not hinder a load; the second load has no orphan.

    The broker is separate, since each keylane that starts there later reports the damage.
    """
    kafka = own_broker.bootstrap
    key = StateKey(f"whole-{uuid.uuid4()}", TOPIC_ID, 0)
    orphan = RangeKey(StateKey(f"orphan-{uuid.uuid4()}", TOPIC_ID, 0), 5, 9)

    async def scenario() -> tuple[OffsetTable, OffsetTable]:
        store = JournalStore(OwnTopicClients(kafka))
        table = await store.start()
        await commit_twice(store, table, key)
        value = write_value(RangeValue(timestamp_ms=1))
        partition = ic_partition(orphan.state.group, table.partition_count)
        garbage = [JournalRecord(0, b"\0", b"?"), JournalRecord(0, b"\0\0\1\0\xff", None)]
        await store.append([*garbage, JournalRecord(partition, write_key(orphan), value)])
        await store.stop()
        return await load(kafka), await load(kafka)

    first, second = asyncio.run(scenario())

    assert first.get(key) is not None and first.get(key) == second.get(key)
    assert orphan.state.group not in first.groups()
    assert second.take_orphan_tombstones() == []


def test_load_ends_behind_a_transaction_and_before_an_open_one(kafka: str) -> None:
    """A control batch at the end does not hold a load up; a record of an open one is not seen."""
    done, still_open = (StateKey(f"{name}-{uuid.uuid4()}", TOPIC_ID, 0) for name in "ab")

    async def scenario() -> tuple[OffsetTable, OffsetTable]:
        partition_count = (await load(kafka)).partition_count
        producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=str(uuid.uuid4()))
        await producer.start()
        tables = []
        for key in (done, still_open):
            table = OffsetTable(partition_count=partition_count)
            table.put(key, OffsetState(committed=40))
            await producer.begin_transaction()
            for record in table.records(key, now_ms=1):
                await producer.send_and_wait(
                    TOPIC_NAME, record.value, key=record.key, partition=record.partition
                )
            if key is done:
                await producer.commit_transaction()
            table = await load(kafka)
            while key is done and table.get(key) is None:
                table = await load(kafka)  # Kafka answers before the marker is written
            tables.append(table)
        await producer.abort_transaction()
        await producer.stop()
        return tables[0], tables[1]

    first, second = asyncio.run(scenario())

    assert first.get(done) == second.get(done) == OffsetState(committed=40)
    assert second.get(still_open) is None


def test_append_outlives_a_broker_restart(own_broker: EmbeddedKafka) -> None:
    """While the broker is down an append fails as UpstreamLost; afterwards the state is saved."""
    key = StateKey("restarted", TOPIC_ID, 0)

    async def scenario() -> tuple[OffsetTable, OffsetTable]:
        store = JournalStore(OwnTopicClients(own_broker.bootstrap))
        table = await store.start()
        await commit_twice(store, table, key)
        await asyncio.to_thread(own_broker.kill)
        commit(table, key, [(90, 95)])
        # For this one alone: a broker that has just started may take longer.
        store.append_timeout_s = 3
        with pytest.raises(UpstreamLost):
            await store.append(table.records(key, now_ms=3))
        store.append_timeout_s = APPEND_TIMEOUT_S
        await asyncio.to_thread(own_broker.start)
        commit(table, key, [(96, 99)])
        await append_until_taken(store, table.records(key, now_ms=4))
        table.mark_saved(key)
        await store.stop()
        return table, await load(own_broker.bootstrap)

    table, loaded = asyncio.run(scenario())

    state = table.get(key)
    assert state is not None and (90, 99) in state.ranges()
    assert loaded.get(key) == state


def test_deleted_journal_falls_back_to_nothing_and_is_made_anew(
    own_broker: EmbeddedKafka,
) -> None:
    """After the topic was deleted, a start makes it compacted again and holds no state."""
    key = StateKey("lost", TOPIC_ID, 0)

    async def scenario() -> OffsetTable:
        store = JournalStore(OwnTopicClients(own_broker.bootstrap))
        await commit_twice(store, await store.start(), key)
        await store.stop()
        admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
        admin.delete_topics([TOPIC_NAME], operation_timeout=30)[TOPIC_NAME].result(30)
        # The controller has done it; a broker that has not applied that yet still serves the topic.
        while TOPIC_NAME in admin.list_topics(timeout=30).topics:
            pass
        return await load(own_broker.bootstrap)

    loaded = asyncio.run(scenario())

    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    assert len(loaded) == 0
    assert settings(admin, TOPIC_NAME)["cleanup.policy"] == "compact"


async def commit_twice(store: JournalStore, table: OffsetTable, key: StateKey) -> None:
    """Save a fresh state, then one with a lane position and merged ranges."""
    table.put(key, OffsetState(committed=40, topic_name="orders"))
    for ranges in [[(45, 47), (50, 50)], [(48, 49), (60, 69)]]:
        commit(table, key, ranges)
        await store.append(table.records(key, now_ms=1, member_id="m"))
        table.mark_saved(key)


def commit(table: OffsetTable, key: StateKey, ranges: Sequence[tuple[int, int]]) -> None:
    """Commit ranges, and the first lane up to 44, on a copy that takes the state's place."""
    state = table.get(key)
    assert state is not None
    draft = state.copy()
    draft.commit_keys((LAYOUT.key_range(0, 0),), 44, metadata="m", leader_epoch=3)
    draft.commit_ranges(ranges)
    draft.mark_pushed(draft.stable_position)
    table.put(key, draft)


async def load(bootstrap: str) -> OffsetTable:
    """Return what another process finds."""
    store = JournalStore(OwnTopicClients(bootstrap))
    table = await store.start()
    await store.stop()
    return table


async def append_until_taken(store: JournalStore, records: Sequence[JournalRecord]) -> None:
    """Append as a client that commits again would make it; the broker is coming up."""
    while True:
        with suppress(UpstreamLost):
            return await store.append(records)


def settings(admin: AdminClient, topic: str) -> dict[str, str]:
    """The topic's configuration."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in entries.items()}
