"""Settings of connections, and the system's counts of bytes that were taken."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import pytest

from keylane.proxy.net.sockets import acknowledged_bytes, has_left, keep_alive
from keylane.proxy.net.upstream import UpstreamLink
from tests.transcript.loopback import running

HEARTBEAT = 12
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux reports it, others do not")


class NoSocket(asyncio.BaseTransport):
    """A transport of something else."""

    def __init__(self, connection: Any = None) -> None:
        super().__init__({"socket": connection})


def options_of(connection: Any) -> tuple[int, ...]:
    """Keep-alive: on or off, idle, interval, count; and the user time-out."""
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    of_tcp = [connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
    return (connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *of_tcp)


@on_linux
async def test_a_clients_connection_is_probed() -> None:
    """Two minutes of silence and probes end it; a client that lives may take its time."""
    async with running() as world:
        await world.until(lambda: bool(world.sessions) and world.session._transport is not None)
        transport = world.session._transport
        assert transport is not None

        found = options_of(transport.get_extra_info("socket"))

    assert found == (1, 60, 15, 4, 0)


@on_linux
async def test_a_client_that_has_left_while_it_is_not_read() -> None:
    """Its end is not seen by reading, and yet the connection is closed."""
    async with running() as world:
        world.client.send((HEARTBEAT, 1))
        await world.broker.request()
        world.session._is_upstream_full = True
        world.session._update_reading()
        transport = world.session._transport
        assert not has_left(transport)
        later_s = world.session.active_s + 31
        world.session.check_timeouts(later_s, frame_s=30, idle_s=600)
        assert not world.closed

        world.client.writer.close()

        await world.until(lambda: has_left(transport))
        world.session.check_timeouts(later_s - 2, frame_s=30, idle_s=600)
        assert not world.closed, "its last requests may be on their way"
        world.session.check_timeouts(later_s, frame_s=30, idle_s=600)
        assert world.closed == [world.session]
    assert not has_left(NoSocket()) and not has_left(None)


@on_linux
async def test_a_brokers_connection_is_probed() -> None:
    """Beside the probes, bytes that were sent must be acknowledged in the same two minutes."""
    is_accepted, served = asyncio.Event(), asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_accepted.set()
        await served.wait()
        writer.close()

    broker = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = broker.sockets[0].getsockname()
    link = await UpstreamLink.open(*address, response_bytes_max=1 << 20)
    assert link._transport is not None

    found = options_of(link._transport.get_extra_info("socket"))

    # A listener that closes while it accepts would leave the connection open.
    await is_accepted.wait()
    link.close()
    served.set()
    broker.close()
    await broker.wait_closed()
    assert found == (1, 60, 15, 4, 120_000)


@on_linux
async def test_what_the_peer_has_taken_is_reported() -> None:
    """All that was sent, once it is acknowledged."""
    async with running() as world:
        world.client.send((12, 1))
        await world.broker.request()
        before = acknowledged_bytes(world.session._transport or NoSocket())

        world.broker.answer(1, bytes(1000))
        await world.client.answers(1)

        assert before == 0
        transport = world.session._transport
        assert transport is not None
        await world.until(lambda: acknowledged_bytes(transport) == 1008)


def test_what_has_no_socket_is_left_alone() -> None:
    """A transport without a socket, or with one that is not of TCP, as tests have."""
    here, there = socket.socketpair()
    with here, there:
        keep_alive(NoSocket(here))
        assert here.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        assert acknowledged_bytes(NoSocket(here)) is None
    keep_alive(NoSocket())
    assert acknowledged_bytes(NoSocket()) is None


def test_a_system_that_knows_less(monkeypatch) -> None:
    """What it has is set."""
    for name in ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT"):
        monkeypatch.delattr(socket, name, raising=False)
    with socket.socket() as connection:
        keep_alive(NoSocket(connection), unacknowledged_ms_max=5)

        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_connection_that_is_reset_already() -> None:
    """Options that it refuses are no error: the transport reports the loss."""

    class Reset:
        family = socket.AF_INET

        def setsockopt(self, *_: int) -> None:
            raise OSError(22, "Invalid argument")

    keep_alive(NoSocket(Reset()))
    assert acknowledged_bytes(NoSocket()) is None


def test_a_system_that_does_not_report_it_after_all() -> None:
    """Some sandboxes are such; a look once a second for all clients must not end by it."""

    class Silent:
        family = socket.AF_INET

        def getsockopt(self, *_: int) -> bytes:
            raise OSError(92, "Protocol not available")

    assert acknowledged_bytes(NoSocket(Silent())) is None


def test_a_system_that_reports_something_else(monkeypatch) -> None:
    """Other systems have a TCP_INFO as well, with other fields in it."""
    monkeypatch.setattr(sys, "platform", "freebsd14")
    with socket.socket() as connection:
        assert acknowledged_bytes(NoSocket(connection)) is None


def test_macos_has_another_name_for_the_silence(monkeypatch) -> None:
    """TCP_KEEPALIVE: without it the first probe would come after two hours."""
    option = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
    monkeypatch.delattr(socket, "TCP_KEEPIDLE", raising=False)
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", option, raising=False)
    with socket.socket() as connection:
        keep_alive(NoSocket(connection))

        assert option is not None
        assert connection.getsockopt(socket.IPPROTO_TCP, option) == 60
