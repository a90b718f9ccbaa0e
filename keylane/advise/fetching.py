"""Fetches a sample of records: spans of all partitions at once, one request per leader."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from keylane.advise.errors import AdviceFailed
from keylane.advise.sample import SampledPartition, SamplePiece
from keylane.advise.spans import OffsetSpan, plan_spans, share_out
from keylane.client import errors as e
from keylane.client.cluster import CONNECTION_FETCH, ClusterClient
from keylane.client.fetches import (
    VERSION_MAX,
    VERSION_MIN,
    FetchOutcome,
    plan_fetch,
    read_answer,
    read_batches,
)
from keylane.client.offset_calls import place_of
from keylane.client.reading import Reading
from keylane.client.settings import ConsumerSettings
from keylane.client.values import TopicPartition
from keylane.errors import KeylaneError
from keylane.kernel import status as s
from keylane.kernel.fetched import FetchedRecords, survey
from keylane.keyrange.hash import key_hash
from keylane.wire.batch import LENGTH_PREFIX_BYTES
from keylane.wire.header import ApiKey

PARTITIONS_PER_REQUEST: Final = 32
ANSWER_BYTES: Final = 16 << 20
PARTITION_BYTES_MIN: Final = 128 << 10
"""Asked of a partition for however few records: some batches of the usual 16 KiB."""
RECORD_BYTES: Final = 1 << 10
"""Stored size of a record that spans are taken for before the first is read."""
SPARE: Final = 1.5
"""Times the bytes of a span that are asked for: records differ, and batches begin before it."""
REPORT_S: Final = 2.0
"""Time between two lines of progress."""
ELECTION_S: Final = 20.0
"""Time for another broker to lead: `broker.session.timeout.ms` of a dead one is 9 s."""
REQUEST_S_MIN: Final = 1.0
"""A request that leaves at the end of the time has as long."""
_LENGTH: Final = struct.Struct(">i")
_LENGTH_POSITION: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the sample, all of which hold."""

    records_max: int
    bytes_max: int
    """Of answers as they come, with what is read beyond the wanted records."""
    seconds_max: float


class Got(NamedTuple):
    """The part of an answer for one partition."""

    part: int
    piece: SamplePiece | None
    """None: there was no whole batch."""
    error: KeylaneError | None
    answer_bytes: int = 0


class TopicSampler:
    """Reads spans until all are read, or a bound is reached. Use it once."""

    def __init__(
        self, cluster: ClusterClient, settings: ConsumerSettings, topic: str, bounds: Bounds
    ) -> None:
        self._cluster, self._settings = cluster, settings
        self._topic, self._bounds = topic, bounds
        self._waiting: dict[int, deque[OffsetSpan]] = {}
        self._pieces: dict[int, list[SamplePiece]] = {}
        self._topic_id = cluster.topic_id(topic)
        self._record_count = self._answer_bytes = self._stored_bytes = 0
        self._partition_bytes_min = PARTITION_BYTES_MIN
        self._end_s = 0.0
        self._now_s = asyncio.get_running_loop().time
        self._alone: set[int] = set()
        """Partitions whose next batch did not fit beside others."""
        self._away_since_s: dict[int, float] = {}
        """Partitions without a leader that answers."""

    async def read(
        self, ranges: Mapping[int, tuple[int, int]], progress: Callable[[str], None]
    ) -> list[SampledPartition]:
        """Return records of each partition; ranges: first offset, and the one behind the last.

        Raises: TopicDenied, RecordsCorrupt, Disconnected, BrokerRefused, ClusterUnreachable;
        AdviceFailed, the topic was made anew.
        """
        counts = {part: end - start for part, (start, end) in ranges.items()}
        for part, quota in share_out(counts, self._bounds.records_max).items():
            self._waiting[part] = deque(plan_spans(*ranges[part], quota))
        self._end_s = self._now_s() + self._bounds.seconds_max
        report_s = self._now_s() + REPORT_S
        while (
            self._waiting
            and self._now_s() < self._end_s
            and self._answer_bytes < self._bounds.bytes_max
        ):
            await self._fetch_all()
            if self._now_s() >= report_s:
                progress(f"{self._record_count:,} records read")
                report_s = self._now_s() + REPORT_S
        return [
            SampledPartition(start, end, _in_order(self._pieces.get(part, ())))
            for part, (start, end) in sorted(ranges.items())
        ]

    async def _fetch_all(self) -> None:
        """Ask each leader once for the next spans of its partitions."""
        by_node: dict[int, list[int]] = {}
        for part in self._waiting:
            leader = self._cluster.leader_of(TopicPartition(self._topic, part))
            if leader is not None:
                by_node.setdefault(leader, []).append(part)
        if not by_node:
            parts = [TopicPartition(self._topic, part) for part in self._waiting]
            await self._look_for_leaders({p.partition: _unled(p) for p in parts})
            return
        answers = await asyncio.gather(
            *(self._fetch(node_id, self._turn(parts)) for node_id, parts in by_node.items()),
        )
        away = {got.part: str(got.error) for each in answers for got in each if not self._take(got)}
        if away:
            await self._look_for_leaders(away)

    def _turn(self, parts: list[int]) -> list[int]:
        """Choose partitions of one request; one whose batch did not fit is asked for alone."""
        alone = [part for part in parts if part in self._alone]
        if alone:
            return alone[:1]
        return sorted(parts, key=lambda part: -len(self._waiting[part]))[:PARTITIONS_PER_REQUEST]

    async def _look_for_leaders(self, away: Mapping[int, str]) -> None:
        """Ask for the metadata anew; away: partitions, and why each was not read."""
        for part, reason in away.items():
            since_s = self._away_since_s.setdefault(part, self._now_s())
            if self._now_s() - since_s > ELECTION_S:
                await check_known(self._cluster, self._topic)
                raise e.Disconnected(reason)
        await asyncio.sleep(self._settings.retry_backoff_s)  # elections have no event for a client
        await self._cluster.refresh()
        # None: a broker that starts may not know the topic yet.
        if self._cluster.topic_id(self._topic) not in (None, self._topic_id):
            raise made_anew(self._topic)

    async def _fetch(self, node_id: int, parts: list[int]) -> list[Got]:
        """Ask a leader once; partitions of one that is away have `_LeaderAway` for an error."""
        try:
            return await self._ask(node_id, parts)
        except e.Disconnected as error:
            return [Got(part, None, _LeaderAway(str(error))) for part in parts]

    async def _ask(self, node_id: int, parts: list[int]) -> list[Got]:
        readings = []
        for part in parts:
            reading = Reading(TopicPartition(self._topic, part))
            reading.seek(self._waiting[part][0].start)
            readings.append(reading)
        version = await self._cluster.version_for(node_id, ApiKey.FETCH, VERSION_MAX, VERSION_MIN)
        plan = plan_fetch(
            readings,
            replace(self._settings, max_partition_fetch_bytes=self._partition_bytes(parts)),
            version=version,
            max_wait_ms=self._settings.fetch_max_wait_ms,
            max_bytes=ANSWER_BYTES,
            topic_id=self._cluster.topic_id,
            leader_epoch=self._cluster.leader_epoch_of,
        )
        body = await self._cluster.ask(
            node_id,
            ApiKey.FETCH,
            plan.version,
            plan.body,
            connection=CONNECTION_FETCH,
            timeout_s=self._patience_s(),
        )
        code, outcomes = read_answer(plan, body, read_committed=True)
        if code:
            raise e.error_of(code, f"topic {self._topic}")
        ends = {part: self._waiting[part][0].end for part in parts}
        return await asyncio.to_thread(_read_all, outcomes, ends)

    def _patience_s(self) -> float:
        """Return how long a broker may take: one that hangs does not outlast the sample."""
        left_s = max(self._end_s - self._now_s(), REQUEST_S_MIN)
        return min(left_s, self._settings.request_timeout_ms / 1000)

    def _partition_bytes(self, parts: Collection[int]) -> int:
        """Return the bytes to ask of each partition: about those of the longest span.

        All of them fit in one answer; a partition that comes last would stay empty else.
        """
        spans = (self._waiting[part][0] for part in parts)
        longest = max(span.end - span.start for span in spans)
        each = self._stored_bytes / self._record_count if self._record_count else RECORD_BYTES
        return min(
            max(self._partition_bytes_min, int(SPARE * each * longest)),
            ANSWER_BYTES // len(parts),
            self._settings.max_partition_fetch_bytes,
        )

    def _take(self, got: Got) -> bool:
        """Keep what was read; False: the partition's leader is away, or is another broker."""
        spans = self._waiting[got.part]
        self._answer_bytes += got.answer_bytes
        if isinstance(got.error, _LeaderAway):
            return False
        self._away_since_s.pop(got.part, None)
        if got.error is not None:
            if not isinstance(got.error, e.OffsetOutOfRange):
                raise got.error
            spans.popleft()  # deleted meanwhile
        elif got.piece is None:
            # Asked for alone, a partition gives its next batch whatever its size.
            if got.part in self._alone:
                spans.popleft()
            else:
                self._partition_bytes_min *= 2
            self._alone ^= {got.part}
        else:
            self._alone.discard(got.part)
            self._pieces.setdefault(got.part, []).append(got.piece)
            self._record_count += len(got.piece.hashes)
            self._stored_bytes += got.piece.wire_bytes
            span = spans.popleft()
            if got.piece.end < span.end:
                spans.appendleft(OffsetSpan(got.piece.end, span.end))
        if not spans:
            del self._waiting[got.part]
        return True


def _in_order(pieces: Collection[SamplePiece]) -> tuple[SamplePiece, ...]:
    return tuple(sorted(pieces, key=lambda piece: piece.start))


def made_anew(topic: str) -> AdviceFailed:
    """Return the error for a topic whose id has changed: a sample of both would be of neither."""
    return AdviceFailed(f"topic {topic}: it was deleted and made anew meanwhile; ask again")


async def check_known(cluster: ClusterClient, topic: str) -> None:
    """Raises: TopicUnknown, the topic was deleted, so that no broker is to be waited for."""
    if not await cluster.partitions_of(topic):
        raise e.TopicUnknown(f"topic {topic}: no broker knows it any more")


class _LeaderAway(KeylaneError):
    """Another broker leads the partition, or its leader does not answer: look at the metadata."""


def _unled(part: TopicPartition) -> str:
    return f"{place_of(part)}: no broker leads it"


def _read_all(outcomes: list[FetchOutcome], ends: Mapping[int, int]) -> list[Got]:
    return [_read(outcome, ends[outcome.asked.reading.part.partition]) for outcome in outcomes]


def _read(outcome: FetchOutcome, end: int) -> Got:
    part = outcome.asked.reading.part
    place, code = place_of(part), outcome.error_code
    if code in e.STALE_METADATA:
        return Got(part.partition, None, _LeaderAway(_unled(part)))
    if code == e.OFFSET_OUT_OF_RANGE:
        return Got(part.partition, None, e.OffsetOutOfRange(place))
    if code:
        return Got(part.partition, None, e.error_of(code, place))
    fields, corrupt = read_batches(outcome)
    if corrupt is not None:
        text = f"{place} offset {outcome.asked.offset}: {corrupt}"
        return Got(part.partition, None, e.RecordsCorrupt(text))
    piece = None
    if fields is not None:
        piece = make_piece(fields, outcome.data, outcome.asked.offset, end)
    return Got(part.partition, piece, None, len(outcome.data))


def make_piece(fields: FetchedRecords, data: memoryview, start: int, end: int) -> SamplePiece:
    """Return the records up to `end`; data: the batches that they are from."""
    count = int(fields.offsets.searchsorted(end))
    places = fields.places[:, :count].astype(np.int64)
    key_ends, value_ends = places[s.PLACE_KEY_END], places[s.PLACE_VALUE_END]
    has_key = key_ends >= 0
    sizes = np.where(has_key, key_ends - places[s.PLACE_KEY], 0)
    sizes += np.where(value_ends >= 0, value_ends - places[s.PLACE_VALUE], 0)
    # One byte of the headers is their count.
    sizes += places[s.PLACE_HEADERS_END] - places[s.PLACE_HEADERS] - 1
    whole = survey(data)
    batched = 0 if whole is None else whole.record_count
    return SamplePiece(
        start=start,
        end=min(end, fields.next_offset),
        hashes=_hashes(fields, count),
        has_key=has_key,
        size_bytes=sizes,
        timestamps_ms=fields.longs[s.FIELD_TIMESTAMP, :count].copy(),
        # Of all records of the batches: the first batch may begin before `start`.
        wire_bytes=_whole_bytes(data) * count // max(1, batched),
    )


def _hashes(fields: FetchedRecords, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    found = np.zeros(count, np.uint64)
    starts = fields.places[s.PLACE_KEY, :count].tolist()
    ends = fields.places[s.PLACE_KEY_END, :count].tolist()
    row = 0
    for buffer, stop in fields.pieces:
        for at in range(row, min(stop, count)):
            if ends[at] >= 0:
                found[at] = key_hash(buffer[starts[at] : ends[at]])
        row = stop
    return found


def _whole_bytes(data: memoryview) -> int:
    """Return the bytes of the whole batches; the last one may be cut."""
    at = 0
    while at + LENGTH_PREFIX_BYTES <= len(data):
        size = LENGTH_PREFIX_BYTES + _LENGTH.unpack_from(data, at + _LENGTH_POSITION)[0]
        if size <= LENGTH_PREFIX_BYTES or at + size > len(data):
            break
        at += size
    return at
