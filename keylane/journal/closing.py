"""The end of aiokafka's consumers, also while a broker is away.

In:    a consumer.  Out: it is closed.
Source: aiokafka, `Fetcher.close`.

aiokafka cancels the fetches that are under way and awaits each of them. One that waits for its
next try, as all do while a broker is away, answers with CancelledError, which comes out of `stop`
as if the task that called it was cancelled; the connections stay open.
"""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer


async def close_consumer(consumer: AIOKafkaConsumer) -> None:
    """Close a consumer, and its connections in any case. Raises: KafkaError."""
    task = asyncio.current_task()
    assert task is not None, "consumers are closed in tasks"
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        if task.cancelling():
            raise
        await consumer._client.close()  # noqa: SLF001  `stop` does nothing a second time
