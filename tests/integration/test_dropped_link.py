"""A link that is really dropped: no packet passes any more, and neither end gets an error."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from keylane.proxy.net import sockets, upstream
from keylane.proxy.net.upstream import UpstreamLink
from keylane.wire.header import write_request
from tests.transcript.loopback import running

HEARTBEAT = 12
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
GONE_S_MAX = 30.0
"""Two orders below what Linux takes by itself, ten times what it is set to here."""


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in the place of minutes: a probe after one, two without an answer."""
    monkeypatch.setattr(sockets, "KEEPALIVE_IDLE_S", 1)
    monkeypatch.setattr(sockets, "KEEPALIVE_INTERVAL_S", 1)
    monkeypatch.setattr(sockets, "KEEPALIVE_COUNT", 2)
    monkeypatch.setattr(upstream, "UNACKNOWLEDGED_MS_MAX", 2000)


def set_link(flags: int) -> None:
    """Turn the loopback device of this thread's network on (IFF_UP) or off (0)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def in_own_network(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run in a thread that has a network for itself, which ends with it; skips without rights."""
    if sys.platform != "linux":
        pytest.skip("network namespaces are Linux's")

    def run() -> str | None:
        """Why it cannot be run here; None: it was."""
        if LIBC.unshare(CLONE_NEWNET):
            return f"no own network, run as root: {os.strerror(ctypes.get_errno())}"
        set_link(IFF_UP)
        asyncio.run(work())
        return None

    with ThreadPoolExecutor(1) as thread:
        hindered = thread.submit(run).result()
    if hindered is not None:
        pytest.skip(hindered)


def test_a_client_behind_a_dropped_link_is_missed() -> None:
    """It was answered and is silent; keylane's probes find out, and its broker is left as well."""

    async def work() -> None:
        async with running() as world:
            world.client.send((HEARTBEAT, 1))
            _, correlation_id = await world.broker.request()
            world.broker.answer(correlation_id)
            assert await world.client.answers(1) == [1]

            set_link(0)

            async with asyncio.timeout(GONE_S_MAX):
                while not world.closed:  # noqa: ASYNC110 (no event comes: that is the point)
                    await asyncio.sleep(0.05)
            assert world.closed == [world.session]
            assert world.stats.sessions_refused == 0
            assert world.session._link is not None and not world.session._link.is_open
            set_link(IFF_UP)
            world.broker.answer(2)  # its end of keylane's connection is still open; now it closes

    in_own_network(work)


@pytest.mark.parametrize("is_asked", [False, True], ids=["silent", "asked"])
def test_a_broker_behind_a_dropped_link_is_missed(is_asked: bool) -> None:
    """With and without bytes under way: the first is found by probes, the other by their lack."""

    async def work() -> None:
        accepted = asyncio.Event()
        leave = asyncio.Event()

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set()
            await leave.wait()
            writer.close()

        broker = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = broker.sockets[0].getsockname()
        link = await UpstreamLink.open(*address, response_bytes_max=1 << 20)
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        link.on_lost = lost.set_result
        await accepted.wait()

        set_link(0)
        if is_asked:
            link.send((write_request(HEARTBEAT, 2, 1, "c", b""),), lambda _frame: None)

        async with asyncio.timeout(GONE_S_MAX):
            reason = await lost
        assert reason and not link.is_open
        set_link(IFF_UP)
        leave.set()
        broker.close()

    in_own_network(work)
