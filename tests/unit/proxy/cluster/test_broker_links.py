"""Connections of keylane's own, to real sockets: a broker that hangs is overtaken by another."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from keylane.config.node import ProxyConfig
from keylane.errors import UpstreamLost
from keylane.proxy.cluster import broker_links
from keylane.proxy.cluster.broker_links import BrokerLinks
from keylane.proxy.net import upstream
from keylane.proxy.net.answer_times import Address
from keylane.proxy.net.hedge import first_answer
from keylane.proxy.net.security.node_security import Security
from keylane.proxy.net.upstream import ServiceLink
from keylane.proxy.runtime.stats import ProxyStats

NEVER_S = 600.0
API_VERSIONS_BODY = struct.pack(">hi", 0, 1) + struct.pack(">hhh", 3, 0, 13)


class Broker:
    """Answers each request with ApiVersions; while it hangs, it takes them only."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.connections = self.asked = 0
        self.address: Address = ("", 0)
        self.serving: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.serving.add(asyncio.current_task())
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                self.asked += 1
                await self.goes_on.wait()
                body = frame[4:8] + API_VERSIONS_BODY
                writer.write(struct.pack(">i", len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            await shut(writer)


async def shut(writer: asyncio.StreamWriter) -> None:
    """Close it, and wait until it is closed."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


class World:
    def __init__(
        self, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch, pause_s: float
    ) -> None:
        monkeypatch.setattr(broker_links, "first_answer", self._first_answer)
        self.pause_s = pause_s
        """Time after which the broker that is asked first is overtaken; others never are."""
        self.brokers, self.stats = brokers, ProxyStats()
        bootstrap = ",".join(f"{host}:{port}" for host, port in self.addresses)
        config = ProxyConfig(bootstrap=bootstrap)
        self.links = BrokerLinks(
            config, Security(config), self.stats, where=tuple, id_of=lambda _host, _port: 7
        )

    @property
    def addresses(self) -> list[Address]:
        return [broker.address for broker in self.brokers]

    async def ask(self) -> bytes:
        """Any broker."""
        answer = await self.links.ask_any(lambda link: link.request_raw(18, 0, b""))
        return bytes(answer)

    async def _first_answer(
        self, ways: Sequence[Callable[[], Awaitable[Any]]], *, on_hedge: Callable[[int], None]
    ) -> Any:
        """Ask as the product does; a machine that stalls has none of the others overtaken."""
        asked, others = [*ways[:1]], ways[1:]
        if others:
            asked.append(partial(first_answer, others, pause_s=NEVER_S))
        return await first_answer(asked, pause_s=self.pause_s, on_hedge=on_hedge)


@asynccontextmanager
async def cluster(
    count: int, monkeypatch: pytest.MonkeyPatch, *, pause_s: float = 0.01
) -> AsyncIterator[World]:
    """So many brokers behind one list of addresses; after a pause the second is asked as well."""
    brokers = [Broker() for _ in range(count)]
    servers = [await asyncio.start_server(broker.serve, "127.0.0.1", 0) for broker in brokers]
    for broker, server in zip(brokers, servers, strict=True):
        broker.address = "127.0.0.1", server.sockets[0].getsockname()[1]
    world = World(brokers, monkeypatch, pause_s)
    try:
        yield world
    finally:
        world.links.stop()
        for broker, server in zip(brokers, servers, strict=True):
            broker.goes_on.set()
            server.close()
            await asyncio.gather(*filter(None, broker.serving))


async def test_the_second_address_answers_where_the_first_one_hangs(monkeypatch) -> None:
    """Also on the connection that has answered before; from then on the second is asked first."""
    async with cluster(3, monkeypatch, pause_s=NEVER_S) as world:
        assert await world.ask() == API_VERSIONS_BODY
        hung, second, third = world.brokers
        hung.goes_on.clear()

        world.pause_s = 0.01
        assert await world.ask() == API_VERSIONS_BODY
        world.pause_s = NEVER_S
        assert await world.ask() == API_VERSIONS_BODY

        assert second.asked == 3 and third.asked == 0  # one to open, two questions
        assert hung.asked == 3 and world.stats.hedged_requests == 1
        assert (await world.links.awake_first())[0] == second.address
        assert world.links.client_options()["bootstrap_servers"] == [
            f"127.0.0.1:{broker.address[1]}" for broker in (second, third)
        ]


async def test_all_hang(monkeypatch) -> None:
    """The wait is bounded; with nothing to choose from, all addresses are as good as before."""
    monkeypatch.setattr(broker_links, "ANY_ANSWER_S_MAX", 0.5)  # the second is asked after 0.01
    async with cluster(2, monkeypatch) as world:
        for broker in world.brokers:
            broker.goes_on.clear()

        with pytest.raises(UpstreamLost, match="no broker answers"):
            await world.ask()

        found: list[Address] = []
        # Each look overtakes the broker that it asks first, unless the machine stalls meanwhile.
        while not all(map(world.links.patience.is_late, world.addresses)):
            found = await world.links.awake_first()
        assert sorted(found) == sorted(world.addresses)
        assert len(world.links.client_options()["bootstrap_servers"]) == 2


async def test_one_connection_is_kept_per_address(monkeypatch) -> None:
    """A caller that asks while it is being opened shares it."""
    async with cluster(1, monkeypatch) as world:
        (broker,) = world.brokers
        links = await asyncio.gather(*(world.links.kept(broker.address) for _ in range(5)))
        assert await world.links.kept(broker.address) is links[0]

        assert len(set(map(id, links))) == 1 and broker.connections == 1


async def test_clients_that_start_at_once_share_a_question(monkeypatch) -> None:
    """Which broker answers is remembered for a while."""
    monkeypatch.setattr(broker_links, "AWAKE_S", 60.0)
    async with cluster(2, monkeypatch, pause_s=NEVER_S) as world:
        found = await asyncio.gather(*(world.links.awake_first() for _ in range(50)))
        assert await world.links.awake_first() == found[0]

        assert all(each == world.addresses for each in found)
        assert world.brokers[0].asked == 2 and world.brokers[1].asked == 0


async def test_a_broker_that_does_not_answer_is_counted_by_its_id(monkeypatch) -> None:
    """It is also waited for longer the next time."""
    async with cluster(1, monkeypatch) as world:
        (broker,) = world.brokers
        link = await world.links.kept(broker.address)
        broker.goes_on.clear()
        # The bound itself would be longer here, had the machine stalled in the first answer.
        monkeypatch.setattr(world.links.patience, "seconds", lambda _address: 0.01)

        with pytest.raises(UpstreamLost, match=r"no answer to request 18 in 0\.01 s"):
            await link.request_raw(18, 0, b"")

        assert world.stats.upstream_timeouts == {"7": 1}
        assert world.links.patience.is_late(broker.address) and not link.is_open


async def test_an_answer_that_comes_slowly_is_waited_for(monkeypatch) -> None:
    """As long as it comes at all; a large one may take longer than the wait for its first byte."""
    piece = bytes(100_000)  # more than has to come in a second
    links: list[ServiceLink] = []

    class Wait(upstream._Wait):
        """Its time is over when the server says so, however slow the machine is."""

        def __init__(self, *options: Any) -> None:
            super().__init__(*options)
            self._timer.cancel()

        def _look(self) -> None:
            super()._look()
            self._timer.cancel()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(2):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            frame = await reader.readexactly(size)
            if not number:
                body = frame[4:8] + API_VERSIONS_BODY
                writer.write(struct.pack(">i", len(body)) + body)
                continue
            writer.write(struct.pack(">i", 4 + 600_000) + frame[4:8])
            for count in range(1, 6):
                writer.write(piece)
                while links[0]._link.arriving_bytes < count * len(piece):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                assert isinstance(links[0]._wait, Wait)
                links[0]._wait._look()
            writer.write(piece)
        await shut(writer)
        done.set()

    done = asyncio.Event()
    monkeypatch.setattr("keylane.proxy.net.answer_times.ANSWER_S_MIN", 1.0)
    monkeypatch.setattr(upstream, "_Wait", Wait)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with cluster(1, monkeypatch) as world:
        link = await world.links.open(("127.0.0.1", server.sockets[0].getsockname()[1]))
        links.append(link)

        assert len(await link.request_raw(18, 0, b"")) == 600_000

        link.close()
        await done.wait()
    server.close()
