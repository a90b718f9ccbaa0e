"""Work beside the event loop, and waits that have a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Turns:
    """Of all connections of a node."""

    def __init__(self) -> None:
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large")
        """Reads and writes what has many entries."""

    async def in_thread(self, function: Callable[..., Result], *args: object) -> Result:
        """Compute what takes long beside the event loop, which serves all others meanwhile."""
        return await asyncio.to_thread(function, *args)

    async def in_turn(self, function: Callable[..., Result], *args: object) -> Result:
        """Do as `in_thread`, one at a time of all connections: for what any client can ask for."""
        return await asyncio.get_running_loop().run_in_executor(self._large, function, *args)

    async def in_time(self, awaitable: Awaitable[Result], seconds: float) -> Result:
        """Wait for a result. Raises: TimeoutError."""
        async with asyncio.timeout(seconds):
            return await awaitable

    async def pause(self, seconds: float) -> None:
        """Wait for what has no event."""
        await asyncio.sleep(seconds)

    def stop(self) -> None:
        """Begin nothing more."""
        self._large.shutdown(wait=False)
