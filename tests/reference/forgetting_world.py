"""A node with groups on lanes, before brokers that say what a test wants."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kio.index import load_response_schema

from keylane.config.node import LaneRule, ProxyConfig
from keylane.errors import UpstreamLost
from keylane.journal.own_topic import OwnTopicClients
from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.records.journal import JournalRecord, StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.proxy.cluster.cluster import Broker, Cluster
from keylane.proxy.commits.forgetting import Forgetting, KeptElsewhere
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.nodes.lone_seat import LoneSeat
from keylane.proxy.runtime.stats import ProxyStats
from tests.transcript.entities import build
from tests.unit.proxy.cluster.test_cluster import topic as metadata_topic
from tests.virtual_time import run_virtual

ORDERS, SHOP = uuid.UUID(int=0xA1), uuid.UUID(int=0xB2)
NAMES = {ORDERS: "orders", SHOP: "shop"}
FIND, DESCRIBE, OFFSETS, METADATA, DESCRIBE_848 = 10, 15, 9, 3, 69
NO_SUCH_GROUP, NOT_COORDINATOR, LOADING, UNSTABLE, GROUP_DENIED, TOPIC_DENIED = (
    69,
    16,
    14,
    88,
    30,
    29,
)
UNKNOWN_ID = 100


@dataclass
class Kafka:
    """What brokers 1 and 2 say; a test changes it."""

    states: dict[str, str] = field(default_factory=dict)
    """Of groups that are there, in DescribeGroups."""
    members_848: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    codes: dict[tuple[int, str], int] = field(default_factory=dict)
    """By API and group: an error in place of an answer."""
    place_codes: dict[tuple[str, int], int] = field(default_factory=dict)
    known_ids: dict[int, set[uuid.UUID]] = field(
        default_factory=lambda: {1: {ORDERS, SHOP}, 2: {ORDERS, SHOP}}
    )
    silent: set[int] = field(default_factory=set)
    """APIs that are not answered."""
    lost: set[int] = field(default_factory=set)
    before_answer: Callable[[int], Awaitable[None]] | None = None

    async def answer(self, node: int, entity: Any) -> Any:
        api = int(entity.__api_key__)
        if api in self.silent:
            await asyncio.Event().wait()
        if api in self.lost:
            raise UpstreamLost("gone")
        if self.before_answer is not None:
            await self.before_answer(api)
        made = {
            FIND: self.find, DESCRIBE: self.describe, OFFSETS: self.fetch,
            METADATA: lambda asked: self.metadata(node, asked), DESCRIBE_848: self.describe_848,
        }[api](entity)  # fmt: skip
        return build(load_response_schema(api, int(entity.__version__)), made)

    def code(self, api: int, group: str) -> int:
        return self.codes.get((api, group), 0)

    def find(self, asked: Any) -> dict[str, Any]:
        return {"coordinators": [
            {"key": key, "node_id": 1, "error_code": self.code(FIND, key)}
            for key in asked.coordinator_keys
        ]}  # fmt: skip

    def describe(self, asked: Any) -> dict[str, Any]:
        return {"groups": [
            {"group_id": group, "group_state": self.states.get(group, "Dead"),
             "error_code": self.code(DESCRIBE, group)}
            for group in asked.groups
        ]}  # fmt: skip

    def describe_848(self, asked: Any) -> dict[str, Any]:
        return {"groups": [
            {"group_id": group, "members": [{}] if group in self.members_848 else [],
             "error_code": 0 if group in self.members_848 else NO_SUCH_GROUP}
            for group in asked.group_ids
        ]}  # fmt: skip

    def fetch(self, asked: Any) -> dict[str, Any]:
        assert asked.require_stable
        return {"groups": [
            {"group_id": group.group_id, "error_code": self.code(OFFSETS, group.group_id),
             "topics": [
                 {"name": topic.name, "partitions": [
                     {"partition_index": number,
                      "committed_offset": self.offset(group.group_id, topic.name, number),
                      "error_code": self.place_codes.get((topic.name, number), 0)}
                     for number in topic.partition_indexes
                 ]} for topic in group.topics
             ]} for group in asked.groups
        ]}  # fmt: skip

    def offset(self, group: str, topic: str, partition: int) -> int:
        return self.offsets.get((group, topic, partition), -1)

    def metadata(self, node: int, asked: Any) -> dict[str, Any]:
        return {
            "brokers": [{"node_id": number, "host": "k", "port": 9} for number in self.known_ids],
            "topics": [
                metadata_topic(NAMES[one.topic_id], 2, one.topic_id)
                if one.topic_id in self.known_ids[node]
                else metadata_topic(None, 0, one.topic_id, UNKNOWN_ID)
                for one in asked.topics
            ],
        }


class FakeCluster(Cluster):
    """A cluster whose brokers are a `Kafka`."""

    def __init__(self, config: ProxyConfig, kafka: Kafka) -> None:
        super().__init__(config)
        self.kafka = kafka
        self.knows_848 = True
        self.brokers = {n: Broker(node_id=n, host="k", port=9, rack=None) for n in (1, 2)}

    async def request(self, entity: Any) -> Any:
        return await self.kafka.answer(1, entity)

    async def ask_broker(self, node_id: int, entity: Any) -> Any:
        return await self.kafka.answer(node_id, entity)

    async def versions_of(self, node_id: int) -> dict[int, int]:
        return {DESCRIBE_848: 0} if self.knows_848 else {}


class Ownership:
    """Of one among many nodes."""

    def __init__(self) -> None:
        self.is_held = True

    def holds(self, ic_partition: int) -> bool:
        return self.is_held

    takes_on = holds

    def term(self, ic_partition: int) -> int:
        return 1 if self.is_held else -1

    async def settled(self) -> None:
        pass


class Seat(Ownership, LoneSeat):
    """Of the only node."""


class Journal:
    cuts = 0

    """A list of records."""

    def __init__(self) -> None:
        self.is_broken = self.is_away = False
        self.records: list[JournalRecord] = []

    async def append(self, records: Sequence[JournalRecord]) -> None:
        await asyncio.sleep(0.001)
        if self.is_away:
            raise UpstreamLost("no ack")
        self.records += records

    async def close(self) -> None:
        pass


class Node:
    """A node with two groups on `orders`, whose journal is one partition."""

    def __init__(self, *, is_lone: bool = True) -> None:
        self.kafka = Kafka()
        config = ProxyConfig(bootstrap="k:9", lanes=(LaneRule(topic="orders", lanes=4),))
        self.cluster = FakeCluster(config, self.kafka)
        for topic_id, name in NAMES.items():
            self.cluster.learn_topic(
                build(
                    load_response_schema(METADATA, 12),
                    {"topics": [metadata_topic(name, 2, topic_id)]},
                ).topics[0]
            )
        self.ownership = Seat() if is_lone else Ownership()
        self.groups = GroupOffsets(
            config,
            self.cluster,
            OwnTopicClients(""),
            wall_clock=lambda: 1.0,
            clock=self.now_s,
            ownership=self.ownership,
        )
        self.table, self.journal, self.stats = (
            OffsetTable(partition_count=1),
            Journal(),
            ProxyStats(),
        )
        self.groups.tables = self.groups._make_owned(self.open, 1)
        self.split_ends: list[PartitionSplit] = []
        self.read: set[PartitionSplit] = set()
        self.deserted: list[str] = []
        self.forgetting = Forgetting(
            self.cluster,
            self.groups,
            self.stats,
            KeptElsewhere(
                splits_read=lambda: self.read,
                is_configured=self.cluster.registry.is_configured,
                on_split=self.split_ends.append,
                on_group=lambda _group: None,
                on_deserted=self.deserted.append,
                on_freed=self.freed,
            ),
            interval_s=3600.0,
        )

    async def freed(self) -> None:
        pass

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def open(self, _partition: int) -> tuple[OffsetTable, Journal]:
        return self.table, self.journal

    async def commit(
        self, group: str, topic_id: uuid.UUID = ORDERS, partition: int = 0, *, offset: int = 10
    ) -> StateKey:
        """As a group's commit leaves it, Kafka's own offset too."""
        key, name = StateKey(group, topic_id, partition), NAMES[topic_id]
        async with self.groups.lock(group):
            state = OffsetState(
                committed=offset, base=0, topic_name=name, individual_commits_max=100
            )
            self.table.put(key, state)
            await self.journal.append(self.table.records(key, now_ms=1))
            self.table.mark_saved(key)
        self.kafka.offsets[group, name, partition] = offset
        return key

    def states(self) -> set[StateKey]:
        return {key for key, _ in self.groups.states()}

    def reloaded(self) -> OffsetTable:
        """What the journal says."""
        table = OffsetTable(partition_count=1)
        for number, record in enumerate(self.journal.records):
            table.apply(0, number, record.key, record.value)
        table.finish_load()
        return table

    async def rounds(self, count: int = 2) -> None:
        for _ in range(count):
            await self.forgetting.go_round()


def run(test: Callable[[Node], Awaitable[None]], *, is_lone: bool = True) -> None:
    async def main() -> None:
        await test(Node(is_lone=is_lone))

    run_virtual(main)


def scanned(key: PartitionSplit) -> ScannedBlock:
    """Offsets 0 to 9, without a record."""
    return ScannedBlock(
        topic="orders",
        at=PartitionSplit(key.topic_id, key.partition, key.key_split),
        start=0,
        end=10,
        last_record_offsets=np.full(key.key_split.output_count, -1, np.int64),
        outputs=(None,) * key.key_split.output_count,
        holes=(),
        log_start_offset=0,
    )
