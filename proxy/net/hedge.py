"""The first answer of several that may be asked for: the next one is begun when one is slow.

Source: Dean, Barroso: The Tail at Scale (hedged requests); RFC 8305, Happy Eyeballs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from keylane.errors import KeylaneError, UpstreamLost
from keylane.tasks import spawn

HEDGE_S: Final = 1.0
"""A broker answers in milliseconds; it is waited for alone until then."""

Result = TypeVar("Result")


async def first_answer(
    ways: Sequence[Callable[[], Awaitable[Result]]],
    *,
    pause_s: float = HEDGE_S,
    on_hedge: Callable[[int], None] = lambda _: None,
) -> Result:
    """Return the first result; the next way begins when one has failed, or takes `pause_s`.

    on_hedge: gets the number of the way that was so slow.
    Raises: UpstreamLost, with all reasons; what no other way can heal, as it is.
    """
    pending: dict[asyncio.Task[Result | KeylaneError], int] = {}
    reasons: list[str] = []
    try:
        for number, way in enumerate(ways):
            pending[spawn(_outcome(way), f"way {number}")] = number
            found = await _next_result(pending, reasons, timeout_s=pause_s)
            if found is not None:
                return found[0]
            if number in pending.values() and number + 1 < len(ways):
                on_hedge(number)
        while pending:
            found = await _next_result(pending, reasons, timeout_s=None)
            if found is not None:
                return found[0]
    finally:
        for task in pending:
            task.cancel()
    raise UpstreamLost("no broker can be reached: " + "; ".join(reasons))


async def _next_result(
    pending: dict[asyncio.Task[Result | KeylaneError], int],
    reasons: list[str],
    *,
    timeout_s: float | None,
) -> tuple[Result] | None:
    """Return the first result, in a tuple; None: none came in time, or a way has failed."""
    done, _ = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in sorted(done, key=lambda task: pending[task]):
        del pending[task]
        outcome = task.result()
        if not isinstance(outcome, KeylaneError):
            return (outcome,)
        if not isinstance(outcome, UpstreamLost):
            raise outcome
        reasons.append(str(outcome))
    return None


async def _outcome(way: Callable[[], Awaitable[Result]]) -> Result | KeylaneError:
    """Return a way's result or failure: a value, since it may be that no task waits for it."""
    try:
        return await way()
    except KeylaneError as error:
        return error
