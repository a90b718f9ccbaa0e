"""ConsumerGroupHeartbeat v0-1 (KIP-848), StreamsGroupHeartbeat v0 (KIP-1071).

Behaviour: the broker computes these groups' assignments and knows no lanes. A member that
subscribes to a lane topic would see the first lane of each partition only, without an error. So a
heartbeat that names one, or whose pattern can match one, is refused with INVALID_REQUEST and a
message. Members of plain topics, and those that leave, pass unchanged. keylane keeps a pattern
that a broker has accepted, per member, and compares it again when lane topics change, since one
may be created later. A pattern that cannot be compared within bounds is refused with
INVALID_REGULAR_EXPRESSION. If no topic has lanes under its own name, nothing is compared, and
nothing kept.
Not done: serving such groups (their members can use `group.protocol=classic`).

Source: KIP-848, KIP-1071.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import PatternUnreadable
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import shows_lanes
from keylane.proxy.apis.shared.refusals import RefusalReason, refusal
from keylane.proxy.apis.shared.relay import relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.apis.shared.rights import topics_question
from keylane.proxy.net.response_order import Buffers

REASON: Final = (
    "keylane: topic {topic} is seen as lanes, which this group protocol does not know; "
    "set group.protocol=classic, or subscribe to the topic where it has no lanes"
)
UNREADABLE: Final = "keylane: the pattern cannot be compared with topics that have lanes: {reason}"
BUSY_TEXT: Final = "keylane: too many patterns are being compared, ask again"
PATTERNS_MAX: Final = 100
"""Bound of one topology."""

OF_PATTERN: Final = "of the pattern"
"""Shown in the place of a topic's name: the refusal is of the pattern, whatever it matches."""


def _of_topic(topic: str) -> RefusalReason:
    return RefusalReason(ErrorCode.invalid_request, REASON.format(topic=topic))


async def handle_consumer_group_heartbeat(request: Request, context: Context) -> Buffers:
    """Refuse lanes, relay the rest."""
    wanted = request.decode()
    member = str(wanted.group_id), str(wanted.member_id)
    if wanted.member_epoch < 0:
        context.patterns.forget(member)
        return await relay(request, context)
    topic = _first_lane_topic(wanted.subscribed_topic_names or (), context)
    if topic is not None:
        return _refuse(request, _of_topic(topic))
    if not shows_lanes(context):
        return await relay(request, context)
    said = getattr(wanted, "subscribed_topic_regex", None)
    pattern = context.patterns.of(member) if said is None else str(said)
    refused = await _find_refusal(member[0], [pattern] if pattern else [], context)
    if refused is not None:
        return _refuse(request, refused)
    answer = await relay(request, context)
    if said is not None and _is_taken(request, answer):
        context.patterns.keep(member, str(said))
    return answer


async def handle_streams_group_heartbeat(request: Request, context: Context) -> Buffers:
    """Refuse a topology that reads lanes, relay the rest."""
    wanted = request.decode()
    if wanted.topology is None or wanted.member_epoch < 0:
        return await relay(request, context)
    parts = wanted.topology.subtopologies
    topic = _first_lane_topic((name for part in parts for name in part.source_topics), context)
    refused = None if topic is None else _of_topic(topic)
    if refused is None and shows_lanes(context):
        patterns = [str(pattern) for part in parts for pattern in part.source_topic_regex]
        refused = await _find_refusal(str(wanted.group_id), patterns, context)
    if refused is None:
        return await relay(request, context)
    return _refuse(request, refused)


def _first_lane_topic(names: Iterable[str], context: Context) -> str | None:
    return next((name for name in names if context.registry.rule_of(name) is not None), None)


async def _find_refusal(
    group: str, patterns: Sequence[str], context: Context
) -> RefusalReason | None:
    """Return the reason to refuse a member's patterns; None: the broker is to be asked.

    A client without the right to the group is left to the broker before anything is compared.
    """
    topics = tuple(context.registry.lane_topics()) if patterns else ()
    if not topics or await context.group_error(group, Operation.READ):
        return None
    if len(patterns) > PATTERNS_MAX:
        reason = f"there are {len(patterns)}, at most {PATTERNS_MAX}"
        return RefusalReason(ErrorCode.invalid_regular_expression, UNREADABLE.format(reason=reason))
    for pattern in patterns:
        try:
            matches = await context.match_pattern(pattern, topics)
        except PatternUnreadable as error:
            text = UNREADABLE.format(reason=error)
            return RefusalReason(ErrorCode.invalid_regular_expression, text)
        if matches is None:
            return RefusalReason(ErrorCode.coordinator_load_in_progress, BUSY_TEXT)
        if await _first_shown(matches, context) is not None:
            return _of_topic(OF_PATTERN)
    return None


async def _first_shown(topics: Sequence[str], context: Context) -> str | None:
    """Return the first of these topics that the client may describe.

    Brokers leave the others out of what a pattern means as well, and that they are there must not
    show (Kafka 4.3, `GroupMetadataManager.refreshRegularExpressions`).
    """
    if not topics:
        return None
    answer = await context.ask(topics_question(*topics))
    shown = {str(topic.name) for topic in answer.topics if topic.error_code == 0}
    return next((name for name in topics if name in shown), None)


def _is_taken(request: Request, answer: Buffers) -> bool:
    code: ErrorCode = request.decode_answer(b"".join(answer)).error_code
    return code == ErrorCode.none


def _refuse(request: Request, reason: RefusalReason) -> Buffers:
    epoch = request.decode().member_epoch
    return request.answer_entity(refusal(request, *reason, member_epoch=epoch))
