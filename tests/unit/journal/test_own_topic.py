"""A consumer closes whatever its fetches were doing, and its connections with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from keylane.journal.own_topic import close_consumer
from tests.virtual_time import run_virtual


class Client:
    """Counts how often it was closed."""

    closed = 0

    async def close(self) -> None:
        """Close its connections."""
        self.closed += 1


class Consumer:
    """As aiokafka's, with one fetch under way."""

    def __init__(self, error: Exception | None = None, *, waits: bool = False) -> None:
        self._client, self._error, self._waits = Client(), error, waits

    async def stop(self) -> None:
        """As `Fetcher.close` does, then the client's end."""
        if self._waits:
            fetching = asyncio.get_running_loop().create_task(asyncio.sleep(10))
            await asyncio.sleep(0)
            fetching.cancel()
            await fetching
        if self._error is not None:
            raise self._error
        await self._client.close()


def close(consumer: Any) -> int:
    """Close it in a separate task, and return how often its client was closed."""

    async def main() -> None:
        async with asyncio.timeout(5):
            await close_consumer(consumer)

    run_virtual(main)
    closed: int = consumer._client.closed
    return closed


def test_a_fetch_that_waits_for_its_next_try_does_not_end_the_caller() -> None:
    """Its CancelledError is of the fetch, not of the task that closes; connections are closed."""
    assert close(Consumer(waits=True)) == 1


def test_an_orderly_end_closes_once() -> None:
    """Nothing is closed twice."""
    assert close(Consumer()) == 1


def test_what_fails_is_said() -> None:
    """The caller decides which errors it may pass over."""
    with pytest.raises(KafkaConnectionError):
        close(Consumer(KafkaConnectionError("away")))


def test_the_callers_own_end_ends_it() -> None:
    """A time-out around it counts."""

    async def main() -> None:
        consumer: Any = Consumer()
        consumer.stop = lambda: asyncio.sleep(60)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await close_consumer(consumer)

    run_virtual(main)
