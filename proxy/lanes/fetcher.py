"""Answers of fetch requests of lanes, for all clients of a process.

Source: KIP-74 (limits), KIP-98 (aborted transactions), KIP-227 (long polls).

A request is answered when
- records of at least `min_bytes` are at hand, or a limit is reached, or a lane cannot be read;
- or `max_wait_ms` is over, or a request that is no Fetch waits behind it on its connection. Data
  that is known to be upstream is still waited for then, as a broker waits for its disk. Otherwise
  a client with short waits would never see it.
A block without a record for the lanes that wait does not wake them. Its empty header goes out with
the next answer, so that positions move. Only an empty range that ended at the log end when the
request came is answered at once, and not twice in a row: a client that reads up to a known end
(Spark) does not wait, and no client spins.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from kio.schema.errors import ErrorCode

from keylane.cache.lane_values import Taken
from keylane.cache.slice_cache import SliceCache
from keylane.kernel.split import split_block
from keylane.keyrange.key_split import PartitionSplit
from keylane.proxy.lanes.block_split import timed
from keylane.proxy.lanes.fetch_request import LaneAnswer, LaneFetch, LaneFetchRequest
from keylane.proxy.lanes.misplaced import MisplacedRecords
from keylane.proxy.lanes.pending_fetch import Cursor, LanePoll, Turn
from keylane.proxy.lanes.read_memory import Gates
from keylane.proxy.lanes.reader import PartitionReader
from keylane.proxy.lanes.reader_limit import IDLE_S, ReaderRoom
from keylane.proxy.lanes.refused_batches import RefusedBatches
from keylane.proxy.lanes.split_io import (
    READ_COMMITTED,
    OpenSource,
    ReaderKey,
    ReaderKit,
    ScanSeams,
    SplitFunction,
)
from keylane.proxy.runtime.stats import ProxyStats

READER_IDLE_S: Final = 60.0
"""A partition without a fetch in this time is closed; opening it again costs a few ms."""
CLAIM_S: Final = 30.0
"""A connection that did not ask for a lane in this time does not hold its slices back."""
SWEEP_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds of the readers of a process, in bytes where nothing else is said."""

    cache_bytes_max: int
    filtering_bytes_max: int
    batch_bytes_max: int
    read_bytes_max: int
    gathering_bytes_max: int = sys.maxsize
    lane_names_max: int = sys.maxsize
    """Names; see `ReaderRoom`."""
    lane_name_lanes_max: int = sys.maxsize
    """Lanes; see `ReaderRoom`."""
    threads: int = 0
    """0: as many as processors."""


class LaneFetcher:
    """The process's readers, and the requests that wait for them."""

    def __init__(
        self,
        open_source: OpenSource,
        limits: FetchLimits,
        scans: ScanSeams,
        *,
        clock: Callable[[], float],
        stats: ProxyStats,
        split: SplitFunction = split_block,
        pool: Executor | None = None,
    ) -> None:
        """Open nothing: a reader opens its connections at its first read."""
        stats.cache_bytes_max = limits.cache_bytes_max
        stats.filtering_bytes_max = limits.filtering_bytes_max
        self._pool = pool or ThreadPoolExecutor(
            limits.threads or os.cpu_count() or 1, thread_name_prefix="split"
        )
        self._kit = ReaderKit(
            open_source=open_source,
            split=timed(split, stats),
            pool=self._pool,
            gates=Gates.of(limits.filtering_bytes_max, limits.batch_bytes_max),
            refused=RefusedBatches(),
            misplaced=MisplacedRecords(stats),
            cache=SliceCache(bytes_max=limits.cache_bytes_max),
            clock=clock,
            stats=stats,
            scans=replace(scans, on_truncated=self._note_cut),
            read_bytes_max=limits.read_bytes_max,
            batch_bytes_max=limits.batch_bytes_max,
        )
        self._on_truncated = scans.on_truncated
        self._readers: dict[ReaderKey, PartitionReader] = {}
        self._room = ReaderRoom[ReaderKey](
            names_max=limits.lane_names_max,
            lanes_max=limits.lane_name_lanes_max,
            is_busy=lambda key: self._is_busy(self._readers[key]),
            close=self._close_reader,
        )
        self._at: WeakValueDictionary[tuple[uuid.UUID, int], WeakSet[PartitionReader]]
        self._at = WeakValueDictionary()
        """By topic id and partition; an entry lives as long as one of its readers (`siblings`)."""
        self._retired: set[ReaderKey] = set()
        """Readers whose clients get another one with their next fetch."""
        self._cursors: dict[str, Cursor] = {}
        self._polls: set[LanePoll] = set()
        self._gathering_bytes_max = limits.gathering_bytes_max
        self._swept_s = clock()
        self._is_stopped = False

    @property
    def kit(self) -> ReaderKit:
        """Return what readers share, for others that read partitions."""
        return self._kit

    @property
    def cache(self) -> SliceCache:
        """Return the slices that wait for lanes, of all partitions."""
        return self._kit.cache

    @property
    def misplaced(self) -> MisplacedRecords:
        """Return records in other partitions than their keys have by murmur2."""
        return self._kit.misplaced

    async def fetch(self, request: LaneFetchRequest) -> list[LaneAnswer]:
        """Answer every lane of the request, in order. Errors of brokers are answers, not raised."""
        now_s = self._kit.clock()
        if now_s - self._swept_s >= SWEEP_S:
            self.sweep(now_s)
        cursor = self._cursors.setdefault(request.cursor_id, Cursor(now_s))
        cursor.seen_s = now_s
        turns, refused = self._turns(request, cursor, now_s)
        poll = LanePoll(request, cursor, turns, self._note_gathered)
        if self._is_stopped:
            poll.fail_all(ErrorCode.not_leader_or_follower)
        elif not turns or not poll.collect_at_once():  # all refused: not asked again at once
            self._polls.add(poll)
            cursor.poll = poll
            try:
                await poll.wait()
            finally:
                cursor.poll = None
                self._polls.discard(poll)
                self._kit.stats.gathering_bytes -= poll.waiting_bytes
        answers = self._answers(poll, refused)
        if self._retired:
            self._close_retired()
        return answers

    def _note_gathered(self, added: int) -> None:
        """Count what a waiting request has got; with too much in all, every request is answered."""
        stats = self._kit.stats
        stats.gathering_bytes += added
        if stats.gathering_bytes > self._gathering_bytes_max:
            for poll in self._polls:
                poll.press()

    def hurry(self, cursor_id: str) -> None:
        """End the wait of a connection's fetch, as when its `max_wait_ms` is over."""
        cursor = self._cursors.get(cursor_id)
        if cursor is not None and cursor.poll is not None:
            cursor.poll.hurry()

    def release(self, cursor_id: str) -> None:
        """End the claims of a client's connection that is gone."""
        cursor = self._cursors.pop(cursor_id, None)
        for reader in cursor.readers if cursor is not None else ():
            reader.log.release(cursor_id)

    def log_end(
        self,
        topic_id: uuid.UUID,
        partition: int,
        isolation_level: int,
        *,
        now_s: float,
        age_s_max: float,
    ) -> tuple[int, int] | None:
        """Return (log end, log start) from a broker's answer of the last `age_s_max`, or None."""
        reported = [
            reader
            for key, reader in self._readers.items()
            if key.at.place == (topic_id, partition) and now_s - reader.known_s <= age_s_max
        ]
        if not reported:
            return None
        reader = max(reported, key=lambda reader: reader.known_s)
        end = reader.high_watermark
        if isolation_level == READ_COMMITTED:
            end = reader.last_stable_offset
        return (end, reader.log_start_offset) if min(end, reader.log_start_offset) >= 0 else None

    def log_ends(self) -> dict[tuple[uuid.UUID, int], int]:
        """Return the log end that readers know, by topic id and partition; -1 is left out."""
        ends: dict[tuple[uuid.UUID, int], int] = {}
        for key, reader in self._readers.items():
            if reader.high_watermark >= 0:
                ends[key.at.place] = max(reader.high_watermark, ends.get(key.at.place, 0))
        return ends

    def splits_read(self) -> set[PartitionSplit]:
        """Return the partitions and splits that have a reader."""
        return {key.at for key in self._readers}

    def lane_count(self) -> int:
        """Return the number of lanes of the partitions that are read."""
        return sum(reader.key_split.output_count for reader in self._readers.values())

    def sweep(self, now_s: float) -> None:
        """Close readers that no client asks, and end claims that are not used."""
        self._swept_s = now_s
        for poll in self._polls:
            for turn in poll.turns:
                turn.claim.seen_s = now_s  # it is being asked for
        for key, reader in list(self._readers.items()):
            if not reader.listeners and now_s - reader.used_s > READER_IDLE_S:
                self._close_reader(key)
            elif now_s - reader.tidied_s >= SWEEP_S:
                reader.tidied_s = now_s
                reader.tidy(now_s - CLAIM_S)
        self._room.sweep(now_s)
        self._publish()

    def retire(self, at: PartitionSplit) -> None:
        """Close readers of a split in whose place another one is; once no fetch waits for them."""
        # Each reader has two connections: those of a row of changes would be too many.
        self._retired.update(key for key in self._readers if key.at == at)
        self._close_retired()

    def _close_retired(self) -> None:
        for key in [key for key in self._retired if not self._readers[key].listeners]:
            self._close_reader(key)
        self._publish()

    def _is_busy(self, reader: PartitionReader) -> bool:
        return bool(reader.listeners) or self._kit.clock() - reader.used_s < IDLE_S

    def _close_reader(self, key: ReaderKey) -> None:
        reader = self._readers.pop(key)
        self._retired.discard(key)
        reader.close()
        self._room.leave(key)
        for cursor in self._cursors.values():
            cursor.readers.pop(reader, None)

    def _publish(self) -> None:
        """Bring the gauges of readers up to date."""
        stats = self._kit.stats
        stats.readers = len(self._readers)
        stats.lane_name_readers, stats.lane_name_lanes = len(self._room), self._room.lanes
        stats.readers_refused = self._room.refused

    async def stop(self) -> None:
        """Answer the requests that wait, close every connection, end the threads."""
        self._is_stopped = True
        # Clients know no NETWORK_EXCEPTION in a Fetch answer, Java throws at it. This code makes
        # them refresh and come again.
        for poll in list(self._polls):
            poll.fail_all(ErrorCode.not_leader_or_follower)
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._retired.clear()
        self._kit.stats.readers = 0
        self._pool.shutdown(wait=False, cancel_futures=True)

    def forget_cut(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """Make readers forget the log from a cut on that another node has published."""
        self._kit.scans.lineages.of((topic_id, partition)).truncate(end)
        self._kit.refused.forget_from(topic_id, partition, end)
        for key, reader in self._readers.items():
            if key.at.place == (topic_id, partition):
                reader.forget_cut(end)

    def note_leader(self, place: tuple[uuid.UUID, int], leader_epoch: int) -> None:
        """Note a later leader of a partition: readers wait for no answer of the one before."""
        # A broker that ends may change the leaders of thousands, most of them without a reader.
        for reader in list(self._at.get(place, ())):
            reader.leave_leader(leader_epoch)

    def _note_cut(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """Pass a cut that one reader has seen to the partition's other readers and to counts."""
        self._kit.stats.logs_cut += 1
        self.forget_cut(topic_id, partition, end)
        self._on_truncated(topic_id, partition, end)

    def _turns(
        self, request: LaneFetchRequest, cursor: Cursor, now_s: float
    ) -> tuple[list[Turn], dict[int, int]]:
        """Find the reader of each lane, and claim it. Neighbours mostly have one reader.

        Also, by place in the request, the error codes of lanes that may not have one.
        """
        turns: list[Turn] = []
        refused: dict[int, int] = {}
        cursor_id, before, reader, refusal = request.cursor_id, None, None, 0
        for place, lane in enumerate(request.lanes):
            if before is None or not lane.is_beside(before):
                reader, refusal = self._reader_of(lane, request, now_s)
                if reader is not None:
                    reader.used_s = now_s
                    cursor.readers[reader] = None
            before = lane
            if reader is None:
                refused[place] = refusal
                continue
            reader.is_reserved = lane.reserve
            offset = lane.fetch_offset
            claim = reader.log.claim(lane.output, cursor_id, offset, now_s)
            turns.append(Turn(lane, reader, claim, Taken(offset), reader.end))
        return turns, refused

    def _reader_of(
        self, lane: LaneFetch, request: LaneFetchRequest, now_s: float
    ) -> tuple[PartitionReader | None, int]:
        """Return the reader of a lane, or None and the error code that refuses it."""
        at = PartitionSplit(lane.topic_id, lane.partition, lane.key_split)
        key = ReaderKey(at, request.isolation_level, lane.codec)
        if lane.chosen_name:
            lane_count = lane.key_split.output_count
            refusal = self._room.enter(request.user, lane.chosen_name, key, lane_count, now_s)
            if refusal:
                self._publish()
                return None, refusal
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = PartitionReader(lane.topic, key, self._kit)
            reader.siblings = self._at.setdefault(key.at.place, WeakSet())
            reader.siblings.add(reader)
            self._publish()
        self._retired.discard(key)
        return reader, 0

    def _answers(self, poll: LanePoll, refused: Mapping[int, int]) -> list[LaneAnswer]:
        request, stats = poll.request, self._kit.stats
        is_committed = request.isolation_level == READ_COMMITTED
        answers = []
        for turn in poll.turns:
            reader, taken = turn.reader, turn.taken
            records = taken.records(request.gap_form)
            error_code = size_bytes = 0
            if records:
                size_bytes = sum(map(len, records))
                stats.lane_bytes += size_bytes
                turn.claim.is_starved = False
            else:
                error_code = turn.error_code or turn.leader_error
                turn.claim.is_starved = not error_code and poll.could_have_had(turn)
            stats.lane_fetches_empty += not taken.has_records
            # As a broker's error: librdkafka resets to the log start that came with it, if any.
            is_known = not error_code
            answers.append(
                LaneAnswer(
                    error_code,
                    reader.high_watermark if is_known else -1,
                    reader.last_stable_offset if is_known else -1,
                    reader.log_start_offset if is_known else -1,
                    tuple(taken.aborted) if is_committed else None,
                    records,
                    size_bytes,
                )
            )
        for place, error_code in refused.items():  # ascending
            answers.insert(place, LaneAnswer(error_code, -1, -1, -1, None, (), 0))
        poll.cursor.was_empty = not poll.has_records
        stats.lane_fetches += len(poll.turns)
        self._kit.publish()
        return answers
