"""Outcomes of an ordered share group's other topics are counted as their broker is asked."""

from __future__ import annotations

from typing import Any

from keylane.proxy.apis.share.plain import PlainPart
from keylane.share.sessions import SessionKey, ShareSession
from keylane.wire.share import (
    AckBatch,
    ShareAcknowledgeRequest,
    SharePartition,
    ShareTopic,
)
from tests.transcript.fake import PLAIN, FakeContext, make_request

ACKNOWLEDGE = 79


async def test_they_are_counted_once_and_only_if_they_are_sound() -> None:
    """Of two partitions, one has batches that overlap; a second request repeats nothing."""
    context = FakeContext()
    sound = SharePartition(0, (AckBatch(4, 9, b"\x01"), AckBatch(12, 12, b"\x03")))
    wrong = SharePartition(1, (AckBatch(4, 9, b"\x02"), AckBatch(9, 12, b"\x02")))
    topics = (ShareTopic(None, PLAIN.bytes, (sound, wrong)),)
    wanted = ShareAcknowledgeRequest(group="g", member_id="m", epoch=3, topics=topics)
    request = make_request(ACKNOWLEDGE, 2, member(3))
    session = ShareSession(SessionKey(1, "g", "m"), "s1")
    part = PlainPart(request, wanted, topics, session, context)
    for epoch in (0, 1):
        context.expect(ACKNOWLEDGE, member(epoch), {"error_code": 0})

    await part.ask(wait_ms=0, records_max=0)
    await part.ask(wait_ms=0, records_max=0)

    context.finish()
    assert context.stats.share_acknowledgements == {"accept": 6, "reject": 1}


def member(epoch: int) -> dict[str, Any]:
    return {"group_id": "g", "member_id": "m", "share_session_epoch": epoch}
