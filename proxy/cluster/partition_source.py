"""Reads of one partition from its leader with keylane's own principal.

Source: protocol guide, Fetch v12 (by name) and v13-17 (by topic id); KIP-320, KIP-595 (epochs:
ReplicaManager answers a consumer's `LastFetchedEpoch` as it does a follower's).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from keylane.errors import FrameInvalid, UpstreamLost
from keylane.offsets.lineage import NO_EPOCH, EpochEnd
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.split_io import RawFetch
from keylane.proxy.net.upstream import ServiceLink
from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.header import ApiKey
from keylane.wire.primitives import read_tags

FETCH_VERSION_MAX: Final = 17
TOPIC_ID_VERSION: Final = 13
EPOCHS_VERSION: Final = 4
"""Kafka 2.8 and later have it; metadata asks for 3.1."""
LEADER_ERRORS: Final = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
)
MOVED: Final = (6, 74)
"""Not the leader, and its epoch is over."""
DIVERGING_EPOCH_TAG: Final = 0
DIVERGING_EPOCH: Final = struct.Struct(">iq")
CONSUMER: Final = BrokerId(-1)


@dataclass(slots=True, kw_only=True)
class UpstreamSource:
    """A connection to the leader of one partition, for one long poll at a time."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    leader_id: int
    leader_epoch: int
    on_moved: Callable[[], None]
    """Is called when an answer says that another broker leads."""
    link: ServiceLink
    version: int
    """Version of Fetch."""

    @classmethod
    async def open(
        cls, cluster: Cluster, topic: str, topic_id: uuid.UUID, partition: int
    ) -> UpstreamSource:
        """Connect to the partition's leader. Raises: UpstreamLost."""
        link, leader_id, epoch = await cluster.link_to_leader(topic, topic_id, partition)
        return cls(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            leader_id=leader_id,
            leader_epoch=epoch,
            on_moved=partial(cluster.seek_leader, topic, topic_id, partition, epoch),
            link=link,
            version=min(link.version_max.get(ApiKey.FETCH, 0), FETCH_VERSION_MAX),
        )

    async def fetch(
        self,
        offset: int,
        *,
        max_wait_ms: int,
        max_bytes: int,
        isolation_level: int,
        room: ReadRoom,
        last_epoch: int = NO_EPOCH,
    ) -> RawFetch:
        """Fetch once. Raises: UpstreamLost, AnswerTooLarge."""
        by_id = self.version >= TOPIC_ID_VERSION
        room.broker_id = self.leader_id
        entry = FetchPartition(self.partition, self.leader_epoch, offset, last_epoch, -1, max_bytes)
        topic = FetchTopic(
            name=None if by_id else self.topic,
            topic_id=self.topic_id.bytes if by_id else None,
            partitions=(entry,),
        )
        request = FetchRequest(
            version=self.version,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            topics=(topic,),
        )
        body = await self.link.request_in_room(
            ApiKey.FETCH,
            self.version,
            write_fetch_request(request),
            wait_s=max_wait_ms / 1000,
            room=room,
        )
        try:
            raw = self._read(body)
        except FrameInvalid as error:
            raise self._lost(str(error)) from None
        if raw.error_code in MOVED:
            self.on_moved()
        return raw

    async def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return where an epoch ends in this leader's log; NO_EPOCH where it does not say.

        Raises: UpstreamLost, also when it leads no more.
        """
        entry = OffsetForLeaderPartition(
            partition=i32(self.partition),
            current_leader_epoch=i32(self.leader_epoch),
            leader_epoch=i32(epoch),
        )
        topic = OffsetForLeaderTopic(topic=TopicName(self.topic), partitions=(entry,))
        if self.link.version_max.get(ApiKey.OFFSET_FOR_LEADER_EPOCH, -1) < EPOCHS_VERSION:
            return EpochEnd(NO_EPOCH, -1)
        answer = await self.link.request(
            OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=(topic,))
        )
        found = [entry for topic in answer.topics for entry in topic.partitions]
        if len(found) != 1 or int(found[0].error_code) in LEADER_ERRORS:
            raise self._lost(f"end of epoch {epoch}: {found[0].error_code.name if found else None}")
        if int(found[0].error_code):
            return EpochEnd(NO_EPOCH, -1)
        return EpochEnd(int(found[0].leader_epoch), int(found[0].end_offset))

    def close(self) -> None:
        """Drop the connection."""
        self.link.close()

    def _read(self, body: memoryview) -> RawFetch:
        """Read the answer for the partition. Raises: FrameInvalid, UpstreamLost."""
        response = read_fetch_response(body, 0, self.version)
        answers = [answer for topic in response.topics for answer in topic.partitions]
        if response.error_code:
            raise self._lost(f"error {response.error_code}")
        if len(answers) != 1:
            raise self._lost(f"{len(answers)} partitions in the answer")
        answer = answers[0]
        diverging = _diverging(read_tags(answer.tags).get(DIVERGING_EPOCH_TAG))
        records = answer.records[0] if answer.records else b""
        return RawFetch(
            error_code=answer.error_code,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
            aborted=tuple((one[0], one[1]) for one in answer.aborted or ()),
            records=memoryview(records),
            leader_epoch=self.leader_epoch,
            diverging=diverging,
        )

    def _lost(self, reason: str) -> UpstreamLost:
        return UpstreamLost(f"fetch of topic {self.topic} partition {self.partition}: {reason}")


def _diverging(field: bytes | None) -> EpochEnd | None:
    """Read the tagged field; an epoch below 0, the field's default, is none. Raises: FrameInvalid.

    Source: FetchResponse.json; FetchResponse.divergingEpoch of Kafka's clients.
    """
    if field is None:
        return None
    if len(field) < DIVERGING_EPOCH.size:
        raise FrameInvalid(f"diverging epoch of {len(field)} bytes")
    end = EpochEnd(*DIVERGING_EPOCH.unpack_from(field))
    return None if end.epoch < 0 else end
