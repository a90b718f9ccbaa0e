"""Reads one partition from its leader with keylane's own principal.

In:    offsets.  Out: `RawFetch`: the broker's answer, records as a view.
Next:  `reader` splits the records.
Shell: asyncio sockets.
Source: protocol guide, Fetch v12 (by name) and v13-17 (by topic id).
"""

from __future__ import annotations

import uuid
from typing import Final

from keylane.errors import FrameInvalid, UpstreamLost
from keylane.proxy.cluster import Cluster
from keylane.proxy.reader import RawFetch
from keylane.proxy.upstream import REQUEST_TIMEOUT_S, ServiceLink
from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)

FETCH: Final = 1
FETCH_VERSION_MAX: Final = 17
TOPIC_ID_VERSION: Final = 13


class UpstreamSource:
    """A connection to the leader of one partition, for one long poll at a time."""

    def __init__(
        self,
        link: ServiceLink,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
    ) -> None:
        self._link = link
        self._topic, self._topic_id, self._partition = topic, topic_id, partition
        self._version = min(link.version_max.get(FETCH, 0), FETCH_VERSION_MAX)

    @classmethod
    async def open(
        cls, cluster: Cluster, topic: str, topic_id: uuid.UUID, partition: int
    ) -> UpstreamSource:
        """Connect to the partition's leader. Raises: UpstreamLost."""
        leader_id, _ = await cluster.leader_of(topic, topic_id, partition)
        link = await cluster.link_to(leader_id)
        return cls(link, topic=topic, topic_id=topic_id, partition=partition)

    async def fetch(
        self, offset: int, *, max_wait_ms: int, max_bytes: int, isolation_level: int
    ) -> RawFetch:
        """One fetch. Raises: UpstreamLost."""
        by_id = self._version >= TOPIC_ID_VERSION
        entry = FetchPartition(self._partition, -1, offset, -1, -1, max_bytes)
        topic = FetchTopic(
            name=None if by_id else self._topic,
            topic_id=self._topic_id.bytes if by_id else None,
            partitions=(entry,),
        )
        request = FetchRequest(
            version=self._version,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            topics=(topic,),
        )
        body = await self._link.request_raw(
            FETCH,
            self._version,
            write_fetch_request(request),
            timeout_s=max_wait_ms / 1000 + REQUEST_TIMEOUT_S,
        )
        return self._read(body)

    def close(self) -> None:
        """Drop the connection."""
        self._link.close()

    def _read(self, body: memoryview) -> RawFetch:
        try:
            response = read_fetch_response(body, 0, self._version)
        except FrameInvalid as error:
            raise self._lost(str(error)) from None
        answers = [answer for topic in response.topics for answer in topic.partitions]
        if response.error_code:
            raise self._lost(f"error {response.error_code}")
        if len(answers) != 1:
            raise self._lost(f"{len(answers)} partitions in the answer")
        answer = answers[0]
        records = answer.records[0] if answer.records else b""
        return RawFetch(
            error_code=answer.error_code,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
            aborted=tuple((one[0], one[1]) for one in answer.aborted or ()),
            records=memoryview(records),
            leader_epoch=-1,
        )

    def _lost(self, reason: str) -> UpstreamLost:
        return UpstreamLost(f"fetch of topic {self._topic} partition {self._partition}: {reason}")
