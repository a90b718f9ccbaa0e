"""The start of a node beside signals: it may wait for brokers for minutes, and must not keep on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keylane.cli.proxy import _start
from keylane.errors import UpstreamLost


class Server:
    """Starts when it is let."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.go_on = asyncio.Event()
        self.was_given_up = False
        self._error = error

    async def start(self) -> None:
        """Wait; a cancelled start is noted."""
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.was_given_up = True
            raise
        if self._error is not None:
            raise self._error


def server(**options: Any) -> Any:
    """A stand-in for ProxyServer."""
    return Server(**options)


async def test_a_signal_ends_a_start() -> None:
    """False: there is nothing to serve; and the task that started goes on."""
    starting, stopping = server(), asyncio.Event()
    stopping.set()

    assert await _start(starting, stopping) is False

    assert starting.was_given_up
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_start_that_ends_serves() -> None:
    """True; a signal after it cancels nothing."""
    starting, stopping = server(), asyncio.Event()
    starting.go_on.set()

    assert await _start(starting, stopping) is True

    stopping.set()
    await asyncio.sleep(0)
    assert not starting.was_given_up


async def test_a_start_that_fails_says_so() -> None:
    """Its error comes out as it is."""
    starting = server(error=UpstreamLost("no broker"))
    starting.go_on.set()

    with pytest.raises(UpstreamLost, match="no broker"):
        await _start(starting, asyncio.Event())
