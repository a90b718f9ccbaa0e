"""StreamsGroupHeartbeat v0 (KIP-1071): applications on lanes are refused clearly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import FakeContext, call, check

STREAMS = 88
ACCEPTED = {"error_code": 0, "member_epoch": 4, "member_id": "m"}
REFUSED = 42


def streams(*sources: str, epoch: int = 3) -> dict[str, Any]:
    part = {"subtopology_id": "0", "source_topics": list(sources), "source_topic_regex": ()}
    return {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": epoch,
        "topology": {"epoch": 1, "subtopologies": [part]},
    }


@pytest.mark.parametrize(
    "asked", [streams("plain"), {**streams(), "topology": None}, streams("orders", epoch=-1)]
)
async def test_streams_of_plain_topics_pass(asked) -> None:
    """As direct; so do a heartbeat without a topology, and a member that leaves."""
    context = FakeContext()
    context.expect(STREAMS, None, ACCEPTED)

    check({"error_code": 0}, await call(context, STREAMS, 0, asked))


@pytest.mark.parametrize("name", ["orders", "plain.lanes-8"])
async def test_streams_of_lanes_are_refused(name) -> None:
    """The message names the topic and the cure, and the broker is not asked."""
    found = await call(FakeContext(), STREAMS, 0, streams("plain", name))

    assert (found["error_code"], found["member_epoch"]) == (REFUSED, 3)
    assert name in found["error_message"]
    assert "set group.protocol=classic" in found["error_message"]
