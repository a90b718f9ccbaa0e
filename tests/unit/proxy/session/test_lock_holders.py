"""proxy/session/lock_holders.py: a broker that does not answer keeps no group's lock."""

from __future__ import annotations

import asyncio
from typing import Any

from keylane.proxy.session.lock_holders import LockHolders
from keylane.tasks import spawn


async def test_an_answer_that_is_late_under_a_lock() -> None:
    """The connection is ended, with a reason; an answer in time ends nothing."""
    loop, reported = asyncio.get_running_loop(), asyncio.Queue[str]()
    holding = LockHolders(reported.put_nowait, answer_s=0.01)
    begun = holding.begin()
    in_time: asyncio.Future[Any] = loop.create_future()
    holding.bound(in_time)
    in_time.set_result(None)
    await asyncio.sleep(0)  # its callbacks are called
    late: asyncio.Future[Any] = loop.create_future()
    holding.bound(late)

    assert "a group's lock is held" in await reported.get()
    holding.end(begun)
    assert reported.empty()


async def test_without_a_lock_answers_take_their_time() -> None:
    """A JoinGroup waits for other members, also beside a handler that holds a lock."""
    loop = asyncio.get_running_loop()
    late = asyncio.Event()
    holding = LockHolders(lambda _: late.set(), answer_s=0.0)
    answers = [loop.create_future() for _ in range(2)]

    async def joins() -> None:
        holding.bound(answers[0])

    begun = holding.begin()
    await spawn(joins(), "joins")
    holding.end(begun)
    holding.bound(answers[1])
    done = asyncio.Event()
    loop.call_later(0.0, loop.call_soon, done.set)  # behind any timer of these
    await done.wait()

    assert not late.is_set()


async def test_a_task_may_hold_several() -> None:
    """It holds one until the first is given back."""
    holding = LockHolders(lambda _: None)
    first = holding.begin()
    holding.end(holding.begin())
    assert holding._tasks == {asyncio.current_task()}
    holding.end(first)
    assert not holding._tasks
