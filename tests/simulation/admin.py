"""Operators' changes to groups, through keylane and past it; and a tool that watches their lag.

Source: Kafka's `ConsumerGroupCommand` (--reset-offsets, --delete-offsets, --delete), KIP-496.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from keylane.offsets.intents import LATE_S
from tests.long.chaos_history import Answer, Commit, Place
from tests.simulation.client import Client, Lost
from tests.simulation.cluster import Committed
from tests.simulation.fetching import parts_of
from tests.simulation.judgement import GONE, WATCHES
from tests.simulation.layouts import change_lanes
from tests.simulation.node import PORT
from tests.simulation.world import Process

if TYPE_CHECKING:
    from tests.simulation.scenario import Fault, GroupPlan
    from tests.simulation.stage import Stage

AGAIN = {14, 15, 16, 88}
EXPIRES_S = 1.2 * LATE_S
"""Seconds until offsets expire (Kafka's least is a minute): late writes have come until then."""
PAUSE_S = 0.1
STARTED_S = 5.0
"""Seconds until members have joined, and fetch."""
TRIES_S = 60.0
Work = Callable[["Tool"], Awaitable[None]]
Ask = Callable[[dict[int, int]], Awaitable[list[int]]]


class Tool:
    """A process of an operator, for one group."""

    def __init__(self, stage: Stage, plan: GroupPlan, name: str) -> None:
        self._stage, self.plan, self.world = stage, plan, stage.world
        self.topic = stage.topic_of(plan)
        self.process = Process(stage.world, name)
        bootstrap = [(node.host, PORT) for node in stage.nodes]
        self._client = Client(self.process, bootstrap, name)
        self._client.waits, self._client.group = stage.waits, plan.name
        self.events = stage.judgement.events_of(plan.name)
        self.is_done = False

    @property
    def lanes(self) -> list[int]:
        """Return every lane of the topic."""
        return list(range(self._stage.lanes[self.topic.name] * self.topic.partitions))

    @property
    def name(self) -> str:
        """Return the topic's name for this tool."""
        return self.plan.lane_topic(self._stage.lanes[self.topic.name])

    def places(self, lane: int) -> list[Place]:
        """The parts of a lane."""
        place, parts = Place(self.plan.topic, lane), self._stage.parts_of(self.topic)
        return parts_of(place, self.topic.partitions, parts)

    def read_to(self, lane: int) -> int:
        """Return the offset up to which the group was handed a lane, in the log as it is now."""
        judgement, members = self._stage.judgement, self._stage.members
        return min(judgement.read_to(self.plan, part, members) for part in self.places(lane))

    async def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """The answer of the group's coordinator. Raises: Lost."""
        connection = await self._client.coordinator(self.plan.name)
        return await connection.ask(key, version, **values)

    async def offsets(self) -> bool:
        """Ask for the offsets of all lanes, and note them; False: some had no answer.

        Raises: Lost.
        """
        asked_s, lanes = self.world.now_s, self.lanes
        answer = await self.ask(
            9, 7, group_id=self.plan.name, require_stable=True,
            topics=[{"name": self.name, "partition_indexes": lanes}],
        )  # fmt: skip
        if lanes != self.lanes:
            return False  # they are others by now
        entries = [entry for topic in answer.topics for entry in topic.partitions]
        reported = [entry for entry in entries if entry.error_code == 0]
        for entry in reported if answer.error_code == 0 else ():
            now_s, offset = self.world.now_s, int(entry.committed_offset)
            for place in self.places(int(entry.partition_index)):
                self.events.append(Answer(self.process.name, place, offset, asked_s, now_s))
        return answer.error_code == 0 and len(reported) == len(lanes)

    async def watch(self, every_s: float) -> None:
        """Ask again and again, as tools that export lags do."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.offsets()
            except Lost as error:
                self.world.report(f"{self.process}: {error}")

    async def until_reported(self) -> None:
        """Ask until every lane has an answer."""
        while True:
            try:
                if await self.offsets():
                    return
            except Lost as error:
                self.world.report(f"{self.process}: {error}")
            await asyncio.sleep(PAUSE_S)

    async def change(self, ask: Ask, choose: Callable[[], dict[int, int]]) -> None:
        """Have lanes set, until they are or are refused; each try is noted.

        ask: gives error codes. choose: offsets by lane, of the log as it is at each try.
        """
        end_s = self.world.now_s + TRIES_S
        while self.world.now_s < end_s:
            first, asked_s, to = len(self.events), self.world.now_s, choose()
            parts = [(part, at) for lane, at in to.items() for part in self.places(lane)]
            for part, offset in parts:
                self._stage.judgement.was_set(self.plan.name, part, offset)
                self.events.append(Commit("admin", part, offset, -1, asked_s))
            codes = [15]
            try:
                codes = await ask(to)
            except Lost as error:
                self.world.report(f"{self.process}: {error}")
            else:
                now_s, code = self.world.now_s, max(codes, default=0)
                for number, (part, offset) in enumerate(parts, first):
                    commit = Commit("admin", part, offset, -1, asked_s, now_s, code)
                    self.events[number] = commit
            self.world.report(f"{self.process}: {self.plan.name} to {to}: {codes}")
            if not AGAIN & set(codes):
                return
            await asyncio.sleep(PAUSE_S)


def watch(stage: Stage, plan: GroupPlan) -> None:
    """Begin to look at a group's offsets now and then."""
    tool = Tool(stage, plan, f"{WATCHES}{plan.name}")
    tool.process.spawn(tool.watch(plan.watched_s), "watch")


def _while_stopped(stage: Stage, fault: Fault, work: Work) -> None:
    """Have something done while a group is stopped."""
    plan = stage.scenario.groups[fault.which % len(stage.scenario.groups)]
    members = [each for each in stage.members if each.habits.group == plan.name]
    if any(each.is_kept_out for each in members):
        return
    tool = Tool(stage, plan, f"admin{len(stage.world.processes)}")
    for each in members:
        each.is_kept_out = True
        each.stop()

    end_s = stage.world.now_s + TRIES_S

    def look() -> None:
        group = stage.cluster.group(plan.name)
        if (group.has_members or group.twin.is_loading) and stage.world.now_s < end_s:
            stage.world.after(PAUSE_S, look)
        else:
            tool.process.spawn(run(), "admin")

    async def run() -> None:
        stage.groups_changed.add(plan.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(TRIES_S):
                await work(tool)
        stage.groups_changed.discard(plan.name)
        # Members are to find out where the log begins by now, and to commit behind it.
        stage.hold(STARTED_S + 4 * plan.commit_s)
        for each in members:
            each.is_kept_out = False
            stage.world.after(PAUSE_S, each.start)

    look()


def _some(stage: Stage, tool: Tool, fault: Fault) -> list[int]:
    """Lanes that are changed: one, some or all."""
    count = max(1, round(len(tool.lanes) * fault.amount))
    return sorted(stage.world.rng.sample(tool.lanes, count))


def admin_reset(stage: Stage, fault: Fault) -> None:
    """Lanes of a stopped group are set back, through keylane."""

    async def work(tool: Tool) -> None:
        reached = stage.judgement.reached(tool.plan.name)
        lanes = _some(stage, tool, fault)

        def choose() -> dict[int, int]:
            to = {}
            for lane in lanes:
                reached_at = max(reached.get(part, 0) for part in tool.places(lane))
                # Back in the log as it is: it may have been cut, and go on with other records.
                to[lane] = max(0, min(int(reached_at * fault.amount), tool.read_to(lane)))
            return to

        async def ask(to: dict[int, int]) -> list[int]:
            entries = [
                {"partition_index": lane, "committed_offset": offset, "committed_leader_epoch": -1,
                 "committed_metadata": ""}
                for lane, offset in to.items()
            ]  # fmt: skip
            answer = await tool.ask(
                8, 7, group_id=tool.plan.name, member_id="", generation_id_or_member_epoch=-1,
                topics=[{"name": tool.name, "partitions": entries}],
            )  # fmt: skip
            return [int(e.error_code) for topic in answer.topics for e in topic.partitions]

        await tool.change(ask, choose)

    _while_stopped(stage, fault, work)


def admin_delete(stage: Stage, fault: Fault) -> None:
    """Offsets of lanes of a stopped group are deleted, through keylane."""

    async def work(tool: Tool) -> None:
        gone = dict.fromkeys(_some(stage, tool, fault), GONE)

        async def ask(to: dict[int, int]) -> list[int]:
            answer = await tool.ask(47, 0, group_id=tool.plan.name, topics=[{
                "name": tool.name, "partitions": [{"partition_index": lane} for lane in to],
            }])  # fmt: skip
            codes = [int(e.error_code) for topic in answer.topics for e in topic.partitions]
            return [int(answer.error_code), *codes]

        await tool.change(ask, lambda: gone)

    _while_stopped(stage, fault, work)


def delete_group(stage: Stage, fault: Fault) -> None:
    """A stopped group is deleted, through keylane."""

    async def work(tool: Tool) -> None:
        async def ask(_: dict[int, int]) -> list[int]:
            answer = await tool.ask(42, 2, groups_names=[tool.plan.name])
            return [int(result.error_code) for result in answer.results]

        await tool.change(ask, lambda: dict.fromkeys(tool.lanes, GONE))

    _while_stopped(stage, fault, work)


def expire_group(stage: Stage, fault: Fault) -> None:
    """Kafka forgets a group that was stopped for long."""

    async def work(tool: Tool) -> None:
        await asyncio.sleep(EXPIRES_S)
        name = tool.plan.name
        for lane in tool.lanes:
            for part in tool.places(lane):
                stage.judgement.has_expired(name, part)
        stage.world.report(f"kafka: offsets of {name} expire")
        stage.cluster.group(name).offsets.clear()

    _while_stopped(stage, fault, work)


def reset_offset(stage: Stage, _fault: Fault) -> None:
    """Kafka's own offset of a group that has no members is set back, at the broker.

    Not while another tool changes it: the push that ends that would undo it.
    """
    for name, group in stage.cluster.groups.items():
        if not group.has_members and group.offsets and name not in stage.groups_changed:
            place, found = next(iter(group.offsets.items()))
            to = found.offset // 2
            stage.judgement.was_reset(name, place, to)
            stage.cluster.commit(name, *place, Committed(to))


ADMIN: dict[str, Callable[[Stage, Fault], None]] = {
    each.__name__: each
    for each in (
        admin_reset, admin_delete, delete_group, expire_group, reset_offset, change_lanes,
    )
}  # fmt: skip
