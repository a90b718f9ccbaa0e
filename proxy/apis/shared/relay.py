"""Requests that go on to the client's broker: as they came, or one for each round of partitions.

In:    requests.  Out: the broker's answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from keylane.proxy.apis.shared.context import Context, Request
from keylane.proxy.apis.shared.physical import PhysicalRounds
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View


async def relay(request: Request, context: Context) -> Buffers:
    """Pass a request that names no lane; the next one need not wait for its answer."""
    pending = context.send((request.frame,))
    context.release()
    return (await pending,)


async def ask_rounds(
    request: Request,
    wanted: Any,
    rounds: PhysicalRounds,
    context: Context,
    *,
    is_judged_whole: bool = False,
) -> list[Any]:
    """The broker's kio answers, one per round; all rounds are sent before the first answer.

    is_judged_whole: the broker has something to say of a request without topics as well.
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
    """Those of `indexes` that are no lanes of the view; none for a plain topic."""
    if view is None:
        return []
    return [index for index in indexes if view.error_of(index)]
