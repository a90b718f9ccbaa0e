"""A handler that takes its group's lock waits for its connection first: or groups stand still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keylane.errors import GroupBusy
from keylane.journal.owned import GroupLock, InTime
from keylane.proxy.apis import Route, route_of
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.session import session as session_module
from keylane.proxy.session.lock_holders import HeldLock
from keylane.wire.header import write_request
from tests.transcript.loopback import running

OFFSET_COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 11, 12, 13, 14


async def test_a_commit_behind_a_join_does_not_hold_the_groups_lock(monkeypatch) -> None:
    """The join (here: a leave) waits for a member, whose commit needs the lock: it is free."""
    lock = asyncio.Lock()

    async def commit(request: Request, context: Any) -> Any:
        await context.caught_up()
        async with lock:
            await context.send((request.frame,))
        return request.answer((b"own",))

    own = Route(api_key=8, name="commit", version_min=0, version_max=9, handler=commit)
    monkeypatch.setattr(
        session_module,
        "route_of",
        lambda request: own if request.api_key == OFFSET_COMMIT else route_of(request),
    )
    async with running() as world:
        world.client.send((HEARTBEAT, 1), (LEAVE, 2), (OFFSET_COMMIT, 3))
        assert [(await world.broker.request())[0] for _ in range(2)] == [HEARTBEAT, LEAVE]
        await world.until(lambda: world.stats.requests["commit"] == 1)
        world.broker.answer(1, b"")
        assert await world.client.answers(1) == [1]
        assert not lock.locked() and world.broker.requests.empty()

        world.broker.answer(2, b"")

        assert await world.broker.request() == (OFFSET_COMMIT, 3)
        assert lock.locked()
        world.broker.answer(3, b"")
        assert await world.client.answers(2) == [2, 3]


async def test_a_connection_that_waits_for_nothing_has_caught_up(monkeypatch) -> None:
    """The first request of a connection has nothing to wait for."""

    async def commit(request: Request, context: Any) -> Any:
        await context.caught_up()
        return request.answer((b"own",))

    own = Route(api_key=8, name="commit", version_min=0, version_max=9, handler=commit)
    monkeypatch.setattr(session_module, "route_of", lambda _: own)
    async with running() as world:
        world.client.send((OFFSET_COMMIT, 1))

        assert await world.client.answers(1) == [1]


@pytest.mark.parametrize("key", [JOIN, SYNC])
async def test_work_of_its_own_does_not_hold_the_lock_behind_a_join(monkeypatch, key: int) -> None:
    """The client goes on beside it, and joins between the lock and the question."""
    passed = Route(api_key=key, name="passed", version_min=0, version_max=9)
    monkeypatch.setattr(
        session_module,
        "route_of",
        lambda request: passed if request.api_key == key else route_of(request),
    )
    lock, is_journaled = GroupLock(), asyncio.Event()
    refused: asyncio.Queue[GroupBusy] = asyncio.Queue()

    async with running() as world:
        session = world.session

        async def commit_again() -> None:
            await session.caught_up()
            try:
                async with HeldLock(InTime(lock, None), session.holding, world.stats):
                    await is_journaled.wait()
                    await session.send((write_request(HEARTBEAT, 2, 9, None, b""),))
            except GroupBusy as error:
                refused.put_nowait(error)

        world.client.send((HEARTBEAT, 1))
        assert await world.broker.request() == (HEARTBEAT, 1)
        session.aside(commit_again)
        world.broker.answer(1, b"")
        await world.until(lock.locked)
        world.client.send((key, 2))
        assert await world.broker.request() == (key, 2)

        is_journaled.set()

        assert "is joining again" in str(await refused.get())
        assert lock.is_free and world.broker.requests.empty()
        # The members that it waited for have come: keylane's own questions go on.
        world.broker.answer(2, b"")
        assert await world.client.answers(2) == [1, 2]
        session.aside(commit_again)
        key_sent, _ = await world.broker.request()
        assert key_sent == HEARTBEAT and lock.locked()
