"""Brokers that do not answer: one small question to each, with or without clients.

Source: Kafka protocol guide, ApiVersions.

Connections that clients make show a broker that refuses them (`reachability`). One that hangs, and
one that no client asks, are found here. Cost: a question per broker in INTERVAL_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from keylane.errors import KeylaneError
from keylane.proxy.cluster.cluster import Broker, Cluster
from keylane.proxy.runtime.event_log import Kind, NoteEvent, Severity
from keylane.wire.header import ApiKey

INTERVAL_S: Final = 3.0
ANSWER_S_MAX: Final = 5.0
"""A broker that takes longer for the smallest answer counts as away."""
REASON_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Away:
    """A broker that does not answer."""

    since_ms: int
    """Time in ms since 1970."""
    reason: str


class Pulse:
    """The brokers that are away. Use: `run`, as a watched task."""

    def __init__(self, cluster: Cluster, now_ms: Callable[[], int], note_event: NoteEvent) -> None:
        """now_ms: gives the time in ms since 1970."""
        self._cluster, self._now_ms, self._note_event = cluster, now_ms, note_event
        self._away: dict[int, Away] = {}
        self._wake = asyncio.Event()
        cluster.links.reach.on_change = self._wake.set

    def away(self) -> dict[int, Away]:
        """Return the brokers that do not answer, by id."""
        return dict(self._away)

    def kafka_away(self) -> Away | None:
        """Return since when no broker answers, and why; None: one does, or none was asked yet."""
        if not self._away or len(self._away) < len(self._cluster.brokers):
            return None
        return max(self._away.values(), key=lambda each: each.since_ms)

    async def run(self) -> None:
        """Ask again and again, at once when a connection to a broker fails."""
        while True:
            brokers = list(self._cluster.brokers.values())
            await asyncio.gather(*map(self._ask, brokers))
            self._wake.clear()
            started_s = time.monotonic()
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            # A broker that comes and goes wakes it often.
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - started_s)))

    async def _ask(self, broker: Broker) -> None:
        link = None
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                link = await self._cluster.links.kept((broker.host, broker.port))
                await link.request_raw(ApiKey.API_VERSIONS, 0, b"", timeout_s=ANSWER_S_MAX)
        except TimeoutError:
            if link is not None:
                link.close()  # only the connection may hang: the next question gets another one
            self._lost(broker, f"no answer within {ANSWER_S_MAX:g} s")
        except (KeylaneError, OSError) as error:
            self._lost(broker, str(error)[:REASON_CHARS_MAX])
        else:
            self._found(broker)

    def _lost(self, broker: Broker, reason: str) -> None:
        address = f"{broker.host}:{broker.port}"
        reason = reason.removeprefix(f"broker at {address}: ")  # the sentence has it
        known = self._away.get(broker.node_id)
        since_ms = self._now_ms() if known is None else known.since_ms
        self._away[broker.node_id] = Away(since_ms, reason)
        if known is None:
            self._note_event(
                Kind.BROKER,
                f"Broker {broker.node_id} at {address} is away: {reason}.",
                severity=Severity.ERROR,
            )

    def _found(self, broker: Broker) -> None:
        away = self._away.pop(broker.node_id, None)
        if away is not None:
            away_s = max(0, self._now_ms() - away.since_ms) / 1000
            self._note_event(
                Kind.BROKER,
                f"Broker {broker.node_id} at {broker.host}:{broker.port} answers again after "
                f"{away_s:.0f} s.",
            )
