"""A feed of scans that ends while its producer is on its way to Kafka."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any
from unittest import mock

import numpy as np
from aiokafka.structs import TopicPartition

from keylane.journal.own_topic import OwnTopicClients
from keylane.keyrange.key_split import PartitionSplit, even_split
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.feed import ScanFeed
from keylane.proxy.scans.runs import PublishedLane
from keylane.tasks import spawn


class Producer:
    """The first one never gets through to Kafka."""

    made: list[Producer]
    starting: asyncio.Event

    def __init__(self, **_: Any) -> None:
        self.made.append(self)
        self.is_open = self.is_stopped = False
        self.sent = 0

    async def start(self) -> None:
        self.starting.set()
        if self is self.made[0]:
            await asyncio.Event().wait()
        self.is_open = True

    async def send(self, *_: Any, **__: Any) -> asyncio.Future[None]:
        assert self.is_open, "it was never started"
        self.sent += 1
        acked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        acked.set_result(None)
        return acked

    async def stop(self) -> None:
        self.is_open, self.is_stopped = False, True


def block(start: int) -> ScannedBlock:
    """A hundred records."""
    return ScannedBlock(
        topic="orders", at=PartitionSplit(uuid.UUID(int=1), 0, even_split(2)),
        start=start, end=start + 100, last_record_offsets=np.array([start, -1]),
        outputs=(PublishedLane(1000, 1, start, start), None), holes=(), log_start_offset=0,
        leader_epoch=0,
    )  # fmt: skip


async def test_a_feed_stops_while_its_producer_starts() -> None:
    """What was scanned since is sent by another one; both are closed."""
    Producer.made, Producer.starting = [], asyncio.Event()
    feed = ScanFeed(
        OwnTopicClients(""),
        number=0,
        on_scanned=mock.Mock(),
        on_truncated=mock.Mock(),
        wall_clock=lambda: 0.0,
    )
    feed._partitions = [TopicPartition("scans", 0)]
    with mock.patch("keylane.journal.own_topic.AIOKafkaProducer", Producer):
        feed._tasks = [spawn(feed._send_on(), "scans sent")]
        feed.note_scanned(block(0))
        await Producer.starting.wait()
        feed.note_scanned(block(100))

        await feed.stop()

    assert [each.sent for each in Producer.made] == [0, 1]
    assert all(each.is_stopped for each in Producer.made)
