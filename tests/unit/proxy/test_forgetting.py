"""What Kafka has surely forgotten is forgotten, and nothing else: group by group, topic by topic."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from kio.index import load_response_schema

from keylane.config import LaneRule, ProxyConfig
from keylane.errors import UpstreamLost
from keylane.keyrange.key_split import even_split
from keylane.offsets.journal import JournalRecord, LayoutValue, StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.proxy.cluster import Broker, Cluster
from keylane.proxy.forgetting import Forgetting
from keylane.proxy.groups import GroupOffsets
from keylane.proxy.nodes.lone import LoneSeat
from keylane.proxy.reader_kit import ScannedBlock
from keylane.proxy.scans import ScanKey
from keylane.proxy.stats import ProxyStats
from keylane.proxy.tasks import spawn
from tests.transcript.entities import build
from tests.unit.proxy.test_cluster import topic as metadata_topic
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
FOUR = even_split(4)


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
                      "committed_offset": self.offsets.get((group.group_id, topic.name, number), -1),
                      "error_code": self.place_codes.get((topic.name, number), 0)}
                     for number in topic.partition_indexes
                 ]} for topic in group.topics
             ]} for group in asked.groups
        ]}  # fmt: skip

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


class Tenure:
    """Of one among many nodes."""

    def __init__(self) -> None:
        self.is_held = True

    def holds(self, ic_partition: int) -> bool:
        return self.is_held

    def term(self, ic_partition: int) -> int:
        return 1 if self.is_held else -1

    async def settled(self) -> None:
        pass


class Seat(Tenure, LoneSeat):
    """Of the only node."""


class Journal:
    """A list of records."""

    def __init__(self) -> None:
        self.is_broken, self.records = False, list[JournalRecord]()

    async def append(self, records: Sequence[JournalRecord]) -> None:
        await asyncio.sleep(0.001)
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
        self.tenure = Seat() if is_lone else Tenure()
        self.groups = GroupOffsets(
            config, self.cluster, wall_clock=lambda: 1.0, clock=self.now_s, tenure=self.tenure
        )
        self.table, self.journal, self.stats = (
            OffsetTable(partition_count=1),
            Journal(),
            ProxyStats(),
        )
        self.groups._owned = self.groups._make_owned(self.open, 1)
        self.split_ends: list[ScanKey] = []
        self.read: set[ScanKey] = set()
        self.forgetting = Forgetting(
            self.cluster,
            self.groups,
            self.stats,
            interval_s=3600.0,
            splits_read=lambda: self.read,
            on_split=self.split_ends.append,
            on_group=lambda _group: None,
            on_freed=self.freed,
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


@pytest.mark.parametrize("knows_848", [False, True])
def test_a_group_that_kafka_has_forgotten_is_forgotten(knows_848: bool) -> None:
    """By the second look, in memory and in the journal; the other one stays."""

    async def test(node: Node) -> None:
        node.cluster.knows_848 = knows_848
        gone, there = await node.commit("gone"), await node.commit("there")
        node.kafka.states["there"] = "Stable"
        del node.kafka.offsets["gone", "orders", 0]

        await node.rounds(1)
        after_one = node.states()
        await node.rounds(1)

        assert after_one == {gone, there} and node.states() == {there}
        assert {key for key, _ in node.reloaded().items()} == {there}
        assert node.stats.states_forgotten == 1

    run(test)


def test_a_group_with_members_keeps_all() -> None:
    """An offset may have expired under them: that is judged when they ask for it."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.states["g"] = "PreparingRebalance"
        node.kafka.offsets.clear()

        await node.rounds(4)

        assert node.states() == {key}

    run(test)


def test_members_that_the_broker_assigns_are_members() -> None:
    """To DescribeGroups such a group is Dead."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.members_848.add("g")
        node.kafka.offsets.clear()

        await node.rounds(4)

        assert node.states() == {key}

    run(test)


def test_only_what_is_missing_goes() -> None:
    """An admin has deleted the offset of one partition; the group is empty."""

    async def test(node: Node) -> None:
        node.kafka.states["g"] = "Empty"
        await node.commit("g", partition=0)
        there = await node.commit("g", partition=1)
        del node.kafka.offsets["g", "orders", 0]

        await node.rounds(2)

        assert node.states() == {there}

    run(test)


@pytest.mark.parametrize(
    ("api", "code"),
    [(FIND, LOADING), (FIND, GROUP_DENIED), (DESCRIBE, NOT_COORDINATOR), (DESCRIBE, GROUP_DENIED),
     (OFFSETS, LOADING), (OFFSETS, NOT_COORDINATOR), (OFFSETS, GROUP_DENIED)],
)  # fmt: skip
def test_an_error_is_no_answer(api: int, code: int) -> None:
    """A coordinator that moves, loads or refuses says nothing of its groups."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.offsets.clear()
        node.kafka.codes[api, "g"] = code

        await node.rounds(4)

        assert node.states() == {key}
        assert node.forgetting._survey.is_denied == (code == GROUP_DENIED)

    run(test)


@pytest.mark.parametrize("code", [UNSTABLE, TOPIC_DENIED])
def test_one_partition_that_is_not_told_keeps_the_group(code: int) -> None:
    """A transaction may be about to commit there; or keylane may not see the topic."""

    async def test(node: Node) -> None:
        keys = {await node.commit("g", partition=0), await node.commit("g", partition=1)}
        node.kafka.offsets.clear()
        node.kafka.place_codes["orders", 1] = code

        await node.rounds(4)

        assert node.states() == keys

    run(test)


@pytest.mark.parametrize("api", [FIND, DESCRIBE, OFFSETS, DESCRIBE_848])
@pytest.mark.parametrize("how", ["silent", "lost"])
def test_a_broker_that_hangs_or_is_gone_says_nothing(api: int, how: str) -> None:
    """The round goes on, and holds no lock meanwhile."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.offsets.clear()
        (node.kafka.silent if how == "silent" else node.kafka.lost).add(api)

        await node.rounds(3)

        assert node.states() == {key}

    run(test)


def test_a_group_that_came_back_between_two_looks_is_new() -> None:
    """It was used again: what the first look has seen counts no more."""

    async def test(node: Node) -> None:
        await node.commit("g")
        node.kafka.offsets.clear()
        await node.rounds(1)
        key = await node.commit("g", offset=20)
        node.kafka.offsets.clear()

        await node.rounds(1)
        after_second = node.states()
        await node.rounds(1)

        assert after_second == {key} and node.states() == set()

    run(test)


def test_a_commit_after_the_answer_keeps_the_state() -> None:
    """Kafka has said that there is nothing, and the group commits before its lock is taken."""

    async def test(node: Node) -> None:
        await node.commit("g")
        node.kafka.offsets.clear()
        await node.rounds(1)

        async def commit(api: int) -> None:
            if api == OFFSETS:
                node.kafka.before_answer = None
                await node.commit("g", offset=30)
                node.kafka.offsets.clear()

        node.kafka.before_answer = commit
        await node.rounds(1)

        assert len(node.states()) == 1
        (state,) = [state for _, state in node.groups.states()]
        assert state.pushed == 30

    run(test)


def test_a_push_that_may_still_arrive_keeps_the_state() -> None:
    """Its answer was lost; once Kafka was seen without it for some seconds it is not to come."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.offsets.clear()
        node.table.intents.note_unanswered(key, 40)

        await node.rounds(2)
        at_first = node.states()
        await asyncio.sleep(10)
        await node.rounds(2)

        assert at_first == {key} and node.states() == set()

    run(test)


def test_another_nodes_groups_are_left_alone() -> None:
    """The partition was lost between two looks: nothing is written."""

    async def test(node: Node) -> None:
        await node.commit("g")
        node.kafka.offsets.clear()
        await node.rounds(1)
        before = len(node.journal.records)
        node.tenure.is_held = False

        await node.rounds(2)

        assert len(node.journal.records) == before

    run(test, is_lone=False)


def test_a_deleted_topic_leaves_nothing() -> None:
    """Under running members too: its id comes never again. Caches first, the journal after."""

    async def test(node: Node) -> None:
        gone, there = await node.commit("g", SHOP), await node.commit("g", ORDERS)
        node.kafka.states["g"] = "Stable"
        scan = (SHOP, 0, FOUR)
        node.groups.scans.of(scan)
        node.groups.lineages.of((SHOP, 0))
        for known in node.kafka.known_ids.values():
            known.discard(SHOP)

        await node.rounds(1)
        after_one = node.states()
        caches = (
            node.cluster.registry.id_of_name("shop"),
            [place for place in node.cluster.leaders if place[0] == SHOP],
            node.groups.lineages.find((SHOP, 0)),
        )
        await node.rounds(2)

        assert after_one == {gone, there} and node.states() == {there}
        assert caches == (None, [], None) and node.split_ends == [scan]
        assert {key for key, _ in node.reloaded().items()} == {there}
        assert node.cluster.registry.id_of_name("orders") == ORDERS
        assert node.stats.topics_forgotten == 1

    run(test)


@pytest.mark.parametrize("how", ["one knows it", "one hangs"])
def test_a_topic_is_there_until_all_brokers_say_otherwise(how: str) -> None:
    """One that lags behind knows nothing of a new topic."""

    async def test(node: Node) -> None:
        key = await node.commit("g", SHOP)
        node.kafka.states["g"] = "Stable"
        node.kafka.known_ids[1].discard(SHOP)
        if how == "one hangs":
            node.kafka.known_ids[2].discard(SHOP)

            async def hang(node_id: int, entity: Any) -> Any:
                if node_id == 2:
                    await asyncio.Event().wait()
                return await node.kafka.answer(node_id, entity)

            node.cluster.ask_broker = hang  # type: ignore[method-assign]

        await node.rounds(4)

        assert node.states() == {key}
        assert node.cluster.registry.id_of_name("shop") == SHOP

    run(test)


@pytest.mark.parametrize("is_lone", [True, False])
def test_layouts_go_with_their_last_group(is_lone: bool) -> None:
    """Where other nodes may have groups on them, with their topic."""

    async def test(node: Node) -> None:
        await node.commit("g")
        await node.groups.ready("g")
        for name, topic_id in (("orders", ORDERS), ("shop.lanes-4", SHOP)):
            layout = LayoutValue(timestamp_ms=1, topic_id=topic_id, partition_count=2, lane_count=4)
            node.journal.records += node.table.pin_layout(name, layout)
            node.groups.layouts.pinned[name] = layout
        node.kafka.states["g"] = "Stable"

        await node.rounds(2)
        while_it_is_there = set(node.reloaded().layouts())
        for known in node.kafka.known_ids.values():
            known.discard(SHOP)
        await node.rounds(3)

        assert while_it_is_there == ({"orders"} if is_lone else {"orders", "shop.lanes-4"})
        assert set(node.reloaded().layouts()) == {"orders"} == set(node.groups.layouts.pinned)

    run(test, is_lone=is_lone)


def test_splits_that_nobody_reads_are_forgotten() -> None:
    """Not those that were used since the last look, or that have a reader."""

    async def test(node: Node) -> None:
        scans = node.groups.scans
        idle, used, read = ((ORDERS, partition, FOUR) for partition in range(3))
        for key in (idle, used, read):
            scans.note(scanned(key))
        node.read.add(read)

        node.forgetting.forget_idle_splits()
        first = list(node.split_ends)
        scans.known(used)
        node.forgetting.forget_idle_splits()

        assert first == [] and node.split_ends == [idle]
        assert scans.known(read).has_passed(5) and not scans.known(idle).has_passed(5)

    run(test)


def scanned(key: ScanKey) -> ScannedBlock:
    """Offsets 0 to 9, without a record."""
    return ScannedBlock(
        topic="orders",
        topic_id=key[0],
        partition=key[1],
        key_split=key[2],
        start=0,
        end=10,
        last_record_offsets=np.full(key[2].output_count, -1, np.int64),
        lanes=(None,) * key[2].output_count,
        holes=(),
        log_start_offset=0,
    )


def test_rounds_go_on_by_themselves() -> None:
    """The first one soon after the start."""

    async def test(node: Node) -> None:
        await node.commit("g")
        node.kafka.offsets.clear()
        running = spawn(node.forgetting.run(), "forgetting")

        await asyncio.sleep(200)
        after_first = node.states()
        await asyncio.sleep(4000)
        running.cancel()

        assert len(after_first) == 1 and node.states() == set()

    run(test)
