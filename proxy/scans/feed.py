"""Scans of the readers of all nodes, by a topic: published in a moment, taken in at once.

Source: docs/decisions/021.

Theory. An unknown scan makes a stable offset late, never wrong; so scans may be lost. A cut may
not: a scan of the old log beyond it would let positions pass records of the new one. So a cut is
sent until Kafka has it, on all in-sync replicas and in one order with the scans of its partition.
A scan of another sender may be older than the cut and written behind it. Its offsets beyond the cut
are of an older leader epoch than all that is there now, and are passed over; but only while such a
scan may be under way, since a cut that was no cut must not keep good scans away.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from keylane.bounded import BoundedDict
from keylane.errors import ScansInvalid, UpstreamLost
from keylane.journal.journal_topic import DELETE, ensure_topic
from keylane.journal.own_topic import (
    CLOSE_TIMEOUT_S,
    OwnTopicClients,
    close_consumer,
    describe_error,
    end_within,
)
from keylane.keyrange.key_split import KeySplit
from keylane.offsets.lineage import PartitionKey
from keylane.offsets.values import Damaged
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.records import (
    EPOCH_MAX,
    TOPIC_NAME,
    Cut,
    News,
    Scan,
    Sender,
    SplitBook,
    read_packet,
    read_sender,
    write_packets,
)
from keylane.proxy.scans.runs import AGE_S_MAX, ScanRuns, published_block
from keylane.share.handover import is_note

log = logging.getLogger("keylane.nodes")

PARTITION_COUNT: Final = 1
"""One partition: all nodes read all of it, 20 KB/s of each busy node; more are more requests."""
RETENTION_MS: Final = 600_000
SEGMENT_MS: Final = 300_000
SEGMENT_BYTES: Final = 10 * 1024**2
PAST_S: Final = 60.0
"""Reach back of a node that starts: positions that were committed just now get their scan."""
PAUSE_S: Final = 0.02
PAUSE_S_MAX: Final = 0.1
"""Pauses behind each send and each read, which cost some 0.6 ms each. News after a quiet moment go
at once; while there is news all the time, pauses grow to this."""
SPLIT_AGAIN_S: Final = 10.0
"""Interval of a full repetition of a split's cuts, for nodes that have just started."""
SPLITS_MAX: Final = 1000
SEND_TIMEOUT_S: Final = 10.0
"""Age beyond which scans that wait are given up."""
CUT_GUARD_S: Final = 2 * (AGE_S_MAX + SEND_TIMEOUT_S)
"""Time in which a scan from before a cut may still come: its longest way, and as much again."""
CUTS_MAX: Final = 10_000
PLACES_MAX: Final = 100_000
"""Partitions whose end is known; those that were read first are forgotten first."""
START_TIMEOUT_S: Final = 60.0
POLL_MS: Final = 1_000
RETRY_BACKOFF_S: Final = 1.0
LIFE_BYTES: Final = 16
OWN_MAX: Final = 64
"""Own senders that are remembered; there is a new one after each failure."""
BATCH_BYTES: Final = 768 * 1024
"""A packet has 512 KiB at most, and a broker takes 1 MiB."""

OnScanned = Callable[[ScannedBlock], None]
OnTruncated = Callable[[uuid.UUID, int, int], None]


@dataclass(slots=True)
class _Guard:
    """A cut, and the senders whose scans beyond it are of the new log."""

    end: int
    leader_epoch: int
    until_s: float = 0.0
    informed: set[Sender] = field(default_factory=set)

    def refuses(self, scan: Scan, sender: Sender) -> bool:
        """Return whether a scan may be of the old log."""
        is_old = scan.end > self.end and scan.leader_epoch < self.leader_epoch
        return is_old and sender not in self.informed


@dataclass(slots=True)
class _Known:
    """End of a partition's scans."""

    remote_scanned_end: int = -1
    """End by other nodes."""
    leader_epoch: int = -1
    """The latest leader epoch that was seen."""


class ScanFeed:
    """The publisher of this node's scans, and the reader of the other nodes'.

    Use: `start`, then `note_scanned` and `note_truncated` from the reader path, then `stop`.
    Own messages are passed over.
    """

    def __init__(
        self,
        clients: OwnTopicClients,
        *,
        number: int,
        on_scanned: OnScanned,
        on_truncated: OnTruncated,
        wall_clock: Callable[[], float],
        on_past: OnScanned | None = None,
    ) -> None:
        """number: this node's. wall_clock: seconds since 1970, as brokers have them.

        on_past: gets in the place of `on_scanned` the scans from before the start: they came over
        a minute, and are read at once.
        """
        self._clients = clients
        self._on_scanned, self._on_truncated = on_scanned, on_truncated
        self._on_past = on_past or on_scanned
        self.on_note: Callable[[bytes], None] = lambda _note: None
        """Called with each note of any node, our own too, that is written after the start."""
        self._notes: list[tuple[bytes, asyncio.Future[None]]] = []
        self._wall_clock = wall_clock
        self._sender = Sender(number, os.urandom(LIFE_BYTES))
        self._own: deque[Sender] = deque([self._sender], OWN_MAX)
        self._runs, self._book = ScanRuns(), SplitBook()
        self._published: BoundedDict[KeySplit, float] = BoundedDict(SPLITS_MAX)
        """Time when a split's cuts were published."""
        self._guards: BoundedDict[PartitionKey, _Guard] = BoundedDict(CUTS_MAX)
        self._known: BoundedDict[PartitionKey, _Known] = BoundedDict(PLACES_MAX)
        self._news, self._hurried = asyncio.Event(), asyncio.Event()
        self._consumer: AIOKafkaConsumer | None = None
        self._producer: AIOKafkaProducer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._partitions: list[TopicPartition] = []
        self._is_failing = False
        self._skipped_logged = False
        self.sent = 0
        self.taken = 0
        self.lost = 0
        """Scans that Kafka did not take, since the start."""

    async def start(self) -> None:
        """Make the topic if it is missing, take in its last minute, and follow it from then on.

        Raises: UpstreamLost.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                config = {
                    "cleanup.policy": DELETE,
                    "retention.ms": str(RETENTION_MS),
                    "segment.ms": str(SEGMENT_MS),
                    "segment.bytes": str(SEGMENT_BYTES),
                }
                _, shape = await self._clients.administer(
                    lambda admin: ensure_topic(admin, TOPIC_NAME, config, PARTITION_COUNT)
                )
                self._partitions = [
                    TopicPartition(TOPIC_NAME, p) for p in range(shape.partition_count)
                ]
                consumer = self._consumer = self._clients.make_consumer()
                await consumer.start()
                consumer.assign(self._partitions)
                await self._catch_up(consumer)
        except (KafkaError, TimeoutError) as error:
            await self.stop()
            raise UpstreamLost(f"cannot read {TOPIC_NAME}: {describe_error(error)}") from None
        log.info("scans loaded taken=%d", self.taken)
        run = self._clients.watched.run
        self._tasks = [run(self._follow, "scans"), run(self._send_on, "scans sent")]

    async def stop(self) -> None:
        """Send the scans that wait, if Kafka takes them soon, and close."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(KafkaError, TimeoutError, UpstreamLost):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self._tasks:
                    await self._send(self._runs.take(self._now_s()))
        await self._close_producer()
        if self._consumer is not None:
            await end_within(close_consumer(self._consumer))

    def note_scanned(self, block: ScannedBlock) -> None:
        """Note a block that a reader of this node has looked at. Some 10 microseconds."""
        self._know(block.at.place, -1, block.leader_epoch)
        self._runs.note(block, self._now_s())
        self._news.set()

    def note_truncated(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """Note a cut at `end` that a reader of this node has seen."""
        known = self._known.get((topic_id, partition), _Known())
        cut = Cut((topic_id, partition), end, min(known.leader_epoch + 1, EPOCH_MAX))
        self._runs.cut(cut)
        self._guard(cut, self._sender)
        self._news.set()

    async def publish(self, note: bytes) -> None:
        """Have a note written for all nodes that run. Raises: UpstreamLost."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._notes.append((note, written))
        self._news.set()
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await written
        except TimeoutError:
            raise UpstreamLost(f"{TOPIC_NAME}: a note is not written in time") from None

    def hurry(self) -> None:
        """Read other nodes' scans without a pause: a commit waits for them."""
        self._hurried.set()

    def remote_scanned_end(self, topic_id: uuid.UUID, partition: int) -> int:
        """Return the offset behind the last one that another node has scanned, -1 for none.

        A log that was cut since ends where it was cut.
        """
        known = self._known.get((topic_id, partition))
        return -1 if known is None else known.remote_scanned_end

    # Sending.
    async def _send_on(self) -> None:
        pause_s = PAUSE_S
        while True:
            pause_s = min(2 * pause_s, PAUSE_S_MAX) if self._news.is_set() else PAUSE_S
            await self._news.wait()
            self._news.clear()
            news = self._runs.take(self._now_s())
            notes, self._notes = self._notes, []
            try:
                await self._send(news, [note for note, _ in notes])
                self._is_failing = False
                _end_all(notes, None)
            except (KafkaError, TimeoutError, UpstreamLost) as error:
                self._give_up(news, error)
                _end_all(notes, UpstreamLost(f"{TOPIC_NAME}: {describe_error(error)}"))
                await self._close_producer()
                await asyncio.sleep(RETRY_BACKOFF_S)
                continue
            await asyncio.sleep(pause_s)

    async def _send(self, news: list[News], notes: Sequence[bytes] = ()) -> None:
        """Write news and wait for the acks. Raises: KafkaError, TimeoutError, UpstreamLost."""
        if not news and not notes:
            return
        async with asyncio.timeout(SEND_TIMEOUT_S):
            producer = await self._opened_producer()
            packets = [(0, note) for note in notes]
            for partition, part in self._by_partition(news).items():
                found = write_packets(self._sender, part, self._is_split_known)
                packets += [(partition, packet) for packet in found]
            acks = []
            for partition, packet in packets:
                ack = await producer.send(TOPIC_NAME, packet, partition=partition)
                ack.add_done_callback(_retrieve)
                acks.append(ack)
            await asyncio.wait(acks)
        for ack in acks:
            ack.result()
        self.sent += len(news)

    def _by_partition(self, news: list[News]) -> dict[int, list[News]]:
        """Return news by partition of the scans topic: news of one place stay in order."""
        count = len(self._partitions)
        parts: dict[int, list[News]] = {}
        for item in news:
            topic_id, number = item.place if isinstance(item, Cut) else item.at.place
            place = topic_id.bytes + number.to_bytes(4, "big")
            parts.setdefault(zlib.crc32(place) % count, []).append(item)
        return parts

    def _is_split_known(self, split: KeySplit) -> bool:
        """Return whether the split was published a moment ago; if not, it is about to be."""
        now_s = self._now_s()
        published_s = self._published.get(split)
        # Of several partitions none may be read before another: each would need its own.
        if (
            published_s is not None
            and now_s - published_s < SPLIT_AGAIN_S
            and len(self._partitions) == 1
        ):
            return True
        self._published[split] = now_s
        return False

    def _give_up(self, news: Iterable[News], error: BaseException) -> None:
        """Drop the scans that Kafka has not taken, and send the cuts again."""
        self._published.clear()
        # A producer that is closed may still send its batches, behind a cut of a new producer. So
        # the new one is another sender, and no node believes the old one's scans beyond a cut.
        self._sender = Sender(self._sender.number, os.urandom(LIFE_BYTES))
        self._own.append(self._sender)
        for item in news:
            if isinstance(item, Cut):
                self._runs.cut(item)
                self._news.set()
            else:
                self.lost += 1
        if not self._is_failing:
            log.warning(
                "scan publish failed: scans lost, cuts kept error=%s", describe_error(error)
            )
        self._is_failing = True

    async def _opened_producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            # `stop` may cancel this, and sends by one that is open.
            self._producer = await self._clients.open_producer(
                lambda producer: end_within(producer.stop()),
                batch_bytes=BATCH_BYTES,
                timeout_ms=int(SEND_TIMEOUT_S * 1000),
                is_idempotent=False,
            )
        return self._producer

    async def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await end_within(producer.stop())

    # Reading.
    async def _catch_up(self, consumer: AIOKafkaConsumer) -> None:
        """Go back a little, and take in all up to the present end."""
        past_ms = int((self._wall_clock() - PAST_S) * 1000)
        starts = await consumer.offsets_for_times(dict.fromkeys(self._partitions, past_ms))
        ends = await consumer.end_offsets(self._partitions)
        for partition in self._partitions:
            found = starts.get(partition)
            consumer.seek(partition, ends[partition] if found is None else found.offset)
        while waited := [p for p in self._partitions if await consumer.position(p) < ends[p]]:
            batches = await consumer.getmany(*waited, timeout_ms=POLL_MS)
            for records in batches.values():
                self._take_in(records, self._on_past)

    async def _follow(self) -> None:
        consumer = self._consumer
        assert consumer is not None, "start comes first"
        pause_s = PAUSE_S
        while True:
            started_s = self._now_s()
            try:
                batches = await consumer.getmany(timeout_ms=POLL_MS)
            except KafkaError as error:
                log.warning("scan read failed: retrying error=%s", describe_error(error))
                await asyncio.sleep(RETRY_BACKOFF_S)
                continue
            for records in batches.values():
                self._take_in(records, self._on_scanned)
            is_quiet = self._now_s() - started_s > PAUSE_S_MAX
            pause_s = PAUSE_S if is_quiet else min(2 * pause_s, PAUSE_S_MAX)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s if batches else 0):
                    await self._hurried.wait()
            self._hurried.clear()

    def _take_in(self, records: Iterable[ConsumerRecord[Any, Any]], on_scanned: OnScanned) -> None:
        for record in records:
            try:
                self._take_record(record, on_scanned)
            except Exception as error:  # noqa: BLE001 - one record must not keep the others out
                reason = f"a mistake of keylane in taking it, {type(error).__name__}"
                if isinstance(error, ScansInvalid):
                    reason = str(error)
                damaged = Damaged(record.partition, record.offset, reason)
                self._clients.set_aside.note(TOPIC_NAME, damaged)

    def _take_record(self, record: ConsumerRecord[Any, Any], on_scanned: OnScanned) -> None:
        """Take in one record. Raises: ScansInvalid."""
        data = record.value or b""
        if is_note(data):
            if self._tasks:  # else it was written before this node began
                self.on_note(data)
            return
        if read_sender(data) in self._own:
            return
        packet = read_packet(data, self._book)
        if packet is None:
            if not self._skipped_logged:
                log.warning(
                    "scan record skipped: another version of keylane wrote it topic=%s offset=%d",
                    TOPIC_NAME, record.offset,
                )  # fmt: skip
            self._skipped_logged = True
            return
        for item in packet.news:
            self._take_item(item, packet.sender, on_scanned)

    def _take_item(self, item: News, sender: Sender, on_scanned: OnScanned) -> None:
        if isinstance(item, Cut):
            self._guard(item, sender)
            self._on_truncated(*item.place, item.end)
            return
        place = item.at.place
        guard = self._guards.get(place)
        if guard is not None:
            if self._now_s() >= guard.until_s:
                del self._guards[place]
            elif guard.refuses(item, sender):
                return
        self.taken += 1
        self._know(place, item.end, item.leader_epoch)
        on_scanned(published_block(item))

    def _know(self, place: PartitionKey, remote_scanned_end: int, leader_epoch: int) -> None:
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = _Known()
        known.remote_scanned_end = max(known.remote_scanned_end, remote_scanned_end)
        known.leader_epoch = max(known.leader_epoch, leader_epoch)

    def _guard(self, cut: Cut, sender: Sender) -> None:
        guard = self._guards.get(cut.place) or _Guard(cut.end, cut.leader_epoch)
        self._guards[cut.place] = guard
        guard.end, guard.until_s = min(guard.end, cut.end), self._now_s() + CUT_GUARD_S
        guard.leader_epoch = max(guard.leader_epoch, cut.leader_epoch)
        guard.informed.add(sender)
        known = self._known.get(cut.place)
        if known is not None:
            known.remote_scanned_end = min(known.remote_scanned_end, cut.end)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _end_all(
    notes: Iterable[tuple[bytes, asyncio.Future[None]]], error: UpstreamLost | None
) -> None:
    """Answer those that wait for their notes."""
    for _, written in notes:
        if written.done():
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)


def _retrieve(ack: asyncio.Future[Any]) -> None:
    """Look at the outcome, so that an error without a waiter is not reported."""
    if not ack.cancelled():
        ack.exception()
