"""ShareAcknowledge v1-2: outcomes of records that keylane has handed out; others at the broker.

Behaviour: of a group without a rule, requests pass as bytes. Of a group with one (`share_groups`),
the outcomes of each partition are taken all or not at all: one offset that the member does not hold
refuses them with INVALID_RECORD_STATE. Outcomes of members are merged before the broker gets them,
and the answer comes when it has confirmed them. RENEW moves the end of the member's own lock, which
keylane keeps; the lock at the broker is renewed whatever the member does.
Not done: nothing.

Source: KIP-932, KIP-1222; docs/decisions/048.
"""

from __future__ import annotations

import uuid
from functools import partial

from kio.schema.errors import ErrorCode

from keylane.proxy.apis.share.members import (
    MemberRequest,
    acknowledge,
    close_session,
    confirm,
    enter_session,
    is_final,
    part_topics,
    refuse_member,
)
from keylane.proxy.apis.share.plain import PlainPart
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.relay import Handler
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.wire.parts import KeyedTopic
from keylane.wire.share import (
    INITIAL_EPOCH,
    ShareAcknowledgeRequest,
    ShareAnswer,
    ShareResponse,
    read_share_acknowledge_request,
    write_share_acknowledge_response,
)
from keylane.wire.share_acks import group_of


def look_share_acknowledge(request: Request, context: Context) -> Handler | None:
    """Return whether to relay: the group has no rule."""
    if not context.ordered.has_rules:
        return None
    at = request.body_position
    if not context.ordered.has_group(group_of(request.frame, at)):
        return None
    wanted = read_share_acknowledge_request(request.frame, at, request.api_version)
    return partial(handle_share_acknowledge, wanted=wanted)


async def handle_share_acknowledge(
    request: Request, context: Context, wanted: ShareAcknowledgeRequest
) -> Buffers:
    """Take outcomes, wait until the broker has them, answer."""
    version = request.api_version
    response = await refuse_member(wanted, context)
    if response is None:
        session, code = enter_session(wanted, context, may_open=False)
        if session is None:
            response = ShareResponse(error_code=code)
        else:
            asked = await part_topics(session, wanted.topics, context)
            acknowledge(asked, context, is_renewal=wanted.is_renewal, version=version)
            if session.upstream_epoch == INITIAL_EPOCH:
                _refuse_plain(asked, context)
            plain = PlainPart(request, wanted, asked.plain, session, context)
            if plain.is_needed and (asked.plain or is_final(wanted)):
                await plain.ask(wait_ms=0, records_max=0)
            await confirm(asked)
            if is_final(wanted):
                close_session(wanted, context)
            ordered = (
                KeyedTopic(topic.name, topic.topic_id, tuple(map(_plain_error, topic.partitions)))
                for topic in asked.topics()
            )
            response = ShareResponse(
                throttle_ms=plain.throttle_ms,
                error_code=plain.error_code,
                error_message=plain.error_message,
                lock_ms=asked.lock_ms,
                topics=(*ordered, *plain.topics),
            )
    return request.answer(write_share_acknowledge_response(response, version))


def _refuse_plain(asked: MemberRequest, context: Context) -> None:
    """Answer topics that the broker serves, of a member that has no session there."""
    for topic in asked.plain:
        assert topic.topic_id is not None, "share requests name topics by id"
        is_known = context.registry.name_of_id(uuid.UUID(bytes=topic.topic_id)) is not None
        code = ErrorCode.invalid_record_state if is_known else ErrorCode.unknown_topic_id
        for entry in topic.partitions:
            asked.answer((topic.topic_id, entry.partition), ack_error_code=int(code))
    asked.plain.clear()


def _plain_error(answer: ShareAnswer) -> ShareAnswer:
    """Return the entry of an acknowledgement, whose error has another place than in a fetch."""
    return ShareAnswer(answer.partition, answer.ack_error_code, answer.ack_error_message)
