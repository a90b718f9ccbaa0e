"""A wait that others end, or a time: cheaper than an event under `asyncio.timeout`."""

from __future__ import annotations

import asyncio


class Alarm:
    """One task waits. What rings while it does not is kept until it waits again."""

    __slots__ = ("_future", "_is_rung")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._is_rung = False

    def ring(self) -> None:
        """End the wait, or the next one."""
        self._is_rung = True
        self._end()

    async def wait(self, seconds: float) -> None:
        """Wait until it rings, `seconds` at most."""
        if not self._is_rung and seconds > 0:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(seconds, self._end)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        self._is_rung = False

    def _end(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
