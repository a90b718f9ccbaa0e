"""Assignments and switches in a real Kafka: durable, fenced, followed by every node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import ProducerFenced

from keylane.config.node import ProxyConfig
from keylane.embedded import EmbeddedKafka
from keylane.errors import AssignmentInvalid, RangesOverlap, SettingsUnsaved
from keylane.journal.epochs import next_epoch
from keylane.journal.own_topic import OwnTopicClients, close_producer
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.topics.range_table import RangeTable, RangeTableHolder
from keylane.proxy.topics.settings_records import (
    CHANGE_BYTES_MAX,
    TOPIC_NAME,
    write_assignments,
    write_fence,
)
from keylane.proxy.topics.settings_store import TRANSACTIONAL_ID, SettingsStore, _write_batch
from keylane.proxy.topics.switches import SwitchBoard, Switches

LOW, HIGH = KeyRange(0, 99), KeyRange(100, HASH_MAX)


class Node:
    """One node's store and holders."""

    def __init__(self, bootstrap: str, *, write_timeout_s: float = 60.0) -> None:
        config = ProxyConfig(bootstrap=bootstrap)
        self.cluster = Cluster(config)
        self.assignments = RangeTableHolder()
        self.switches = SwitchBoard(config)
        self.store = SettingsStore(
            OwnTopicClients(bootstrap),
            assignments=self.assignments,
            switches=self.switches,
            next_epoch=partial(next_epoch, self.cluster),
            write_timeout_s=write_timeout_s,
        )

    async def until_version(self, version: int) -> RangeTable:
        """The table, when it has got this far by what others write."""
        async with asyncio.timeout(60):
            while self.assignments.table.version < version:
                async with self.store._moved:
                    await self.store._moved.wait()
        return self.assignments.table


@asynccontextmanager
async def running(bootstrap: str, **how: float) -> AsyncIterator[Node]:
    node = Node(bootstrap, **how)
    await node.cluster.start()
    await node.store.start()
    try:
        yield node
    finally:
        await node.store.stop()
        node.cluster.stop()


async def test_settings_outlive_their_node_and_reach_the_others(
    own_broker: EmbeddedKafka,
) -> None:
    """A set of clients is one version on every node; deletions and switches are kept, too."""
    kafka = own_broker.bootstrap
    async with running(kafka) as one, running(kafka) as other:
        table = await one.store.change_assignments(
            lambda _: {"a": {"orders": {0: [LOW], 1: []}}, "b": {"orders": {0: [HIGH]}}}
        )
        assert table.version == 1
        assert (await other.until_version(1)).owners("orders", 0) == (("a", (LOW,)), ("b", (HIGH,)))

        await other.store.change_assignments(lambda _: {"a": None, "c": {"orders": {0: [LOW]}}})
        await one.until_version(2)
        with pytest.raises(RangesOverlap):
            await one.store.change_assignments(lambda _: {"a": {"orders": {0: []}}})
        assert one.assignments.table.version == 2

        switches = await one.store.change_switches(
            lambda now: replace(now, version=now.version + 1, topics={"orders": True})
        )
        assert switches == Switches(version=1, topics={"orders": True})

    async with running(kafka) as third:
        assert third.assignments.table.version == 2
        assert third.assignments.table.clients.keys() == {"b", "c"}
        assert third.switches.current == Switches(version=1, topics={"orders": True})


async def test_nodes_that_write_at_the_same_moment_take_turns(own_broker: EmbeddedKafka) -> None:
    """Each change is made of the newest version: none is lost, in any order of fencing."""
    kafka = own_broker.bootstrap
    async with running(kafka) as one, running(kafka) as other:

        async def write(node: Node, name: str) -> None:
            for partition in range(4):
                changes: dict[str, Any] = {f"{name}-{partition}": {"orders": {partition: []}}}

                def decide(_: RangeTable, changes: dict[str, Any] = changes) -> dict[str, Any]:
                    return changes

                with suppress(RangesOverlap):  # the other node has this partition
                    await node.store.change_assignments(decide)

        await asyncio.gather(write(one, "x"), write(other, "y"))

        tables = [await node.until_version(4) for node in (one, other)]
        assert tables[0] == tables[1]
        assert len(tables[0].clients) == 4
        owners = [tables[0].owners("orders", partition) for partition in range(4)]
        assert all(len(listed) == 1 for listed in owners)


async def test_a_write_that_kafka_does_not_take_changes_nothing(own_broker: EmbeddedKafka) -> None:
    """With the broker gone the caller gets an error; once it is back, a write succeeds."""
    async with running(own_broker.bootstrap, write_timeout_s=3.0) as node:
        own_broker.kill()
        with pytest.raises(SettingsUnsaved, match="nothing has changed"):
            await node.store.change_assignments(lambda _: {"a": {"orders": {0: []}}})
        assert node.assignments.table == RangeTable()

        own_broker.start()
        node.store._write_timeout_s = 60.0
        table = await node.store.change_assignments(lambda _: {"b": {"orders": {0: []}}})

        assert table.clients.keys() == {"b"}


async def test_a_transaction_that_a_dead_node_left_open_is_over(own_broker: EmbeddedKafka) -> None:
    """Its records are never seen, and the next writer does not wait for its time-out."""
    async with running(own_broker.bootstrap) as node:
        dead = AIOKafkaProducer(
            bootstrap_servers=own_broker.bootstrap,
            transactional_id=TRANSACTIONAL_ID,
            transaction_timeout_ms=900_000,
        )
        await dead.start()
        await dead.begin_transaction()
        left = write_assignments(RangeTable().with_clients({"dead": {"t": {0: []}}}), {"dead": 1})
        for key, value in left:
            await dead.send_and_wait(TOPIC_NAME, value, key=key, partition=0)
        dead._sender._sender_task.cancel()
        await dead.client.close()
        dead._closed = True  # else it complains of how it was treated

        table = await node.store.change_assignments(lambda _: {"alive": {"t": {0: []}}})

        assert (table.version, set(table.clients)) == (1, {"alive"})


async def test_a_change_of_a_writer_that_was_overtaken_is_refused(
    own_broker: EmbeddedKafka,
) -> None:
    """It fenced, read and hung; changes by others meanwhile are not written over."""
    async with running(own_broker.bootstrap) as node:
        epoch = await next_epoch(node.cluster, TRANSACTIONAL_ID)
        hung = await OwnTopicClients(own_broker.bootstrap).open_producer(
            close_producer, batch_bytes=CHANGE_BYTES_MAX, epoch=epoch
        )
        try:
            await _write_batch(hung, write_fence())
            await node.store.change_assignments(lambda _: {"alive": {"t": {0: []}}})
            late = write_assignments(
                RangeTable().with_clients({"late": {"t": {0: []}}}), {"late": 1}
            )

            with pytest.raises(ProducerFenced):
                await _write_batch(hung, late)
        finally:
            await close_producer(hung)

        table = await node.store.change_assignments(lambda _: {"next": {"t": {1: []}}})

        assert (table.version, set(table.clients)) == (2, {"alive", "next"})


async def test_a_change_is_one_batch_without_a_transaction(own_broker: EmbeddedKafka) -> None:
    """Near the bound it is still whole; above it, and above the topic's own, it is refused."""

    def clients(count: int) -> dict[str, Any]:
        return {f"{number:0200}": {"t": {number: [LOW]}} for number in range(count)}

    async with running(own_broker.bootstrap) as node:
        with pytest.raises(AssignmentInvalid, match=f"bytes in Kafka, at most {CHANGE_BYTES_MAX}"):
            await node.store.change_assignments(lambda _: clients(5_000))
        assert node.assignments.table == RangeTable()

        table = await node.store.change_assignments(lambda _: clients(3_500))
        assert (table.version, len(table.clients)) == (1, 3_500)

    async with running(own_broker.bootstrap) as other:
        assert other.assignments.table == table
    consumer = AIOKafkaConsumer(
        bootstrap_servers=own_broker.bootstrap, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        place = TopicPartition(TOPIC_NAME, 0)
        # Two fences, of the refused change too, and the change; a marker would be one more.
        assert (await consumer.end_offsets([place]))[place] == 2 + 3_501
    finally:
        await consumer.stop()


async def test_a_broker_that_takes_less_refuses_a_change_by_size(
    own_broker: EmbeddedKafka,
) -> None:
    """The topic's own `max.message.bytes` is below ours: an error, and nothing has changed."""
    async with running(own_broker.bootstrap) as node:
        admin = AIOKafkaAdminClient(bootstrap_servers=own_broker.bootstrap)
        await admin.start()
        try:
            small = ConfigResource(
                ConfigResourceType.TOPIC, TOPIC_NAME, configs={"max.message.bytes": "1000"}
            )
            await admin.alter_configs([small])
            while await message_bytes_max(admin) != "1000":
                pass  # the controller has it; the broker applies it a moment later
        finally:
            await admin.close()

        with pytest.raises(SettingsUnsaved, match=r"bytes is above .* nothing has changed"):
            await node.store.change_assignments(
                lambda _: {f"{number:0200}": {"t": {number: []}} for number in range(5)}
            )

        table = await node.store.change_assignments(lambda _: {"a": {"t": {0: []}}})
        assert (table.version, set(table.clients)) == (1, {"a"})


async def message_bytes_max(admin: AIOKafkaAdminClient) -> str:
    """`max.message.bytes` of the settings topic, as the broker knows it."""
    name = "max.message.bytes"
    asked = ConfigResource(ConfigResourceType.TOPIC, TOPIC_NAME, configs={name: None})
    (answer,) = await admin.describe_configs([asked])
    ((_, _, _, _, ((_, value, *_),)),) = answer.resources
    return str(value)
