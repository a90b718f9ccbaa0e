"""A handler that takes its group's lock waits for its connection first: or groups stand still."""

from __future__ import annotations

import asyncio
from typing import Any

from keylane.proxy.apis import Route, route_of
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.session import session as session_module
from tests.transcript.loopback import running

OFFSET_COMMIT, HEARTBEAT, LEAVE = 8, 12, 13


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
