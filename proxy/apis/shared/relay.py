"""Requests that go on to the client's broker: unchanged, or one per round of partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.physical import PhysicalRounds
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View

Handler = Callable[[Request, Context], Awaitable[Buffers]]
DecodedHandler = Callable[[Request, Any, Context], Awaitable[Buffers]]
"""A handler that gets the body of the request beside it, read once."""
Look = Callable[[Request, Context], Handler | None]
"""The handler of one request, with the parts that were read; None: it is relayed as bytes."""
Relays = Callable[[Request, Context], bool]


def unless(relays: Relays, handler: Handler) -> Look:
    """Return a look that relays a request where `relays` returns True."""
    return lambda request, context: None if relays(request, context) else handler


async def forward(
    request: Request, context: Context, entity: Any = None, *, frame: Frame | None = None
) -> Frame:
    """Return the broker's answer, for which the client's next request need not wait.

    entity, frame: sent in the place of the request's own.
    """
    if frame is None:
        frame = request.frame if entity is None else request.with_entity(entity)
    pending = context.send((frame,))
    context.release()
    return await pending


async def relay(request: Request, context: Context, entity: Any = None) -> Buffers:
    """Pass a request, or another body, and its answer as it came."""
    return (await forward(request, context, entity),)


async def ask(request: Request, entity: Any, context: Context) -> Any:
    """Return the broker's kio answer to the request with another body."""
    return request.decode_answer(await forward(request, context, entity))


async def ask_rounds(
    request: Request,
    wanted: Any,
    rounds: PhysicalRounds,
    context: Context,
    *,
    is_judged_whole: bool = False,
) -> list[Any]:
    """Return the broker's kio answers per round; all rounds are sent before the first answer.

    is_judged_whole: the broker is asked about a request without topics as well.
    """
    asked = [topics for topics in rounds.requests() if topics]
    if not asked and is_judged_whole:
        asked = [()]
    pending = [
        context.send((request.with_entity(replace(wanted, topics=topics)),)) for topics in asked
    ]
    context.release()
    return [request.decode_answer(await answer) for answer in pending]


def absent_lanes(view: View | None, indexes: Iterable[int]) -> list[int]:
    """Return those of `indexes` that are no lanes of the view; none for a plain topic."""
    if view is None:
        return []
    return [index for index in indexes if view.error_of(index)]
