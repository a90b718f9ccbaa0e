"""Reads and writes of keylane's own topics: tried again for a while, timed, their losses named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

from keylane.errors import KeylaneError, RightMissing, UpstreamLost
from keylane.journal.own_topic import describe_error

log = logging.getLogger("keylane.offsets")

START_TIMEOUT_S: Final = 60.0
"""Time for which a start tries again while connections are lost; topics may take as long."""
PAUSE_S_MIN: Final = 0.1
"""Kafka clients' `retry.backoff.ms` default; doubles."""
PAUSE_S_MAX: Final = 5.0
REFUSALS: Final = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
OnAck = Callable[[int, int], None]
"""Called with partition and offset of each record that a broker has taken."""
OnAppend = Callable[[int, float, bool], None]
"""Called after each write: its records, its seconds, whether all in-sync replicas have it."""
T = TypeVar("T")


async def tried_again(
    doing: str,
    attempt: Callable[[], Awaitable[T]],
    *,
    passing: tuple[type[KeylaneError], ...] = (),
    timeout_s: float = START_TIMEOUT_S,
) -> T:
    """Return the result of `attempt`, tried again after each error that Kafka calls retriable.

    A broker ends connections whose login is too old, and that of a load may be among them.
    passing: other errors after which it is tried again.

    Raises:
        UpstreamLost: it failed for good, or until the time was over; what `attempt` raises else.
    """
    clock = asyncio.get_running_loop().time
    end_s, pause_s = clock() + timeout_s, PAUSE_S_MIN
    while True:
        try:
            return await attempt()
        except (KafkaError, *passing) as error:
            loss = describe_loss(doing, error)
            may_pass = isinstance(error, passing) or getattr(error, "retriable", False)
            if not may_pass or clock() + pause_s > end_s:
                raise loss from None
        log.warning("request failed: trying again in_s=%g reason=%s", pause_s, loss)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


@asynccontextmanager
async def timed_append(record_count: int, on_append: OnAppend) -> AsyncIterator[None]:
    """Report to `on_append` how long the body took, and whether it came to its end."""
    clock = asyncio.get_running_loop().time
    started_s, is_acknowledged = clock(), False
    try:
        yield
        is_acknowledged = True
    finally:
        on_append(record_count, clock() - started_s, is_acknowledged)


class Cuts:
    """Detector of logs that do not go on where their only writer has left them.

    An unclean election cuts a log, and a deleted topic begins anew. Another client may have written
    there, as a node does that was replaced on a cluster that fences none.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        """is_shared: others write there as well, of other groups."""
        self._is_shared = is_shared
        self.count = 0
        """Number of times that a log did not go on so."""
        self._lasts: dict[int, int] = {}

    def note(self, partition: int, offset: int) -> None:
        """Note where a record was taken; below 0: it was there already, and no place is given."""
        if offset < 0:
            return
        last = self._lasts.get(partition, offset - 1)
        if offset <= last or (offset > last + 1 and not self._is_shared):
            self.count += 1
        if offset <= last:
            log.error(
                "journal has lost records: writing states whole again partition=%d offset=%d"
                " last=%d", partition, offset, last,
            )  # fmt: skip
        self._lasts[partition] = offset


def describe_loss(doing: str, error: BaseException) -> UpstreamLost:
    """Return what an error of aiokafka means to the caller."""
    kind = RightMissing if isinstance(error, REFUSALS) else UpstreamLost
    return kind(f"{doing}: {describe_error(error)}")
