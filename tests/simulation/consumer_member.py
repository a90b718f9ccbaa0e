"""A member of a consumer group (KIP-848), as Java's client and librdkafka are.

Source: Apache Kafka 4.3, `AbstractMembershipManager`, `ConsumerHeartbeatRequestManager`,
`CommitRequestManager`; librdkafka's `rdkafka_cgrp.c`. The two differ in a heartbeat after
COORDINATOR_LOAD_IN_PROGRESS, which librdkafka repeats as it was, and Java makes full.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.long.chaos_history import Answer, Held, Place
from tests.reference.broker_log import LaneClient
from tests.reference.consumer_coordinator import (
    AWAY_EPOCH,
    FENCED_MEMBER_EPOCH,
    GROUP_ID_NOT_FOUND,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STALE_MEMBER_EPOCH,
    UNRELEASED_INSTANCE_ID,
)
from tests.reference.group_coordinator import UNKNOWN_MEMBER_ID
from tests.simulation.client import Lost
from tests.simulation.fetching import BACKOFF_S, Lane
from tests.simulation.member import COORDINATOR_MOVED, Life, Rejoin
from tests.simulation.possession import Possession, Unheard

if TYPE_CHECKING:
    from tests.simulation.member import Member
    from tests.simulation.world import Process

CONSUMER_HEARTBEAT = 68
LOADING = 14
ENDED = {UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND}
RESTART_S = 1.0
"""A client whose place is not released ends, and its application starts another one."""


class ConsumerLife(Life):
    """One process of such a member."""

    def __init__(self, member: Member, process: Process) -> None:
        super().__init__(member, process)
        self._member_id = f"{process.name}-id"
        self._epoch = JOIN_EPOCH
        self._interval_s = 1.0
        self._says_all = True
        self._mine: dict[int, Possession] = {}
        """Lanes that it has, by index."""
        self._target: frozenset[int] = frozenset()
        self._unheard: Unheard | None = None
        self._is_confirmed = True
        """The coordinator has its word of what it owns."""
        self._beat_soon, self._has_lanes = asyncio.Event(), asyncio.Event()
        self._aside: dict[str, asyncio.Task[None]] = {}
        """The reconciliation, and the search for positions, while they are under way."""

    # Life.
    async def run(self) -> None:
        while self._member.is_wanted:
            try:
                await self._client.refresh(self._habits.subscribed)
                await self._work()
            except Rejoin:
                self._world.report(f"{self._name}: is fenced, and drops its lanes")
                self._drop(frozenset(self._mine))
                self._epoch, self._target, self._says_all = JOIN_EPOCH, frozenset(), True
                self._is_confirmed = True
            except Lost as error:
                self._world.report(f"{self._name}: {error}")
                await asyncio.sleep(BACKOFF_S)
        await self._leave()

    async def _work(self) -> None:
        """Beat, fetch and commit until it is fenced, or to end. Raises: Rejoin, Lost."""
        loop = asyncio.get_running_loop()
        works = (self._heartbeats, self._fetches, self._commits, self._until_unwanted)
        tasks = [loop.create_task(work()) for work in works]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        pending = [task for task in tasks if task not in done] + [*self._aside.values()]
        self._aside.clear()
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in [task for task in tasks if task in done]:
            task.result()

    def _lose(self, error: Lost) -> None:
        """Look for the coordinator anew, and keep all."""
        self._world.report(f"{self._name}: {error}")
        self._coordinator = None

    async def _leave(self) -> None:
        """Commit, give all back, and say so."""
        with suppress(Lost):
            await self._commit()
        self._drop(frozenset(self._mine))
        epoch = AWAY_EPOCH if self._habits.is_static else LEAVE_EPOCH
        if self._epoch > JOIN_EPOCH:
            try:
                await self._ask_coordinator(
                    CONSUMER_HEARTBEAT, 1, member_id=self._member_id, member_epoch=epoch,
                    instance_id=self._instance_id, topic_partitions=None,
                )  # fmt: skip
            except Lost as error:
                self._world.report(f"{self._name} leaves without a word: {error!r}")
        self._client.close()

    @property
    def _instance_id(self) -> str | None:
        return self._member.name if self._habits.is_static else None

    async def _ask_coordinator(self, key: int, version: int, /, **values: Any) -> Any:
        """Ask with errors left in the answer. Raises: Lost."""
        coordinator = await self._look_up()
        return await coordinator.ask(key, version, group_id=self._habits.group, **values)

    # Heartbeats.
    async def _heartbeats(self) -> None:
        while True:
            asked_s = self._world.now_s
            try:
                await self._heartbeat()
            except Lost as error:
                if self._unheard is None:
                    self._unheard = Unheard(self._member_id, asked_s)
                    self._member.unheard.append(self._unheard)
                self._says_all = True
                self._lose(error)
                await asyncio.sleep(BACKOFF_S * (1 + self._world.rng.random()))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._beat_soon.wait()

    async def _heartbeat(self) -> None:
        """Say what is new, or all, and take the answer. Raises: Lost, Rejoin."""
        self._beat_soon.clear()
        is_full = self._says_all or self._epoch == JOIN_EPOCH
        values: dict[str, Any] = {
            "member_id": self._member_id, "member_epoch": self._epoch,
            "instance_id": self._instance_id, "topic_partitions": None,
        }  # fmt: skip
        if is_full:
            values["subscribed_topic_names"] = [self._habits.subscribed]
            values["rebalance_timeout"] = int(1000 * self._habits.rebalance_s)
        said = frozenset(self._mine)
        if is_full or not self._is_confirmed:
            values["topic_partitions"] = self._entries(said)
        answer = await self._ask_coordinator(CONSUMER_HEARTBEAT, 1, **values)
        code = int(answer.error_code)
        if code == LOADING and not self._habits.is_java:
            await asyncio.sleep(BACKOFF_S)  # and the same again
            self._beat_soon.set()
        elif code in COORDINATOR_MOVED:
            raise Lost(f"heartbeat: coordinator error {code}")
        elif code in ENDED:
            raise Rejoin
        elif code == UNRELEASED_INSTANCE_ID:
            await asyncio.sleep(RESTART_S)
            raise Rejoin
        elif code:
            self._world.note_error(f"{self._name}: heartbeat: error {code} {answer.error_message}")
            raise Lost(f"heartbeat: error {code}")
        else:
            self._says_all = False
            self._is_confirmed = self._is_confirmed or (
                values["topic_partitions"] is not None and said == frozenset(self._mine)
            )
            self._take(answer)

    def _entries(self, indexes: frozenset[int]) -> list[dict[str, Any]]:
        topic_id = self._client.topic_ids.get(self._habits.subscribed)
        return [{"topic_id": topic_id, "partitions": sorted(indexes)}] if indexes else []

    def _take(self, answer: Any) -> None:
        if self._unheard is not None:
            self._unheard.until_s, self._unheard = self._world.now_s, None
        self._epoch = self._generation = int(answer.member_epoch)
        self._interval_s = answer.heartbeat_interval.total_seconds()
        if answer.assignment is None:
            return
        known = self._client.topic_ids.get(self._habits.subscribed)
        topics = answer.assignment.topic_partitions
        strange = [topic.topic_id for topic in topics if topic.topic_id != known]
        if strange:
            self._world.note_error(f"{self._name}: is assigned topics {strange}, not {known}")
        self._target = frozenset(int(i) for topic in topics for i in topic.partitions)
        self._begin("reconciles", self._reconcile)

    def _begin(self, name: str, work: Any) -> None:
        """Have something done aside, unless it is under way."""
        if name not in self._aside:
            task = self._aside[name] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda done: self._end_aside(name, done))

    def _end_aside(self, name: str, done: asyncio.Task[None]) -> None:
        if self._aside.get(name) is done:
            del self._aside[name]
        if not done.cancelled() and done.exception() is not None:
            self._world.note_error(f"{self._name}: {name}: {done.exception()!r}")

    # Lanes.
    async def _reconcile(self) -> None:
        """Give up what is not assigned, take what is, and say so with the next heartbeat."""
        while self._target != self._mine.keys():
            target = self._target
            if self._mine.keys() - target:
                await asyncio.sleep(self._habits.revoke_s)
                with suppress(Lost):
                    await self._commit()
                self._drop(self._mine.keys() - target)
            for index in sorted(target - self._mine.keys()):
                self._mine[index] = self._member.begin_possession(
                    self._member_id, index, self._epoch
                )
            self._is_confirmed = False
            self._beat_soon.set()
            self._begin("looks", self._find_positions)

    def _drop(self, indexes: Any) -> None:
        """Give lanes up."""
        for index in sorted(indexes):
            self._mine.pop(index).end(self._world.now_s)
            lane = self._lanes.pop(index, None)
            if lane is not None:
                self._note(Held(self._name, lane.place, self._world.now_s, is_held=False))
        if not self._lanes:
            self._has_lanes.clear()

    async def _find_positions(self) -> None:
        """Ask where its lanes stand, until all have a position."""
        while waiting := sorted(self._mine.keys() - self._lanes.keys()):
            try:
                await self._ask_positions(waiting)
            except Lost as error:
                self._lose(error)
            if self._mine.keys() - self._lanes.keys():
                await asyncio.sleep(BACKOFF_S)

    async def _ask_positions(self, waiting: list[int]) -> None:
        """Ask once for offsets of lanes. Raises: Lost."""
        asked_s, topic = self._world.now_s, self._habits.subscribed
        coordinator, had = await self._look_up(), dict(self._mine)
        answer = await coordinator.ask(
            9, 9, require_stable=True, groups=[{
                "group_id": self._habits.group, "member_id": self._member_id,
                "member_epoch": self._epoch,
                "topics": [{"name": topic, "partition_indexes": waiting}],
            }],
        )  # fmt: skip
        (group,) = answer.groups
        if int(group.error_code) in COORDINATOR_MOVED:
            raise Lost(f"OffsetFetch: coordinator error {int(group.error_code)}")
        if int(group.error_code):
            return  # the next heartbeat brings another epoch, or the end
        found = {}
        for entry in (entry for each in group.topics for entry in each.partitions):
            index = int(entry.partition_index)
            # One that it gave up meanwhile, and has again, is asked for anew.
            if entry.error_code != 0 or self._mine.get(index) is not had.get(index):
                continue
            place, offset = Place(self._habits.topic, index), int(entry.committed_offset)
            self._note(Answer(self._name, place, offset, asked_s, self._world.now_s))
            self._world.report(f"{self._name}: lane {index} is at {offset}")
            client = LaneClient(position=offset, is_committed=self._habits.is_committed)
            lane = Lane(index, place, client, committed=offset, by_record=self._habits.by_record)
            found[index] = lane
            self._note(Held(self._name, place, self._world.now_s, is_held=True))
        self._lanes |= found
        if self._lanes:
            self._has_lanes.set()

    async def _refresh_later(self) -> None:
        await self._has_lanes.wait()
        await super()._refresh_later()

    # Commits.
    async def _send_commit(self, generation: int, entries: list[dict[str, Any]]) -> Any:
        return await self._ask_coordinator(
            8, 9, generation_id_or_member_epoch=generation, member_id=self._member_id,
            topics=[{"name": self._habits.subscribed, "partitions": entries}],
        )  # fmt: skip

    def _check_commit(self, codes: dict[int, int]) -> None:
        """Leave an end of its membership to the next heartbeat, and an epoch to the next commit."""
        expected = {0, UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, *COORDINATOR_MOVED}
        strange = set(codes.values()) - expected
        if strange:
            self._world.report(f"{self._name}: commit: errors {strange}")
        if COORDINATOR_MOVED & set(codes.values()):
            self._coordinator = None
