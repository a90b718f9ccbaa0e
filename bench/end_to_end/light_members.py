"""Members of one group that only join, beat and commit: a socket and a task each.

JoinGroup v3, SyncGroup v2, Heartbeat v2, OffsetCommit v8.
Source: Kafka protocol guide; the consumer protocol is `keylane.assignor.protocol`.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from kio.schema.find_coordinator.v1.request import FindCoordinatorRequest
from kio.schema.heartbeat.v2.request import HeartbeatRequest
from kio.schema.join_group.v3.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.sync_group.v2.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.types import GroupId
from kio.static.primitive import i8, i32, i32Timedelta

from keylane.assignor.protocol import (
    Subscription,
    read_assignment,
    write_assignment,
    write_subscription,
)
from keylane.config.node import split_address
from keylane.tasks import spawn
from keylane.wire.header import ApiKey, response_body_position, write_request
from keylane.wire.messages import read_response, write_message
from keylane.wire.offset_commit import (
    NO_LEADER_EPOCH,
    CommitPartition,
    CommitRequest,
    NamedTopic,
    read_commit_response,
    write_commit_request,
)

SIZE: Final = struct.Struct(">i")
COMMIT_VERSION: Final = 8
REBALANCE_IN_PROGRESS: Final = 27
SESSION: Final = i32Timedelta.parse(timedelta(seconds=30))
JOIN_BEAT_S: Final = 0.2
"""Seconds between heartbeats while members join, so that each rejoins soon."""
BEAT_S: Final = 3.0
"""Kafka's default of `heartbeat.interval.ms`."""


class Refused(Exception):
    """A request was answered with an error."""


class Member:
    """One connection to the coordinator. One request at a time, as Java's consumer has them."""

    def __init__(self, group: str, topic: str) -> None:
        self.group, self.topic = group, topic
        self.member_id, self.generation_id, self.member_count = "", -1, 0
        self.index = -1
        """The lane, or partition, that it was given."""
        self.waits_s: list[float] = []
        self._turn = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, bootstrap: str) -> None:
        """Find the coordinator, and keep a connection to it."""
        await self._open(*split_address(bootstrap))
        found = await self._ask(FindCoordinatorRequest(key=self.group, key_type=i8(0)))
        self.close()
        await self._open(str(found.host), int(found.port))

    def close(self) -> None:
        """Leave without a word; the group ends by its session time-out."""
        if self._writer is not None:
            self._writer.close()

    async def join(self) -> None:
        """Join and take the leader's assignment (this member may lead); again after a rebalance."""
        metadata = write_subscription(Subscription(version=0, topics=(self.topic,)))
        code, synced = REBALANCE_IN_PROGRESS, None
        while code == REBALANCE_IN_PROGRESS:
            joined = await self._ask(
                JoinGroupRequest(
                    group_id=GroupId(self.group),
                    session_timeout=SESSION,
                    rebalance_timeout=SESSION,
                    member_id=self.member_id,
                    protocol_type="consumer",
                    protocols=(JoinGroupRequestProtocol(name="range", metadata=metadata),),
                )
            )
            _expect(joined.error_code)
            self.member_id, self.generation_id = joined.member_id, int(joined.generation_id)
            self.member_count = len(joined.members)  # of the leader; 0 for others
            synced = await self._ask(
                SyncGroupRequest(
                    group_id=GroupId(self.group),
                    generation_id=i32(self.generation_id),
                    member_id=self.member_id,
                    assignments=self._dealt([str(one.member_id) for one in joined.members]),
                )
            )
            code = int(synced.error_code)
        _expect(code)
        assert synced is not None
        ((_, self.index),) = read_assignment(synced.assignment).lanes

    def _dealt(self, member_ids: Sequence[str]) -> tuple[SyncGroupRequestAssignment, ...]:
        """One lane each."""
        return tuple(
            SyncGroupRequestAssignment(
                member_id=member_id, assignment=write_assignment([(self.topic, index)], version=0)
            )
            for index, member_id in enumerate(sorted(member_ids))
        )

    async def beat(self) -> bool:
        """A heartbeat; False: the group rebalances."""
        answer = await self._ask(
            HeartbeatRequest(
                group_id=GroupId(self.group),
                generation_id=i32(self.generation_id),
                member_id=self.member_id,
            )
        )
        if int(answer.error_code) == REBALANCE_IN_PROGRESS:
            return False
        _expect(answer.error_code)
        return True

    async def commit(self, offset: int) -> None:
        """One commit of its lane, and how long it took."""
        entry = CommitPartition(self.index, offset, NO_LEADER_EPOCH, "")
        topic = NamedTopic(self.topic, (entry,))
        request = CommitRequest(self.group, self.generation_id, self.member_id, (topic,))
        body = write_commit_request(request, COMMIT_VERSION)
        started_s = time.perf_counter()
        answer = await self._call(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, body)
        self.waits_s.append(time.perf_counter() - started_s)
        ((found,),) = [
            one.partitions for one in read_commit_response(answer, COMMIT_VERSION).topics
        ]
        _expect(found.error_code)

    async def _open(self, host: str, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(host, port)

    async def _ask(self, entity: Any) -> Any:
        api_key, version = int(entity.__api_key__), int(entity.__version__)
        return read_response(
            api_key, version, await self._call(api_key, version, write_message(entity))
        )

    async def _call(self, api_key: int, version: int, body: bytes) -> memoryview:
        assert self._reader is not None and self._writer is not None, "connected"
        async with self._turn:
            self._writer.write(write_request(api_key, version, 1, "bench-member", body))
            (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
            frame = await self._reader.readexactly(size)
        return memoryview(frame)[response_body_position(api_key, version) :]


class Members:
    """A group of them, a lane each. Use: `gather`, then what is measured, then `leave`."""

    def __init__(self, bootstrap: str, group: str, topic: str, count: int) -> None:
        self._bootstrap = bootstrap
        self.members = [Member(group, topic) for _ in range(count)]
        self._beats: list[asyncio.Task[None]] = []

    async def gather(self) -> None:
        """Return when all are in one generation."""
        for member in self.members:
            await member.connect(self._bootstrap)
        await asyncio.gather(*(self._settle(member) for member in self.members))
        self._beats = [
            spawn(self._beat(member, number), "beats") for number, member in enumerate(self.members)
        ]

    async def leave(self) -> None:
        """Stop beating, and close."""
        for beat in self._beats:
            beat.cancel()
        for member in self.members:
            member.close()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._beats)

    def take_waits(self) -> list[float]:
        """Seconds of each commit since the last call."""
        waits_s = [wait_s for member in self.members for wait_s in member.waits_s]
        for member in self.members:
            member.waits_s.clear()
        return waits_s

    def _is_complete(self) -> bool:
        generations = {member.generation_id for member in self.members}
        leaders = [member.member_count for member in self.members if member.member_count]
        return len(generations) == 1 and leaders == [len(self.members)]

    async def _settle(self, member: Member) -> None:
        await member.join()
        while not self._is_complete():
            await asyncio.sleep(JOIN_BEAT_S)
            if not await member.beat():
                await member.join()

    async def _beat(self, member: Member, number: int) -> None:
        pause_s = BEAT_S * number / len(self.members)
        while True:
            await asyncio.sleep(pause_s)
            pause_s = BEAT_S
            if not await member.beat():
                raise Refused("the group rebalances")


def _expect(error_code: int) -> None:
    if error_code:
        raise Refused(f"error {int(error_code)}")
