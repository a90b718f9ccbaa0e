"""offsets/store.py: a load is over when all is read, however long its connections take to close."""

from __future__ import annotations

import asyncio
from typing import Any

from keylane.journal import own_topic, store
from keylane.offsets.table import OffsetTable


class SlowToClose:
    """An empty journal behind TLS: `stop` ends only when the test says so."""

    may_end = asyncio.Event()
    stopped = asyncio.Event()

    def __init__(self, **_options: Any) -> None:
        """Like aiokafka's."""

    async def start(self) -> None:
        """Connect."""

    def assign(self, _partitions: Any) -> None:
        """Begin to fetch."""

    def seek(self, _partition: Any, _offset: int) -> None:
        """From here."""

    async def end_offsets(self, partitions: Any) -> dict[Any, int]:
        """Nothing is there."""
        return dict.fromkeys(partitions, 0)

    beginning_offsets = end_offsets

    async def stop(self) -> None:
        """Wait for the broker's part of closing."""
        await SlowToClose.may_end.wait()
        SlowToClose.stopped.set()


async def test_a_load_does_not_wait_for_its_connections(monkeypatch) -> None:
    """It gives what it has read; the consumer is stopped all the same."""
    SlowToClose.may_end, SlowToClose.stopped = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(own_topic, "AIOKafkaConsumer", SlowToClose)
    table = OffsetTable(partition_count=1, individual_commits_max=10)

    async with asyncio.timeout(60):
        ends = await store.read_partitions(own_topic.OwnTopicClients(""), [0], table)

    assert ends == {0: 0} and not SlowToClose.stopped.is_set()
    SlowToClose.may_end.set()
    async with asyncio.timeout(60):
        await SlowToClose.stopped.wait()
