"""Rights of one connection's client on lane topics and groups, as the broker says.

Source: KIP-430 (`topic_authorized_operations`); Kafka 4.3, `KafkaApis` (each call looks at the
right to the group first).

An answer is remembered for `authorization_ttl_s`: that is how long a right that was revoked may
still be used, and how long one that was granted may still be missed.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v3.request import HeartbeatRequest
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from keylane.proxy.apis.shared.request import Operation


class BrokerTopic(Protocol):
    """A topic at the brokers, such as a view of it."""

    @property
    def topic(self) -> str:
        """Return the broker's name."""

    @property
    def topic_id(self) -> uuid.UUID:
        """Return the broker's topic id."""


class _Known(NamedTuple):
    """The broker's answer."""

    is_shown: bool
    """The client may know that the topic is there."""
    operations: int
    until_s: float


GROUPS_MAX: Final = 1_000
"""Of one connection; more are asked about each time."""


class ClientRights:
    """The rights of one connection's principal, which never changes while the connection lives.

    A broker refuses a new login of another principal on the same connection (KIP-368).
    """

    def __init__(
        self,
        ask: Callable[[Any], Awaitable[Any]],
        *,
        ttl_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._ask, self._ttl_s, self._clock = ask, ttl_s, clock
        self._known: dict[uuid.UUID, _Known] = {}
        self._cluster: _Known | None = None
        self._until_s: dict[tuple[str, Operation], float] = {}
        """Until when a right to a group that was seen is remembered; a refusal is not."""

    async def may_alter_cluster(self) -> bool:
        """Return whether the principal may change what is the cluster's own. Raises: UpstreamLost.

        A broker without an authorizer grants it to every principal.
        """
        if self._cluster is None or self._clock() >= self._cluster.until_s:
            answer = await self._ask(CLUSTER_QUESTION)
            operations = int(answer.cluster_authorized_operations)
            self._cluster = _Known(True, operations, self._clock() + self._ttl_s)
        operations = self._cluster.operations
        return operations > 0 and bool(operations & 1 << Operation.ALTER)

    def known_topic_error(self, view: BrokerTopic, operation: Operation) -> int | None:
        """Do as `topic_error`, where it is remembered; None: the broker has to be asked."""
        known = self._known.get(view.topic_id)
        if known is None or self._clock() >= known.until_s:
            return None
        return _judge(known, operation)

    async def topic_error(self, view: BrokerTopic, operation: Operation) -> int:
        """Return the code of a refused operation, 0 when it is allowed. Raises: UpstreamLost."""
        remembered = self.known_topic_error(view, operation)
        if remembered is not None:
            return remembered
        answer = await self._ask(topics_question(view.topic, with_rights=True))
        topic = answer.topics[0]
        error_code = int(topic.error_code)
        if error_code not in (ErrorCode.none, ErrorCode.topic_authorization_failed):
            self._known.pop(view.topic_id, None)
            return error_code  # the broker's metadata lags, or the topic is gone: ask again
        known = self._known[view.topic_id] = _Known(
            error_code == 0,
            int(topic.topic_authorized_operations),
            self._clock() + self._ttl_s,
        )
        return _judge(known, operation)

    async def group_error(self, group: str, operation: Operation) -> int:
        """GROUP_AUTHORIZATION_FAILED, else 0: what is not refused for that is not judged here.

        A call that needs the right and changes nothing is asked: a description would say it too,
        with the metadata of all members.
        operation: READ, DESCRIBE or DELETE. Raises: UpstreamLost.
        """
        key = group, operation
        if self._clock() < self._until_s.get(key, float("-inf")):
            return 0
        answer = await self._ask(_GROUP_QUESTIONS[operation](GroupId(group)))
        if int(answer.error_code) == ErrorCode.group_authorization_failed:
            self._until_s.pop(key, None)
            return ErrorCode.group_authorization_failed
        if len(self._until_s) >= GROUPS_MAX:
            self._until_s.clear()
        self._until_s[key] = self._clock() + self._ttl_s
        return 0


def _judge(known: _Known, operation: Operation) -> int:
    is_allowed = known.is_shown and known.operations & 1 << operation
    return 0 if is_allowed else ErrorCode.topic_authorization_failed


def topics_question(*names: str, with_rights: bool = False) -> MetadataRequest:
    """Return the question for topics by name: what the client may know of them, and may do."""
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=TopicName(name)) for name in names),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=with_rights,
    )


def _heartbeat(group: GroupId) -> HeartbeatRequest:
    """Of no member: UNKNOWN_MEMBER_ID."""
    return HeartbeatRequest(group_id=group, generation_id=i32(-1), member_id="")


def _fetch_nothing(group: GroupId) -> OffsetFetchRequest:
    return OffsetFetchRequest(group_id=group, topics=(), require_stable=False)


def _delete_nothing(group: GroupId) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(group_id=group, topics=())


_GROUP_QUESTIONS: Final[Mapping[Operation, Callable[[GroupId], Any]]] = {
    Operation.READ: _heartbeat,
    Operation.DESCRIBE: _fetch_nothing,
    Operation.DELETE: _delete_nothing,
}


CLUSTER_QUESTION: Final = replace(topics_question(), include_cluster_authorized_operations=True)
