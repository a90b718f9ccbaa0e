"""A member that consumes, transforms and produces in transactions: offsets go with the output.

In:    as `member`.  Out: its output, for a reader of committed records.
Source: KIP-98, KIP-447; Java's `KafkaProducer.sendOffsetsToTransaction`.
"""

from __future__ import annotations

from typing import Any

from tests.long.chaos_history import Commit
from tests.simulation.client import Connection, Lost
from tests.simulation.fetching import Lane
from tests.simulation.member import Life, Rejoin

TIMEOUT_MS = 5_000
FENCED = {47, 90}
AGAIN = {14, 15, 16, 51}
REFUSED = 22
"""Error code noted for a commit whose transaction was never committed."""


class TransactionalLife(Life):
    """One process of such a member; its transactional id is the member's, in all lives."""

    _producer: tuple[int, int] | None = None
    _has_failed = False

    async def _take_over(self, indexes: list[int]) -> None:
        self._has_failed = False
        await super()._take_over(indexes)

    @property
    def _id(self) -> str:
        return f"txn-{self._member.name}"

    async def _transactions(self) -> Connection:
        return await self._client.coordinator(self._id, key_type=1)

    async def _begin(self) -> tuple[int, int]:
        """The producer id and epoch of this life. Raises: Lost."""
        if self._producer is None:
            connection = await self._transactions()
            answer = await connection.ask(
                22, 3, transactional_id=self._id, transaction_timeout=TIMEOUT_MS,
                producer_id=-1, producer_epoch=-1,
            )  # fmt: skip
            if answer.error_code != 0:
                raise Lost(f"InitProducerId: {answer.error_code}")
            self._producer = int(answer.producer_id), int(answer.producer_epoch)
        return self._producer

    async def _commit_lanes(self, lanes: list[Lane]) -> None:
        """One transaction; all that was done is done again unless it is known to be committed."""
        if self._has_failed:
            raise Rejoin  # what was done since the last commit has to be done again
        outputs, self._outputs = self._outputs, []
        offsets = {lane.index: lane.done for lane in lanes}
        numbers = self._note_commits(lanes)
        asked_s, error = self._world.now_s, REFUSED
        answered_s = float("inf")
        try:
            producer_id, epoch = await self._begin()
            producer: dict[str, Any] = {
                "transactional_id": self._id, "producer_id": producer_id, "producer_epoch": epoch,
            }  # fmt: skip
            group = self._habits.group
            connection = await self._transactions()
            self._check(await connection.ask(25, 3, group_id=group, **producer))
            await self._send_offsets(producer, offsets)
            self._member.staged = outputs
            error = 0
            connection = await self._transactions()
            ended = await connection.ask(26, 3, committed=True, **producer)
            if ended.error_code != 0:
                error = REFUSED if int(ended.error_code) in FENCED else 0
            self._check(ended)
            answered_s = self._world.now_s
            for lane in lanes:
                lane.committed = offsets[lane.index]
        except (Lost, Rejoin):
            self._producer, self._has_failed = None, True
            if error == REFUSED:
                answered_s = self._world.now_s
            raise
        finally:
            for lane in lanes:
                self._member.events[numbers[lane.index]] = Commit(
                    self._name, lane.place, offsets[lane.index], self._generation, asked_s,
                    answered_s, error,
                )  # fmt: skip

    async def _send_offsets(self, producer: dict[str, Any], offsets: dict[int, int]) -> None:
        entries = [
            {"partition_index": index, "committed_offset": offset, "committed_metadata": ""}
            for index, offset in offsets.items()
        ]
        answer = await self._ask(
            28, 3, generation_id=self._generation, member_id=self._member_id,
            topics=[{"name": self._habits.subscribed, "partitions": entries}], **producer,
        )  # fmt: skip
        for topic in answer.topics:
            for entry in topic.partitions:
                self._check(entry)

    def _check(self, answer: Any) -> None:
        """Raises: Lost, Rejoin."""
        code = int(answer.error_code)
        if code in AGAIN:
            raise Lost(f"transaction: error {code}")
        if code:
            raise Rejoin
