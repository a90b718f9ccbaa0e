"""Patterns of subscriptions (KIP-848, KIP-1071) and the lane topics that they match.

Source: Kafka 4.3, `GroupMetadataManager.refreshRegularExpressions`: topics that the member may not
describe are left out of a pattern's topics.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import PatternUnreadable
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.refusals import RefusalReason
from keylane.proxy.apis.shared.rights import topics_question

UNREADABLE: Final = "keylane: the pattern cannot be compared with topics that have lanes: {reason}"
BUSY_TEXT: Final = "keylane: too many patterns are being compared, ask again"


async def matched_lane_topics(pattern: str, context: Context) -> tuple[str, ...] | RefusalReason:
    """Return the lane topics of a pattern that the client may describe, or why they are unknown."""
    topics = context.registry.lane_topics()
    if not topics:
        return ()
    try:
        matches = await context.match_pattern(pattern, topics)
    except PatternUnreadable as error:
        return unreadable(str(error))
    if matches is None:
        return RefusalReason(ErrorCode.coordinator_load_in_progress, BUSY_TEXT)
    if not matches:
        return ()
    answer = await context.ask(topics_question(*matches))
    shown = {str(topic.name) for topic in answer.topics if topic.error_code == 0}
    return tuple(name for name in matches if name in shown)


def unreadable(reason: str) -> RefusalReason:
    """Return the refusal of a pattern that cannot be compared."""
    text = UNREADABLE.format(reason=reason)
    return RefusalReason(ErrorCode.invalid_regular_expression, text)
