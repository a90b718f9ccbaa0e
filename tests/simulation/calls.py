"""A script of calls that a real broker and the simulated one must answer alike.

Source: requests and refusals that occur in runs of the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from tests.transcript.consumer_protocol import assignment, subscription

FETCH, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, JOIN, HEARTBEAT, LEAVE, SYNC = (
    1, 2, 8, 9, 11, 12, 13, 14,
)  # fmt: skip
DESCRIBE_GROUPS, INIT_PRODUCER_ID, END_OF_EPOCH, ADD_OFFSETS, END_TXN = 15, 22, 23, 25, 26
TXN_OFFSET_COMMIT, OFFSET_DELETE, FIND_COORDINATOR, DELETE_GROUPS = 28, 47, 10, 42
SESSION_MS = 10_000
Line = tuple[str, Any]


class Talk(Protocol):
    """A connection to the broker that leads and coordinates all."""

    async def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """A kio answer."""

    async def ask_raw(self, key: int, version: int, body: bytes) -> tuple[bytes, int]:
        """A frame, and where its body begins."""


OpenTalk = Callable[[], Awaitable[Talk]]


class Script:
    """Use: `play`, which gives one line for each call. The topic has five records, in one batch."""

    def __init__(self, open_talk: OpenTalk, *, topic: str, group: str) -> None:
        self._open, self.topic, self.group = open_talk, topic, group
        self.lines: list[Line] = []
        self.member_ids: list[str] = []

    async def play(self) -> list[Line]:
        """Play the whole script; return its lines."""
        talk, other = await self._open(), await self._open()
        await self._records(talk)
        await self._commits_without_members(talk)
        await self._members(talk, other)
        await self._transactions(talk)
        await self._many_groups(talk)
        return self.lines

    def _note(self, step: str, *said: Any) -> None:
        self.lines.append((step, tuple(int(each) if each is not True else 1 for each in said)))

    # Records.
    async def _records(self, talk: Talk) -> None:
        for step, partition, offset, epoch, last in (
            ("from the start", 0, 0, -1, -1),
            ("in the leader's epoch", 0, 0, 0, 0),
            ("inside of the batch", 0, 3, -1, -1),
            ("at the end", 0, 5, -1, -1),
            ("behind the end", 0, 6, -1, -1),
            ("of a later leader", 0, 0, 7, -1),
            ("of another log", 0, 5, 0, 3),
            ("of no partition", 9, 0, -1, -1),
        ):
            await self._fetch(talk, f"fetch {step}", partition, offset, epoch, last)
        for stamp in (-1, -2):
            for partition in (0, 9):
                answer = await talk.ask(
                    LIST_OFFSETS, 7, replica_id=-1, isolation_level=0,
                    topics=[{"name": self.topic, "partitions": [
                        {"partition_index": partition, "current_leader_epoch": -1,
                         "timestamp": stamp},
                    ]}],
                )  # fmt: skip
                entry = answer.topics[0].partitions[0]
                self._note(f"offset {stamp} of {partition}", entry.error_code, entry.offset)
        for epoch in (0, 3):
            answer = await talk.ask(
                END_OF_EPOCH, 4, replica_id=-1, topics=[{"topic": self.topic, "partitions": [
                    {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch},
                ]}],
            )  # fmt: skip
            entry = answer.topics[0].partitions[0]
            said = entry.error_code, entry.leader_epoch, entry.end_offset
            self._note(f"end of epoch {epoch}", *said)

    async def _fetch(
        self, talk: Talk, step: str, partition: int, offset: int, epoch: int, last: int
    ) -> None:
        entry = FetchPartition(partition, epoch, offset, last, -1, 1024**2)
        topic = FetchTopic(name=self.topic, topic_id=None, partitions=(entry,))
        request = FetchRequest(
            version=12, max_wait_ms=0, min_bytes=1, max_bytes=1024**2, isolation_level=0,
            topics=(topic,),
        )  # fmt: skip
        frame, at = await talk.ask_raw(FETCH, 12, write_fetch_request(request))
        answer = read_fetch_response(frame, at, 12)
        found = answer.topics[0].partitions[0]
        has_records = any(len(each) for each in found.records or ())
        diverges = found.tags != b"\0"
        self._note(step, found.error_code, found.high_watermark, has_records, diverges)

    # Groups.
    async def _commit(
        self, talk: Talk, step: str, member_id: str, generation: int, **how: Any
    ) -> None:
        topic, offset = how.get("topic", self.topic), how.get("offset", 1)
        answer = await talk.ask(
            OFFSET_COMMIT, 7, group_id=self.group, member_id=member_id,
            generation_id_or_member_epoch=generation,
            topics=[{"name": topic, "partitions": [
                {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1,
                 "committed_metadata": how.get("metadata", "")},
            ]}],
        )  # fmt: skip
        self._note(f"commit {step}", answer.topics[0].partitions[0].error_code)

    async def _stands(self, talk: Talk, step: str, *, is_stable: bool = True) -> None:
        answer = await talk.ask(
            OFFSET_FETCH, 7, group_id=self.group, require_stable=is_stable,
            topics=[{"name": self.topic, "partition_indexes": [0]}],
        )  # fmt: skip
        entry = answer.topics[0].partitions[0]
        self._note(
            f"offset {step}", answer.error_code, entry.error_code, entry.committed_offset,
            len(entry.metadata or ""),
        )  # fmt: skip

    async def _delete(self, talk: Talk, step: str) -> None:
        answer = await talk.ask(
            OFFSET_DELETE, 0, group_id=self.group,
            topics=[{"name": self.topic, "partitions": [{"partition_index": 0}]}],
        )  # fmt: skip
        code = answer.topics[0].partitions[0].error_code if answer.topics else -1
        self._note(f"delete {step}", answer.error_code, code)

    async def _commits_without_members(self, talk: Talk) -> None:
        await self._commit(talk, "of no member", "", -1, offset=2, metadata="note")
        await self._stands(talk, "after it")
        await self._commit(talk, "of an unknown topic", "", -1, topic=f"{self.topic}-none")
        await self._commit(talk, "of an unknown member", "somebody", 1)
        await self._delete(talk, "without members")
        await self._stands(talk, "after the deletion")

    async def _join(self, talk: Talk, member_id: str) -> Any:
        return await talk.ask(
            JOIN, 7, group_id=self.group, session_timeout=SESSION_MS, rebalance_timeout=SESSION_MS,
            member_id=member_id, protocol_type="consumer",
            protocols=[{"name": "range", "metadata": subscription(self.topic)}],
        )  # fmt: skip

    async def _sync(
        self, talk: Talk, step: str, member_id: str, generation: int, to: list[str]
    ) -> None:
        given = [{"member_id": each, "assignment": assignment([(self.topic, 0)])} for each in to]
        answer = await talk.ask(
            SYNC, 5, group_id=self.group, generation_id=generation, member_id=member_id,
            protocol_type="consumer", protocol_name="range", assignments=given,
        )  # fmt: skip
        self._note(f"sync {step}", answer.error_code, len(answer.assignment) > 0)

    async def _beat(self, talk: Talk, step: str, member_id: str, generation: int) -> None:
        answer = await talk.ask(
            HEARTBEAT, 4, group_id=self.group, generation_id=generation, member_id=member_id
        )
        self._note(f"heartbeat {step}", answer.error_code)

    async def _describe(self, talk: Talk, step: str) -> None:
        answer = await talk.ask(
            DESCRIBE_GROUPS, 5, groups=[self.group], include_authorized_operations=False
        )
        found = answer.groups[0]
        self.lines.append((f"group {step}", (str(found.group_state), len(found.members))))

    async def _members(self, talk: Talk, other: Talk) -> None:
        joined = await self._join(talk, "")
        self._note("join without an id", joined.error_code, bool(joined.member_id))
        member_id = str(joined.member_id)
        joined = await self._join(talk, member_id)
        self._note("join", joined.error_code, joined.generation_id, len(joined.members))
        await self._commit(talk, "before the sync", member_id, 1)
        await self._sync(talk, "of the leader", member_id, 1, [member_id])
        await self._describe(talk, "with a member")
        await self._beat(talk, "of a member", member_id, 1)
        await self._beat(talk, "of an older generation", member_id, 0)
        await self._beat(talk, "of an unknown member", "unknown", 1)
        await self._commit(talk, "of a member", member_id, 1, offset=3)
        await self._commit(talk, "of an older generation", member_id, 0)
        await self._commit(talk, "of no member beside a member", "", -1)
        await self._commit(talk, "of an unknown member beside one", "unknown", 1)
        await self._delete(talk, "beside a member")
        await self._delete_groups(talk, "beside a member")
        await self._stands(talk, "of the member")
        await self._second_member(talk, other, member_id)

    async def _second_member(self, talk: Talk, other: Talk, member_id: str) -> None:
        """Join while the first one learns of the rebalance at its heartbeat."""
        second = str((await self._join(other, "")).member_id)
        joining = _Later(self._join(other, second))
        await self._until_rebalance(talk, member_id)
        await self._commit(talk, "while others join", member_id, 1, offset=4)
        await self._sync(talk, "while others join", member_id, 1, [])
        joined = await self._join(talk, member_id)
        self._note("join again", joined.error_code, joined.generation_id, len(joined.members))
        answer = await joining.result()
        self._note("join of the second", answer.error_code, answer.generation_id)
        await self._commit(talk, "in the new generation, before its sync", member_id, 2)
        await self._sync(talk, "of two", member_id, 2, [member_id, second])
        await self._sync(other, "of the second", second, 2, [])
        for step, client in (
            ("the second", second),
            ("the second again", second),
            ("all", member_id),
        ):
            answer = await talk.ask(LEAVE, 4, group_id=self.group, members=[{"member_id": client}])
            code = answer.members[0].error_code if answer.members else -1
            self._note(f"leave of {step}", answer.error_code, code)
        await self._describe(talk, "without members")

    async def _until_rebalance(self, talk: Talk, member_id: str) -> None:
        """The second JoinGroup travels on another connection: ask until it has come."""
        while True:
            answer = await talk.ask(
                HEARTBEAT, 4, group_id=self.group, generation_id=1, member_id=member_id
            )
            if answer.error_code != 0:
                self._note("heartbeat while others join", answer.error_code)
                return

    async def _delete_groups(self, talk: Talk, step: str) -> None:
        names = [self.group, f"{self.group}-none"]
        answer = await talk.ask(DELETE_GROUPS, 2, groups_names=names)
        codes = {str(result.group_id): result.error_code for result in answer.results}
        self._note(f"delete groups {step}", *(codes[name] for name in names))

    async def _many_groups(self, talk: Talk) -> None:
        """Ask for many groups at once, and then delete them, as tools do."""
        found = await talk.ask(
            FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[self.group, "another"]
        )
        self._note("coordinators", *(entry.error_code for entry in found.coordinators))
        topics = [{"name": self.topic, "partition_indexes": [0]}]
        names = [self.group, f"{self.group}-none"]
        groups = [{"group_id": name, "topics": topics} for name in names]
        answer = await talk.ask(OFFSET_FETCH, 8, groups=groups, require_stable=True)
        for number, group in enumerate(answer.groups):
            entry = group.topics[0].partitions[0]
            said = group.error_code, entry.error_code, entry.committed_offset
            self._note(f"offsets of group {number}", *said)
        await self._delete_groups(talk, "without members")
        await self._stands(talk, "of a group that was deleted")
        await self._describe(talk, "that was deleted")

    # Transactions.
    async def _transactions(self, talk: Talk) -> None:
        name = f"txn-{self.group}"

        async def begin() -> tuple[int, int]:
            answer = await talk.ask(
                INIT_PRODUCER_ID, 3, transactional_id=name, transaction_timeout=10_000,
                producer_id=-1, producer_epoch=-1,
            )  # fmt: skip
            # Its log is being made or loaded, or a marker is being written.
            while answer.error_code in {14, 15, 16, 51}:
                answer = await talk.ask(
                    INIT_PRODUCER_ID, 3, transactional_id=name, transaction_timeout=10_000,
                    producer_id=-1, producer_epoch=-1,
                )  # fmt: skip
            self._note("producer id", answer.error_code, answer.producer_epoch)
            return int(answer.producer_id), int(answer.producer_epoch)

        old = await begin()
        producer_id, epoch = await begin()
        self._note("the same producer", old[0] == producer_id)
        client = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
        ghost = {**client, "producer_epoch": old[1]}
        await self._add(talk, "of an older epoch", ghost)
        await self._add(talk, "to a transaction", client)
        await self._commit_in(talk, "of an older epoch", ghost)
        await self._commit_in(talk, "in it", client)
        await self._stands(talk, "that is not stable")
        await self._stands(talk, "before the end", is_stable=False)
        ended = await talk.ask(END_TXN, 3, committed=True, **ghost)
        self._note("end of an older epoch", ended.error_code)
        ended = await talk.ask(END_TXN, 3, committed=True, **client)
        self._note("end", ended.error_code)
        await self._until_stable(talk)
        await self._stands(talk, "after the end")

    async def _until_stable(self, talk: Talk) -> None:
        """Markers come a moment after the answer."""
        while True:
            answer = await talk.ask(
                OFFSET_FETCH, 7, group_id=self.group, require_stable=True,
                topics=[{"name": self.topic, "partition_indexes": [0]}],
            )  # fmt: skip
            if answer.topics[0].partitions[0].error_code == 0:
                return

    async def _add(self, talk: Talk, step: str, client: dict[str, Any]) -> None:
        answer = await talk.ask(ADD_OFFSETS, 3, group_id=self.group, **client)
        self._note(f"add offsets {step}", answer.error_code)

    async def _commit_in(self, talk: Talk, step: str, client: dict[str, Any]) -> None:
        answer = await talk.ask(
            TXN_OFFSET_COMMIT, 3, group_id=self.group, generation_id=-1, member_id="",
            topics=[{"name": self.topic, "partitions": [
                {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1,
                 "committed_metadata": "five"},
            ]}], **client,
        )  # fmt: skip
        self._note(f"commit {step}", answer.topics[0].partitions[0].error_code)


class _Later:
    """A call under way."""

    def __init__(self, call: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(call)

    async def result(self) -> Any:
        return await self._task
