"""Cost of a rebalance of a thousand members in one group whose lanes keylane deals out.

The members are one process: its own time is in the seconds.
Source: KIP-62, KIP-4; ConsumerProtocolSubscription v0.
"""

from __future__ import annotations

import asyncio
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from bench.end_to_end.stage import create_topic
from bench.side_by_side.lineup import Lineup, progress
from bench.side_by_side.outcome import Outcome
from bench.side_by_side.usage import Meter, Usage
from keylane.config.node import split_address
from keylane.tasks import spawn
from keylane.wire.header import write_request

GROUP_SIZES: Final = (100, 1000)
PARTITIONS: Final = 10
LANES: Final = 2000
SESSION_MS: Final = 60_000
REBALANCE_MS: Final = 60_000
HEARTBEAT_S: Final = 1.0
TIMEOUT_S: Final = 120.0
JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 11, 12, 14
REBALANCING: Final = 27
TOLERATED: Final = {0, 22, REBALANCING}
"""None, an old generation, a rebalance: a member joins again."""


def text(value: str) -> bytes:
    """A string with its int16 length."""
    return struct.pack(">h", len(value)) + value.encode()


def blob(value: bytes) -> bytes:
    """Bytes with their int32 length."""
    return struct.pack(">i", len(value)) + value


class Fields:
    """Reads an answer from its front."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> int:
        """One integer."""
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        """A string."""
        return self._bytes(self.take(">h")).decode()

    def blob(self) -> bytes:
        """Bytes."""
        return self._bytes(self.take(">i"))

    def _bytes(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]


@dataclass(slots=True)
class Crowd:
    """State of the members of one group."""

    group: str
    topic: str
    size: int
    lanes: dict[int, dict[str, int]] = field(default_factory=dict)
    """Number of lanes that each member was given, by generation."""
    planned_s: dict[int, float] = field(default_factory=dict)
    """Seconds from the leader's SyncGroup to its answer, by generation."""
    whole: int = -1
    """The last generation that all members were given lanes in."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class RawMember:
    """One member: joins, syncs, beats, and joins again at a rebalance."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd, self.member_id, self.is_leader = crowd, "", False
        self.rejoin = asyncio.Event()
        self._number = 0

    async def run(self, host: str, port: int) -> None:
        """Take part until it is cancelled."""
        self._reader, self._writer = await asyncio.open_connection(host, port)
        try:
            while True:
                self.rejoin.clear()
                generation = await self._join()
                if generation is None or not await self._sync(generation):
                    continue
                while await self._beat(generation):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.rejoin.wait(), HEARTBEAT_S)
                        break
        finally:
            self._writer.close()

    async def _ask(self, key: int, version: int, body: bytes) -> Fields:
        self._number += 1
        self._writer.write(write_request(key, version, self._number, "crowd", body))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        fields = Fields(await self._reader.readexactly(size))
        assert fields.take(">i") == self._number
        return fields

    async def _join(self) -> int | None:
        subscription = struct.pack(">hi", 0, 1) + text(self.crowd.topic) + struct.pack(">i", 0)
        body = text(self.crowd.group) + struct.pack(">ii", SESSION_MS, REBALANCE_MS)
        body += text(self.member_id) + text("consumer") + struct.pack(">i", 1)
        answer = await self._ask(JOIN_GROUP, 2, body + text("range") + blob(subscription))
        answer.take(">i")
        error, generation = answer.take(">h"), answer.take(">i")
        assert error in TOLERATED, f"JoinGroup: error {error}"
        answer.text()
        leader, self.member_id = answer.text(), answer.text()
        self.is_leader = leader == self.member_id
        self.others = []
        for _ in range(answer.take(">i")):
            self.others.append(answer.text())
            answer.blob()
        return None if error else generation

    async def _sync(self, generation: int) -> bool:
        body = text(self.crowd.group) + struct.pack(">i", generation) + text(self.member_id)
        empty = struct.pack(">hii", 0, 0, 0)
        plan = b"".join(text(member) + blob(empty) for member in self.others)
        started_s = time.perf_counter()
        answer = await self._ask(SYNC_GROUP, 1, body + struct.pack(">i", len(self.others)) + plan)
        answer.take(">i")
        error = answer.take(">h")
        assert error in TOLERATED, f"SyncGroup: error {error}"
        if error:
            return False
        crowd = self.crowd
        if self.is_leader:
            crowd.planned_s[generation] = time.perf_counter() - started_s
        given = Fields(answer.blob())
        given.take(">h")
        lanes = 0
        for _ in range(given.take(">i")):
            given.text()
            count = given.take(">i")
            given.at += 4 * count
            lanes += count
        members = crowd.lanes.setdefault(generation, {})
        members[self.member_id] = lanes
        if len(members) == crowd.size:
            crowd.whole = generation
            crowd.complete.set()
        return True

    async def _beat(self, generation: int) -> bool:
        body = text(self.crowd.group) + struct.pack(">i", generation) + text(self.member_id)
        answer = await self._ask(HEARTBEAT, 1, body)
        answer.take(">i")
        error = answer.take(">h")
        assert error in TOLERATED, f"Heartbeat: error {error}"
        return error == 0


def run(lineup: Lineup) -> Outcome:
    """Let groups of each size gather, then have each deal out its lanes once more."""
    outcome = Outcome(
        "large_group",
        f"One group of many members on {LANES:,} lanes, assigned by keylane",
        ("members", "gathering, s", "one more rebalance, s", "the leader's SyncGroup, s",
         "keylane CPU s, ms per member", "broker CPU s", "keylane RSS MB"),
    )  # fmt: skip
    create_topic(lineup.stage, "crowd", PARTITIONS)
    spent = [asyncio.run(measure(lineup, size, outcome)) for size in GROUP_SIZES]
    per_member = [usage.cpu_s / size for usage, size in zip(spent, GROUP_SIZES, strict=True)]
    outcome.target(
        "CPU per member, 1,000 to 100 members", per_member[-1] / max(per_member[0], 1e-9), at_most=2
    )
    return outcome


async def measure(lineup: Lineup, size: int, outcome: Outcome) -> Usage:
    """One group; returns what keylane spent on the second rebalance."""
    progress(f"large group: {size} members")
    host, port = split_address(lineup.keylane.bootstrap)
    crowd = Crowd(f"crowd-{size}", f"crowd.lanes-{LANES // PARTITIONS}", size)
    members = [RawMember(crowd) for _ in range(size)]
    started_s = time.perf_counter()
    tasks = [spawn(member.run(host, port), "member") for member in members]
    try:
        await _completed(crowd, tasks)
        gathered_s = time.perf_counter() - started_s
        crowd.complete.clear()
        leader = next(member for member in members if member.is_leader)
        with Meter(lineup.pids) as meter:
            started_s = time.perf_counter()
            leader.rejoin.set()
            await _completed(crowd, tasks)
            again_s = time.perf_counter() - started_s
        last = crowd.whole
        given = sum(crowd.lanes[last].values())
        assert given == LANES, f"{given} of {LANES} lanes were given"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    usage = meter.usage["keylane"]
    outcome.rows.append(
        (f"{size:,}", f"{gathered_s:.1f}", f"{again_s:.2f}", f"{crowd.planned_s[last]:.2f}",
         f"{usage.cpu_s:.2f}, {1000 * usage.cpu_s / size:.2f}",
         f"{meter.usage['broker'].cpu_s:.2f}", f"{usage.rss_bytes / 1e6:.0f}")
    )  # fmt: skip
    outcome.keep(f"{size} members", gathered_s=[gathered_s], again_s=[again_s],
                 planned_s=[crowd.planned_s[last]], cpu_s=[usage.cpu_s])  # fmt: skip
    return usage


async def _completed(crowd: Crowd, tasks: list[asyncio.Task[None]]) -> None:
    """Wait until all have lanes of one generation; a member that failed fails all."""
    waiting = spawn(crowd.complete.wait(), "complete")
    done, _ = await asyncio.wait(
        [waiting, *tasks], timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
    )
    if waiting in done:
        return
    waiting.cancel()
    for task in done:
        task.result()
    raise TimeoutError(f"{crowd.size} members did not come together in {TIMEOUT_S:.0f} s")
