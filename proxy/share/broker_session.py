"""keylane's share session of one partition at its leader.

Source: KIP-932, "Share sessions"; docs/decisions/048.

The member id is made of the group and the partition, so that it is the same at each node. A session
that is opened ends any other one of this name: what the former owner asks from then on is refused
with INVALID_SHARE_SESSION_EPOCH. Its records stay locked under the name, and are released by the
final epoch; the records of this session come after that.

One request at a time: while a fetch waits at a broker, an acknowledgement of the same session makes
the fetch fail, and what it has acquired stays locked. One connection for each session: a broker
releases only the records of the last session that a lost connection has opened.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from keylane.errors import FrameInvalid, ShareRefused, UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.net.upstream import ServiceLink
from keylane.share.sessions import EPOCH_MAX, next_epoch
from keylane.wire.header import ApiKey
from keylane.wire.parts import KeyedTopic
from keylane.wire.share import (
    BATCH_OPTIMIZED,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    RENEW_FROM,
    AckBatch,
    ShareAcknowledgeRequest,
    ShareAnswer,
    ShareFetchRequest,
    SharePartition,
    ShareResponse,
    ShareTopic,
    read_share_acknowledge_response,
    read_share_fetch_response,
    write_share_acknowledge_request,
    write_share_fetch_request,
)

REFUSED: Final = (
    ErrorCode.group_authorization_failed,
    ErrorCode.topic_authorization_failed,
    ErrorCode.unsupported_version,
)
"""Codes that do not go away by asking again."""
TAKEN: Final = (ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch)
LATEST: Final = -1
ACKNOWLEDGE_S: Final = 30.0
"""Time for an acknowledgement, which waits for the share coordinator's write."""


class SessionTaken(UpstreamLost):
    """Another session of this name was opened, or the broker has dropped this one."""

    is_gone = False
    """True: the broker has none of the name."""


class SharedPlace(NamedTuple):
    """A partition of a share group."""

    group: str
    topic: str
    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"group={self.group} topic={self.topic} partition={self.partition}"


def member_id_of(place: SharedPlace) -> str:
    """Return the member id of keylane's session: 35 characters, of the 36 that brokers take."""
    name = b"%s\x00%s\x00%d" % (place.group.encode(), place.topic_id.bytes, place.partition)
    return f"kl-{hashlib.blake2b(name, digest_size=16).hexdigest()}"


class BrokerSession:
    """A session that is open. All calls raise UpstreamLost when it is over."""

    def __init__(self, link: ServiceLink, place: SharedPlace, leader: tuple[int, int]) -> None:
        self._link, self.place = link, place
        self.leader_id, self.leader_epoch = leader
        self._member_id = member_id_of(place)
        self._epoch = INITIAL_EPOCH
        self.lock_s = 0.0
        """Duration of a lock by the last answer."""
        self.is_throttled = False
        """The last answer was empty for a quota, whatever the broker has acquired for it."""

    @classmethod
    async def connect(cls, cluster: Cluster, place: SharedPlace) -> Self:
        """Connect to the leader; `open` or `follow` comes next.

        Raises: UpstreamLost; ShareRefused: the broker lacks what keylane needs.
        """
        link, leader_id, epoch = await cluster.link_to_leader(*place[1:])
        reason = lacking(link.version_max)
        if reason is not None:
            link.close()
            raise ShareRefused(f"{place}: {reason}")
        return cls(link, place, (leader_id, epoch))

    async def open(self) -> None:
        """Open the session, and have all released that is locked under its name.

        The broker answers before the releases are written. Raises: UpstreamLost; ShareRefused:
        the broker does not let keylane do what it has to.
        """
        for epoch in (INITIAL_EPOCH, FINAL_EPOCH, INITIAL_EPOCH):
            self._epoch = epoch
            await self._ask_fetch(self._nothing(joins=epoch == INITIAL_EPOCH))

    async def is_open_elsewhere(self) -> bool:
        """Return whether the broker has a session of this name: its epoch is asked for wrongly."""
        self._epoch = EPOCH_MAX
        try:
            await self._ask_fetch(self._nothing())
        except SessionTaken as error:
            return not error.is_gone
        return True

    async def follow(self, epoch: int) -> bool:
        """Open the session in the place of a silent one, and keep all locks of its name.

        epoch: the next one of that session. False: it is not as it was left, and nothing is open.
        Raises: UpstreamLost, ShareRefused.
        """
        self._epoch = epoch
        try:
            await self._ask_fetch(self._nothing())
        except SessionTaken:
            return False
        self._epoch = INITIAL_EPOCH
        await self._ask_fetch(self._nothing())
        return True

    @property
    def next_epoch(self) -> int:
        """Return the epoch of the next request."""
        return self._epoch

    async def fetch(
        self,
        *,
        records_max: int,
        bytes_max: int,
        wait_ms: int,
        room: ReadRoom,
        acks: Sequence[AckBatch] = (),
    ) -> ShareAnswer:
        """Fetch, and acknowledge with it; an empty answer where the broker has nothing to say.

        Raises: UpstreamLost, AnswerTooLarge.
        """
        room.broker_id = self.leader_id
        request = ShareFetchRequest(
            group=self.place.group,
            member_id=self._member_id,
            epoch=self._epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=bytes_max,
            max_records=records_max,
            batch_size=records_max,
            acquire_mode=BATCH_OPTIMIZED,
            topics=self._topics(acks) if acks else (),
        )
        body = await self._link.request_in_room(
            ApiKey.SHARE_FETCH,
            RENEW_FROM,
            write_share_fetch_request(request, RENEW_FROM),
            wait_s=wait_ms / 1000 + (ACKNOWLEDGE_S if acks else 0.0),
            room=room,
        )
        return self._only(self._read_fetch(body))

    async def acknowledge(
        self, acks: Sequence[AckBatch], *, is_renewal: bool = False
    ) -> ShareAnswer:
        """Send outcomes, or renewals; return the partition's answer. Raises: UpstreamLost."""
        request = ShareAcknowledgeRequest(
            group=self.place.group,
            member_id=self._member_id,
            epoch=self._epoch,
            is_renewal=is_renewal,
            topics=self._topics(acks),
        )
        body = await self._link.request_raw(
            ApiKey.SHARE_ACKNOWLEDGE,
            RENEW_FROM,
            write_share_acknowledge_request(request, RENEW_FROM),
            timeout_s=ACKNOWLEDGE_S,
        )
        try:
            response = read_share_acknowledge_response(body, 0, RENEW_FROM)
        except FrameInvalid as error:
            raise self._lost(str(error)) from None
        return self._only(self._checked(response))

    async def log_end(self) -> int:
        """Return the leader's log end now. Raises: UpstreamLost."""
        entry = ListOffsetsPartition(
            partition_index=i32(self.place.partition),
            current_leader_epoch=i32(self.leader_epoch),
            timestamp=i64(LATEST),
        )
        topic = ListOffsetsTopic(name=TopicName(self.place.topic), partitions=(entry,))
        answer = await self._link.request(
            ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(0), topics=(topic,))
        )
        found = [entry for topic in answer.topics for entry in topic.partitions]
        if len(found) != 1 or found[0].error_code:
            raise self._lost(f"log end: {found[0].error_code.name if found else None}")
        return int(found[0].offset)

    async def end(self) -> None:
        """Close the session at the broker, which releases what it holds. Raises: UpstreamLost.

        A broker takes the final epoch for whatever session has the name. So another epoch goes
        before, which it refuses if another node has opened one.
        """
        await self._ask_fetch(self._nothing())
        self._epoch = FINAL_EPOCH
        await self._ask_fetch(self._nothing(joins=False))

    def close(self) -> None:
        """Drop the connection, with which the session ends."""
        self._link.close()

    def _nothing(self, *, joins: bool = True) -> ShareFetchRequest:
        """Return a fetch of nothing: the mark of a renewal keeps brokers from acquiring."""
        return ShareFetchRequest(
            group=self.place.group,
            member_id=self._member_id,
            epoch=self._epoch,
            max_bytes=0,
            is_renewal=True,
            topics=self._topics() if joins else (),
        )

    def _topics(self, acks: Sequence[AckBatch] = ()) -> tuple[ShareTopic, ...]:
        entry = SharePartition(self.place.partition, tuple(acks))
        return (KeyedTopic(None, self.place.topic_id.bytes, (entry,)),)

    async def _ask_fetch(self, request: ShareFetchRequest) -> ShareResponse:
        body = await self._link.request_raw(
            ApiKey.SHARE_FETCH, RENEW_FROM, write_share_fetch_request(request, RENEW_FROM)
        )
        return self._read_fetch(body)

    def _read_fetch(self, body: memoryview) -> ShareResponse:
        try:
            response = read_share_fetch_response(body, 0)
        except FrameInvalid as error:
            raise self._lost(str(error)) from None
        return self._checked(response)

    def _checked(self, response: ShareResponse) -> ShareResponse:
        """Raise for an error of the whole answer; else count the request."""
        code = response.error_code
        if code in REFUSED:
            name = ErrorCode(code).name
            raise ShareRefused(f"{self.place}: {name}: {response.error_message}")
        if code in TAKEN:
            name = ErrorCode(code).name
            taken = SessionTaken(f"share session: {self.place}: {name} {response.error_message}")
            taken.is_gone = code == ErrorCode.share_session_not_found
            raise taken
        if code:
            raise self._lost(f"error {code} {response.error_message}")
        self._epoch = next_epoch(max(self._epoch, INITIAL_EPOCH))
        self.is_throttled = response.throttle_ms > 0 and not response.topics
        if response.lock_ms > 0:
            self.lock_s = response.lock_ms / 1000
        return response

    def _only(self, response: ShareResponse) -> ShareAnswer:
        """Return the answer for the partition. Raises: UpstreamLost, it is not led there."""
        answers = [
            answer
            for topic in response.topics
            for answer in topic.partitions
            if (topic.topic_id, answer.partition)
            == (self.place.topic_id.bytes, self.place.partition)
        ]
        return answers[0] if answers else ShareAnswer(self.place.partition)

    def _lost(self, reason: str) -> UpstreamLost:
        return UpstreamLost(f"share session: {self.place}: {reason}")


def lacking(version_max: Mapping[int, int]) -> str | None:
    """Return the reason why brokers cannot serve keylane's sessions; None: they can."""
    has = min(
        version_max.get(ApiKey.SHARE_FETCH, -1), version_max.get(ApiKey.SHARE_ACKNOWLEDGE, -1)
    )
    if has >= RENEW_FROM:
        return None
    found = "no share groups" if has < 0 else f"ShareAcknowledge v{has}"
    return (
        f"order by key renews the locks of records, which takes ShareAcknowledge v{RENEW_FROM} "
        f"(Kafka 4.2); the brokers have {found}"
    )
