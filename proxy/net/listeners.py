"""A listener for each known broker, before a client gets the broker in an answer.

Source: docs/decisions/040.

A port may be taken, for a while or for good. The broker is left out of answers until its listener
is there: any other address would lead clients to another broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from keylane.errors import ConfigInvalid
from keylane.proxy.runtime.stats import ProxyStats
from keylane.tasks import spawn

log = logging.getLogger("keylane.server")

PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 60.0
"""Pauses between two tries to bind; they double."""

Address = tuple[str, int]


class Listeners:
    """Listeners of one node. Invariant: one task at most binds for a broker; callers share it."""

    def __init__(
        self,
        bind: Callable[[int], Awaitable[Address]],
        stats: ProxyStats,
        *,
        on_bound: Callable[[], None] = lambda: None,
    ) -> None:
        """bind: listens for a broker and gives the address for clients. Raises: ConfigInvalid.

        on_bound: is called for each listener that is there.
        """
        self._bind, self._stats, self._on_bound = bind, stats, on_bound
        self.addresses: dict[int, Address] = {}
        """Addresses for clients, by the broker's id."""
        self._tries: dict[int, tuple[asyncio.Future[None], asyncio.Task[None]]] = {}
        """By broker without a listener: the end of the first try, and the task that goes on."""

    async def learn(self, broker_ids: Iterable[int], *, strict: bool = False) -> None:
        """Bind for new brokers; on return each has been tried once.

        strict: raise what the first try has raised.
        """
        firsts = []
        for broker_id in broker_ids:
            if broker_id in self.addresses:
                continue
            if broker_id not in self._tries:
                first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                task = spawn(self._bind_at_last(broker_id, first), f"listener {broker_id}")
                self._tries[broker_id] = first, task
            firsts.append(self._tries[broker_id][0])
        if firsts:
            await asyncio.wait(firsts)  # not cancelled with us: others wait for them
        for first in firsts if strict else ():
            first.result()

    def stop(self) -> None:
        """Bind no more."""
        for first, task in self._tries.values():
            task.cancel()
            first.cancel()
        self._tries.clear()

    async def _bind_at_last(self, broker_id: int, first: asyncio.Future[None]) -> None:
        pause_s = PAUSE_S_MIN
        self._stats.brokers_unlistened += 1
        try:
            while True:
                try:
                    self.addresses[broker_id] = await self._bind(broker_id)
                    break
                except ConfigInvalid as error:
                    self._note_failed(broker_id, error, pause_s)
                    if not first.done():
                        first.set_exception(error)
                        first.exception()  # marked as seen: only a strict caller looks at it
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        except BaseException:
            first.cancel()
            raise
        finally:
            self._stats.brokers_unlistened -= 1
        self._tries.pop(broker_id, None)
        if not first.done():
            first.set_result(None)
        self._on_bound()

    def _note_failed(self, broker_id: int, error: ConfigInvalid, pause_s: float) -> None:
        self._stats.listener_binds_failed += 1
        log.error(
            "no listener for a broker, left out of answers broker=%d again_in_s=%g reason=%s",
            broker_id, pause_s, error,
        )  # fmt: skip
