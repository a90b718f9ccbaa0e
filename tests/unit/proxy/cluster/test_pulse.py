"""proxy/cluster/pulse.py: a broker that hangs or refuses is away until it answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from keylane.errors import BrokerUnreachable
from keylane.proxy.cluster import pulse
from keylane.proxy.cluster.cluster import Broker
from keylane.proxy.cluster.pulse import Pulse
from keylane.proxy.runtime.event_log import EventLog
from keylane.tasks import spawn


class FakeLinks:
    """Brokers by port: some refuse, some hang."""

    def __init__(self) -> None:
        self.reach = SimpleNamespace(on_change=lambda: None)
        self.refusing: set[int] = set()
        self.hanging: set[int] = set()
        self.closed: list[int] = []
        self.asked: asyncio.Queue[int] = asyncio.Queue()

    async def kept(self, address: tuple[str, int]) -> Any:
        port = address[1]
        self.asked.put_nowait(port)
        if port in self.refusing:
            raise BrokerUnreachable(f"broker at kafka:{port}: connection refused")

        async def answer(*_: object, **__: object) -> bytes:
            if port in self.hanging:
                await asyncio.Event().wait()
            return b""

        return SimpleNamespace(request_raw=answer, close=lambda: self.closed.append(port))


class Wake(asyncio.Event):
    """Says when it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.is_waited_for.set()
        return await super().wait()


@pytest.fixture
def cluster() -> Any:
    """Two brokers."""
    brokers = {
        number: Broker(node_id=number, host="kafka", port=number, rack=None) for number in (1, 2)
    }
    return SimpleNamespace(brokers=brokers, links=FakeLinks())


async def rounds(watch: Pulse, cluster: Any, count: int = 1) -> None:
    """Ask both brokers so many times."""
    for _ in range(count):
        await asyncio.gather(*map(watch._ask, cluster.brokers.values()))


async def test_a_broker_that_refuses_or_hangs_is_away(cluster, monkeypatch) -> None:
    """One event when it goes, one when it is back; since when it is away stays."""
    monkeypatch.setattr(pulse, "ANSWER_S_MAX", 0.01)
    now_ms = [1_000]
    log = EventLog(lambda: now_ms[0])
    watch = Pulse(cluster, lambda: now_ms[0], log.note)
    await rounds(watch, cluster)
    assert (watch.away(), watch.kafka_away()) == ({}, None)

    cluster.links.refusing.add(1)
    await rounds(watch, cluster)
    now_ms[0] = 3_000
    cluster.links.hanging.add(2)
    await rounds(watch, cluster, 2)
    lost = watch.kafka_away()

    assert cluster.links.closed == [2, 2], "a connection that hangs is not asked again"
    assert {node_id: away.since_ms for node_id, away in watch.away().items()} == {1: 1000, 2: 3000}
    assert lost is not None and lost.since_ms == 3_000
    cluster.links.refusing.clear()
    await rounds(watch, cluster)
    assert watch.away().keys() == {2} and watch.kafka_away() is None
    assert [event.text for event in log.after(0, limit=9)] == [
        "Broker 1 at kafka:1 is away: connection refused.",
        "Broker 2 at kafka:2 is away: no answer within 0.01 s.",
        "Broker 1 at kafka:1 answers again after 2 s.",
    ]


async def test_a_connection_that_fails_is_looked_at_at_once(cluster, monkeypatch) -> None:
    """A client has met it; the next question does not wait for its time."""
    monkeypatch.setattr(pulse, "INTERVAL_S", 3600.0)
    watch = Pulse(cluster, lambda: 0, EventLog(lambda: 0).note)
    watch._wake = wake = Wake()
    cluster.links.reach.on_change = wake.set
    running = spawn(watch.run(), "pulse")
    try:
        async with asyncio.timeout(30):
            assert {await cluster.links.asked.get() for _ in range(2)} == {1, 2}
            await wake.is_waited_for.wait()
            cluster.links.reach.on_change()
            assert {await cluster.links.asked.get() for _ in range(2)} == {1, 2}
    finally:
        running.cancel()
