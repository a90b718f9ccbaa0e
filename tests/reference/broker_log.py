"""A partition's log as a broker serves it, and a client that reads a lane of it.

Source: KIP-74, KIP-98; ReplicaManager.fetchMessages.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any

from keylane.errors import UpstreamLost
from keylane.keyrange.lane import LaneLayout
from keylane.offsets.lineage import EpochEnd
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.split_io import RawFetch
from keylane.proxy.net.framing import CHUNK_BYTES
from tests.reference.batches import Batch, Record, control_batch, write_batch, write_record
from tests.reference.kernel import _Batch, _read_batch, lane_of

Seen = tuple[int, bytes | None, bytes]
"""Offset, key and bytes of a record, without what is relative to its batch."""
ABORT_KEY = b"\0\0\0\0"


def keys_of_lane(lane: int, layout: LaneLayout, count: int = 1) -> list[bytes]:
    """Some keys that fall in a lane."""
    limits = layout.key_split(0).limits.tolist()
    keys = (b"k%d" % index for index in range(1_000_000))
    return list(islice((key for key in keys if lane_of(key, 0, limits) == lane), count))


@dataclass
class BrokerLog:
    """One partition of one broker. `changed` is set anew at every change."""

    batches: list[Batch] = field(default_factory=list)
    wires: list[bytes] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    last_stable: int | None = None
    """None: the end."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, marker)."""
    leader_epoch: int = -1
    """-1: a cluster that knows none."""
    leaders: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, log end when it began)."""
    is_silent: bool = False
    """It does not say where epochs end."""
    error_code: int = 0
    lost_count: int = 0
    """So many fetches to come fail with a lost connection."""
    waiters: dict[asyncio.Future[None], None] = field(default_factory=dict)
    """In the order in which they wait, which is that of their answers."""
    fetches: list[int] = field(default_factory=list)
    """Offsets of all fetches so far."""
    open_count: int = 0
    closed_count: int = 0
    joins: bool = False
    """Whether neighbours are of one producer state, so that keylane joins them."""

    def append(
        self, *keys_and_values: tuple[bytes | None, bytes | None], **fields: object
    ) -> Batch:
        """Append one batch of records."""
        records = tuple(
            Record(delta, key, value) for delta, (key, value) in enumerate(keys_and_values)
        )
        return self.add(Batch(self.end, records, **fields))  # type: ignore[arg-type]

    def append_marker(self, producer_id: int, *, commit: bool) -> Batch:
        """Append a transaction marker."""
        return self.add(control_batch(self.end, producer_id, commit=commit))

    def add(self, batch: Batch, wire: bytes | None = None) -> Batch:
        """Append a batch as it is; `wire` in place of its true bytes."""
        assert batch.base_offset >= self.end
        changed: dict[str, Any] = {}
        if self.leader_epoch >= 0:
            changed["leader_epoch"] = self.leader_epoch
        if not self.joins and batch.producer_id < 0:
            changed["base_sequence"] = batch.base_offset % 2**31
        if changed:
            batch = replace(batch, **changed)
        self.batches.append(batch)
        self.wires.append(wire or write_batch(batch))
        self.end = batch.next_offset
        self.wake()
        return batch

    def truncate(self, end: int) -> None:
        """Cut the log at a batch boundary."""
        while self.batches and self.batches[-1].next_offset > end:
            self.batches.pop()
            self.wires.pop()
        self.end = end

    def lead(self, epoch: int) -> None:
        """A leader begins, with the log as it is now."""
        self.leader_epoch = epoch
        self.leaders = [(e, end) for e, end in self.leaders if end <= self.end]
        self.leaders.append((epoch, self.end))
        self.wake()

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """As LeaderEpochFileCache.endOffsetFor, with the epochs of batches and leaders."""
        starts: dict[int, int] = {}
        latest = None
        for batch in self.batches:
            if batch.leader_epoch != latest:
                latest = batch.leader_epoch
                starts.setdefault(latest, batch.base_offset)
        for known, end in self.leaders:
            starts.setdefault(known, max(end, self.log_start))
        above = [known for known in starts if known > epoch]
        below = [known for known in starts if known <= epoch]
        if self.is_silent or (not above and epoch not in starts):
            return EpochEnd(-1, -1)
        end = starts[min(above)] if above else self.end
        return EpochEnd(max(below, default=epoch), end)

    def delete_before(self, offset: int) -> None:
        """Retention."""
        while self.batches and self.batches[0].next_offset <= offset:
            del self.batches[0], self.wires[0]
        self.log_start = offset

    def wake(self) -> None:
        """End the waits of long polls."""
        for future in self.waiters:
            if not future.done():
                future.set_result(None)
        self.waiters.clear()

    def lane_records(self, lane: int, layout: LaneLayout, *, committed: bool = False) -> list[Seen]:
        """What a client of a lane must see, from the first offset on."""
        limits = layout.key_split(0).limits.tolist()
        out = {(pid, first, marker) for pid, first, marker in self.aborted}
        seen = []
        for batch in self.batches:
            if batch.flags & 0x20 or (committed and batch.base_offset >= self.stable):
                continue
            if committed and any(
                pid == batch.producer_id and first <= batch.base_offset < marker
                for pid, first, marker in out
            ):
                continue
            seen += [
                (offset, record.key, bare(write_record(record)))
                for record in batch.records
                for offset in [batch.base_offset + record.offset_delta]
                if lane_of(record.key, offset, limits) == lane
            ]
        return seen

    @property
    def stable(self) -> int:
        """Last stable offset."""
        return self.end if self.last_stable is None else self.last_stable

    def read(
        self, offset: int, max_bytes: int, isolation_level: int, leader_epoch: int = -1
    ) -> RawFetch:
        """Answer at once."""
        error_code = self.error_code
        if not error_code and leader_epoch >= 0 and leader_epoch != self.leader_epoch:
            error_code = 74 if leader_epoch < self.leader_epoch else 75
        if not error_code and not self.log_start <= offset <= self.end:
            error_code = 1
        if error_code:
            return RawFetch(
                error_code=error_code, high_watermark=-1, last_stable_offset=-1,
                log_start_offset=-1, aborted=(), records=memoryview(b""), leader_epoch=-1,
            )  # fmt: skip
        upper = self.stable if isolation_level else self.end
        out, reached = b"", offset
        first = bisect_right(self.batches, offset, key=attrgetter("next_offset"))
        for batch, wire in zip(self.batches[first:], self.wires[first:], strict=True):
            if batch.base_offset >= upper or (out and len(out) >= max_bytes):
                break
            out += wire if not out else wire[: max_bytes - len(out)]
            reached = batch.next_offset
        aborted = tuple(
            (pid, first)
            for pid, first, marker in self.aborted
            if marker >= offset and first < reached
        )
        return RawFetch(
            error_code=0,
            high_watermark=self.end,
            last_stable_offset=self.stable,
            log_start_offset=self.log_start,
            aborted=aborted if isolation_level else (),
            records=memoryview(out),
            leader_epoch=self.leader_epoch,
        )

    async def open(self, *_: object) -> LogSource:
        """As `open_source` of a fetcher."""
        self.open_count += 1
        return LogSource(self)


class LogSource:
    """A connection to the log's broker."""

    def __init__(self, log: BrokerLog) -> None:
        self._log, self._is_busy = log, False
        self.leader_epoch = log.leader_epoch

    async def fetch(
        self,
        offset: int,
        *,
        max_wait_ms: int,
        max_bytes: int,
        isolation_level: int,
        room: ReadRoom,
        last_epoch: int = -1,
    ) -> RawFetch:
        assert not self._is_busy, "one fetch at a time"
        self._is_busy = True
        try:
            diverging = self._diverging(offset, last_epoch)
            if diverging is not None:  # before anything is read, as Partition.readRecords
                await asyncio.sleep(0.001)  # virtual time, as below
                raw = self._log.read(self._log.log_start, 0, isolation_level)
                return replace(raw, records=memoryview(b""), diverging=diverging)
            raw = await self._fetch(offset, max_wait_ms, max_bytes, isolation_level)
            if len(raw.records) > CHUNK_BYTES and not room.take(len(raw.records)):
                await room.for_answer(len(raw.records))
            return raw
        finally:
            self._is_busy = False

    def _diverging(self, offset: int, last_epoch: int) -> EpochEnd | None:
        log = self._log
        if last_epoch < 0 or self.leader_epoch != log.leader_epoch or offset < log.log_start:
            return None
        found = log.end_of_epoch(last_epoch)
        return found if found.epoch < last_epoch or found.end < offset else None

    async def end_of_epoch(self, epoch: int) -> EpochEnd:
        await asyncio.sleep(0.001)  # virtual time, as below
        if self.leader_epoch != self._log.leader_epoch:
            raise UpstreamLost("test: leads no more")
        return self._log.end_of_epoch(epoch)

    async def _fetch(
        self, offset: int, max_wait_ms: int, max_bytes: int, isolation_level: int
    ) -> RawFetch:
        log = self._log
        log.fetches.append(offset)
        await asyncio.sleep(0.001)  # the way to the broker and back, on virtual time
        if log.lost_count:
            log.lost_count -= 1
            raise UpstreamLost("test")
        deadline_s = asyncio.get_running_loop().time() + max_wait_ms / 1000
        while True:
            raw = log.read(offset, max_bytes, isolation_level, self.leader_epoch)
            left_s = deadline_s - asyncio.get_running_loop().time()
            if raw.error_code or raw.records or left_s <= 0:
                return raw
            future = asyncio.get_running_loop().create_future()
            log.waiters[future] = None
            await asyncio.wait([future], timeout=left_s)

    def close(self) -> None:
        self._log.closed_count += 1


@dataclass
class LaneClient:
    """A stock consumer's view of one lane: position, and the records it gave to its user."""

    position: int = 0
    is_committed: bool = False
    seen: list[Seen] = field(default_factory=list)

    def apply(
        self,
        pieces: Iterable[bytes | bytearray | memoryview],
        aborted: Sequence[tuple[int, int]] | None,
    ) -> int:
        """Take an answer in as the Java consumer does (KIP-98); return how far it moved."""
        before, last, given = self.position, -1, -1
        pending = sorted(aborted or (), key=itemgetter(1))
        out_of: set[int] = set()
        for batch in read_batches(b"".join(bytes(piece) for piece in pieces)):
            producer_id, is_transactional = batch.fields[9], bool(batch.fields[5] & 0x10)
            if batch.records:
                assert batch.records[0].offset > given, "librdkafka would give it out twice"
                given = batch.records[-1].offset
            while pending and pending[0][1] <= batch.last:
                out_of.add(pending.pop(0)[0])
            if batch.is_control:
                if batch.records and batch.records[0].key == ABORT_KEY:
                    out_of.discard(producer_id)
            elif not (self.is_committed and is_transactional and producer_id in out_of):
                self.seen += [
                    (record.offset, record.key, bare(record.data))
                    for record in batch.records
                    if record.offset >= self.position
                ]
            self.position = max(self.position, batch.last + 1)
            last = batch.last
        assert last < 0 or last + 1 == self.position, "Java would go back and read again"
        return self.position - before


def bare(record: bytes) -> bytes:
    """A record without its length, timestamp delta and offset delta: joining changes these."""
    at = 0
    for field_index in range(3):
        while record[at] & 0x80:
            at += 1
        at += 2 if field_index == 0 else 1  # the attributes follow the length
    return record[at:]


def read_batches(data: bytes, *, may_be_cut: bool = False) -> list[_Batch]:
    """Every batch of an answer; each must be whole and sound, but for the last where Kafka cuts."""
    batches: list[_Batch] = []
    position = 0
    while position < len(data):
        batch = _read_batch(data[position:], 2**30)
        if batch is None and may_be_cut and batches:
            break
        assert batch is not None, "an answer ends with a whole batch"
        batches.append(batch)
        position += len(batch.wire)
    return batches


def records_of(pieces: Iterable[bytes | bytearray | memoryview]) -> list[Seen]:
    """The records of an answer; control batches have none."""
    data = b"".join(bytes(piece) for piece in pieces)
    return [
        (record.offset, record.key, bare(record.data))
        for batch in read_batches(data)
        if not batch.is_control
        for record in batch.records
    ]
