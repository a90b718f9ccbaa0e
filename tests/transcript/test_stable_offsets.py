"""Offsets of transactions that have just ended: requests wait for the markers."""

from __future__ import annotations

import pytest

from tests.transcript.fake import FakeContext, call
from tests.transcript.test_transactions import (
    BUSY,
    FETCH,
    UNSTABLE,
    commit,
    end,
    look,
    note,
    stands,
    takes,
)


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_client_that_cannot_ask_for_stable_offsets_waits_for_the_markers(version) -> None:
    """Kafka answers EndTxn before them. The next owner of a lane must not start before its end."""
    context = FakeContext()
    stands(context, 100)
    text = note(100, {1: 120})
    takes(context, 100, text)
    await commit(context, {1: 120})
    await end(context)
    context.events.clear()
    stands(context, 100, error=UNSTABLE)
    stands(context, 100, error=UNSTABLE)
    stands(context, 100, text)

    assert await look(context, 100, text, version=version) == [100, 120, 100, 100]
    assert context.events.count("pause") == 2
    assert context.stats.offsets_unstable_waits == 2


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_client_that_cannot_ask_for_stable_offsets_has_to_come_later(version) -> None:
    """A transaction that goes on may still commit: what stands before it is not given out."""
    context = FakeContext()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    context.world.wait_s = 1.5
    for _ in range(2):
        stands(context, 100, error=UNSTABLE)
    entries = [
        {"partition_index": 0, "committed_offset": 100, "metadata": ""},
        {"partition_index": 1, "committed_offset": 60, "metadata": ""},
    ]
    context.expect(FETCH, None, {"topics": [{"name": "orders", "partitions": entries}]})
    wanted = [{"name": "orders", "partition_indexes": [0, 1, 2]}]

    found = await call(context, FETCH, version, {"group_id": "g", "topics": wanted})

    shown = [(p["committed_offset"], p["error_code"]) for p in found["topics"][0]["partitions"]]
    assert shown == [(-1, BUSY), (60, 0), (-1, BUSY)]


async def test_a_client_that_asks_for_stable_offsets_has_to_ask_again() -> None:
    """From v7 on the broker's answer is the client's; nothing is asked besides."""
    context = FakeContext()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    entry = {"partition_index": 0, "committed_offset": -1, "error_code": UNSTABLE}
    context.expect(FETCH, None, {"topics": [{"name": "orders", "partitions": [entry]}]})
    wanted = [{"name": "orders", "partition_indexes": [2]}]

    found = await call(
        context, FETCH, 7, {"group_id": "g", "topics": wanted, "require_stable": True}
    )

    assert [p["error_code"] for p in found["topics"][0]["partitions"]] == [UNSTABLE]
