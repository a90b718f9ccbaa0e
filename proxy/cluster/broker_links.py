"""Connections of keylane's own to brokers: opened, kept, and asked side by side.

Source: docs/decisions/040.

A question that any broker can answer goes to the one that answered last. When that one is slow,
the next is asked as well, so a broker that hangs costs a second, once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

from keylane.config.node import ProxyConfig, split_address
from keylane.errors import KeylaneError, UpstreamLost
from keylane.proxy.cluster.reachability import Reach
from keylane.proxy.net.answer_times import Address, Patience
from keylane.proxy.net.hedge import first_answer
from keylane.proxy.net.security.node_security import Security
from keylane.proxy.net.upstream import ServiceLink
from keylane.proxy.runtime.stats import ProxyStats
from keylane.tasks import spawn
from keylane.wire.header import ApiKey

log = logging.getLogger("keylane.cluster")

ANY_ANSWER_S_MAX: Final = 10.0
"""Time of all brokers together for an answer that any of them can give."""
AWAKE_S: Final = 1.0
"""Time for which a broker that has just answered is taken to be there."""
CLIENT_REQUEST_MS: Final = 10_000
"""Wait of keylane's aiokafka clients for a broker; their default is 40 s. While one of them waits
for a connection to a broker, it opens none to others."""


class BrokerLinks:
    """The links of one process. Invariant: one at most is kept, or being opened, per address."""

    def __init__(
        self,
        config: ProxyConfig,
        security: Security,
        stats: ProxyStats,
        *,
        where: Callable[[], Iterable[Address]],
        id_of: Callable[[str, int], int | None],
    ) -> None:
        """where: gives addresses beside the bootstrap ones. id_of: gives a broker's id."""
        self._config, self._security, self._stats = config, security, stats
        self._where, self._id_of = where, id_of
        self.reach = Reach(id_of, time.monotonic)
        self.patience = Patience(self._name_of, clock=time.monotonic, on_late=stats.timed_out)
        self._kept: dict[Address, ServiceLink] = {}
        self._opening: dict[Address, asyncio.Task[ServiceLink | KeylaneError]] = {}
        self._best: Address | None = None
        self._awake_s = float("-inf")
        """Time when `_best` gave the last answer that any broker could give."""
        self._probe: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Drop the connections that are kept."""
        for task in (*self._opening.values(), *filter(None, [self._probe])):
            task.cancel()
        for link in self._kept.values():
            link.close()

    async def awake_first(self) -> list[Address]:
        """Return addresses: first a broker that has just answered, last those that do not.

        Where none answers, all are as good, and nothing is raised.
        """
        if time.monotonic() - self._awake_s > AWAKE_S:
            if self._probe is None:  # thousands of clients may come at once
                self._probe = spawn(self._look_for_awake(), "which broker answers")
            await asyncio.shield(self._probe)
        return self._addresses()

    async def _look_for_awake(self) -> None:
        try:
            await self.ask_any(lambda link: link.request_raw(ApiKey.API_VERSIONS, 0, b""))
        except UpstreamLost as error:
            log.debug("no broker answers reason=%s", error)
        finally:
            self._probe = None

    def client_options(self) -> dict[str, Any]:
        """Return arguments of keylane's aiokafka clients, without brokers that do not answer.

        These clients try addresses by chance, one after the other. Raises: LoginRefused.
        """
        addresses = self._addresses()
        awake = [each for each in addresses if not self.patience.is_late(each)] or addresses
        return {
            **self._security.aiokafka_options(),
            "bootstrap_servers": [_written(address) for address in awake],
            "request_timeout_ms": CLIENT_REQUEST_MS,
        }

    async def ask_any(self, ask: Callable[[ServiceLink], Awaitable[Any]]) -> Any:
        """Ask the broker that answered last, and others if it is slow. Raises: UpstreamLost."""
        addresses = self._addresses()

        async def ask_at(address: Address) -> Any:
            answer = await ask(await self.kept(address))
            self._best, self._awake_s = address, time.monotonic()
            return answer

        def hedge(number: int) -> None:
            self._stats.hedged_requests += 1
            self.patience.overtaken(addresses[number])

        try:
            async with asyncio.timeout(ANY_ANSWER_S_MAX):
                ways = [partial(ask_at, address) for address in addresses]
                return await first_answer(ways, on_hedge=hedge)
        except TimeoutError:
            raise UpstreamLost(f"no broker answers in {ANY_ANSWER_S_MAX:g} s") from None

    def _addresses(self) -> list[Address]:
        """Return addresses of brokers in the order in which they are asked."""
        found = [] if self._best is None else [self._best]
        found += [split_address(part) for part in self._config.bootstrap.split(",")]
        found += self._where()
        return self.patience.in_order(found)

    async def kept(self, address: Address) -> ServiceLink:
        """Return the connection for questions to an address; all share one."""
        link = self._kept.get(address)
        if link is not None and link.is_open:
            return link
        opening = self._opening.get(address)
        if opening is None:
            opening = spawn(self._open_kept(address), f"link to {address[0]}:{address[1]}")
            self._opening[address] = opening
        return link_of(await asyncio.shield(opening))

    async def _open_kept(self, address: Address) -> ServiceLink | KeylaneError:
        try:
            outcome = await outcome_of(self.open(address))
            if not isinstance(outcome, KeylaneError):
                self._kept[address] = outcome
            return outcome
        finally:
            del self._opening[address]

    async def open(self, address: Address) -> ServiceLink:
        """Open a new connection. Raises: UpstreamLost."""
        host, port = address
        opening = ServiceLink.open(
            host,
            port,
            client_id=self._config.client_id,
            response_bytes_max=self._config.response_bytes_max,
            tls=self._security.upstream,
            login=self._security.login,
            patience=self.patience,
        )
        return await self.reach.watch(host, port, opening)

    def _name_of(self, address: Address) -> str:
        found = self._id_of(*address)
        return "?" if found is None else str(found)

    def leave(self, address: Address) -> None:
        """Drop the connection to an address that a broker has left."""
        link = self._kept.get(address)
        if self._best == address:
            self._best = None
        if link is not None and address not in self._addresses():
            del self._kept[address]
            link.close()


def _written(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def outcome_of(opening: Awaitable[ServiceLink]) -> ServiceLink | KeylaneError:
    """Return a connection, or why there is none, as no task may wait for it any more."""
    try:
        return await opening
    except KeylaneError as error:
        return error


def link_of(outcome: ServiceLink | KeylaneError) -> ServiceLink:
    """Raises: UpstreamLost."""
    if isinstance(outcome, KeylaneError):
        raise outcome
    return outcome
