"""A member's request to an ordered share group: its session, its partitions, its outcomes.

Source: KIP-932; docs/decisions/048.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.config.share_rules import ShareRule
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.request import Operation
from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.outcome import Outcome
from keylane.proxy.share.partition import OrderedPartition
from keylane.share.acks import has_renewals
from keylane.share.sessions import Place, SessionKey, ShareSession, is_valid_member
from keylane.wire.parts import KeyedTopic, NodeEndpoint
from keylane.wire.share import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    AckBatch,
    ShareAcknowledgeRequest,
    ShareAnswer,
    ShareFetchRequest,
    SharePartition,
    ShareResponse,
    ShareTopic,
    ShareTopicAnswer,
)

ShareRequest = ShareFetchRequest | ShareAcknowledgeRequest
LOCK_MS: Final = 30_000
"""Duration for members while no broker has given one: Kafka's default."""


class TopicRef(NamedTuple):
    """A topic at the brokers."""

    topic: str
    topic_id: uuid.UUID


class OrderedTopic(NamedTuple):
    """A topic of a request that keylane serves; `error_code` refuses it."""

    ref: TopicRef
    rule: ShareRule
    error_code: int
    partition_count: int
    partitions: tuple[SharePartition, ...]

    def error_of(self, partition: int) -> int:
        """Return the code that refuses a partition, or 0."""
        if self.error_code or 0 <= partition < self.partition_count:
            return self.error_code
        return ErrorCode.unknown_topic_or_partition

    def place_of(self, group: str, partition: int) -> SharedPlace:
        """Return a partition of it."""
        return SharedPlace(group, self.ref.topic, self.ref.topic_id, partition)


@dataclass(slots=True)
class MemberRequest:
    """The parts of a request."""

    session: ShareSession
    ordered: list[OrderedTopic] = field(default_factory=list)
    plain: list[ShareTopic] = field(default_factory=list)
    """Topics that the broker serves."""
    answers: dict[Place, ShareAnswer] = field(default_factory=dict)
    """By topic id and partition."""
    pending: dict[Place, Outcome] = field(default_factory=dict)
    endpoints: dict[int, NodeEndpoint] = field(default_factory=dict)
    partitions: list[OrderedPartition] = field(default_factory=list)
    """Those that took part in this request."""

    def answer(self, place: Place, **values: Any) -> None:
        """Add to the answer for a partition."""
        known = self.answers.get(place)
        if known is None:
            known = ShareAnswer(place[1], records=())
        self.answers[place] = known._replace(**values) if values else known

    def topics(self) -> tuple[ShareTopicAnswer, ...]:
        """Return the answers by topic."""
        by_topic: dict[bytes, list[ShareAnswer]] = {}
        for (topic_id, _), answer in self.answers.items():
            by_topic.setdefault(topic_id, []).append(answer)
        return tuple(
            KeyedTopic(None, topic_id, tuple(found)) for topic_id, found in by_topic.items()
        )

    @property
    def lock_ms(self) -> int:
        """Return the duration of a lock in milliseconds."""
        locks = [partition.dispatcher.lock_s for partition in self.partitions]
        return int(1000 * min(locks)) if locks else LOCK_MS


async def refuse_member(wanted: ShareRequest, context: Context) -> ShareResponse | None:
    """Return the refusal of a member that may not use the group, or None."""
    if not is_valid_member(wanted.member_id):
        return ShareResponse(error_code=ErrorCode.invalid_request, error_message="member id")
    code = await context.group_error(wanted.group, Operation.READ)
    return ShareResponse(error_code=code) if code else None


def key_of(wanted: ShareRequest, context: Context) -> SessionKey:
    """Return the name of the member's session at this broker."""
    return SessionKey(context.broker_id, wanted.group, wanted.member_id)


def enter_session(
    wanted: ShareRequest, context: Context, *, may_open: bool
) -> tuple[ShareSession | None, int]:
    """Return the session of a request, or an error code."""
    sessions, key = context.ordered.sessions, key_of(wanted, context)
    if wanted.epoch != INITIAL_EPOCH or not may_open:
        return sessions.use(key, wanted.epoch)
    has_acks = any(entry.acks for topic in wanted.topics for entry in topic.partitions)
    session, replaced, code = sessions.open(key, context.session_id, has_acks=has_acks)
    if replaced is not None:
        context.ordered.end(replaced)
        if session is not None:
            session.upstream_epoch = INITIAL_EPOCH
    return session, code


async def part_topics(
    session: ShareSession, topics: Iterable[ShareTopic], context: Context
) -> MemberRequest:
    """Part the topics that keylane orders from those that the broker serves."""
    asked = MemberRequest(session)
    for topic in topics:
        assert topic.topic_id is not None, "share requests name topics by id"
        known = session.topics.get(topic.topic_id)
        if known is None:
            known = await _find_rule(session, topic.topic_id, context)
        if known is None:
            asked.plain.append(topic)
            continue
        ref, rule = known
        code = context.known_right_error(ref, Operation.READ)
        if code is None:
            code = await context.right_error(ref, Operation.READ)
        count = 0 if code else await _count_of(ref.topic, topic.partitions, context)
        asked.ordered.append(OrderedTopic(ref, rule, code, count, topic.partitions))
    return asked


async def _find_rule(
    session: ShareSession, topic_id: bytes, context: Context
) -> tuple[TopicRef, ShareRule] | None:
    """Return a topic's name and rule; None: the broker serves it."""
    found = uuid.UUID(bytes=topic_id)
    name = await context.name_of_id(found)
    rule = None if name is None else context.ordered.rule_of(session.key.group, name)
    if name is None or rule is None:
        return None
    session.topics[topic_id] = known = TopicRef(name, found), rule
    return known


async def _count_of(name: str, wanted: Iterable[SharePartition], context: Context) -> int:
    """Return a topic's partitions, asked for anew if a request names one that is not known."""
    highest = max((entry.partition for entry in wanted), default=-1)
    if highest >= context.registry.count_of(name):
        await context.refresh_topic(name)
    return context.registry.count_of(name)


def acknowledge(asked: MemberRequest, context: Context, *, is_renewal: bool, version: int) -> None:
    """Take the outcomes of a request; those that a broker must confirm are `pending`."""
    for topic in asked.ordered:
        for partition, acks in topic.partitions:
            if not acks:
                continue
            place = topic.ref.topic_id.bytes, partition
            code = topic.error_of(partition) or _renewal_error(
                acks, is_renewal=is_renewal, version=version
            )
            if code:
                asked.answer(place, ack_error_code=code)
                continue
            found = context.ordered.find(asked.session.key.group, place)
            if found is None:
                asked.answer(place, ack_error_code=int(ErrorCode.invalid_record_state))
                continue
            if found not in asked.partitions:
                asked.partitions.append(found)
            asked.answer(place)
            outcome = found.acknowledge(asked.session, acks)
            if isinstance(outcome, int):
                asked.answer(place, ack_error_code=outcome)
            else:
                asked.pending[place] = outcome
            if not isinstance(outcome, int) or outcome == 0:
                context.stats.count_share_acks(acks)


def _renewal_error(acks: Sequence[AckBatch], *, is_renewal: bool, version: int) -> int:
    if not has_renewals(acks) or (is_renewal and version >= 2):
        return 0
    return ErrorCode.invalid_request


async def confirm(asked: MemberRequest, *, may_be_early: bool = False) -> None:
    """Wait until the broker has confirmed all outcomes of the request.

    may_be_early: but for those that keylane repeats until the broker has confirmed them.
    """
    for place, outcome in asked.pending.items():
        if may_be_early and outcome.is_early:
            continue
        code = await outcome.wait()
        if code:
            asked.answer(place, ack_error_code=code)
    asked.pending.clear()


def is_final(wanted: ShareRequest) -> bool:
    """Return whether the request closes the session."""
    return wanted.epoch == FINAL_EPOCH


def close_session(wanted: ShareRequest, context: Context) -> None:
    """End the member's session: what it holds is released."""
    session = context.ordered.sessions.close(key_of(wanted, context))
    if session is not None:
        context.ordered.end(session)
