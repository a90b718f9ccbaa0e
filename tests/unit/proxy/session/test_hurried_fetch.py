"""A fetch that waits for new data does not hold up the requests behind it."""

from __future__ import annotations

import asyncio
from typing import Any

from keylane.proxy.apis import Route, route_of
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.session import session as session_module
from tests.transcript.loopback import running

FETCH, HEARTBEAT = 1, 12


async def test_a_request_behind_a_fetch_hurries_it(monkeypatch) -> None:
    """Any request but a fetch; a fetch behind a fetch changes nothing."""
    may_end = asyncio.Event()

    async def fetch(request: Request, _context: Any) -> Any:
        await may_end.wait()
        return request.answer((b"own",))

    route = Route(api_key=FETCH, name="api1", version_min=0, version_max=9, handler=fetch)
    monkeypatch.setattr(
        session_module,
        "route_of",
        lambda request: route if request.api_key == FETCH else route_of(request),
    )
    async with running() as world:
        world.client.send((FETCH, 1), (FETCH, 2))
        await world.until(lambda: len(world.session.backlog) == 1)
        assert world.session.hurried == 0
        may_end.set()
        assert await world.client.answers(2) == [1, 2]
        may_end.clear()
        world.client.send((FETCH, 3))
        await world.until(lambda: world.stats.requests["api1"] == 3)

        world.client.send((HEARTBEAT, 4))

        await world.until(lambda: world.session.hurried == 1)
        may_end.set()
        world.broker.answer((await world.broker.request())[1])
        assert await world.client.answers(2) == [3, 4]
