"""Pushes that were prepared, and not sent, as the node lost the group in between."""

from __future__ import annotations

from typing import Any

from keylane.offsets.records.journal import StateKey
from tests.transcript.fake import ORDERS, FakeContext
from tests.transcript.test_offset_commit import (
    COMMIT,
    GROUP,
    codes,
    commit,
    no_history,
    offset_of,
    pushes,
    topic,
)

NOT_COORDINATOR = 16


async def test_a_push_that_was_not_sent_holds_up_no_other() -> None:
    """A rebalance of the nodes begins behind the intent of a first commit; the node stays."""
    context = FakeContext()
    no_history(context, 0)
    append = context.groups.append

    async def append_and_rebalance(records: Any) -> None:
        await append(records)
        context.groups.of_others.add(GROUP)

    context.groups.append = append_and_rebalance  # type: ignore[method-assign]
    refused = await commit(context, 8, topic("orders", {0: 10}))
    context.groups.append = append  # type: ignore[method-assign]
    context.groups.of_others.clear()
    context.expect(COMMIT, {"topics": [pushes(8, {0: 0})]}, {"topics": [codes(8, {0: 0})]})

    errors = await commit(context, 8, topic("orders", {2: 12}))

    assert list(refused.values()) == [NOT_COORDINATOR] and list(errors.values()) == [0]
    assert [offset_of(context, index) for index in (0, 2)] == [-1, 12]
    loaded = context.groups.restarted()
    assert loaded.get(StateKey(GROUP, ORDERS, 0)) == context.state(GROUP, "orders", 0)
    assert not loaded.intents.stored(StateKey(GROUP, ORDERS, 0))
