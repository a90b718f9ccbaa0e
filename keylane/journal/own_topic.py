"""Clients of keylane's own topics: their options, and how they open and close.

aiokafka cancels the fetches of a consumer that is stopped, and awaits each of them. One that waits
for its next try, as all do while a broker is away, answers with CancelledError, which comes out of
`stop` as if the task that called it was cancelled; the connections stay open (`Fetcher.close`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from keylane.errors import KeylaneError
from keylane.journal.set_aside import SetAside
from keylane.tasks import Watched

PRODUCE_MS: Final = 5_000
"""Time that brokers give the commit of a group (`offsets.commit.timeout.ms`). A leader that hangs
costs it, once more where aiokafka asks that broker for the leader, by chance; so an append has time
for the next leader. What was written is not written twice (KIP-98)."""
CLOSE_TIMEOUT_S: Final = 5.0
Closing = Callable[[AIOKafkaProducer], Awaitable[None]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OwnTopicClients:
    """Maker of clients of keylane's own topics, with what their users share."""

    bootstrap: str
    client_id: str = "keylane"
    extra_options: Callable[[], Mapping[str, Any]] = dict
    """Arguments of every new client: TLS, a password that may change. May raise UpstreamLost."""
    set_aside: SetAside = field(default_factory=SetAside)
    """Logs and counts records that cannot be taken."""
    watched: Watched = field(default_factory=Watched)
    """Runs the tasks that follow a topic."""

    def options(self) -> dict[str, Any]:
        """Return the arguments of a new client. Raises: UpstreamLost."""
        return {
            "bootstrap_servers": self.bootstrap,
            "client_id": self.client_id,
            **self.extra_options(),
        }

    async def administer(self, work: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        """Return what `work` gives with an admin client. Raises: UpstreamLost, KafkaError."""
        admin = AIOKafkaAdminClient(**self.options())
        try:
            await admin.start()
            return await work(admin)
        finally:
            await admin.close()

    def make_consumer(self, **more: Any) -> AIOKafkaConsumer:
        """Return a consumer without a group, which is not started. Raises: UpstreamLost."""
        return AIOKafkaConsumer(
            **self.options(), enable_auto_commit=False, auto_offset_reset="earliest", **more
        )

    async def open_producer(
        self,
        close: Closing,
        *,
        batch_bytes: int,
        epoch: tuple[int, int] | None = None,
        timeout_ms: int = PRODUCE_MS,
        is_idempotent: bool = True,
    ) -> AIOKafkaProducer:
        """Start a producer that waits for all in-sync replicas; `close` it if that fails.

        batch_bytes: bound on a batch. epoch: the producer id and epoch of `journal.epochs` that it
        writes with; None: its own. Raises: UpstreamLost, KafkaError.
        """
        producer = AIOKafkaProducer(
            **(self.options() | {"request_timeout_ms": timeout_ms}),
            acks="all",
            enable_idempotence=is_idempotent,
            max_batch_size=batch_bytes,
        )
        if epoch is not None:
            # aiokafka asks for another id at its start, unless it has one.
            producer._txn_manager.set_pid_and_epoch(*epoch)  # noqa: SLF001
        try:
            await producer.start()
        except BaseException:  # a cancellation, too
            await close(producer)
            raise
        return producer


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Close for good. It waits until a broker answers: nothing else ends the producer's tasks."""
    try:
        with suppress(KafkaError):  # was logged already
            await producer.stop()
    finally:
        await producer.client.close()  # which `stop` leaves out when it fails


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


async def end_within(closing: Awaitable[None], timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Wait for the end of a client; errors of Kafka and a late end do not matter any more."""
    with suppress(KafkaError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            await closing


def describe_error(error: BaseException) -> str:
    """Return the kind and text of an error, for a log line; of keylane's own the text says all."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, KeylaneError):
        return str(error)
    return f"{type(error).__name__}: {error}"
