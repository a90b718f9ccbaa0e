"""A log's growth, seen while a share session has no time to wait for it.

Source: KIP-932 (a waiting share fetch fails when its session acknowledges).

A fetch waits behind the last offset that was acquired, on another connection. It brings a batch
that is read again; that is once for each time that the group has caught up with the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from keylane.errors import KeylaneError
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.cluster.partition_source import UpstreamSource
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.split_io import ReaderKit
from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.indexing import index_all
from keylane.tasks import spawn

log = logging.getLogger("keylane.share")

WAIT_MS: Final = 5_000


class LogWatcher:
    """Waits for records behind an offset, one offset after the other."""

    def __init__(
        self,
        cluster: Cluster,
        kit: ReaderKit,
        place: SharedPlace,
        on_news: Callable[[], None],
    ) -> None:
        self._cluster, self._kit, self._place, self._on_news = cluster, kit, place, on_news
        self._watched = -1
        self._task: asyncio.Task[None] | None = None
        self._source: UpstreamSource | None = None

    def watch(self, offset: int) -> None:
        """Call `on_news` when the log has `offset`; once for each offset."""
        if offset <= self._watched or self._task is not None:
            return
        self._watched = offset
        self._task = spawn(self._wait_for(offset), f"log end {self._place}")
        self._task.add_done_callback(self._over)

    def _over(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _wait_for(self, offset: int) -> None:
        try:
            if self._source is None:
                self._source = await UpstreamSource.open(self._cluster, *self._place[1:])
            while not await self._has_grown(self._source, offset):
                pass
        except (KeylaneError, OSError) as error:
            log.debug("log end is not watched %s reason=%s", self._place, error)
            self._drop_source()
        self._on_news()

    async def _has_grown(self, source: UpstreamSource, offset: int) -> bool:
        kit = self._kit
        room = ReadRoom(kit.gates, read_bytes=kit.read_bytes_max, block_bytes=kit.plain_bytes_max)
        try:
            raw = await source.fetch(
                offset, max_wait_ms=WAIT_MS, max_bytes=1, isolation_level=0, room=room
            )
        finally:
            room.leave()
        if raw.error_code:
            self._drop_source()
        return bool(raw.error_code or len(raw.records))

    def _drop_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def close(self) -> None:
        """End the wait."""
        if self._task is not None:
            self._task.cancel()
        self._drop_source()


async def has_records(
    cluster: Cluster, kit: ReaderKit, place: SharedPlace, first: int, last: int
) -> bool:
    """Return whether the log has a record at these offsets, both included. Raises: UpstreamLost."""
    source = await UpstreamSource.open(cluster, *place[1:])
    try:
        while first <= last:
            room = ReadRoom(
                kit.gates, read_bytes=kit.read_bytes_max, block_bytes=kit.plain_bytes_max
            )
            try:
                raw = await source.fetch(
                    first,
                    max_wait_ms=0,
                    max_bytes=kit.read_bytes_max,
                    isolation_level=0,
                    room=room,
                )
                if raw.error_code or not len(raw.records):
                    return bool(raw.error_code)  # what is not known may be there
                await room.for_records(len(raw.records))
                indexed = await index_all(kit, raw.records, room)
            finally:
                room.leave()
            for block in indexed.blocks:
                if ((block.offsets >= first) & (block.offsets <= last)).any():
                    return True
            if indexed.next_offset <= first:
                return True
            first = indexed.next_offset
    finally:
        source.close()
    return False
