"""One partition of a share group in key order: its session at the broker, and those who wait.

Source: docs/decisions/048.

One task asks the broker, one request at a time: renewals that are due, outcomes that members have
decided, then more records. Members' requests change the dispatcher between its steps, and wake it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from kio.schema.errors import ErrorCode

from keylane.errors import KeylaneError, ShareRefused, UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.split_io import ReaderKit
from keylane.proxy.share.broker_session import BrokerSession, SharedPlace
from keylane.proxy.share.held_bytes import HeldBytes
from keylane.proxy.share.indexing import Indexed, index_all
from keylane.proxy.share.settling import UNKNOWN, ask_progress, holds_all
from keylane.proxy.share.watcher import LogWatcher
from keylane.share.acks import halves_of
from keylane.share.dispatcher import Dispatcher
from keylane.share.held import Held, Ticket
from keylane.tasks import spawn
from keylane.wire.share import RELEASE, AckBatch, Acquired, ShareAnswer

log = logging.getLogger("keylane.share")

LOOK_AHEAD_MAX: Final = 2000
"""Records that are held; brokers' `group.share.partition.max.record.locks` by default."""
DEMAND_TIMES: Final = 2
"""Records that are made ready, in terms of what members ask for at a time."""
IDLE_WAIT_MS: Final = 500
POLL_S: Final = 0.5
"""Time until a broker that had nothing is asked again, if nothing has happened."""
GONE_POLL_S: Final = 0.1
NOT_YET_S: Final = 0.2
SETTLE_S_MAX: Final = 3.0
SETTLE_POLL_S: Final = 0.05
FRESH_S: Final = 0.3
"""Time after which a group without a written state counts as new."""
TICKS_PER_LOCK: Final = 30
PAUSES_S: Final = (0.0, 0.1, 0.3, 1.0, 2.0)
"""Before each try to open a session again."""
WRITE_FAILURES_MAX: Final = 25
CONFIRM_S: Final = 25.0
"""Below the clients' `request.timeout.ms` of 30 s."""
MOVED: Final = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_topic_id,
    ErrorCode.fenced_state_epoch,
)
LOCK_LOST: Final = (ErrorCode.invalid_record_state, ErrorCode.invalid_request)
NO_RENEWAL: Final = "not enabled"


class Outcome:
    """The broker's word on what a member has acknowledged."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def over(self, ticket: Ticket) -> None:
        """Note that the broker has confirmed, or refused, all records."""
        if not self._future.done():  # a member that has gone waits no more
            self._future.set_result(ticket.error_code)

    async def wait(self) -> int:
        """Return the error code; UNKNOWN_SERVER_ERROR after `CONFIRM_S`."""
        try:
            async with asyncio.timeout(CONFIRM_S):
                return await self._future
        except TimeoutError:
            return ErrorCode.unknown_server_error


class Waiter(Protocol):
    """A member's request that waits for records."""

    def offer(self) -> bool:
        """Take records of the member's partitions; False: it takes none any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareKit:
    """The parts that all partitions share."""

    cluster: Cluster
    reader_kit: ReaderKit
    held_bytes: HeldBytes
    clock: Callable[[], float]


class OrderedPartition:
    """The window of one partition, kept full while members ask for records."""

    def __init__(
        self,
        kit: ShareKit,
        place: SharedPlace,
        dispatcher: Dispatcher,
        *,
        look_ahead: int = LOOK_AHEAD_MAX,
    ) -> None:
        self.place, self.dispatcher = place, dispatcher
        self._kit, self._clock, self._look_ahead = kit, kit.clock, look_ahead
        self.error_code = 0
        """Code for members while the partition cannot be served; 0: it can."""
        self.leader: tuple[int, int] | None = None
        """Broker id and epoch while a session is open."""
        self._demand: dict[Any, int] = {}
        self._waiting: dict[Waiter, None] = {}
        self._work = asyncio.Event()
        self._fetch_s = self._renew_s = self._tick_s = self._acks_s = 0.0
        self._write_failures = 0
        self._acks_go_apart = False
        """Outcomes of the last fetch were refused: the next ones are sent without a fetch."""
        self._is_closing = False
        self._watcher = LogWatcher(kit.cluster, kit.reader_kit, place, self._news_came)
        self._task = spawn(self._run(), f"share {place}")

    # Members.
    def join(self, member: Any, records_max: int) -> None:
        """Note a member and the records that it takes at a time."""
        self.dispatcher.join(member)
        self._demand[member] = records_max

    def leave(self, member: Any) -> None:
        """Release what a member holds."""
        self.dispatcher.leave(member, self._clock())
        self._demand.pop(member, None)
        self.wake()

    def acknowledge(self, member: Any, batches: Sequence[AckBatch]) -> Outcome | int:
        """Take a member's outcomes; return their error code, or what to wait for."""
        outcome = Outcome()
        code = self.dispatcher.acknowledge(member, batches, self._clock(), outcome.over)
        self.wake()
        return outcome if code is None else code

    @property
    def has_members(self) -> bool:
        """Return whether any member takes part."""
        return bool(self._demand)

    def wait(self, waiter: Waiter) -> None:
        """Offer records to a request as soon as there are some, first come first served."""
        self._waiting[waiter] = None
        self.wake()

    def stop_waiting(self, waiter: Waiter) -> None:
        """Forget a request."""
        self._waiting.pop(waiter, None)

    def wake(self) -> None:
        """Have the task look at what has changed."""
        self._work.set()

    async def close(self) -> None:
        """End the session at the broker."""
        self._is_closing = True
        self._work.set()
        self._watcher.close()
        await asyncio.wait({self._task})

    def abort(self) -> None:
        """Drop the session's connection at once."""
        self._watcher.close()
        self._task.cancel()

    # The task.
    async def _run(self) -> None:
        tries = 0
        while not self._is_closing:
            await asyncio.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            session = None
            try:
                session = await BrokerSession.open(self._kit.cluster, self.place)
                self.leader = session.leader_id, session.leader_epoch
                await self._settle(session)
                self.error_code = tries = 0
                await self._serve(session)
                await session.end()
            except ShareRefused as error:
                self.error_code = ErrorCode.unknown_server_error
                log.error("share group is not served: %s", error)
                tries = len(PAUSES_S)
            except (KeylaneError, OSError) as error:
                level = logging.WARNING if tries == 1 else logging.DEBUG
                log.log(level, "share session is opened again %s reason=%s", self.place, error)
                tries += 1
            finally:
                self.leader = None
                if session is not None:
                    session.close()
                self.dispatcher.lose_all(self._clock())

    async def _serve(self, session: BrokerSession) -> None:
        dispatcher = self.dispatcher
        while not self._is_closing:
            now_s = self._clock()
            if now_s >= self._tick_s:
                dispatcher.expire(now_s)
                self._tick_s = now_s + dispatcher.lock_s / TICKS_PER_LOCK
            dispatcher.wake(now_s)
            self._offer()
            wanted = self._records_wanted()
            if now_s >= self._renew_s and await self._renew(session):
                continue
            if dispatcher.has_acks and now_s >= self._acks_s:
                acks = dispatcher.next_acks()
                if wanted and not self._acks_go_apart:
                    await self._fetch(session, wanted, acks)
                else:
                    self._acks_go_apart = False
                    answer = await session.acknowledge(acks)
                    await self._judge(session, acks, answer.error_code, answer.error_message)
            elif wanted and now_s >= self._fetch_s:
                await self._fetch(session, wanted)
            else:
                await self._rest(wanted)

    async def _rest(self, wanted: int) -> None:
        """Wait until something happens, or is due."""
        due_s = min(self._tick_s, self._renew_s)
        if wanted:
            due_s = min(due_s, self._fetch_s)
        if self.dispatcher.has_acks:
            due_s = min(due_s, self._acks_s)
        if (wake_s := self.dispatcher.next_wake_s) is not None:
            due_s = min(due_s, wake_s)
        try:
            async with asyncio.timeout(max(0.0, due_s - self._clock())):
                await self._work.wait()
        except TimeoutError:
            return
        self._work.clear()

    def _offer(self) -> None:
        """Give records to requests that wait."""
        while self._waiting and self.dispatcher.is_settled and self.dispatcher.ready_count:
            waiter = next(iter(self._waiting))
            if not waiter.offer():
                self._waiting.pop(waiter, None)

    def _records_wanted(self) -> int:
        """Return the number of records to ask the broker for."""
        dispatcher = self.dispatcher
        if not self._demand:
            return len(dispatcher.gone)
        demand = min(sum(self._demand.values()), self._look_ahead)
        room = self._look_ahead - len(dispatcher.records)
        if dispatcher.ready_count >= demand or not self._kit.held_bytes.has_room(self.place.group):
            room = 0 if dispatcher.records else 1
        more = DEMAND_TIMES * demand - dispatcher.ready_count
        return max(min(room, more), len(dispatcher.gone))

    def _news_came(self) -> None:
        self._fetch_s = 0.0
        self._work.set()

    # Records.
    async def _fetch(
        self, session: BrokerSession, wanted: int, acks: Sequence[AckBatch] = ()
    ) -> None:
        """Fetch once, and take in what comes."""
        kit, dispatcher = self._kit.reader_kit, self.dispatcher
        may_wait = dispatcher.is_settled and not dispatcher.records and not acks
        room = ReadRoom(kit.gates, read_bytes=kit.read_bytes_max, block_bytes=kit.plain_bytes_max)
        sent_s = self._clock()
        try:
            answer = await session.fetch(
                records_max=wanted,
                bytes_max=kit.read_bytes_max,
                wait_ms=IDLE_WAIT_MS if may_wait else 0,
                room=room,
                acks=acks,
            )
            if answer.ack_error_code in LOCK_LOST:
                # Not in parts now: this fetch may have locked such a record anew, and a part would
                # end it at the broker before it is taken in.
                dispatcher.unsend(acks)
                self._acks_go_apart = True
            elif acks:
                await self._judge(session, acks, answer.ack_error_code, answer.ack_error_message)
            if self._is_refused(answer):
                return
            records = memoryview(b"".join(answer.records or ()))
            await room.for_records(len(records))
            indexed = await index_all(kit, records, room)
        finally:
            room.leave()
        now_s = self._clock()
        dispatcher.lock_s = session.lock_s or dispatcher.lock_s
        if session.is_throttled and dispatcher.gone:
            raise UpstreamLost(f"share fetch: {self.place}: throttled, what it has is not known")
        holes = self._take(answer.acquired, indexed, now_s)
        highest = max((acquired.last for acquired in answer.acquired), default=None)
        for record in dispatcher.fetched(sent_s, highest, now_s):
            log.warning(
                "record is archived by its delivery limit %s offset=%d", self.place, record.offset
            )
        if highest is None:
            self._fetch_s = now_s + (GONE_POLL_S if dispatcher.gone else POLL_S)
            if dispatcher.records and self._demand:
                self._watcher.watch(dispatcher.end_offset + 1)
        else:
            self._fetch_s = 0.0
        if holes and dispatcher.is_settled:
            await self._look_into(session, holes)

    def _is_refused(self, answer: ShareAnswer) -> bool:
        """Return whether the broker has nothing to say yet. Raises: UpstreamLost, ShareRefused."""
        code = answer.error_code
        if code in MOVED:
            raise UpstreamLost(f"share fetch: {self.place}: {ErrorCode(code).name}")
        if code == ErrorCode.topic_authorization_failed:
            raise ShareRefused(f"{self.place}: keylane may not READ the topic")
        if code:
            self._fetch_s = self._clock() + NOT_YET_S
        return bool(code)

    def _take(
        self, ranges: Sequence[Acquired], indexed: Indexed, now_s: float
    ) -> list[tuple[int, int]]:
        """Give acquired records to the dispatcher; return offsets that were passed over."""
        held = self._kit.held_bytes
        blocks = [(block, held.hold(self.place.group, block)) for block in indexed.blocks]
        holes = []
        for first, last, count in ranges:
            end = self.dispatcher.end_offset
            if 0 <= end < first - 1:
                holes.append((end + 1, first - 1))
            expected = first
            for block, keeper in blocks:
                low, high = np.searchsorted(block.offsets, (first, last + 1)).tolist()
                if low == high:
                    continue
                offsets = block.offsets[low:high].tolist()
                points = block.points[low:high].tolist()
                if offsets[0] != expected or offsets[-1] - offsets[0] + 1 != len(offsets):
                    self._take_gaps(expected, offsets)
                self.dispatcher.acquire(offsets, points, count, now_s, keeper, low)
                expected = offsets[-1] + 1
            if expected <= last:
                self._take_rest(expected, last, indexed)
        return holes

    def _take_gaps(self, expected: int, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if offset > expected:
                self.dispatcher.acquire_gap(expected, offset - 1)
            expected = offset + 1

    def _take_rest(self, first: int, last: int, indexed: Indexed) -> None:
        """Take offsets behind the last record of an answer; raise where batches are unreadable."""
        if indexed.error is None:
            self.dispatcher.acquire_gap(first, last)
            return
        self.error_code = ErrorCode.corrupt_message
        log.error(
            "bad batch: the share group stops there %s offset=%d error=%s",
            self.place, max(first, indexed.next_offset), indexed.error,
        )  # fmt: skip
        raise UpstreamLost(f"share fetch: {self.place}: bad batch")

    async def _look_into(self, session: BrokerSession, holes: Sequence[tuple[int, int]]) -> None:
        """Release offsets that were passed over, if keylane has them: of an answer that was lost.

        Else compaction has removed them, or members beside keylane hold them.
        """
        self.dispatcher.is_settled = False
        for first, last in holes:
            answer = await session.acknowledge([AckBatch(first, last, bytes((RELEASE,)))])
            if answer.error_code == 0:
                log.info("records come again %s offsets=%d-%d", self.place, first, last)
                await self._settle(session)
        self.dispatcher.is_settled = True

    # Outcomes and locks.
    async def _judge(
        self, session: BrokerSession, acks: Sequence[AckBatch], code: int, message: str | None
    ) -> None:
        """Take in the answer to outcomes: all of them or none. Raises: UpstreamLost."""
        now_s = self._clock()
        if code == 0:
            self._write_failures = 0
            self.dispatcher.acked(acks, now_s)
        elif code in LOCK_LOST:
            lower, upper = halves_of(acks)
            if not lower:
                self.dispatcher.refused(upper, ErrorCode.invalid_record_state, now_s)
                return
            for half in (lower, upper):
                answer = await session.acknowledge(half)
                await self._judge(session, half, answer.error_code, answer.error_message)
        else:
            self.dispatcher.unsend(acks)
            self._write_failures += 1
            self._acks_s = now_s + NOT_YET_S
            if code in MOVED or self._write_failures > WRITE_FAILURES_MAX:
                raise UpstreamLost(f"acknowledgement: {self.place}: error {code} {message}")

    async def _renew(self, session: BrokerSession) -> bool:
        """Renew locks that are due; False: none is."""
        now_s = self._clock()
        self._renew_s = now_s + self.dispatcher.lock_s / TICKS_PER_LOCK
        due = self.dispatcher.renewals(now_s)
        if due:
            await self._renew_some(session, due)
        return bool(due)

    async def _renew_some(self, session: BrokerSession, due: Sequence[AckBatch]) -> None:
        answer = await session.acknowledge(due, is_renewal=True)
        now_s = self._clock()
        if answer.error_code == 0:
            self.dispatcher.renewed(due, now_s)
        elif answer.error_code in LOCK_LOST:
            if NO_RENEWAL in (answer.error_message or ""):
                raise ShareRefused(f"{self.place}: share.renew.acknowledge.enable is false")
            lower, upper = halves_of(due)
            if lower:
                await self._renew_some(session, lower)
                await self._renew_some(session, upper)
            else:
                self.dispatcher.lose(upper, now_s)
        elif answer.error_code in MOVED:
            raise UpstreamLost(f"renewal: {self.place}: error {answer.error_code}")

    # Settling.
    async def _settle(self, session: BrokerSession) -> None:
        """Fetch until all that is not finished is locked. Raises: UpstreamLost."""
        dispatcher = self.dispatcher
        dispatcher.is_settled = False
        began_s = self._clock()
        while not self._is_closing:
            room = self._look_ahead - dispatcher.locked_count
            await self._fetch(session, max(1, room))
            if await self._holds_all(session, self._clock() - began_s):
                break
            if self._clock() - began_s > SETTLE_S_MAX:
                log.warning(
                    "records of a share group are not at keylane: members beside it hold them, or "
                    "a transaction is open %s end_offset=%d", self.place, dispatcher.end_offset,
                )  # fmt: skip
                break
            await asyncio.sleep(SETTLE_POLL_S)
        for record in dispatcher.settle(self._clock()):
            log.debug("finished before %s %r", self.place, record)

    async def _holds_all(self, session: BrokerSession, passed_s: float) -> bool:
        dispatcher = self.dispatcher
        log_end = await session.log_end()
        progress = await ask_progress(self._kit.cluster, self.place)
        if progress.start_offset == UNKNOWN and passed_s >= FRESH_S:
            return True
        end = dispatcher.end_offset
        if end < 0:
            return progress.start_offset != UNKNOWN and progress.lag <= 0
        return holds_all(progress, dispatcher.locked_count, end, log_end)


def pick_records(records: Sequence[Held]) -> list[bytes]:
    """Return batches with these records, which are handed out, in their order."""
    pieces: list[bytes] = []
    start = 0
    for index in range(1, len(records) + 1):
        if index == len(records) or records[index].block is not records[start].block:
            rows = [record.row for record in records[start:index]]
            pieces.append(records[start].block.records.pick(rows))
            start = index
    return pieces


def acquired_of(records: Sequence[Held]) -> tuple[Acquired, ...]:
    """Return the ranges of records that are handed out: neighbours of one count go together."""
    ranges: list[Acquired] = []
    for record in records:
        if ranges:
            first, last, count = ranges[-1]
            if last + 1 == record.offset and count == record.count:
                ranges[-1] = Acquired(first, record.offset, count)
                continue
        ranges.append(Acquired(record.offset, record.offset, record.count))
    return tuple(ranges)
