"""A cluster of one node in memory, for the Python consumer: it answers as keylane or as Kafka.

It stands where `keylane.client.cluster.ClusterClient` stands, and speaks in bytes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kio.schema.list_offsets.v7 import response as list_response
from kio.schema.offset_fetch.v9 import response as fetch_response

from keylane.client import errors as e
from keylane.client.values import Committed, TopicPartition
from keylane.keyrange.hash import key_hash
from keylane.keyrange.space import KeyRange
from keylane.wire import extensions as x
from keylane.wire.entities import error_code, tagged_type
from keylane.wire.fetch import (
    FetchAnswer,
    FetchRequest,
    FetchResponse,
    FetchTopicAnswer,
    read_fetch_request,
    write_fetch_response,
)
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_request, write_message
from keylane.wire.offset_commit import (
    CommitAnswer,
    CommitPartition,
    CommitResponse,
    NamedTopic,
    read_commit_request,
    write_commit_response,
)
from keylane.wire.primitives import NO_TAGS, read_tags, write_tags
from tests.reference.batches import Batch, write_batch

NODE = 1


@dataclass
class FakeCluster:
    """A broker that keeps what it is asked."""

    has_ranges: bool = False
    logs: dict[TopicPartition, list[Batch | bytes]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, Committed] = field(default_factory=dict)
    commits: list[tuple[TopicPartition, CommitPartition]] = field(default_factory=list)
    members: list[tuple[str, int]] = field(default_factory=list)
    """Member and epoch of each commit."""
    commit_codes: deque[tuple[int, int]] = field(default_factory=deque)
    """Error code and draft code of the next commits."""
    stable_ends: dict[TopicPartition, int] = field(default_factory=dict)
    """Last stable offsets, where a transaction is open."""
    fetch_codes: deque[tuple[int, int]] = field(default_factory=deque)
    stable: int | None = None
    """The stable offset in answers to commits."""
    offset_fetches: list[Any] = field(default_factory=list)
    fetches: list[FetchRequest] = field(default_factory=list)
    refreshes: int = 0
    lost_coordinators: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    # -- what stands in the cluster's place -------------------------------------------------

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def want(self, topics: Iterable[str]) -> None: ...

    def topic_id(self, topic: str) -> uuid.UUID | None:
        return uuid.uuid5(uuid.NAMESPACE_OID, topic)

    def leader_of(self, part: TopicPartition) -> int | None:
        return NODE if part in self.logs else None

    def leader_epoch_of(self, part: TopicPartition) -> int:
        return 5

    async def refresh(self) -> None:
        self.refreshes += 1

    async def partitions_of(self, topic: str) -> list[int]:
        return sorted(part.partition for part in self.logs if part.topic == topic)

    async def coordinator_of(self, group_id: str) -> int:
        return NODE

    def coordinator_lost(self, group_id: str) -> None:
        self.lost_coordinators += 1

    async def version_for(
        self, node_id: int, api_key: int, version_max: int, version_min: int = 0
    ) -> int:
        return version_max

    async def ask(
        self, node_id: int, api_key: int, version: int, body: bytes, **_options: Any
    ) -> memoryview:
        await asyncio.sleep(0)
        if api_key == ApiKey.FETCH:
            return memoryview(await self._fetch(read_fetch_request(body, 0, version)))
        if api_key == ApiKey.OFFSET_COMMIT:
            return memoryview(self._commit(body, version))
        assert api_key == ApiKey.OFFSET_FETCH
        return memoryview(self._offset_fetch(read_request(api_key, version, memoryview(body))))

    async def ask_entity(
        self, node_id: int, api_key: int, version_max: int, make: Callable[[int], Any]
    ) -> Any:
        assert api_key == ApiKey.LIST_OFFSETS
        return self._list(make(version_max))

    # -- answers ----------------------------------------------------------------------------

    def append(self, part: TopicPartition, *batches: Batch | bytes) -> None:
        """Add batches to a log, and let waiting fetches go."""
        self.logs.setdefault(part, []).extend(batches)
        self.changed.set()

    def _end(self, part: TopicPartition) -> int:
        batches = [batch for batch in self.logs[part] if isinstance(batch, Batch)]
        return batches[-1].next_offset if batches else self.starts.get(part, 0)

    async def _fetch(self, request: FetchRequest) -> bytes:
        self.fetches.append(request)
        topics = self._answers(request)
        if not any(
            each.records or each.error_code for topic in topics for each in topic.partitions
        ):
            self.changed.clear()
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000):
                    await self.changed.wait()
            except TimeoutError:
                pass
            topics = self._answers(request)
        response = FetchResponse(topics=tuple(topics))
        return b"".join(write_fetch_response(response, request.version))

    def _answers(self, request: FetchRequest) -> list[FetchTopicAnswer]:
        names = {self._id(part.topic): part.topic for part in self.logs}
        topics = []
        for topic in request.topics:
            assert topic.topic_id is not None
            name = names[topic.topic_id]
            answers = tuple(self._answer(name, each) for each in topic.partitions)
            topics.append(FetchTopicAnswer(None, topic.topic_id, answers))
        return topics

    def _id(self, topic: str) -> bytes:
        found = self.topic_id(topic)
        assert found is not None
        return found.bytes

    def _answer(self, topic: str, asked: Any) -> FetchAnswer:
        part = TopicPartition(topic, asked.partition)
        end, start = self._end(part), self.starts.get(part, 0)
        code, draft = self.fetch_codes.popleft() if self.fetch_codes else (0, 0)
        if not start <= asked.fetch_offset <= end and not code:
            code = e.OFFSET_OUT_OF_RANGE
        tags = write_tags({x.DRAFT_ERROR: x.write_int16(draft)}) if draft else NO_TAGS
        own = read_tags(asked.tags)
        keys = x.read_key_ranges(own[x.KEY_RANGES]) if x.KEY_RANGES in own else ()
        records = b""
        if not code:
            for batch in self.logs[part]:
                if isinstance(batch, bytes) or batch.next_offset > asked.fetch_offset:
                    records += batch if isinstance(batch, bytes) else _written(batch, keys)
        stable_end = self.stable_ends.get(part, end)
        return FetchAnswer(part.partition, code, end, stable_end, start, None, -1, (records,), tags)

    def _commit(self, body: bytes, version: int) -> bytes:
        request = read_commit_request(body, version)
        self.members.append((request.member_id, request.generation_id_or_member_epoch))
        code, draft = self.commit_codes.popleft() if self.commit_codes else (0, 0)
        topics = []
        for topic in request.topics:
            assert isinstance(topic, NamedTopic)
            answers = []
            for each in topic.partitions:
                if not code:
                    self.commits.append((TopicPartition(topic.name, each.partition_index), each))
                own = {}
                if draft:
                    own[x.DRAFT_ERROR] = x.write_int16(draft)
                if self.stable is not None:
                    own[x.STABLE_OFFSET] = x.write_int64(self.stable)
                tags = write_tags(own) if own else NO_TAGS
                answers.append(CommitAnswer(each.partition_index, error_code(code), tags))
            topics.append(NamedTopic(topic.name, tuple(answers)))
        return write_commit_response(CommitResponse(tuple(topics)), version)

    def _offset_fetch(self, request: Any) -> bytes:
        self.offset_fetches.append(request)
        topics = []
        for topic in request.groups[0].topics:
            parts = []
            for index in topic.partition_indexes:
                found = self.committed.get(TopicPartition(topic.name, index))
                make: Any = fetch_response.OffsetFetchResponsePartitions
                extra: dict[str, Any] = {}
                if found is not None and found.ranges:
                    make = tagged_type(make)
                    own = {
                        x.OFFSET_RANGES: x.write_pairs(found.ranges),
                        x.STABLE_OFFSET: x.write_int64(found.stable_offset),
                    }
                    extra["unknown_tags"] = write_tags(own)
                parts.append(
                    make(
                        partition_index=index,
                        committed_offset=-1 if found is None else found.offset,
                        metadata="",
                        error_code=error_code(0),
                        **extra,
                    )
                )
            make_topic: Any = fetch_response.OffsetFetchResponseTopics
            topics.append(make_topic(name=topic.name, partitions=tuple(parts)))
        make_group: Any = fetch_response.OffsetFetchResponseGroup
        make_answer: Any = fetch_response.OffsetFetchResponse
        group = make_group(group_id=request.groups[0].group_id, topics=tuple(topics))
        return write_message(make_answer(throttle_time=_no_time(), groups=(group,)))

    def _list(self, request: Any) -> Any:
        make: Any = list_response.ListOffsetsPartitionResponse
        make_topic: Any = list_response.ListOffsetsTopicResponse
        make_answer: Any = list_response.ListOffsetsResponse
        topics = []
        for topic in request.topics:
            parts = []
            for each in topic.partitions:
                part = TopicPartition(topic.name, each.partition_index)
                earliest = each.timestamp == -2
                offset = self.starts.get(part, 0) if earliest else self._end(part)
                parts.append(
                    make(
                        partition_index=each.partition_index,
                        error_code=error_code(0),
                        timestamp=-1,
                        offset=offset,
                    )
                )
            topics.append(make_topic(name=topic.name, partitions=tuple(parts)))
        return make_answer(throttle_time=_no_time(), topics=tuple(topics))


def _no_time() -> Any:
    from datetime import timedelta

    return timedelta()


def _written(batch: Batch, keys: tuple[KeyRange, ...]) -> bytes:
    """Write a batch with the records of these keys; empty: of all."""
    if not keys:
        return write_batch(batch)
    from dataclasses import replace

    kept = tuple(
        record
        for record in batch.records
        if record.key is not None and any(each.contains(key_hash(record.key)) for each in keys)
    )
    return write_batch(replace(batch, records=kept, last_offset_delta=batch.last_delta))
