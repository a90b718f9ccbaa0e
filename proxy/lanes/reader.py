"""Reads of one partition, once for all of its lanes or for all clients with ranges of it.

Source: docs/decisions/004, 026; KIP-98 (transactions), KIP-320 (leader epochs).

Theory. The *head* is the end of what was read furthest; reading on from there serves every lane
that keeps up, and waits at the log end for new data. A lane that stands before the head on
something that is not in memory is served by the *tail* path: a read from its own offset. The
two have a connection each, since a broker answers a connection in order and would let a tail
read wait behind a long poll. A read is shared by all lanes that it is about to pass.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from kio.schema.errors import ErrorCode
from numpy.typing import NDArray

from keylane.bounded import BoundedDict
from keylane.cache.lane_log import MARKER_LATER, LaneLog
from keylane.cache.lane_values import Aborted, Block
from keylane.errors import AnswerTooLarge, BatchCorrupt, BatchUnsupported, KeylaneError
from keylane.offsets.lineage import NO_EPOCH
from keylane.proxy.lanes.block_split import AT_ONCE_BYTES_MAX, split_next
from keylane.proxy.lanes.leader_line import Line
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.reads import Read, Reads
from keylane.proxy.lanes.split_io import (
    READ_COMMITTED,
    RawFetch,
    ReaderKey,
    ReaderKit,
    ScannedBlock,
    close_aborted,
    last_offset_at,
    stable_bytes,
)
from keylane.tasks import spawn

log = logging.getLogger("keylane.reader")

LONG_POLL_MS: Final = 500
"""Kafka consumers' `fetch.max.wait.ms` default."""
SHORT_POLL_MS: Final = 100
"""For a read of data that should be there: a broker that has none is not asked in a circle."""
LONG_POLL_BYTES_MAX: Final = 256 * 1024
"""Bytes of a long poll, which has no place in the byte gate while it waits. Few come at the log
end, and of a backlog a first part is served early."""
BAD_BATCH_BACKOFF_S: Final = 0.5
"""Pause before a bad batch is read anew: `fetch.max.wait.ms`, once more."""
BAD_OFFSETS_MAX: Final = 64
"""Bad batches remembered per partition, so that each is logged once."""


class Listener(Protocol):
    """A client's request that waits for some lanes of the partition."""

    def data_came(self, reader: PartitionReader) -> None:
        """Take from the block in hand."""

    def read_ended(self, reader: PartitionReader) -> None:
        """Ask for the next read (`want`) where needed: one has ended."""

    def read_failed(self, reader: PartitionReader, offset: int | None, error_code: int) -> None:
        """Note that lanes at `offset`, or all of them (None), cannot be served."""


class PartitionReader:
    """One partition under one split and isolation level.

    Invariants: a block of a read that began before the log was reset is thrown away; each listener
    has a read under way, unless the offset it stands at is known to be bad.
    """

    def __init__(self, topic: str, key: ReaderKey, kit: ReaderKit) -> None:
        at, self.isolation_level, self._codec = key
        self.topic, self._at, self._kit = topic, at, kit
        self.topic_id, self.partition, self.key_split = at
        self.log = LaneLog(self.key_split.output_count, kit.cache)
        self.listeners: dict[Listener, None] = {}
        self.siblings: object = None  # kept alive for `fetcher`: all readers of the partition
        self.is_reserved, self._is_lost = True, False
        self.used_s = self.tidied_s = kit.clock()
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.known_s = float("-inf")
        opener = partial(kit.open_source, topic, *at.place)
        self.lineage = kit.scans.lineages.of(at.place)
        self._head_line, self._tail_line = (
            Line(opener, self.lineage, self._note_cut, self._reset, kit.stats.retried)
            for _ in range(2)
        )
        self._reads = Reads()
        self._bad: BoundedDict[int, float] = BoundedDict(BAD_OFFSETS_MAX)
        self._ahead_mark = self._served = self._scanned_end = -1
        self._head_epoch = NO_EPOCH
        """Of the last batch before the head."""
        self._generation = self._sequence = self._published_sequence = 0

    @property
    def end(self) -> int:
        """Return the end of readable data, -1 before the first answer."""
        return self.last_stable_offset if self.isolation_level else self.high_watermark

    # Requests.
    def want(self, offset: int, bytes_max: int) -> int:
        """See to it that a read is about to pass `offset`; return an error code or 0.

        The error is CORRUPT_MESSAGE: the batch there was bad a moment ago.
        """
        if self._is_bad(offset):
            return ErrorCode.corrupt_message
        if not self._reads.will_bring(offset):
            self._start_read(offset, bytes_max)
        return 0

    def keep_ahead(self, position: int) -> None:
        """Note a lane served up to `position`, and read on once it nears the head.

        It does when a lane is past the start of what was read last; so one answer waits ahead
        of the fastest lane, and slow ones hold up nothing.
        """
        self._served = max(self._served, position)
        head = self.log.head
        if self._served <= self._ahead_mark or self._ahead_mark < 0 or head >= self.end:
            return
        if not self._is_bad(head) and not self._reads.will_bring(head):
            self._start_read(head, self._kit.read_bytes_max)

    def is_reading(self, offset: int) -> bool:
        """Return whether data that exists, or may exist, is on its way to `offset`."""
        if 0 <= self.end <= offset:
            return False
        reads = self._reads
        return any(
            not read.is_long_poll and read.is_about_to_pass(offset, reads.span) for read in reads
        )

    def forget_cut(self, end: int) -> None:
        """Read anew from a cut at `end` that another reader of the partition has seen."""
        self._scanned_end = min(self._scanned_end, end)
        self._reset()

    def tidy(self, seen_before_s: float) -> None:
        """End claims that were not seen since then, and connections that were not used."""
        self.log.expire_claims(seen_before_s)
        self._head_line.rest(seen_before_s)
        self._tail_line.rest(seen_before_s)

    def leave_leader(self, leader_epoch: int) -> None:
        """Note another leader by this epoch."""
        self.lineage.elected_epoch = max(leader_epoch, self.lineage.elected_epoch)
        self._head_line.leave_leader(leader_epoch)
        self._tail_line.leave_leader(leader_epoch)

    def close(self) -> None:
        """Stop reading and forget everything."""
        for read in self._reads:
            if read.task is not None:
                read.task.cancel()
        self._head_line.close()
        self._tail_line.close()
        self._forget()
        self.log.close()
        self._kit.publish()

    # Reads.
    def _is_bad(self, offset: int) -> bool:
        if self._kit.refused.holds(self.topic_id, self.partition, offset):
            return True
        until_s = self._bad.get(offset)
        return until_s is not None and self._kit.clock() < until_s

    def _start_read(self, offset: int, bytes_max: int) -> None:
        is_head = offset >= self.log.head and not self._head_line.lock.locked()
        # A read beyond the log's end must not wait for a long poll that is not sent yet, either.
        is_head &= not self._reads.hold(self._head_line)
        if not is_head and self.log.head >= 0:
            self._kit.stats.upstream_tail_fetches += 1
            self._kit.stats.cache_misses += 1
        self._sequence += 1
        if self.is_reserved:
            bytes_max = self._kit.read_bytes_max  # all lanes are read, so no client's limit counts
        read = Read(
            start=offset,
            reached=offset,
            is_long_poll=is_head and 0 <= self.end <= offset,
            line=self._head_line if is_head else self._tail_line,
            bytes_max=max(1, min(bytes_max, self._kit.read_bytes_max)),
            generation=self._generation,
            sequence=self._sequence,
        )
        self._reads.add(read)
        read.task = spawn(self._run(read), f"read {self.topic}-{self.partition} at {offset}")

    async def _run(self, read: Read) -> None:
        try:
            await self._read(read)
        except (KeylaneError, OSError) as error:
            self._kit.stats.upstream_errors += 1
            level = logging.DEBUG if self._is_lost else logging.WARNING
            self._is_lost = True
            log.log(
                level, "read failed: clients retry topic=%s partition=%d offset=%d error=%s",
                self.topic, self.partition, read.start, error,
            )  # fmt: skip
            # Clients know no NETWORK_EXCEPTION in a fetch answer (Java throws); this one makes
            # them refresh their metadata and come again.
            self._fail_all(ErrorCode.not_leader_or_follower)
        except Exception:
            self._fail(None, ErrorCode.unknown_server_error)
            raise
        finally:
            self._reads.discard(read)
            self._kit.publish()
        for listener in list(self.listeners):
            listener.read_ended(self)
        if self.is_reserved:
            self.keep_ahead(self._served)

    async def _read(self, read: Read) -> None:
        kit = self._kit
        room = ReadRoom(kit.gates, read_bytes=read.bytes_max, block_bytes=kit.plain_bytes_max)
        try:
            async with read.line.lock:
                raw = await self._fetch(read, room)
            read.has_line = False
            size_bytes = len(raw.records)
            read.leader_epoch = raw.leader_epoch
            if self._is_of_old_log(read) or not self._take_note(raw, read) or not size_bytes:
                return
            kit.stats.upstream_bytes += size_bytes
            await room.for_records(size_bytes)
            await self._split_all(raw, read, room)
        except AnswerTooLarge as error:
            self._refuse(read.start, read.start, str(error))
        finally:
            room.leave()

    async def _fetch(self, read: Read, room: ReadRoom) -> RawFetch:
        remote_scanned_end = self._kit.scans.remote_scanned_end(self.topic_id, self.partition)
        read.scanned_end = max(self._scanned_end, remote_scanned_end)
        self._kit.stats.upstream_fetches += 1
        read.line.used_s = self._kit.clock()
        wait_ms, bytes_max = SHORT_POLL_MS, read.bytes_max
        if read.is_long_poll:
            wait_ms, bytes_max = LONG_POLL_MS, min(bytes_max, LONG_POLL_BYTES_MAX)
        elif self.end < 0:
            wait_ms = 0  # the log end is not known yet, and the answer has it
        return await read.line.fetch(
            read.start,
            max_wait_ms=wait_ms,
            max_bytes=bytes_max,
            isolation_level=self.isolation_level,
            room=room,
            last_epoch=self._head_epoch if read.start == self.log.head else NO_EPOCH,
        )

    # Answers.
    def _is_of_old_log(self, read: Read) -> bool:
        """Return whether the log was cut since the read began, or has another leader."""
        if 0 <= read.leader_epoch < self.lineage.leader_epoch:
            read.line.close()
            return True
        return read.generation != self._generation

    def _note_cut(self, end: int) -> None:
        """Note that the log was cut at `end`."""
        log.warning("log was cut topic=%s partition=%d offset=%d", self.topic, self.partition, end)
        self._kit.scans.on_truncated(self.topic_id, self.partition, end)

    def _take_note(self, raw: RawFetch, read: Read) -> bool:
        """Take in what an answer says of the log; False: it has no data to go on with."""
        if raw.error_code == ErrorCode.offset_out_of_range:
            self.log_start_offset = -1  # the client asks for it next, and the broker answers
            if 0 <= self.log.head <= read.start and read.start <= read.scanned_end:
                # Offsets up to here were read: the log was cut, or deleted beyond it.
                self._reset()
            self._fail(read.start, ErrorCode.offset_out_of_range)
            return False
        if raw.error_code:
            self._kit.stats.upstream_errors += 1
            self._reset()
            self._fail_all(raw.error_code)
            return False
        self._is_lost = False
        if raw.diverging is not None:
            # Compared just now, the log had all that was seen; so this is not known any more.
            self._reset()
            return False
        if not read.line.is_sure and 0 <= raw.high_watermark < read.scanned_end:
            # Without epochs only the present end shows a cut. With epochs it shows none: a new
            # leader's high watermark may be lower for a moment, with nothing lost.
            self._note_cut(raw.high_watermark)
            read.generation = self._generation  # this answer is the new log's
            self._reads.add(read)
        self._note_watermarks(raw, read)
        return True

    def _note_watermarks(self, raw: RawFetch, read: Read) -> None:
        if read.sequence < self._published_sequence:
            return
        self._published_sequence = read.sequence
        self.known_s = self.lineage.known_s = self._kit.clock()
        self.high_watermark = raw.high_watermark
        self.last_stable_offset = raw.last_stable_offset
        if raw.log_start_offset > self.log_start_offset:
            self.log.advance_log_start(raw.log_start_offset)
            self._kit.refused.forget_below(self.topic_id, self.partition, raw.log_start_offset)
        self.log_start_offset = raw.log_start_offset

    async def _split_all(self, raw: RawFetch, read: Read, room: ReadRoom) -> None:
        """Split an answer block by block; each is handed out before the next is begun."""
        records, position, offset = raw.records, 0, read.start
        is_committed = self.isolation_level == READ_COMMITTED
        aborted = raw.aborted if is_committed else ()
        while position < len(records):
            try:
                found = await split_next(self._kit, records[position:], self._at, self._codec, room)
            except BatchUnsupported as error:
                last = last_offset_at(records, position, offset)
                self._refuse(offset, last, error.reason)
                return
            except BatchCorrupt as error:
                self._note_bad(offset, position, error)
                return
            if self._is_of_old_log(read):
                return
            if found is None:
                if position == 0:
                    self._note_bad(offset, 0, BatchCorrupt("no whole batch", position=0))
                break
            split, last_record_offsets = found
            if is_committed and 0 <= raw.last_stable_offset < split.next_offset:
                # The block reaches into open transactions; a broker does not send such.
                records = records[: stable_bytes(records, position, raw.last_stable_offset)]
                continue
            if split.next_offset > self.log.head and read.start > self._ahead_mark:
                self._ahead_mark = read.start
            block_aborted = close_aborted(aborted, split.abort_markers)
            start = offset
            self._hand_out(split, start, block_aborted)
            aborted = tuple(entry[:2] for entry in block_aborted if entry.marker == MARKER_LATER)
            position, offset = position + split.wire_bytes, split.next_offset
            read.reached = offset
            if len(records) <= AT_ONCE_BYTES_MAX:
                # One turn of the loop, in which waiting clients are answered: the work for
                # listeners behind it takes half as long as all before.
                await asyncio.sleep(0)
                if self._is_of_old_log(read):
                    return  # if the log was cut meanwhile, this must not be counted as scanned
            self._publish_scanned(split, last_record_offsets, start)
            del found, split  # a block's slices are the cache's now, and the answers'
            room.batch_done()
        self._reads.span = max(offset - read.start, 1)

    def _hand_out(self, split: Any, offset: int, aborted: tuple[Aborted, ...]) -> None:
        """Give a block to requests that wait, and keep the rest."""
        start, end = min(offset, split.base_offset), split.next_offset
        if end > self.log.head:
            self._head_epoch = split.leader_epoch
        self.log.insert(Block(start, end, split.leader_epoch, split.outputs, aborted))
        self._scanned_end = max(self._scanned_end, end)
        self.lineage.note(end, split.epochs)
        for listener in list(self.listeners):
            listener.data_came(self)
        self.log.settle(is_reserved=self.is_reserved)

    def _publish_scanned(
        self, split: Any, last_record_offsets: NDArray[np.int64], offset: int
    ) -> None:
        """Pass a scanned block to the listeners that count it."""
        stats = self._kit.stats
        stats.splits += 1
        stats.decompressed_bytes += split.plain_bytes
        stats.records += split.record_count
        self._kit.publish()
        if split.misplaced_offset >= 0:
            self._kit.misplaced.note(self.topic, *self._at.place, split.misplaced_offset)
        start, holes = min(offset, split.base_offset), split.holes
        if split.base_offset > offset:
            holes = ((offset, split.base_offset - 1), *holes)
        block = ScannedBlock(
            topic=self.topic,
            at=self._at,
            start=start,
            end=split.next_offset,
            last_record_offsets=last_record_offsets,
            outputs=split.outputs,
            holes=holes,
            log_start_offset=self.log_start_offset,
            leader_epoch=split.leader_epoch,
            epochs=split.epochs,
        )
        self._kit.scans.on_scanned(block)

    # Failures.
    def _note_bad(self, offset: int, position: int, error: BatchCorrupt) -> None:
        """Note a bad batch, fail the lanes that stand there, and do not read it for a moment."""
        self._kit.stats.batches_corrupt += 1
        if offset not in self._bad:
            log.warning(
                "bad batch topic=%s partition=%d offset=%d position=%d error_code=%d error=%s",
                self.topic, self.partition, offset, position + error.position,
                error.error_code, error.reason,
            )  # fmt: skip
        self._bad[offset] = self._kit.clock() + BAD_BATCH_BACKOFF_S
        self._fail(offset, ErrorCode.corrupt_message)

    def _refuse(self, first: int, last: int, reason: str) -> None:
        """Note an intact batch that cannot be split however often it is read."""
        self._kit.stats.batches_refused += 1
        if self._kit.refused.note(self.topic_id, self.partition, first, last):
            log.warning(
                "batch refused: its lanes stop there topic=%s partition=%d offset=%d"
                " batch_bytes_max=%d reason=%s",
                self.topic, self.partition, first, self._kit.batch_bytes_max, reason,
            )  # fmt: skip
        self._fail(first, ErrorCode.corrupt_message)

    def _fail_all(self, error_code: int) -> None:
        """Drop the connections: the next request looks for the leader anew."""
        self._head_line.close()
        self._tail_line.close()
        if not (self._head_line.is_sure and self._tail_line.is_sure):
            # Without epochs a new leader looks like the old one, and its log may have
            # been cut and grown again meanwhile. A read more is cheaper than a stale record.
            self._reset()
        self._fail(None, error_code)

    def _fail(self, offset: int | None, error_code: int) -> None:
        for listener in list(self.listeners):
            listener.read_failed(self, offset, error_code)

    def _reset(self) -> None:
        """Forget what was read, and refused. A read under way is of the old log: it is dropped."""
        self._kit.refused.forget_from(self.topic_id, self.partition, 0)
        self._forget()

    def _forget(self) -> None:
        self._generation += 1
        self._reads.clear()
        self._bad.clear()
        self._ahead_mark = self._served = -1
        self._head_epoch = NO_EPOCH
        self.log.reset()
