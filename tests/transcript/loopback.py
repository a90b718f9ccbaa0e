"""A session over loopback sockets: a client and a broker that the test plays by hand."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from typing import Any

from keylane.errors import BrokerUnreachable
from keylane.proxy.commits.late_pushes import LatePushes
from keylane.proxy.commits.refreshes import Refreshes
from keylane.proxy.net.security.login_watch import LoginWatch
from keylane.proxy.net.upstream import UpstreamLink
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.session.hooks import SessionHooks
from keylane.proxy.session.session import ClientSession
from keylane.proxy.topics.placement import Placement
from keylane.proxy.topics.range_table import RangeTableHolder
from keylane.proxy.topics.range_views import RangeViews
from keylane.wire.header import write_request

WAIT_S = 60.0
"""A test that waits longer hangs."""
TAKEN_BYTES = 1 << 20
"""Receive buffer of a client (SO_RCVBUF). Systems grow it up to 32 MiB for those that read."""


class Broker:
    """Takes requests as frames; the test answers them when it likes."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[bytes] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None
        self.reader: asyncio.StreamReader | None = None
        self.lost = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        try:
            while True:
                await self.reads.wait()
                head = await reader.readexactly(4)
                self.requests.put_nowait(await reader.readexactly(struct.unpack(">i", head)[0]))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost.set()
        finally:
            writer.close()

    async def request(self) -> tuple[int, int]:
        """(api key, correlation id) of the next request."""
        async with asyncio.timeout(WAIT_S):
            frame = await self.requests.get()
        key, _, correlation_id = struct.unpack_from(">hhi", frame)
        return key, correlation_id

    def answer(self, correlation_id: int, body: bytes = b"") -> None:
        assert self.writer is not None
        self.writer.write(struct.pack(">ii", 4 + len(body), correlation_id) + body)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *requests: tuple[int, int], size_bytes: int = 0) -> None:
        for key, correlation_id in requests:
            self.writer.write(write_request(key, 2, correlation_id, "c", bytes(size_bytes)))

    async def answers(self, count: int) -> list[int]:
        """Correlation ids of the next answers."""
        found = []
        async with asyncio.timeout(WAIT_S):
            for _ in range(count):
                size, correlation_id = struct.unpack(">ii", await self.reader.readexactly(8))
                await self.reader.readexactly(size - 4)
                found.append(correlation_id)
        return found

    async def closed(self) -> None:
        async with asyncio.timeout(WAIT_S):
            with suppress(ConnectionError):
                assert await self.reader.read() == b""


class World:
    """A listener with sessions, one client connected to it, and its broker."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.stats = ProxyStats()
        self.sessions: list[SelfContained] = []
        self.closed: list[ClientSession] = []
        self.client: Client
        self.connect: Client
        self.refuse_broker = False
        self.is_linked = False

    @property
    def session(self) -> SelfContained:
        return self.sessions[0]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let the loop run until something holds."""
        async with asyncio.timeout(WAIT_S):
            while not is_so():  # noqa: ASYNC110 (what is awaited has no event)
                await asyncio.sleep(0)


class NoGroups:
    """Groups without offsets of lanes."""

    late = LatePushes()

    def has_offsets(self, _group: str) -> bool:
        return False

    def lacks(self, _group: str) -> bool:
        return False


class SelfContained(ClientSession):
    """A session that is its handlers' context; no client has key ranges, no group has lanes."""

    groups = NoGroups()
    range_views = RangeViews(RangeTableHolder())
    placement = Placement()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.login = LoginWatch(subject_claim="sub")
        self.refreshes = Refreshes(interval_s=3600.0)
        self.hurried = 0

    def hurry_fetch(self) -> None:
        self.hurried += self.backlog.has_other_than_fetch


def connected(place: tuple[str, int]) -> socket.socket:
    """Connect a client whose system takes `TAKEN_BYTES`: left alone, it takes ever more."""
    side = socket.socket()
    side.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TAKEN_BYTES)
    side.connect(place)
    return side


@asynccontextmanager
async def running(*, request_bytes_max: int = 1 << 20, **options: Any) -> AsyncIterator[World]:
    """`options` go to the session, or to its hooks."""
    world = World()
    named = {field.name for field in fields(SessionHooks)}.intersection(options)
    hooks: SessionHooks[ClientSession] = SessionHooks(
        on_closed=world.closed.append, **{name: options.pop(name) for name in named}
    )
    loop = asyncio.get_running_loop()
    upstream = await asyncio.start_server(world.broker.serve, "127.0.0.1", 0)
    port = upstream.sockets[0].getsockname()[1]

    async def connect() -> UpstreamLink:
        if world.refuse_broker:
            raise BrokerUnreachable("broker at nowhere")
        link = await UpstreamLink.open("127.0.0.1", port, response_bytes_max=1 << 26)
        world.is_linked = True
        return link

    def accept() -> ClientSession:
        world.sessions.append(
            SelfContained(
                connect=connect,
                make_context=lambda session: session,
                stats=world.stats,
                request_bytes_max=request_bytes_max,
                hooks=hooks,
                **options,
            )
        )
        return world.session

    listener = await loop.create_server(accept, "127.0.0.1", 0)
    place = listener.sockets[0].getsockname()
    side = await asyncio.to_thread(connected, place)
    world.client = Client(*await asyncio.open_connection(sock=side, limit=1 << 20))
    # The system connects the client before the listener has taken it.
    await world.until(lambda: bool(world.sessions))
    try:
        yield world
    finally:
        # Aborted, for bytes that wait would keep a closed transport open beyond the loop's end.
        for session in world.sessions:
            session.close("test ends")
            if session._transport is not None:
                session._transport.abort()
        world.client.writer.transport.abort()
        listener.close()
        # A link may be open before the broker has taken it.
        if world.is_linked or world.broker.writer is not None:
            await asyncio.wait_for(world.broker.lost.wait(), WAIT_S)
        if world.broker.writer is not None:
            world.broker.writer.transport.abort()
        upstream.close()
