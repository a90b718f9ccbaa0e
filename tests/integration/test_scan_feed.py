"""Scans in a real Kafka: other nodes get a node's scans; cuts; a node that starts anew."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from keylane.embedded import EmbeddedKafka
from keylane.journal.own_topic import OwnTopicClients
from keylane.keyrange.key_split import KeySplit, PartitionSplit, even_split
from keylane.offsets.scan import ScanIndex
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.feed import ScanFeed
from keylane.proxy.scans.lag import LaneTallies
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.scans.records import TOPIC_NAME
from keylane.proxy.scans.runs import PublishedLane

FOUR = even_split(4)
UNEVEN = KeySplit((2**20, 2**40, 2**60))


class Node:
    """A feed, and the node's state that its scans of one topic lead to."""

    def __init__(self, bootstrap: str, number: int, topic_id: uuid.UUID) -> None:
        self.topic_id = topic_id
        self.blocks: list[ScannedBlock] = []
        self.past: list[ScannedBlock] = []
        self.cuts: list[tuple[int, int]] = []
        self.scans: dict[KeySplit, ScanIndex] = {}
        self.loads, self.tallies = LaneLoads(time.monotonic), LaneTallies()
        self.changed = asyncio.Event()
        self.feed = ScanFeed(
            OwnTopicClients(bootstrap),
            number=number,
            on_scanned=self._on_scanned,
            on_past=self._on_past,
            on_truncated=self._on_truncated,
            wall_clock=time.time,  # noqa: TID251
        )

    def _on_scanned(self, block: ScannedBlock) -> None:
        if block.at.topic_id == self.topic_id:
            self.blocks.append(block)
            self.loads.on_scanned(block)
            self._take(block)

    def _on_past(self, block: ScannedBlock) -> None:
        if block.at.topic_id == self.topic_id:
            self.past.append(block)
            self._take(block)

    def _take(self, block: ScannedBlock) -> None:
        scan = self.scans.setdefault(block.at.key_split, ScanIndex(block.at.key_split))
        scan.add(block.start, block.end, block.last_record_offsets, holes=block.holes)
        scan.check()
        self.tallies.on_scanned(block)
        self.changed.set()

    def _on_truncated(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        if topic_id == self.topic_id:
            self.cuts.append((partition, end))
            for scan in self.scans.values():
                scan.truncate(end)
            self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def counted(self, split: KeySplit, lane: int, offset: int) -> int:
        """Return where a position of a lane counts as standing."""
        scan = self.scans.get(split)
        return offset if scan is None else scan.effective(split.key_range(lane), offset)


@asynccontextmanager
async def running(bootstrap: str, number: int, topic_id: uuid.UUID) -> AsyncIterator[Node]:
    node = Node(bootstrap, number, topic_id)
    await node.feed.start()
    try:
        yield node
    finally:
        await node.feed.stop()


def block(
    topic_id: uuid.UUID,
    start: int,
    end: int,
    lasts: list[int],
    *,
    split: KeySplit = FOUR,
    epoch: int = 1,
    holes: tuple[tuple[int, int], ...] = (),
) -> ScannedBlock:
    """A scan in which each lane's records lie from the start up to its last one."""
    return ScannedBlock(
        topic="orders",
        at=PartitionSplit(topic_id, 3, split),
        start=start,
        end=end,
        last_record_offsets=np.array(lasts, np.int64),
        outputs=tuple(None if at < 0 else PublishedLane(1000, 1, start, at) for at in lasts),
        holes=holes,
        log_start_offset=0,
        leader_epoch=epoch,
    )


async def test_what_one_node_scans_lets_positions_pass_at_the_other(kafka: str) -> None:
    """Blocks, gaps, cuts of a plan, bytes and counts; and no node receives its own scans."""
    topic_id = uuid.uuid4()
    async with running(kafka, 1, topic_id) as one, running(kafka, 2, topic_id) as other:
        one.feed.note_scanned(block(topic_id, 0, 10, [7, 8, -1, -1]))
        one.feed.note_scanned(block(topic_id, 10, 20, [-1, 12, -1, -1], holes=((19, 19),)))
        one.feed.note_scanned(block(topic_id, 0, 30, [5, -1, -1, 29], split=UNEVEN))

        await other.until(lambda: other.counted(UNEVEN, 0, 6) == 30)
        assert other.counted(FOUR, 0, 8) == 20
        assert other.counted(FOUR, 1, 9) == 9
        assert other.counted(FOUR, 1, 13) == 20
        assert other.counted(FOUR, 2, 0) == 20
        assert other.counted(UNEVEN, 3, 6) == 6
        assert other.feed.remote_scanned_end(topic_id, 3) == 30
        reported = [part for found in other.blocks for part in found.outputs if part is not None]
        assert sum(part.record_bytes for part in reported) == 5 * 1000
        assert sum(part.record_count for part in reported) == 5

        # By its digest now, and the other way round.
        one.feed.note_scanned(block(topic_id, 30, 40, [-1, -1, -1, -1], split=UNEVEN))
        await other.until(lambda: other.counted(UNEVEN, 0, 6) == 40)
        other.feed.note_scanned(block(topic_id, 40, 41, [-1, -1, -1, 40], split=UNEVEN))
        await one.until(lambda: one.counted(UNEVEN, 0, 40) == 41)
        assert len(one.blocks) == 1, "its own came back, and were passed over"


async def test_a_cut_is_not_overtaken_and_old_scans_beyond_it_are_not_believed(kafka: str) -> None:
    """Scans beyond it with an older leader epoch do not count; the rest does."""
    topic_id = uuid.uuid4()
    async with (
        running(kafka, 1, topic_id) as one,
        running(kafka, 2, topic_id) as other,
        running(kafka, 3, topic_id) as late,
    ):
        one.feed.note_scanned(block(topic_id, 0, 100, [1, 2, 3, 4]))
        await other.until(lambda: other.counted(FOUR, 0, 50) == 100)

        one.feed.note_scanned(block(topic_id, 100, 120, [-1, -1, -1, -1]))
        one.feed.note_truncated(topic_id, 3, 60)
        one.feed.note_scanned(block(topic_id, 60, 70, [65, -1, -1, -1], epoch=2))
        await other.until(lambda: other.counted(FOUR, 1, 50) == 70)
        assert other.cuts == [(3, 60)]
        assert other.counted(FOUR, 0, 61) == 61, "a record of the new log"
        assert other.counted(FOUR, 0, 110) == 110
        assert other.feed.remote_scanned_end(topic_id, 3) == 70

        # As if it had read this before the cut, and slept until now.
        late.feed.note_scanned(block(topic_id, 60, 200, [-1, -1, -1, -1]))
        late.feed.note_scanned(block(topic_id, 10, 20, [-1, -1, 12, -1]))
        await other.until(lambda: other.blocks[-1].end == 20)
        assert other.counted(FOUR, 1, 80) == 80

        late.feed.note_scanned(block(topic_id, 70, 90, [-1, -1, -1, -1], epoch=2))
        await other.until(lambda: other.counted(FOUR, 1, 80) == 90)


async def test_a_node_that_starts_anew_learns_its_own_past(kafka: str, monkeypatch: Any) -> None:
    """It receives the scans of its former life at the start, apart from later ones."""
    # What is sent as a node stops is lost after 5 s, which a busy machine may take.
    monkeypatch.setattr("keylane.proxy.scans.feed.CLOSE_TIMEOUT_S", 60.0)
    topic_id = uuid.uuid4()
    async with running(kafka, 5, topic_id) as node:
        node.feed.note_scanned(block(topic_id, 0, 10, [7, -1, -1, -1], split=UNEVEN))

    async with running(kafka, 5, topic_id) as again:
        assert again.counted(UNEVEN, 1, 0) == 10
        assert again.counted(UNEVEN, 0, 3) == 3
        assert not again.blocks
        assert [found.end for found in again.past] == [10]


async def test_the_topic_is_short_lived_and_damage_is_passed_over(
    own_broker: EmbeddedKafka,
) -> None:
    """Records that are none, or of another version, do not stop those behind them."""
    kafka = own_broker.bootstrap
    topic_id = uuid.uuid4()
    async with running(kafka, 1, topic_id) as one, running(kafka, 2, topic_id) as other:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        names = {"cleanup.policy": None, "retention.ms": None}
        resource = ConfigResource(ConfigResourceType.TOPIC, TOPIC_NAME, configs=names)
        (answer,) = await admin.describe_configs([resource])
        await admin.close()
        ((_, _, _, _, settings),) = answer.resources
        found = {name: value for name, value, *_ in settings}
        assert found == {"cleanup.policy": "delete", "retention.ms": "600000"}

        producer = AIOKafkaProducer(bootstrap_servers=kafka)
        await producer.start()
        for value in (b"", b"\0\0", b"\0\x09" + bytes(30), bytes(40), None):
            await producer.send_and_wait(TOPIC_NAME, value, key=b"x", partition=0)
        await producer.stop()

        one.feed.note_scanned(block(topic_id, 0, 10, [-1, -1, -1, -1]))
        await other.until(lambda: other.counted(FOUR, 0, 0) == 10)


async def test_scans_are_given_up_and_cuts_are_not_while_kafka_is_away(
    own_broker: EmbeddedKafka, monkeypatch: Any
) -> None:
    """With the broker gone for longer than a send may take, a cut still arrives afterwards.

    Here the topic has three partitions, as somebody has made it so.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=own_broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC_NAME, 3, 1)])
    await admin.close()
    monkeypatch.setattr("keylane.proxy.scans.feed.SEND_TIMEOUT_S", 2.0)
    monkeypatch.setattr("keylane.proxy.scans.feed.CLOSE_TIMEOUT_S", 1.0)
    topic_id = uuid.uuid4()
    async with (
        running(own_broker.bootstrap, 1, topic_id) as one,
        running(own_broker.bootstrap, 2, topic_id) as other,
    ):
        given_up, give_up = asyncio.Event(), one.feed._give_up

        def note(*how: Any) -> None:
            give_up(*how)
            given_up.set()

        monkeypatch.setattr(one.feed, "_give_up", note)
        own_broker.kill()
        one.feed.note_truncated(topic_id, 3, 60)
        one.feed.note_scanned(block(topic_id, 0, 10, [-1, -1, -1, -1]))
        async with asyncio.timeout(60):
            await given_up.wait()
        assert one.feed.lost

        # No scan may be given up from here on, and a broker that has just started may be slow.
        monkeypatch.setattr("keylane.proxy.scans.feed.SEND_TIMEOUT_S", 20.0)
        own_broker.start()
        await other.until(lambda: (3, 60) in other.cuts)
        one.feed.note_scanned(block(topic_id, 10, 20, [-1, -1, -1, -1]))
        await other.until(lambda: other.counted(FOUR, 0, 10) == 20)
        assert other.counted(FOUR, 0, 0) == 0
        assert len(one.feed._partitions) == 3
