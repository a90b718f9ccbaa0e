"""A rebalance of a KIP-848 group that an operator asks for, beside heartbeats that plan as well."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keylane.errors import ActionRefused
from keylane.proxy.apis.groups.consumer import plan
from keylane.proxy.apis.groups.consumer.wish import find_names
from keylane.proxy.apis.groups.rebalance import EVEN, NO_LANES, rebalance_group
from keylane.tasks import spawn
from tests.transcript.fake import FakeContext
from tests.transcript.lane_group import GROUP, hand_over, start
from tests.transcript.test_consumer_load import settle, weigh


async def uneven() -> FakeContext:
    """Two members that have settled, one with the heaviest lane."""
    context = FakeContext()
    await start(context)
    kept, got = await hand_over(context)
    await settle(context, 2, {"a": kept, "b": got})
    weigh(context, kept[0], got[0])
    return context


async def test_lanes_move_at_once_by_fine_margins() -> None:
    """A preview says the same and moves nothing; a group that is even has nothing to move."""
    context = await uneven()

    shown = await rebalance_group(GROUP, context, is_dry=True)
    assert context.stats.lane_moves["load"] == 0
    done = await rebalance_group(GROUP, context, is_dry=False)

    assert shown.moves == done.moves and (shown.is_asked, done.is_asked) == (False, True)
    assert context.stats.lane_moves["load"] == len(done.moves) == 2
    again = await rebalance_group(GROUP, context, is_dry=False)
    assert not again.is_asked and again.reason is not None and again.reason != EVEN


async def test_two_wishes_at_once_are_one(monkeypatch) -> None:
    """While topics are looked up for the one, the other does not begin."""
    context = await uneven()
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        looking.set()
        await go_on.wait()
        return await find_names(*args)

    monkeypatch.setattr(plan, "find_names", slowly)
    first = spawn(rebalance_group(GROUP, context, is_dry=False), "first wish")
    async with asyncio.timeout(30):
        await looking.wait()
        second = await rebalance_group(GROUP, context, is_dry=False)
        go_on.set()
        assert ((await first).is_asked, second.is_asked) == (True, False)


async def test_a_plan_with_faults_is_not_put_in_place(monkeypatch) -> None:
    """As with one that a heartbeat makes: the lanes stay, and the operator gets the reason."""
    context = await uneven()
    monkeypatch.setattr(plan, "find_faults", lambda *_: ["lane 1 of orders overlaps"])

    with pytest.raises(ActionRefused, match="failed its checks"):
        await rebalance_group(GROUP, context, is_dry=False)

    assert context.stats.lane_moves["load"] == 0 and context.stats.assignments_refused == 1
    monkeypatch.undo()
    assert (await rebalance_group(GROUP, context, is_dry=False)).is_asked


async def test_a_group_whose_lane_topics_are_gone_has_nothing_to_move(monkeypatch) -> None:
    """A topic that was deleted leaves members without lanes; the operator gets the reason."""
    context = await uneven()

    async def none(*_: Any) -> Any:
        return {}

    monkeypatch.setattr(plan, "find_names", none)
    for is_dry in (True, False):
        found = await rebalance_group(GROUP, context, is_dry=is_dry)
        assert (found.reason, found.moves, found.is_asked) == (NO_LANES, (), False)
