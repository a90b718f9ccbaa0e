"""A feed of scans that ends while its producer is on its way to Kafka."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any
from unittest import mock

import numpy as np
import pytest
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from keylane.errors import UpstreamLost
from keylane.journal.own_topic import OwnTopicClients
from keylane.keyrange.key_split import PartitionSplit, even_split
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.feed import ScanFeed
from keylane.proxy.scans.runs import PublishedLane
from keylane.share.handover import NOTE_VERSION
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


def make_feed() -> ScanFeed:
    feed = ScanFeed(
        OwnTopicClients(""),
        number=0,
        on_scanned=mock.Mock(),
        on_truncated=mock.Mock(),
        wall_clock=lambda: 0.0,
    )
    feed._partitions = [TopicPartition("scans", 0)]
    return feed


async def test_a_feed_stops_while_its_producer_starts() -> None:
    """What was scanned since is sent by another one; both are closed."""
    Producer.made, Producer.starting = [], asyncio.Event()
    feed = make_feed()
    with mock.patch("keylane.journal.own_topic.AIOKafkaProducer", Producer):
        feed._tasks = [spawn(feed._send_on(), "scans sent")]
        feed.note_scanned(block(0))
        await Producer.starting.wait()
        feed.note_scanned(block(100))

        await feed.stop()

    assert [each.sent for each in Producer.made] == [0, 1]
    assert all(each.is_stopped for each in Producer.made)


class FailingProducer(Producer):
    """Kafka takes nothing."""

    async def start(self) -> None:
        pass

    async def send(self, *_: Any, **__: Any) -> asyncio.Future[None]:
        raise KafkaError


async def test_a_note_is_written_or_its_sender_learns_that_it_is_not() -> None:
    """Beside scans, which are lost without a word."""
    Producer.made, Producer.starting = [mock.Mock()], asyncio.Event()
    feed = make_feed()
    with mock.patch("keylane.journal.own_topic.AIOKafkaProducer", Producer):
        feed._tasks = [spawn(feed._send_on(), "scans sent")]
        feed.note_scanned(block(0))
        await feed.publish(b"note")
        written = Producer.made[1].sent
        await feed._close_producer()
    with mock.patch("keylane.journal.own_topic.AIOKafkaProducer", FailingProducer):
        with pytest.raises(UpstreamLost):
            await feed.publish(b"note")
        await feed.stop()

    assert written == 2


async def test_notes_of_before_the_start_are_passed_over() -> None:
    """Their sessions are over."""
    feed, seen = make_feed(), list[bytes]()
    feed.on_note = seen.append
    record: Any = mock.Mock(value=NOTE_VERSION.to_bytes(2, "big") + b"n")

    feed._take_in([record], mock.Mock())
    before = list(seen)
    feed._tasks = [spawn(asyncio.sleep(60.0), "follows")]
    feed._take_in([record], mock.Mock())
    await feed.stop()

    assert (before, seen) == ([], [record.value])
