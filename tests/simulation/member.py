"""A consumer of a classic group, as stock libraries are: it joins, fetches, commits, and notes all.

Source: Kafka protocol guide; Java's `ConsumerCoordinator` and `Fetcher` (eager rebalances);
librdkafka's `rd_kafka_cgrp_defer_offset_commit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.long.chaos_history import Answer, Commit, Held, Place
from tests.reference.broker_log import LaneClient
from tests.simulation.client import Address, Client, Connection, Lost
from tests.simulation.fetching import (
    BACKOFF_S,
    NOT_KNOWN,
    Fetching,
    Habits,
    Handed,
    Lane,
    Output,
)
from tests.simulation.possession import Possession, Unheard
from tests.simulation.world import Process
from tests.transcript.consumer_protocol import assignment, lanes_of, subscription

if TYPE_CHECKING:
    from tests.simulation.world import World

HEARTBEAT_S = 1.0
REJOIN = {22, 25, 27}
COORDINATOR_MOVED = {14, 15, 16}
MEMBER_ID_REQUIRED = 79


class Rejoin(Exception):
    """The group rebalances, or has forgotten this member."""


@dataclass
class Member:
    """One member; `start` again after `kill` is another one."""

    world: World
    name: str
    bootstrap: list[Address]
    habits: Habits
    events: list[Any] = field(default_factory=list)
    lives: int = 0
    process: Process | None = None
    is_wanted: bool = True
    is_kept_out: bool = False
    """Its group is stopped."""
    unwanted: asyncio.Event = field(default_factory=asyncio.Event)
    staged: list[Output] = field(default_factory=list)
    """Outputs in a transaction that may be committed any moment."""
    handed: list[list[Handed]] = field(default_factory=list)
    """Records that it got, by life."""
    make_life: Callable[[Member, Process], Life] | None = None
    """None: a `Life`."""
    life: Life | None = None
    visible: list[Output] = field(default_factory=list)
    """Outputs of transactions that were committed."""
    parts: dict[str, int] = field(default_factory=dict)
    """Number of parts of each lane, by life."""
    possessions: list[Possession] = field(default_factory=list)
    """Lanes of a consumer group that it has had."""
    unheard: list[Unheard] = field(default_factory=list)
    """Heartbeats of it that were lost."""

    def start(self) -> None:
        """A new process, with a new member id; none while its group is stopped."""
        if self.is_kept_out:
            return
        self.kill()
        self.lives += 1
        self.is_wanted, self.unwanted = True, asyncio.Event()
        self.process = Process(self.world, f"{self.name}.{self.lives}")
        self.parts[self.process.name] = self.habits.parts
        life = self.life = (self.make_life or Life)(self, self.process)
        self.handed.append(life.handed)
        self.process.spawn(life.run(), f"{self.name}.{self.lives}")

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
        for each in self.possessions:
            each.end(self.world.now_s)

    def begin_possession(self, member_id: str, lane: int, epoch: int) -> Possession:
        """Note that it takes a lane."""
        found = Possession(member_id, lane, self.world.now_s, epoch)
        self.possessions.append(found)
        return found

    @property
    def _living(self) -> Life | None:
        is_alive = self.process is not None and not self.process.is_dead
        return self.life if is_alive else None

    @property
    def is_committing(self) -> bool:
        """Return whether a commit of this life has no answer yet."""
        return self._living is not None and self._living.is_committing

    @property
    def has_ended(self) -> bool:
        """Return whether its process does nothing any more."""
        return self.process is None or self.process.is_dead or not self.process.tasks

    @property
    def positions(self) -> dict[Place, int]:
        """Return the next fetch offset of each part of a lane that it holds."""
        if self._living is None:
            return {}
        return {
            part: position
            for index, position in self._living.positions.items()
            for part in self.habits.parts_of(Place(self.habits.topic, index))
        }

    def stop(self) -> None:
        """End cleanly: commit and leave."""
        self.is_wanted = False
        if self.process is not None:
            self.process.post(self.unwanted.set)


class Life(Fetching):
    """One process of a member."""

    def __init__(self, member: Member, process: Process) -> None:
        client = Client(process, member.bootstrap, f"{member.name}.{member.lives}")
        client.waits, client.group = member.habits.waits, member.habits.group
        client.timeout_s = member.habits.timeout_s
        super().__init__(client, member.habits, member.events)
        self._member = member
        self._member_id, self._generation = "", -1
        self._coordinator: Connection | None = None
        self._looking_up = asyncio.Lock()
        """One at a time, as stock clients do: what was asked first is sent first."""
        self._committing: asyncio.Task[None] | None = None

    @property
    def is_committing(self) -> bool:
        """Return whether a commit has no answer yet."""
        return self._committing is not None and not self._committing.done()

    # The group.
    async def run(self) -> None:
        while self._member.is_wanted:
            try:
                await self._generation_of()
            except Rejoin:
                self._world.report(f"{self._name}: joins again")
                self._give_up()
            except Lost as error:
                self._world.report(f"{self._name}: {error}")
                self._give_up()
                self._coordinator = None
                await asyncio.sleep(BACKOFF_S + self._world.rng.random() * BACKOFF_S)
        await self._leave()

    def _lose(self, error: Lost) -> None:
        """The coordinator is lost: look for it anew, in the same generation. Raises: Lost."""
        if not self._habits.is_patient:
            raise error
        self._world.report(f"{self._name}: {error}")
        self._coordinator = None

    async def _ask(self, key: int, version: int, /, **values: Any) -> Any:
        """Ask the coordinator. Raises: Lost, Rejoin."""
        coordinator = await self._look_up()
        answer = await coordinator.ask(key, version, group_id=self._habits.group, **values)
        code = int(getattr(answer, "error_code", 0))
        if code in COORDINATOR_MOVED:
            self._coordinator = None
            raise Lost(f"API {key}: coordinator error {code}")
        if code in REJOIN:
            if code == 25:
                self._member_id = ""
            raise Rejoin
        return answer

    async def _look_up(self) -> Connection:
        """The coordinator. Raises: Lost."""
        async with self._looking_up:
            if self._coordinator is None or not self._coordinator.is_open:
                self._coordinator = await self._client.coordinator(self._habits.group)
            return self._coordinator

    async def _join(self) -> Any:
        metadata = subscription(self._habits.subscribed)
        values: dict[str, Any] = {
            "session_timeout": int(self._habits.session_s * 1000),
            "rebalance_timeout": int(self._habits.session_s * 1000),
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
        }
        while True:
            joined = await self._ask(11, 7, member_id=self._member_id, **values)
            if joined.error_code == 0:
                self._member_id = str(joined.member_id)
                return joined
            if joined.error_code != MEMBER_ID_REQUIRED:
                raise Lost(f"JoinGroup: {joined.error_code}")
            self._member_id = str(joined.member_id)

    async def _generation_of(self) -> None:
        """One generation, from the join to the next rebalance."""
        await self._client.refresh(self._habits.subscribed)
        joined = await self._join()
        self._generation = int(joined.generation_id)
        given = []
        if str(joined.leader) == self._member_id:
            given = self._deal_out([str(each.member_id) for each in joined.members])
        synced = await self._ask(
            14, 5, generation_id=self._generation, member_id=self._member_id,
            protocol_type="consumer", protocol_name="range", assignments=given,
        )  # fmt: skip
        if synced.error_code != 0:
            raise Lost(f"SyncGroup: {synced.error_code}")
        dealt, _ = lanes_of(bytes(synced.assignment))
        mine = [index for _, index in dealt]
        await self._take_over(mine)
        await self._work()

    def _deal_out(self, members: list[str]) -> list[dict[str, Any]]:
        lanes = self._client.lanes_of(self._habits.subscribed)
        members = sorted(members)
        topic = self._habits.subscribed
        return [
            {
                "member_id": each,
                "assignment": assignment([(topic, i) for i in lanes[number :: len(members)]]),
            }
            for number, each in enumerate(members)
        ]

    async def _leave(self) -> None:
        try:
            await self._commit()
            self._give_up()
            if self._member_id and self._coordinator is not None:
                await self._ask(13, 4, members=[{"member_id": self._member_id}])
        except (Lost, Rejoin) as error:
            self._give_up()
            self._world.report(f"{self._name} leaves without a word: {error!r}")
        self._client.close()

    def _give_up(self) -> None:
        for lane in self._lanes.values():
            self._note(Held(self._name, lane.place, self._world.now_s, is_held=False))
        self._lanes, self._outputs = {}, []

    # Positions.
    async def _take_over(self, indexes: list[int]) -> None:
        topic = self._habits.subscribed
        waiting = list(indexes)
        while waiting:
            asked_s = self._world.now_s
            answer = await self._ask(
                9, 7, topics=[{"name": topic, "partition_indexes": waiting}],
                require_stable=True,
            )  # fmt: skip
            waiting = []
            for found in answer.topics:
                for entry in found.partitions:
                    index = int(entry.partition_index)
                    if entry.error_code != 0:
                        waiting.append(index)
                        continue
                    place = Place(self._habits.topic, index)
                    offset = int(entry.committed_offset)
                    self._note(Answer(self._name, place, offset, asked_s, self._world.now_s))
                    self._world.report(f"{self._name}: lane {index} is at {offset}")
                    client = LaneClient(
                        position=offset,
                        is_committed=self._habits.is_committed,
                    )
                    self._lanes[index] = Lane(
                        index, place, client, committed=offset, by_record=self._habits.by_record
                    )
                    self._note(Held(self._name, place, self._world.now_s, is_held=True))
            if waiting:
                await asyncio.sleep(BACKOFF_S)
                await self._beat()
        unknown = [lane for lane in self._lanes.values() if lane.client.position < 0]
        if unknown:
            await self._reset(unknown)

    # Work.
    async def _work(self) -> None:
        """Fetch, give records to the application, commit, until a rebalance."""
        tasks = [
            asyncio.get_running_loop().create_task(work())
            for work in (self._heartbeats, self._fetches, self._commits, self._until_unwanted)
        ]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # In their order, which that of a set is not.
        pending = [task for task in tasks if task not in done]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if self._committing is not None:
            await asyncio.gather(self._committing, return_exceptions=True)
        ended = [task for task in tasks if task in done]
        errors = [error for task in ended if (error := task.exception()) is not None]
        if any(isinstance(error, Rejoin) for error in errors):
            with suppress(Rejoin):  # as a stock client does before it gives its lanes back
                await self._commit()
        for error in errors:
            raise error

    async def _until_unwanted(self) -> None:
        await self._member.unwanted.wait()

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await self._beat()
            except Lost as error:
                self._lose(error)

    async def _beat(self) -> None:
        await self._ask(12, 4, generation_id=self._generation, member_id=self._member_id)

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(self._habits.commit_s * (0.5 + self._world.rng.random()))
            try:
                await self._commit()
            except Lost as error:
                self._lose(error)

    async def _commit(self) -> None:
        """Commit what was given to the application. Raises: Lost, Rejoin."""
        moved = [lane for lane in self._lanes.values() if lane.done not in {lane.committed, -1}]
        if moved:
            for lane in moved:
                # What an unanswered commit has done is not known: it is committed again, as all
                # positions are by Java and aiokafka, and the same request is by librdkafka.
                lane.committed = NOT_KNOWN
            # A rebalance does not break it off.
            self._committing = asyncio.get_running_loop().create_task(self._commit_lanes(moved))
            # Another one may have begun by then, and no task awaits this one.
            self._committing.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.shield(self._committing)

    def seek_and_commit(self, back: int) -> None:
        """Have the application go back, and say so at once."""
        self.seek(back)
        self._client.process.spawn(self._commit_soon(), f"{self._name} seeks")

    async def _commit_soon(self) -> None:
        with suppress(Lost, Rejoin):  # the next commit says it, or the next heartbeat
            await self._commit()

    def _note_commits(self, lanes: list[Lane]) -> dict[int, int]:
        """Note that they are under way; by lane index, where the note stands."""
        numbers = {}
        for lane in lanes:
            numbers[lane.index] = len(self._member.events)
            reached = self._habits.reached
            for part in self._habits.parts_of(lane.place):
                reached[part] = max(lane.done, reached.get(part, -1))
            if self._has_sought:
                self._habits.on_back()
            offset, now_s = lane.done, self._world.now_s
            self._note(Commit(self._name, lane.place, offset, self._generation, now_s))
        return numbers

    async def _commit_lanes(self, lanes: list[Lane]) -> None:
        asked_s, generation = self._world.now_s, self._generation
        offsets = {lane.index: lane.done for lane in lanes}
        for lane in lanes:
            lane.asked = offsets[lane.index]
        numbers = self._note_commits(lanes)
        entries = [
            {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1,
             "committed_metadata": ""}
            for index, offset in offsets.items()
        ]  # fmt: skip
        answer = await self._send_commit(generation, entries)
        codes = {
            int(entry.partition_index): int(entry.error_code)
            for topic in answer.topics
            for entry in topic.partitions
        }
        for lane in lanes:
            code = codes.get(lane.index, -1)
            self._member.events[numbers[lane.index]] = Commit(
                self._name, lane.place, offsets[lane.index], generation, asked_s,
                self._world.now_s, code,
            )  # fmt: skip
            if code == 0:
                # Beside a newer commit it is not known which of the two Kafka took last.
                is_newest = lane.asked == offsets[lane.index]
                lane.committed = lane.asked if is_newest else NOT_KNOWN
        self._check_commit(codes)

    async def _send_commit(self, generation: int, entries: list[dict[str, Any]]) -> Any:
        """Send a commit; return its answer. Raises: Lost, Rejoin."""
        return await self._ask(
            8, 7, generation_id_or_member_epoch=generation, member_id=self._member_id,
            topics=[{"name": self._habits.subscribed, "partitions": entries}],
        )  # fmt: skip

    def _check_commit(self, codes: dict[int, int]) -> None:
        """Do as the errors say, by lane. Raises: Rejoin."""
        if any(code in REJOIN for code in codes.values()):
            if 25 in codes.values():
                self._member_id = ""
            raise Rejoin
        if any(code in COORDINATOR_MOVED for code in codes.values()):
            self._coordinator = None
