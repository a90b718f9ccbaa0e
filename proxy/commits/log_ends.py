"""Asks leaders where their logs begin and end, and where the epochs in them do.

Source: KIP-320, OffsetForLeaderEpoch v4; ListOffsets v1.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v1.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i64

from keylane.bounded import BoundedDict
from keylane.errors import KeylaneError, UpstreamLost
from keylane.offsets.lineage import NO_EPOCH, EpochEnd
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.offsets")

EARLIEST: Final = -2
LATEST: Final = -1
ANSWER_S_MAX: Final = 2.0
"""A group's call waits for it with the group's lock held; clients' requests have 30 s or more."""
SILENT_S: Final = 5.0
"""Time for which a leader that did not answer is not asked again."""
KNOWN_S: Final = 1.0
"""Time for which an answer counts for other groups on the same partition: there may be another
leader already, which no metadata has named."""
KNOWN_MAX: Final = 10_000
"""Such answers, some 300 bytes each."""
SILENT: Final = EpochEnd(NO_EPOCH, -1)
CONSUMER: Final = BrokerId(-1)
AWAY: Final = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
)
"""Another broker leads, or none: ask again later. Other errors do not pass by themselves."""


class Question(NamedTuple):
    """The end of an epoch in a partition's log."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    epoch: int
    """NO_EPOCH: the end of the log."""


class LogEnds:
    """Leaders' answers; each is asked once for all partitions that it leads."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._silent_until_s: dict[int, float] = {}
        """By broker that left a question unanswered."""
        self._known: BoundedDict[Question, tuple[int, float, EpochEnd]] = BoundedDict(KNOWN_MAX)
        """Leader epoch, until when it counts, and the answer."""

    async def ask(self, questions: Iterable[Question]) -> dict[Question, EpochEnd]:
        """Return what leaders answer within ANSWER_S_MAX; the others are left out. Raises nothing.

        A leader that did not answer is not asked again for a moment: groups ask one by one.
        SILENT: it is not going to be known, since the topic is gone or the leader refuses.
        """
        found: dict[Question, EpochEnd] = {}
        open_questions = [question for question in questions if not self._recall(question, found)]
        if not open_questions:
            return found
        waited_for = set[int]()

        async def ask(leader_id: int, asked: list[tuple[Question, int]]) -> None:
            waited_for.add(leader_id)
            await self._ask(leader_id, asked, found)
            waited_for.discard(leader_id)

        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                for topic in dict.fromkeys(question.topic for question in open_questions):
                    await self._cluster.refresh_topic(topic)
                by_leader = self._by_leader(open_questions, found)
                await asyncio.gather(*(ask(*item) for item in by_leader.items()))
        except TimeoutError:
            log.warning("epoch ends not known: no answer in time in_s=%g", ANSWER_S_MAX)
            until_s = time.monotonic() + SILENT_S
            self._silent_until_s.update(dict.fromkeys(waited_for, until_s))
        except (KeylaneError, OSError) as error:
            log.warning("epoch ends not known reason=%s", error)
        return found

    async def offset_at(self, view: View, partition: int, timestamp: int) -> int:
        """ListOffsets: EARLIEST, LATEST, or a time in ms. Raises: UpstreamLost.

        A leader that does not answer within ANSWER_S_MAX is not asked again for a moment: a group
        may need the offsets of many partitions that it leads, one by one.
        """
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                leader_id, _ = await self._cluster.leader_of(view.topic, view.topic_id, partition)
        except TimeoutError:
            raise UpstreamLost(f"topic {view.topic}: no metadata in {ANSWER_S_MAX:g} s") from None
        if self._is_silent(leader_id):
            raise UpstreamLost(f"broker {leader_id} did not answer a moment ago")
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await self._ask_offset(leader_id, view, partition, timestamp)
        except TimeoutError:
            self._silent_until_s[leader_id] = time.monotonic() + SILENT_S
            raise UpstreamLost(
                f"broker {leader_id} does not answer within {ANSWER_S_MAX:g} s"
            ) from None

    def _is_silent(self, leader_id: int) -> bool:
        """Return whether a leader left something unanswered a moment ago."""
        now_s = time.monotonic()
        return now_s < self._silent_until_s.get(leader_id, now_s)

    async def _ask_offset(self, leader_id: int, view: View, partition: int, timestamp: int) -> int:
        request = offsets_request([(view.topic, partition)], timestamp)
        answer = await self._cluster.ask_broker(leader_id, request)
        found = answer.topics[0].partitions[0]
        if found.error_code != 0:
            raise UpstreamLost(
                f"offset of topic {view.topic} partition {partition}: {found.error_code.name}"
            )
        return int(found.offset)

    def _recall(self, question: Question, found: dict[Question, EpochEnd]) -> bool:
        if question not in self._known:
            return False
        leader_epoch, until_s, end = self._known[question]
        _, epoch = self._cluster.leaders.get(question[1:3], (-1, NO_EPOCH))
        if leader_epoch != epoch or until_s < time.monotonic():
            return False
        found[question] = end
        return True

    def _by_leader(
        self, questions: Iterable[Question], found: dict[Question, EpochEnd]
    ) -> dict[int, list[tuple[Question, int]]]:
        """Return questions by broker, each with its partition's leader epoch."""
        by_leader: dict[int, list[tuple[Question, int]]] = {}
        for question in questions:
            topic = self._cluster.registry.topics.get(question.topic)
            if topic is None or topic.topic_id != question.topic_id:
                found[question] = SILENT
                continue
            leader_id, epoch = self._cluster.leaders.get(question[1:3], (-1, NO_EPOCH))
            if leader_id >= 0 and not self._is_silent(leader_id):
                by_leader.setdefault(leader_id, []).append((question, epoch))
        return by_leader

    async def _ask(
        self,
        leader_id: int,
        asked: list[tuple[Question, int]],
        found: dict[Question, EpochEnd],
    ) -> None:
        """Ask one leader. A partition with two epochs to ask for takes two requests."""
        while asked:
            batch = {question[:3]: (question, epoch) for question, epoch in asked}
            asked = [item for item in asked if batch[item[0][:3]][0] != item[0]]
            try:
                answer = await self._cluster.ask_broker(leader_id, _request(batch.values()))
            except (KeylaneError, OSError) as error:
                log.warning("epoch ends not known broker=%d reason=%s", leader_id, error)
                return
            for topic in answer.topics:
                for entry in topic.partitions:
                    for (name, _, partition), (question, epoch) in batch.items():
                        if (name, partition) == (str(topic.topic), int(entry.partition)):
                            self._take(question, epoch, entry, found)

    def _take(
        self, question: Question, leader_epoch: int, entry: Any, found: dict[Question, EpochEnd]
    ) -> None:
        if entry.error_code in AWAY:
            return
        if entry.error_code != ErrorCode.none:
            found[question] = SILENT
            return
        end = found[question] = EpochEnd(int(entry.leader_epoch), int(entry.end_offset))
        if NO_EPOCH < question.epoch < leader_epoch:
            self._known[question] = leader_epoch, time.monotonic() + KNOWN_S, end


def _request(asked: Iterable[tuple[Question, int]]) -> OffsetForLeaderEpochRequest:
    by_topic: dict[str, list[OffsetForLeaderPartition]] = {}
    for question, leader_epoch in asked:
        epoch = leader_epoch if question.epoch == NO_EPOCH else question.epoch
        entry = OffsetForLeaderPartition(
            partition=i32(question.partition),
            current_leader_epoch=i32(leader_epoch),
            leader_epoch=i32(epoch),
        )
        by_topic.setdefault(question.topic, []).append(entry)
    topics = tuple(
        OffsetForLeaderTopic(topic=TopicName(name), partitions=tuple(entries))
        for name, entries in by_topic.items()
    )
    return OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=topics)


def offsets_request(places: Iterable[tuple[str, int]], timestamp: int) -> ListOffsetsRequest:
    """Return a question for the offsets of (topic, partition): see `LogEnds.offset_at`."""
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for topic, partition in places:
        entry = ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(timestamp))
        by_topic.setdefault(topic, []).append(entry)
    return ListOffsetsRequest(
        replica_id=CONSUMER,
        topics=tuple(
            ListOffsetsTopic(name=TopicName(name), partitions=tuple(entries))
            for name, entries in by_topic.items()
        ),
    )
