"""Finds where partitions begin to be read: the group's offsets, or an end of the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from keylane.client import errors as e
from keylane.client import offset_calls as calls
from keylane.client.cluster import ClusterClient
from keylane.client.fetcher import RESETS, Fetcher
from keylane.client.reading import COMMITTED, Reading
from keylane.client.settings import ConsumerSettings
from keylane.client.values import Committed, KeyRanges, TopicPartition
from keylane.errors import KeylaneError
from keylane.tasks import spawn
from keylane.wire.extensions import LaneRange

log = logging.getLogger("keylane.client.positions")

WORTH_A_RETRY: Final = e.STALE_METADATA | e.COORDINATOR_LOST | e.COORDINATOR_BUSY


class Positions:
    """Finds the positions of a fetcher's readings; `changed` is set when some were found."""

    def __init__(
        self, cluster: ClusterClient, settings: ConsumerSettings, fetcher: Fetcher
    ) -> None:
        self._cluster, self._settings, self._fetcher = cluster, settings, fetcher
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        self.on_lanes: Callable[[Mapping[TopicPartition, LaneRange]], None] = _ignore
        """Takes what the answers say of lane indexes."""

    def start(self) -> None:
        """Begin to look."""
        self._running = spawn(self._run(), "keylane client: positions")

    async def close(self) -> None:
        """Stop looking."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def wake(self) -> None:
        """Look for readings without a position."""
        self._wake.set()

    async def of(self, reading: Reading) -> int:
        """Wait until a reading has a position, and return it. Raises: its error."""
        while reading.progress is None:
            if reading.error is not None:
                error, reading.error = reading.error, None
                raise error
            if self._fetcher.readings.get(reading.part) is not reading:
                raise e.NotAssigned(f"{calls.place_of(reading.part)} is not assigned")
            self.changed.clear()
            self.wake()
            await self.changed.wait()
        return reading.progress.next_offset

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            lost = [
                reading
                for reading in self._fetcher.readings.values()
                if reading.progress is None and reading.error is None
            ]
            wait_s = None
            if lost:
                await self._find(lost)
                self._fetcher.wake()
                if any(reading.progress is None and reading.error is None for reading in lost):
                    wait_s = self._settings.retry_backoff_s
            self.changed.set()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _find(self, readings: Collection[Reading]) -> None:
        """Find the positions of readings; those that are not found stay as they are."""
        lives = {reading: reading.life for reading in readings}
        try:
            by_log = await self._take_committed(readings, lives)
            if by_log:
                await self._take_listed(by_log, lives)
        except e.Disconnected as error:
            log.warning("positions not found error=%s", error)
        except e.CoordinatorUnavailable as error:
            log.info("positions not found error=%s", error)
        except KeylaneError as error:
            for reading in readings:
                if reading.progress is None:
                    self._fail(reading, error)

    def _fail(self, reading: Reading, error: KeylaneError) -> None:
        reading.error = error
        self._fetcher.arrived.set()

    async def _take_committed(
        self, readings: Collection[Reading], lives: Mapping[Reading, int]
    ) -> dict[Reading, int]:
        """Begin what the group has offsets of; return the timestamp to look for of the others."""
        by_log = {reading: reading.start for reading in readings if reading.start != COMMITTED}
        asked = {reading.part: reading for reading in readings if reading.start == COMMITTED}
        if not asked:
            return by_log
        found: Mapping[TopicPartition, Committed | None] = dict.fromkeys(asked)
        group_id = self._settings.group_id
        if group_id is not None:
            keys: dict[TopicPartition, KeyRanges] = {
                part: reading.key_ranges for part, reading in asked.items()
            }
            found, errors, lanes = await calls.fetch_committed(self._cluster, group_id, keys)
            self.on_lanes(lanes)
            self._note(errors, asked)
        for part, committed in found.items():
            reading = asked.get(part)
            if reading is None or reading.life != lives[reading]:
                continue
            if committed is not None:
                reading.begin(committed)
            elif self._settings.auto_offset_reset == "none":
                text = f"{calls.place_of(part)}: group {group_id} has no offset"
                self._fail(reading, e.OffsetMissing(text))
            else:
                by_log[reading] = RESETS[self._settings.auto_offset_reset]
        return by_log

    def _note(self, errors: Mapping[object, int], asked: Mapping[TopicPartition, Reading]) -> None:
        """Sort errors of OffsetFetch: some are worth a retry, the others are a partition's end."""
        group_id = self._settings.group_id
        assert group_id is not None
        for part, code in errors.items():
            if code in e.COORDINATOR_LOST:
                self._cluster.coordinator_lost(group_id)
            if code in WORTH_A_RETRY:
                continue
            if isinstance(part, TopicPartition):
                self._fail(asked[part], e.error_of(code, calls.place_of(part)))
            else:
                raise e.error_of(code, f"group {group_id}")

    async def _take_listed(
        self, readings: Mapping[Reading, int], lives: Mapping[Reading, int]
    ) -> None:
        by_part = {reading.part: reading for reading in readings}
        asked = {reading.part: timestamp for reading, timestamp in readings.items()}
        found, errors = await calls.list_offsets(self._cluster, asked, self._settings.isolation)
        for part, (offset, _) in found.items():
            reading = by_part[part]
            if reading.life != lives[reading]:
                continue
            reading.seek(offset)
        for part, code in errors.items():
            if code not in WORTH_A_RETRY:
                self._fail(by_part[part], e.error_of(code, calls.place_of(part)))
        if any(code in WORTH_A_RETRY for code in errors.values()):
            self._fetcher.refresh_metadata()


def _ignore(_lanes: Mapping[TopicPartition, LaneRange]) -> None:
    pass
