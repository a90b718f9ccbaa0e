"""Sequence numbers of idempotent producers: many lanes, one physical partition.

Source: KIP-98, KIP-360; ProducerAppendInfo, ProducerStateEntry (5 batches remembered) and
DefaultRecordBatch.incrementSequence of Apache Kafka 4.3.

A producer that sees P * L lanes numbers its batches per lane from 0. The broker wants one
sequence per producer and partition. So lane batches are numbered anew in the order in which
they are written, and an identical retry gets the number it had.

What the lanes of a partition must not do to each other:
- A rejected batch makes the broker refuse all that were numbered behind it. Those are answered
  NOT_ENOUGH_REPLICAS ("not written, try again"), for OUT_OF_ORDER_SEQUENCE_NUMBER would make
  librdkafka give up and Java bump its epoch. Once every batch behind the rejected one is
  rejected too, their numbers are taken back and given again.
- A broker recognises the retry of its last 5 batches only. So a batch gets no number while a
  batch 5 places before it is not settled; it is answered NOT_ENOUGH_REPLICAS (or waits: see
  `room`). What we know to be written is answered from here, however old.
- A producer may bump its epoch lane by lane. The partition's epoch moves with the first lane;
  later numbers are given in the partition's epoch, whatever epoch their lane is still in.

A producer that keylane does not know (restart, or forgotten) and that does not start at 0 is
answered UNKNOWN_PRODUCER_ID: librdkafka and Java bump their epoch, number anew and send again,
a transactional producer aborts. The price: a batch written just before a restart whose answer
was lost is written twice by a Java producer without transactions; librdkafka stops instead.
One that starts at 0 is given a first number that no broker can take for a retry of what it has;
if the broker knows the producer it refuses, and the partition's epoch moves. A transaction has
to start at 0 and in its own epoch, so there a lane used first after a restart of keylane, inside
a transaction that was open over it, is the one case that this does not guard.
"""

from __future__ import annotations

import struct
import uuid
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from keylane.producers.stream import (
    BATCHES_REMEMBERED,
    Assigned,
    BatchOutcome,
    NumberedBatch,
    ProducerStream,
    StreamLane,
    increment_sequence,
)
from keylane.wire.produce import Refusal

EPOCH_MAX: Final = 2**15 - 1
PRODUCERS_MAX: Final = 20_000
LANES_MAX: Final = 200_000
"""Bounds of memory: about 1 KiB a lane with 5 batches, so 200 MB at worst."""

SEQUENCE_START_LIMIT: Final = 2**30
START: Final = struct.Struct(">QqI")
SEED_MASK: Final = 2**64 - 1

NONE: Final = 0
NOT_ENOUGH_REPLICAS: Final = 19
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46
INVALID_PRODUCER_EPOCH: Final = 47
UNKNOWN_PRODUCER_ID: Final = 59
INVALID_RECORD: Final = 87
SEQUENCE_ERRORS: Final = frozenset(
    {OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID}
)
UNKNOWN_PRODUCER_LOG_START: Final = -2
"""Log start offset of an answer with UNKNOWN_PRODUCER_ID. On -1 a Java producer asks without end
(TransactionManager.canRetry). On 0 a transactional one of which nothing was acknowledged yet
starts at 0 again without a new epoch. Below -1 it aborts, and an idempotent one bumps its epoch."""

NOT_APPENDED: Final = frozenset(
    {
        2, 3, 10, 17, 18, NOT_ENOUGH_REPLICAS, 21, 29, 31, 32, 43, OUT_OF_ORDER_SEQUENCE_NUMBER,
        INVALID_PRODUCER_EPOCH, 48, 53, UNKNOWN_PRODUCER_ID, 76, INVALID_RECORD, 89, 90, 100,
    }
)  # fmt: skip
"""Errors that say that nothing was written. Every other one, NOT_LEADER_OR_FOLLOWER included
(it can follow an append), leaves the outcome open: the number stays taken."""


class SequencedBatch(NamedTuple):
    """A batch of a lane as its producer numbered it."""

    producer_id: int
    producer_epoch: int
    topic_id: uuid.UUID
    partition: int
    lane_index: int
    base_sequence: int
    record_count: int
    is_transactional: bool = False


_StreamKey = tuple[uuid.UUID, int]


class SequenceMap:
    """Sequences of all producers that write to lanes; shared by all connections of a node.

    Invariants: at most BATCHES_REMEMBERED batches of a stream are in its window; `lane_count`
    is the number of lanes kept, at most LANES_MAX unless one producer alone has more.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        producers_max: int = PRODUCERS_MAX,
        lanes_max: int = LANES_MAX,
    ) -> None:
        """`seed` must differ from one run of the proxy to the next; None draws one."""
        self._seed = (uuid.uuid4().int if seed is None else seed) & SEED_MASK
        self.producers_max, self.lanes_max, self.lane_count = producers_max, lanes_max, 0
        self._producers: OrderedDict[int, dict[_StreamKey, ProducerStream]] = OrderedDict()

    def assign(self, batch: SequencedBatch) -> Assigned | Refusal:
        """Return the partition's number for a lane batch that is about to be written.

        Call it in the order of writing. A Refusal is the answer to the lane; its error code is
        0 for a retry of what is known to be written. Cost: O(1).
        """
        producer_id, producer_epoch, topic_id, partition, lane_index = batch[:5]
        base_sequence, record_count, is_transactional = batch[5:]
        if base_sequence < 0 or record_count < 1:
            return Refusal(INVALID_RECORD, f"{record_count} records from {base_sequence} on")
        stream, lane = self._find(producer_id, topic_id, partition, lane_index)
        if lane is not None and (
            known := _known(lane, producer_epoch, base_sequence, record_count)
        ):
            return known
        if lane is None or producer_epoch > lane.epoch:
            if base_sequence != 0:
                return _refuse_start(lane)
        elif (refusal := _refuse_next(lane, producer_epoch, base_sequence)) is not None:
            return refusal
        if stream is None:
            start = 0 if is_transactional else self._first_sequence(producer_id, partition)
            stream = ProducerStream(producer_epoch, start, start)
            self._add_stream(producer_id, topic_id, partition, stream)
        elif is_transactional and producer_epoch < stream.epoch:
            return Refusal(INVALID_PRODUCER_EPOCH, "an older epoch of this producer")
        must_wait = not is_transactional and stream.must_wait(lane, producer_epoch)
        if not must_wait:
            lane = self._open_lane(stream, lane, lane_index, producer_epoch)
        if stream.epoch > EPOCH_MAX:
            return Refusal(UNKNOWN_PRODUCER_ID, "out of epochs", UNKNOWN_PRODUCER_LOG_START)
        if lane is None or must_wait or stream.room <= 0:
            return Refusal(NOT_ENOUGH_REPLICAS, "batches of this producer wait for their outcome")
        return stream.number(lane, base_sequence, record_count, is_transactional=is_transactional)

    def settle(
        self,
        sent: SequencedBatch,
        error_code: int,
        *,
        base_offset: int = -1,
        log_append_time: int = -1,
    ) -> int:
        """Take note of the broker's answer; return the error code that the lane is answered.

        An answer with UNKNOWN_PRODUCER_ID has to say log start offset UNKNOWN_PRODUCER_LOG_START.
        """
        stream, lane = self._find(sent.producer_id, sent.topic_id, sent.partition, sent.lane_index)
        if stream is None or lane is None or lane.epoch != sent.producer_epoch:
            return error_code
        batch = next((b for b in lane.batches if b.lane_base == sent.base_sequence), None)
        if batch is None:
            return error_code
        if batch.outcome is BatchOutcome.WRITTEN:  # sent twice, over two connections
            return NONE if error_code == NONE else DUPLICATE_SEQUENCE_NUMBER
        if error_code in (NONE, DUPLICATE_SEQUENCE_NUMBER):
            batch.outcome = BatchOutcome.WRITTEN
            batch.base_offset, batch.log_append_time = base_offset, log_append_time
            stream.is_confirmed |= batch.epoch == stream.epoch
            stream.is_known = True
        elif error_code == OUT_OF_ORDER_SEQUENCE_NUMBER or (
            # A broker short of replicas says so before it looks whether it has the batch.
            # And only keylane moves the epoch: before a batch of it is written, an epoch that
            # is too old was too old for every attempt.
            error_code in NOT_APPENDED
            and (
                not batch.is_doubtful
                or (
                    error_code == INVALID_PRODUCER_EPOCH
                    and batch.epoch == stream.epoch
                    and not stream.is_confirmed
                )
            )
        ):
            batch.outcome = BatchOutcome.REJECTED
            if error_code in SEQUENCE_ERRORS:
                error_code = _explain(stream, batch, error_code)
        stream.settle_window()
        lane.give_back_before(stream.epoch)
        return error_code

    def room(self, producer_id: int, topic_id: uuid.UUID, partition: int) -> int:
        """Return the number of batches that `assign` takes before one under way is settled.

        0 while answers are on their way: wait for one. 0 without: go on, it is refused.
        """
        stream = self._producers.get(producer_id, {}).get((topic_id, partition))
        return stream.room if stream is not None else 1

    def places(self) -> set[tuple[uuid.UUID, int]]:
        """Topics by id, and partitions, of which there are producers."""
        return {place for streams in self._producers.values() for place in streams}

    def forget(self, topic_id: uuid.UUID, partition: int) -> int:
        """Forget all producers of a partition that comes back to this node; return their count.

        Another node numbered them meanwhile. A number that was drawn or given here before may be
        one that the broker takes for a retry: a batch would be lost in silence. What is under way
        is answered as the broker answers it.
        """
        gone = 0
        for producer_id, streams in list(self._producers.items()):
            stream = streams.pop((topic_id, partition), None)
            if stream is not None:
                gone += 1
                self.lane_count -= len(stream.lanes)
            if not streams:
                del self._producers[producer_id]
        return gone

    def check(self) -> None:
        """Assert the invariants."""
        kept = 0
        for streams in self._producers.values():
            for stream in streams.values():
                kept += len(stream.lanes)
                assert len(stream.window) <= BATCHES_REMEMBERED
                expected = stream.next
                for batch in reversed(stream.window):
                    assert increment_sequence(batch.base, batch.record_count) == expected
                    assert batch.epoch == stream.epoch
                    expected = batch.base
                assert all(len(one.batches) <= BATCHES_REMEMBERED for one in stream.lanes.values())
        assert kept == self.lane_count
        assert len(self._producers) <= self.producers_max

    def _find(
        self, producer_id: int, topic_id: uuid.UUID, partition: int, lane_index: int
    ) -> tuple[ProducerStream | None, StreamLane | None]:
        streams = self._producers.get(producer_id)
        if streams is None:
            return None, None
        self._producers.move_to_end(producer_id)
        stream = streams.get((topic_id, partition))
        return stream, stream.lanes.get(lane_index) if stream is not None else None

    def _add_stream(
        self, producer_id: int, topic_id: uuid.UUID, partition: int, stream: ProducerStream
    ) -> None:
        self._producers.setdefault(producer_id, {})[topic_id, partition] = stream
        while len(self._producers) > 1 and (
            len(self._producers) > self.producers_max or self.lane_count > self.lanes_max
        ):
            _, forgotten = self._producers.popitem(last=False)
            self.lane_count -= sum(len(one.lanes) for one in forgotten.values())

    def _first_sequence(self, producer_id: int, partition: int) -> int:
        """Return the first sequence number of a stream that we see for the first time.

        A broker without state of the producer takes any number. One that has state, from before
        our restart, must not take our first batch for a retry of its first one: a batch
        dropped as a duplicate would be lost in silence. A number that it cannot expect makes
        it refuse, and the producer bumps its epoch. Nor may it be the number that was drawn for
        the same producer before it was forgotten.
        """
        self._seed = (self._seed + 1) & SEED_MASK
        drawn = crc32c(START.pack(self._seed, producer_id, partition))
        return int(drawn) % SEQUENCE_START_LIMIT

    def _open_lane(
        self, stream: ProducerStream, lane: StreamLane | None, lane_index: int, epoch: int
    ) -> StreamLane:
        """Return the lane in this epoch; move the partition's epoch along where it must."""
        if epoch > stream.epoch:
            stream.restart(epoch)
        elif lane is not None and epoch > lane.epoch and stream.has_open(lane):
            # No client retries what the lane left behind: its numbers can only go with the epoch.
            stream.restart(stream.epoch + 1)
        if lane is None:
            lane = stream.lanes[lane_index] = StreamLane(epoch)
            self.lane_count += 1
        elif epoch > lane.epoch:
            lane.epoch, lane.next = epoch, 0
            lane.batches = deque()
        return lane


def _known(lane: StreamLane, epoch: int, base: int, record_count: int) -> Assigned | Refusal | None:
    """Return the answer to an identical retry, None for a batch that is new."""
    if lane.epoch != epoch:
        return None
    for batch in lane.batches:
        if batch.lane_base == base and batch.record_count == record_count:
            if batch.outcome is BatchOutcome.WRITTEN:
                return Refusal(NONE, None, -1, batch.base_offset, batch.log_append_time)
            batch.is_doubtful |= batch.outcome is BatchOutcome.PENDING
            batch.outcome = BatchOutcome.PENDING
            return Assigned(batch.base, batch.epoch)
    return None


def _refuse_start(lane: StreamLane | None) -> Refusal:
    if lane is not None:
        return Refusal(OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch starts at sequence 0", 0)
    return Refusal(
        UNKNOWN_PRODUCER_ID, "keylane does not know this producer", UNKNOWN_PRODUCER_LOG_START
    )


def _refuse_next(lane: StreamLane, epoch: int, base: int) -> Refusal | None:
    if epoch < lane.epoch:
        return Refusal(INVALID_PRODUCER_EPOCH, "an older epoch of this producer")
    if base == lane.next:
        return None
    if any(b.lane_base == base and b.outcome is BatchOutcome.REJECTED for b in lane.batches):
        # Split after MESSAGE_TOO_LARGE, while batches behind it are still under way.
        return Refusal(NOT_ENOUGH_REPLICAS, "waits for the batches behind it")
    text = f"lane sequence {base}, expected {lane.next}"
    return Refusal(OUT_OF_ORDER_SEQUENCE_NUMBER, text, 0)


def _explain(stream: ProducerStream, batch: NumberedBatch, error_code: int) -> int:
    """Return the code for a lane whose batch does not have the number that the broker expects."""
    if batch.epoch != stream.epoch or stream.window[0] is not batch:
        if batch.is_transactional and error_code != OUT_OF_ORDER_SEQUENCE_NUMBER:
            return error_code
        return NOT_ENOUGH_REPLICAS
    if stream.is_confirmed:
        return error_code
    # First in line, nothing written yet, and still wrong: the broker knows more of this
    # producer than we do, from before our restart. A new epoch puts both at 0.
    if batch.is_transactional:
        return UNKNOWN_PRODUCER_ID if error_code == OUT_OF_ORDER_SEQUENCE_NUMBER else error_code
    stream.restart(stream.epoch + 1, is_new=error_code != INVALID_PRODUCER_EPOCH)
    return NOT_ENOUGH_REPLICAS
