"""StreamsGroupHeartbeat v0 (KIP-1071).

Behaviour: the broker derives the tasks of these groups from its partition counts, and knows no
lanes. An application that reads a lane topic would see the first lane of each partition only,
without an error. So a topology that names one, or whose pattern matches one, is refused with
INVALID_REQUEST and a message. Other topologies, and members that leave, pass unchanged. A pattern
that cannot be compared within bounds is refused with INVALID_REGULAR_EXPRESSION.
Not done: serving such groups; applications can use `group.protocol=classic`, their default.

Source: KIP-1071.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.proxy.apis.groups.lane_patterns import matched_lane_topics, unreadable
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import shows_lanes
from keylane.proxy.apis.shared.refusals import RefusalReason, refusal
from keylane.proxy.apis.shared.relay import relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.net.response_order import Buffers

REASON: Final = (
    "keylane: topic {topic} is seen as lanes, which this group protocol does not know; "
    "set group.protocol=classic, or subscribe to the topic where it has no lanes"
)
PATTERNS_MAX: Final = 100
"""Bound of one topology."""
OF_PATTERN: Final = "of the pattern"
"""Shown in the place of a topic's name: the refusal is of the pattern, whatever it matches."""


async def handle_streams_group_heartbeat(
    request: Request, wanted: Any, context: Context
) -> Buffers:
    """Refuse a topology that reads lanes, relay the rest."""
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
    return request.answer_entity(refusal(request, *refused, member_epoch=wanted.member_epoch))


def _of_topic(topic: str) -> RefusalReason:
    return RefusalReason(ErrorCode.invalid_request, REASON.format(topic=topic))


def _first_lane_topic(names: Iterable[str], context: Context) -> str | None:
    return next((name for name in names if context.registry.rule_of(name) is not None), None)


async def _find_refusal(
    group: str, patterns: Sequence[str], context: Context
) -> RefusalReason | None:
    """Return the reason to refuse a member's patterns; None: the broker is to be asked.

    A client without the right to the group is left to the broker before anything is compared.
    """
    if not patterns or not context.registry.lane_topics():
        return None
    if await context.group_error(group, Operation.READ):
        return None
    if len(patterns) > PATTERNS_MAX:
        return unreadable(f"there are {len(patterns)}, at most {PATTERNS_MAX}")
    for pattern in patterns:
        matches = await matched_lane_topics(pattern, context)
        if isinstance(matches, RefusalReason):
            return matches
        if matches:
            return _of_topic(OF_PATTERN)
    return None
