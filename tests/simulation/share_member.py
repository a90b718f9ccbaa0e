"""A share consumer behind keylane, as Java's is, with a diary of its work.

Source: Apache Kafka 4.3, `ShareConsumeRequestManager` (acknowledgements go with the next fetch, one
request in flight per node, a new session after SHARE_SESSION_NOT_FOUND and
INVALID_SHARE_SESSION_EPOCH, whose acknowledgements fail), `ShareCompletedFetch` (acquired offsets
without a record are gaps), `ShareMembershipManager`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from keylane.share.acks import runs_of
from keylane.share.sessions import next_epoch
from keylane.wire.parts import KeyedTopic
from keylane.wire.share import (
    ACCEPT,
    FINAL_EPOCH,
    GAP,
    INITIAL_EPOCH,
    REJECT,
    RELEASE,
    RENEW,
    AckBatch,
    ShareAcknowledgeRequest,
    ShareAnswer,
    ShareFetchRequest,
    SharePartition,
    read_share_acknowledge_response,
    read_share_fetch_response,
    write_share_acknowledge_request,
    write_share_fetch_request,
)
from tests.reference.broker_log import LaneClient
from tests.simulation.client import Address, Client, Connection, Lost
from tests.simulation.share_work import Work
from tests.simulation.world import Process

if TYPE_CHECKING:
    from tests.simulation.scenario import SharePlan
    from tests.simulation.world import World

SHARE_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE = 76, 78, 79
BACKOFF_S = 0.1
FETCH_WAIT_MS = 500
TIMEOUT_S = 10.0
NEW_SESSION = {122, 123}
MOVED = {3, 5, 6, 74, 75, 100}
UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH = 25, 110
FASTEST = 1.12
"""Above the rates of nodes' clocks, which end locks."""
FAST_FROM, FAST_S = 3, 30.0
"""Delivery, and time, from which records are not slow any more."""
RENEWED_AT = 0.6
"""Part of a lock after which an application that is slow renews it."""


@dataclass
class _Session:
    """A share session at one of the addresses."""

    broker_id: int
    epoch: int = INITIAL_EPOCH
    known: set[int] = field(default_factory=set)
    """Partitions in it."""
    open: list[Work] = field(default_factory=list)
    """Records that it has given, without an answer to their outcomes."""
    unsent: list[Work] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Partition and offset of what has no record."""
    connection: Connection | None = None


class ShareMember:
    """A member that is started again whenever it has ended."""

    def __init__(
        self, world: World, name: str, bootstrap: list[Address], plan: SharePlan, *, number: int
    ) -> None:
        self.world, self.name, self.plan, self.number = world, name, plan, number
        self._bootstrap = bootstrap
        self.process: Process | None = None
        self.life: ShareLife | None = None
        self.works: list[Work] = []
        self.starts = 0
        self._is_wanted = False
        self.unwanted = asyncio.Event()
        self.is_kept_out = self.is_committing = False

    def start(self) -> None:
        """Begin a process, where none runs; one that is leaving is followed by another."""
        self._is_wanted = True
        if self.process is not None and not self.process.is_dead:
            return
        self.starts += 1
        self.unwanted = asyncio.Event()
        host = f"10.1.{self.number}.{self.starts}"
        self.process = Process(self.world, host, name=f"{self.name}.{self.starts}")
        self.life = ShareLife(self, self.process, self._bootstrap)
        self.process.spawn(self.life.run(), self.process.name)

    def stop(self) -> None:
        """Have it leave."""
        self._is_wanted = False
        if self.process is not None:
            self.process.post(self.unwanted.set)

    def has_left(self) -> None:
        """Its process has left the group, and ends."""
        self.kill()
        if self._is_wanted:
            self.start()

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None and not self.process.is_dead and self.life is not None:
            self.process.kill()
            self.life.note_dead()


class ShareLife:
    """One process of a member."""

    def __init__(self, member: ShareMember, process: Process, bootstrap: list[Address]) -> None:
        self._member, self._process, self._plan = member, process, member.plan
        self._world, self._name = process.world, process.name
        self._client = Client(process, bootstrap, process.name)
        self._client.timeout_s = TIMEOUT_S
        self._id = f"{process.name}-id"
        self._epoch = 0
        self._interval_s = 1.0
        self._assigned: list[int] = []
        self._sessions: dict[int, _Session] = {}
        self._loops: dict[int, asyncio.Task[None]] = {}
        self._application = asyncio.Lock()
        self._has_hung = False
        self._topic_id = b""

    async def run(self) -> None:
        """Be a member until it is unwanted."""
        while not self._member.unwanted.is_set():
            try:
                await self._client.refresh(self._plan.topic)
                self._topic_id = self._client.topic_ids[self._plan.topic].bytes
                break
            except (Lost, KeyError):
                await asyncio.sleep(BACKOFF_S)
        works = [self._begin(each()) for each in (self._beats, self._watch)]
        await self._member.unwanted.wait()
        for task in (*works, *self._loops.values()):
            task.cancel()
        await asyncio.gather(*works, *self._loops.values(), return_exceptions=True)
        await self._leave()
        self._world.after(0.0, self._member.has_left)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin a task of the process; what it finds is a finding of the run."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.note_error(f"{self._name}: {error!r}")

    # The group.
    async def _beats(self) -> None:
        while True:
            try:
                await self._beat(self._epoch)
            except Lost as error:
                self._world.report(f"{self._name}: heartbeat: {error}")
                await asyncio.sleep(BACKOFF_S)
                continue
            await asyncio.sleep(self._interval_s)

    async def _beat(self, epoch: int) -> None:
        coordinator = await self._client.coordinator(self._plan.name)
        how: dict[str, Any] = {}
        if epoch == 0:
            how["subscribed_topic_names"] = [self._plan.topic]
        answer = await coordinator.ask(
            SHARE_HEARTBEAT, 1, group_id=self._plan.name, member_id=self._id, member_epoch=epoch,
            **how,
        )  # fmt: skip
        code = int(answer.error_code)
        if code in (UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH):
            self._world.report(f"{self._name} is no member any more")
            self._epoch, self._assigned = 0, []
        elif code:
            raise Lost(f"error {code}")
        else:
            self._epoch = int(answer.member_epoch)
            self._interval_s = answer.heartbeat_interval.total_seconds() or 1.0
            if answer.assignment is not None:
                self._assigned = [
                    int(index)
                    for topic in answer.assignment.topic_partitions
                    for index in topic.partitions
                ]

    async def _leave(self) -> None:
        with suppress(Lost):
            for session in self._sessions.values():
                if session.epoch != INITIAL_EPOCH:
                    await self._close(session)
        with suppress(Lost):
            await self._beat(-1)
        self._client.close()

    # Nodes.
    def _leader_of(self, index: int) -> int:
        return self._client.leaders.get((self._plan.topic, index), (-1, -1))[0]

    async def _watch(self) -> None:
        """Have a loop for each broker that leads a partition."""
        while True:
            for broker_id in dict.fromkeys(map(self._leader_of, self._assigned)):
                task = self._loops.get(broker_id)
                if broker_id in self._client.brokers and (task is None or task.done()):
                    self._loops[broker_id] = self._begin(self._serve(broker_id))
            await asyncio.sleep(BACKOFF_S)
            if any(self._leader_of(index) not in self._client.brokers for index in self._assigned):
                await self._refresh()

    async def _refresh(self) -> None:
        with suppress(Lost):
            await self._client.refresh(self._plan.topic)

    async def _serve(self, broker_id: int) -> None:
        session = self._sessions.setdefault(broker_id, _Session(broker_id))
        while True:
            mine = {each for each in self._assigned if self._leader_of(each) == broker_id}
            if not mine and session.epoch == INITIAL_EPOCH:
                return
            if not (mine or session.known or session.unsent):
                await asyncio.sleep(BACKOFF_S)
                continue
            try:
                given = await self._fetch(session, mine)
            except Lost as error:
                self._world.report(f"{self._name}: broker {broker_id}: {error}")
                self._fail(session)
                if session.connection is None or not session.connection.is_open:
                    self._lose(session)
                await asyncio.sleep(BACKOFF_S)
                await self._refresh()
                continue
            if given:
                async with self._application:
                    await self._work(session, given)

    def _fail(self, session: _Session) -> None:
        """Outcomes that are not answered fail, as in Java; the session may still be there."""
        for work in session.unsent:
            work.code = work.code or -1
        session.unsent, session.gaps = [], []

    def _lose(self, session: _Session) -> None:
        for work in session.open:
            work.lost_s = min(work.lost_s, self._world.now_s)

    def _end_session(self, session: _Session) -> None:
        self._lose(session)
        self._fail(session)
        session.open, session.epoch, session.known = [], INITIAL_EPOCH, set()

    def note_dead(self) -> None:
        """Note that the process has died."""
        for session in self._sessions.values():
            self._end_session(session)

    async def _connect(self, session: _Session) -> Connection:
        address = self._client.brokers.get(session.broker_id)
        if address is None:
            raise Lost("no such broker")
        connection = await self._client.to(address, "share")
        if session.connection is not connection:
            self._lose(session)
            connection.on_lost = partial(self._lose, session)
        session.connection = connection
        return connection

    def _acks_of(self, session: _Session, works: list[Work]) -> dict[int, list[AckBatch]]:
        by_partition: dict[int, list[tuple[int, int]]] = {}
        for work in works:
            by_partition.setdefault(work.partition, []).append((work.offset, work.outcome))
        for index, offset in session.gaps:
            by_partition.setdefault(index, []).append((offset, GAP))
        session.gaps = []
        return {index: runs_of(acks, ()) for index, acks in by_partition.items()}

    def _request(
        self, session: _Session, mine: set[int], acks: dict[int, list[AckBatch]]
    ) -> ShareFetchRequest:
        new = mine - session.known
        forgotten = session.known - mine
        entries = tuple(
            SharePartition(index, tuple(acks.get(index, ()))) for index in sorted({*new, *acks})
        )
        topics = (KeyedTopic(None, self._topic_id, entries),) if entries else ()
        gone = (KeyedTopic(None, self._topic_id, tuple(sorted(forgotten))),) if forgotten else ()
        return ShareFetchRequest(
            group=self._plan.name, member_id=self._id, epoch=session.epoch,
            max_wait_ms=FETCH_WAIT_MS if mine else 0, min_bytes=1 if mine else 0,
            max_bytes=2**20, max_records=self._plan.records_max, batch_size=self._plan.records_max,
            acquire_mode=int(self._plan.is_exact), topics=topics, forgotten=gone,
        )  # fmt: skip

    async def _fetch(self, session: _Session, mine: set[int]) -> list[Work]:
        """Fetch, with the outcomes of before. Raises: Lost."""
        connection = await self._connect(session)
        if session.epoch == INITIAL_EPOCH:
            self._end_session(session)
        works, session.unsent = session.unsent, []
        request = self._request(session, mine, self._acks_of(session, works))
        asked_s = self._world.now_s
        for work in works:
            work.ack_s = min(work.ack_s, asked_s)
        try:
            frame, at = await connection.ask_raw(
                SHARE_FETCH, 2, write_share_fetch_request(request, 2)
            )
        except Lost:
            for work in works:
                work.code = work.code or -1
            raise
        answer = read_share_fetch_response(frame, at)
        if answer.error_code in NEW_SESSION:
            self._world.report(f"{self._name}: error {answer.error_code}: a new session")
            for work in works:
                work.code, work.answered_s = answer.error_code, self._world.now_s
            self._end_session(session)
            return []
        if answer.error_code:
            raise Lost(f"share fetch: error {answer.error_code}")
        session.epoch = next_epoch(session.epoch)
        session.known = set(mine)
        for work in session.open:
            if work.partition not in mine:
                work.lost_s = min(work.lost_s, self._world.now_s)
        found = [entry for topic in answer.topics for entry in topic.partitions]
        self._note_answers(session, works, {e.partition: e.ack_error_code for e in found})
        assert answer.lock_ms > 0, "no lock duration"
        return await self._take(session, found, asked_s, answer.lock_ms / 1000)

    async def _take(
        self, session: _Session, found: list[ShareAnswer], asked_s: float, lock_s: float
    ) -> list[Work]:
        given: list[Work] = []
        for entry in found:
            if entry.error_code in MOVED:
                self._world.report(f"{self._name}: {entry.partition}: error {entry.error_code}")
                await self._refresh()
            elif entry.error_code:
                await asyncio.sleep(BACKOFF_S)
            given += self._give(session, entry, asked_s, lock_s)
        return given

    def _note_answers(self, session: _Session, works: list[Work], codes: dict[int, int]) -> None:
        for work in works:
            assert work.partition in codes, "outcomes without an answer"
            work.code, work.answered_s = codes[work.partition], self._world.now_s
            with suppress(ValueError):
                session.open.remove(work)

    def _give(
        self, session: _Session, entry: ShareAnswer, asked_s: float, lock_s: float
    ) -> list[Work]:
        reader = LaneClient(position=0)
        reader.apply(entry.records or (), [])
        records = {offset: (key or b"").decode() for offset, key, _ in reader.seen}
        assert sorted(records) == [offset for offset, _, _ in reader.seen], "records not in order"
        given = []
        for first, last, count in entry.acquired:
            for offset in range(first, last + 1):
                if offset not in records:
                    session.gaps.append((entry.partition, offset))
                    continue
                work = Work(
                    self._name, entry.partition, offset, records[offset], count, asked_s,
                    self._world.now_s, asked_s + lock_s / FASTEST,
                )  # fmt: skip
                given.append(work)
        session.open += given
        self._member.works += given
        return given

    # The application.
    async def _work(self, session: _Session, given: list[Work]) -> None:
        rng, plan = self._world.rng, self._plan
        for work in given:
            work.start_s = self._world.now_s
            self._world.report(
                f"{self._name} begins {work.partition}/{work.offset} {work.key} ({work.count})"
            )
            await self._do(session, work)
            work.outcome = ACCEPT
            if plan.is_explicit:
                work.outcome = rng.choices((ACCEPT, RELEASE, REJECT), plan.outcomes)[0]
            work.end_s = self._world.now_s
            self._world.report(
                f"{self._name} ends {work.partition}/{work.offset} {work.key}: {work.outcome}"
            )
            session.unsent.append(work)
            if plan.is_synchronous:
                with suppress(Lost):
                    await self._acknowledge(session)

    async def _do(self, session: _Session, work: Work) -> None:
        rng, plan = self._world.rng, self._plan
        seconds = plan.work_s * (0.5 + rng.random())
        of_record = random.Random(f"{plan.topic} {work.partition} {work.offset}")
        is_slow = of_record.random() < plan.slow_share  # at any member
        if is_slow and work.count < FAST_FROM and self._world.now_s < FAST_S:
            seconds = plan.lock_s * (0.3 + 1.5 * rng.random())
        if self._member.number == 0 and plan.blocks_s and not self._has_hung:
            self._has_hung = True
            seconds = plan.blocks_s
        while plan.renews and seconds > plan.lock_s * RENEWED_AT and seconds < plan.blocks_from_s:
            await asyncio.sleep(plan.lock_s * RENEWED_AT)
            seconds -= plan.lock_s * RENEWED_AT
            with suppress(Lost):
                await self._renew(session, work)
        await asyncio.sleep(seconds)

    async def _renew(self, session: _Session, work: Work) -> None:
        asked_s = self._world.now_s
        answers = await self._send(
            session, {work.partition: [AckBatch(work.offset, work.offset, bytes((RENEW,)))]}
        )
        # One that is finished is answered without an error, too, as by a broker.
        if answers.get(work.partition) == 0 and asked_s < work.lock_end_s:
            lock_s = self._plan.lock_s / FASTEST
            work.lock_end_s = max(work.lock_end_s, asked_s + lock_s)

    async def _acknowledge(self, session: _Session) -> None:
        works, session.unsent = session.unsent, []
        for work in works:
            work.ack_s = min(work.ack_s, self._world.now_s)
        try:
            codes = await self._send(session, self._acks_of(session, works))
        except Lost:
            for work in works:
                work.code = work.code or -1
            raise
        self._note_answers(session, works, codes)

    async def _send(self, session: _Session, acks: dict[int, list[AckBatch]]) -> dict[int, int]:
        """Send a ShareAcknowledge; return the codes. Raises: Lost."""
        if session.epoch == INITIAL_EPOCH:
            raise Lost("no session")
        connection = await self._connect(session)
        entries = tuple(SharePartition(index, tuple(each)) for index, each in acks.items())
        request = ShareAcknowledgeRequest(
            group=self._plan.name, member_id=self._id, epoch=session.epoch,
            is_renewal=any(RENEW in b.types for each in acks.values() for b in each),
            topics=(KeyedTopic(None, self._topic_id, entries),),
        )  # fmt: skip
        frame, at = await connection.ask_raw(
            SHARE_ACKNOWLEDGE, 2, write_share_acknowledge_request(request, 2)
        )
        answer = read_share_acknowledge_response(frame, at, 2)
        if answer.error_code in NEW_SESSION:
            self._end_session(session)
            return dict.fromkeys(acks, answer.error_code)
        if answer.error_code:
            raise Lost(f"share acknowledge: error {answer.error_code}")
        session.epoch = next_epoch(session.epoch)
        return {e.partition: e.error_code for topic in answer.topics for e in topic.partitions}

    async def _close(self, session: _Session) -> None:
        works, session.unsent = session.unsent, []
        for work in works:
            work.ack_s = min(work.ack_s, self._world.now_s)
        acks = self._acks_of(session, works)
        entries = tuple(SharePartition(index, tuple(each)) for index, each in acks.items())
        topics = (KeyedTopic(None, self._topic_id, entries),) if entries else ()
        request = ShareAcknowledgeRequest(
            group=self._plan.name, member_id=self._id, epoch=FINAL_EPOCH, topics=topics
        )
        connection = await self._connect(session)
        self._lose(session)
        frame, at = await connection.ask_raw(
            SHARE_ACKNOWLEDGE, 2, write_share_acknowledge_request(request, 2)
        )
        answer = read_share_acknowledge_response(frame, at, 2)
        if not answer.error_code:
            codes = {e.partition: e.error_code for t in answer.topics for e in t.partitions}
            self._note_answers(session, works, codes)
        self._end_session(session)
