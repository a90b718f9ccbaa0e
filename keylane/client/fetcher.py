"""Fetches ahead of the application: one request in flight per leader, bounded in bytes.

A shell: `fetches` makes the requests and reads the answers, `reading` has the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from keylane.client import errors as e
from keylane.client.cluster import CONNECTION_FETCH, ClusterClient
from keylane.client.fetches import (
    VERSION_MAX,
    VERSION_MIN,
    FetchOutcome,
    ReadBatches,
    plan_fetch,
    read_answer,
    read_batches,
)
from keylane.client.metrics import Metrics
from keylane.client.reading import EARLIEST, LATEST, Reading
from keylane.client.settings import ConsumerSettings
from keylane.client.values import TopicPartition
from keylane.errors import FrameInvalid, KeylaneError
from keylane.tasks import spawn
from keylane.wire.header import ApiKey

log = logging.getLogger("keylane.client.fetcher")

READ_HERE_US_MAX: Final = 200
"""Batches that take this long are read on the loop: to hand them to a thread and back takes as
long, and costs more."""
BUSY_WAIT_MS_MAX: Final = 50
"""The longest wait at the broker while another partition of the node has records to be given: it
may need a fetch soon, and its node has one request at a time."""
ANSWERS_AHEAD: Final = 2
"""Full answers of a partition that may wait while another one is fetched."""
RESETS: Final = {"earliest": EARLIEST, "latest": LATEST}


class Fetcher:
    """Fetches what `readings` want; `arrived` is set when a poll has something to look at."""

    def __init__(
        self,
        cluster: ClusterClient,
        settings: ConsumerSettings,
        metrics: Metrics,
        on_reset: Callable[[], None],
    ) -> None:
        """on_reset: some readings have lost their position."""
        self.readings: dict[TopicPartition, Reading] = {}
        self.arrived = asyncio.Event()
        self._cluster, self._settings, self._metrics = cluster, settings, metrics
        self._on_reset = on_reset
        self._log_ends: dict[TopicPartition, int] = {}
        """By the last answer for any lane of the log: what is paused is not asked for, and yet it
        falls behind."""
        self._busy: dict[int, asyncio.Task[None]] = {}
        """The request in flight of each node."""
        self._reads = 0
        """Answers that are with the thread."""
        self._refreshing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._now_s = self._loop.time
        self._is_open = False
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        """A back-off is over then."""
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keylane-fetch")

    def start(self) -> None:
        """Begin to fetch."""
        self._is_open = True
        self.wake()

    async def close(self) -> None:
        """End all requests."""
        self._is_open = False
        self._look()
        tasks = [self._refreshing, *self._busy.values()]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def wake(self) -> None:
        """Look again at what is wanted."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._look)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for the application."""
        return sum(reading.waiting_bytes for reading in self.readings.values())

    def lag(self, reading: Reading) -> int | None:
        """Return the offsets from its position to the end of the log; None: one is not known."""
        log_end = self._log_ends.get(reading.log, -1)
        if reading.progress is None or log_end < 0:
            return None
        return max(0, log_end - reading.progress.next_offset)

    def forget_logs(self) -> None:
        """Forget the ends of logs that nothing reads: they are old when one is read again."""
        logs = {reading.log for reading in self.readings.values()}
        self._log_ends = {log: end for log, end in self._log_ends.items() if log in logs}

    # -- requests -------------------------------------------------------------------------

    def _look(self) -> None:
        """Start the requests that are wanted, and plan the next look; none when it is closed."""
        for planned in (self._soon, self._later):
            if planned is not None:
                planned.cancel()
        self._soon = self._later = None
        if self._is_open:
            wait_s = self._start_requests()
            if wait_s is not None:
                self._later = self._loop.call_later(wait_s, self._look)

    def _start_requests(self) -> float | None:
        """Start a request to each node that has none; return the seconds until the next try."""
        now_s = self._now_s()
        enough_bytes = ANSWERS_AHEAD * self._settings.max_partition_fetch_bytes
        room = self._settings.max_buffered_bytes - self.buffered_bytes
        by_node: dict[int, list[Reading]] = {}
        full_nodes: set[int] = set()
        retry_s: list[float] = []
        for reading in self.readings.values():
            if reading.progress is None or reading.error is not None:
                continue
            if reading.retry_at_s > now_s:
                retry_s.append(reading.retry_at_s - now_s)
                continue
            leader = self._cluster.leader_of(reading.part)
            if reading.is_paused:  # may be wanted soon: the request of its node is not to wait long
                full_nodes.update(() if leader is None else (leader,))
            elif leader is None:
                self._back_off([reading])
                self.refresh_metadata()
                retry_s.append(self._settings.retry_backoff_s)
            elif reading.waiting_bytes >= enough_bytes or room <= 0:
                full_nodes.add(leader)
            else:
                by_node.setdefault(leader, []).append(reading)
        for node_id, readings in by_node.items():
            if node_id not in self._busy:
                share = max(1, room // len(by_node))
                task = self._fetch(node_id, readings, share, is_busy=node_id in full_nodes)
                self._busy[node_id] = spawn(task, f"keylane client: fetch from node {node_id}")
        return min(retry_s) if retry_s else None

    async def _fetch(
        self, node_id: int, readings: list[Reading], max_bytes: int, *, is_busy: bool
    ) -> None:
        """Send one request, and take its answer."""
        full: list[FetchOutcome] = []
        max_wait_ms = self._settings.fetch_max_wait_ms
        if is_busy:
            max_wait_ms = min(max_wait_ms, BUSY_WAIT_MS_MAX)
        try:
            version = await self._cluster.version_for(
                node_id, ApiKey.FETCH, VERSION_MAX, VERSION_MIN
            )
            plan = plan_fetch(
                readings,
                self._settings,
                version=version,
                max_wait_ms=max_wait_ms,
                max_bytes=max_bytes,
                topic_id=self._cluster.topic_id,
                leader_epoch=self._cluster.leader_epoch_of,
            )
            body = await self._cluster.ask(
                node_id, ApiKey.FETCH, plan.version, plan.body, connection=CONNECTION_FETCH
            )
            self._metrics.fetches += 1
            self._metrics.fetched_bytes += len(body)
            code, outcomes = read_answer(plan, body, read_committed=self._settings.isolation != 0)
        except (e.Disconnected, FrameInvalid) as error:
            log.warning("fetch failed node_id=%d error=%s", node_id, error)
            self._back_off(readings)
            self.refresh_metadata()
        except KeylaneError as error:
            self._fail(readings, error)
        else:
            full = self._take(readings, code, outcomes)
        finally:
            del self._busy[node_id]
            self._look()  # first: the node has work while these batches are read
        if full:
            self._read(full)

    # -- outcomes -------------------------------------------------------------------------

    def _take(
        self, readings: list[Reading], code: int, outcomes: Collection[FetchOutcome]
    ) -> list[FetchOutcome]:
        """Note what an answer says; return the outcomes whose batches are to be read."""
        if code != e.NONE:
            log.warning("fetch refused error_code=%d", code)
            self._back_off(readings)
            self.refresh_metadata()
            return []
        full = []
        for outcome in outcomes:
            if outcome.asked.is_stale or not self._is_good(outcome):
                continue
            self._log_ends[outcome.asked.reading.log] = outcome.log_end
            if outcome.whole is not None:
                outcome.asked.reading.expect(outcome.whole.next_offset, len(outcome.data))
            if outcome.data:
                full.append(outcome)
        return full

    def _read(self, outcomes: Collection[FetchOutcome]) -> None:
        """Read batches, on the loop behind the requests that are to leave, or in the thread."""
        us = sum(outcome.reading_us for outcome in outcomes)
        if us <= READ_HERE_US_MAX and not self._reads:  # not before what is with the thread
            self._loop.call_soon(self._read_here, outcomes)
            return
        for outcome in outcomes:
            self._reads += 1
            read = self._threads.submit(read_batches, outcome)
            read.add_done_callback(partial(self._hand_over, outcome))

    def _read_here(self, outcomes: Collection[FetchOutcome]) -> None:
        for outcome in outcomes:
            if not outcome.asked.is_stale:
                self._add(outcome, read_batches(outcome))
        self.wake()

    def _hand_over(self, outcome: FetchOutcome, read: Future[ReadBatches]) -> None:
        """Have the loop take what the thread has read. Called in the thread, in their order."""
        with suppress(RuntimeError):  # the loop is closed: nothing waits for the records
            self._loop.call_soon_threadsafe(self._take_read, outcome, read)

    def _take_read(self, outcome: FetchOutcome, read: Future[ReadBatches]) -> None:
        self._reads -= 1
        if not self._is_open:
            return  # `close` may have cancelled the read
        found = read.result()
        if not outcome.asked.is_stale:
            self._add(outcome, found)
        self.wake()

    def _is_good(self, outcome: FetchOutcome) -> bool:
        """Look at the codes of an outcome; do what an error calls for."""
        reading, code = outcome.asked.reading, outcome.error_code
        place = f"topic {reading.part.topic} partition {reading.part.partition}"
        if outcome.draft_code == e.RANGE_FETCH_NOT_ALLOWED:
            self._fail([reading], e.error_of(code, place, draft_code=outcome.draft_code))
        elif code == e.OFFSET_OUT_OF_RANGE:
            self._reset(reading, place)
        elif code in e.STALE_METADATA:
            log.info("fetch elsewhere place=%s error=%s", place, e.name_of(code))
            self._back_off([reading])
            self.refresh_metadata()
        elif code != e.NONE:
            self._fail([reading], e.error_of(code, place))
        return code == e.NONE

    def _add(self, outcome: FetchOutcome, read: ReadBatches) -> None:
        """Take the records of an outcome."""
        reading = outcome.asked.reading
        if read.corrupt is not None:
            reading.go_back(outcome.asked.offset)
            place = f"topic {reading.part.topic} partition {reading.part.partition}"
            text = f"{place} offset {outcome.asked.offset}: {read.corrupt}"
            self._fail([reading], e.RecordsCorrupt(text))
        elif read.fields is not None:
            reading.add(read.fields, outcome.asked.offset)
            if reading.has_records:
                self.arrived.set()

    def _reset(self, reading: Reading, place: str) -> None:
        if reading.waiting_bytes:  # those before it are given first
            self._back_off([reading])
            return
        policy = self._settings.auto_offset_reset
        if policy == "none":
            text = f"{place}: no offset {reading.fetch_offset} in the log"
            self._fail([reading], e.OffsetOutOfRange(text))
            return
        log.warning("offset out of range place=%s offset=%d", place, reading.fetch_offset)
        reading.lose_position(RESETS[policy])
        self._on_reset()

    def _fail(self, readings: Collection[Reading], error: KeylaneError) -> None:
        for reading in readings:
            reading.error = error
        self.arrived.set()

    def _back_off(self, readings: Collection[Reading]) -> None:
        retry_at_s = self._now_s() + self._settings.retry_backoff_s
        for reading in readings:
            reading.retry_at_s = retry_at_s

    def refresh_metadata(self) -> None:
        """Ask for the metadata, unless that is going on."""
        if self._refreshing is None:
            self._refreshing = spawn(self._refresh(), "keylane client: metadata")

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
        except KeylaneError as error:
            log.warning("metadata not refreshed error=%s", error)
        finally:
            self._refreshing = None
            self.wake()
