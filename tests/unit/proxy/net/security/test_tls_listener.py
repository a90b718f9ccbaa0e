"""proxy/net/security/tls_listener.py: handshakes that succeed, and the log of those that fail."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from keylane.proxy.net.security.tls import open_listener_context
from keylane.proxy.net.security.tls_listener import LOG_INTERVAL_S, REASONS_MAX, TlsDoor
from keylane.proxy.net.upstream import UpstreamLink
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.session.hooks import SessionHooks
from keylane.proxy.session.session import ClientSession
from keylane.wire.header import write_request
from tests.integration.certificates import Authority
from tests.transcript.loopback import WAIT_S, Broker, SelfContained

HEARTBEAT = 12


class Stand:
    """A listener behind a door, and what has come of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.authority = Authority(folder)
        self.stats, self.broker, self.now_s = ProxyStats(), Broker(), 0.0
        self.sessions: list[ClientSession] = []
        self.admitted: list[ClientSession] = []
        self.closed: list[ClientSession] = []
        self.port = self.broker_port = 0
        bounds = {"connections_max": 9, "per_address_max": 9, "timeout_s": WAIT_S, **options}
        context = open_listener_context(
            str(self.authority.issue("served")), None, str(self.authority.ca)
        )
        self.door = TlsDoor(context, stats=self.stats, clock=lambda: self.now_s, **bounds)

    def accept(self) -> ClientSession:
        async def connect() -> UpstreamLink:
            return await UpstreamLink.open("127.0.0.1", self.broker_port, response_bytes_max=1000)

        session = SelfContained(
            connect=connect,
            make_context=lambda session: session,
            stats=self.stats,
            request_bytes_max=1 << 20,
            hooks=SessionHooks(admit=self.admitted.append, on_closed=self.closed.append),
        )
        self.sessions.append(session)
        return session

    def client(self, certificate: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    async def talk(self, certificate: Path | None = None) -> bytes:
        """Connect, send a request with the last bytes of the handshake; the answer's body."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.client(certificate), server_hostname="localhost"
        )
        try:
            writer.write(write_request(HEARTBEAT, 2, 7, "c", b"body"))
            async with asyncio.timeout(WAIT_S):
                _, correlation_id = await self.broker.request()
                self.broker.answer(correlation_id, b"answer")
                return (await reader.readexactly(14))[8:]
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def knock(self, certificate: Path | None) -> str:
        """Connect, and be refused sooner or later: with TLS 1.3 after the client's own part."""

        def blocking() -> str:
            with socket.create_connection(("127.0.0.1", self.port), WAIT_S) as plain:
                try:
                    client = self.client(certificate)
                    with client.wrap_socket(plain, server_hostname="localhost") as secured:
                        secured.sendall(write_request(HEARTBEAT, 2, 7, "c", b"body"))
                        return f"read {secured.recv(100)!r}"
                except OSError as error:
                    return str(error)

        return await asyncio.to_thread(blocking)

    async def until(self, count: int) -> None:
        """Until so many handshakes have failed."""
        async with asyncio.timeout(WAIT_S):
            while self.stats.tls_handshakes_failed < count:  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.001)


@asynccontextmanager
async def standing(folder: Path, **options: Any) -> AsyncIterator[Stand]:
    stand = Stand(folder, **options)
    loop = asyncio.get_running_loop()
    upstream = await asyncio.start_server(stand.broker.serve, "127.0.0.1", 0)
    stand.broker_port = upstream.sockets[0].getsockname()[1]
    listener = await loop.create_server(lambda: stand.door.protocol(stand.accept), "127.0.0.1", 0)
    stand.port = listener.sockets[0].getsockname()[1]
    try:
        yield stand
    finally:
        for session in stand.sessions:
            session.close("test ends")
        listener.close()
        upstream.close()
        if stand.broker.writer is not None:
            await asyncio.wait_for(stand.broker.lost.wait(), WAIT_S)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def run(request) -> Any:
    """Run a test on the standard loop and on uvloop, which is what the proxy has."""

    def start(coroutine: Any) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(coroutine)

    return start


def test_a_session_begins_with_the_end_of_the_handshake(run, tmp_path) -> None:
    """Not before; and its first request may come with the handshake's last bytes."""

    async def check() -> None:
        async with standing(tmp_path) as stand:
            with socket.create_connection(("127.0.0.1", stand.port)) as silent:
                assert await stand.talk(stand.authority.issue("client")) == b"answer"

                assert len(stand.admitted) == 1
                assert stand.admitted[0].peer.startswith("127.0.0.1:")
                assert silent.getpeername()
            await stand.until(1)
            assert len(stand.admitted) == 1

    run(check())


def test_a_client_that_leaves_ends_its_session(run, tmp_path) -> None:
    """The node's books let it go, on either loop."""

    async def check() -> None:
        async with standing(tmp_path) as stand:
            assert await stand.talk(stand.authority.issue("client")) == b"answer"
            async with asyncio.timeout(WAIT_S):
                while not stand.closed:  # noqa: ASYNC110 - has no event
                    await asyncio.sleep(0.001)
            assert stand.closed == stand.sessions

    run(check())


@pytest.mark.parametrize(
    ("certificate", "reason", "alert"),
    [
        (None, "peer did not return a certificate", "CERTIFICATE_REQUIRED"),
        ("expired", "certificate has expired", "CERTIFICATE_EXPIRED"),
        ("foreign", "self-signed certificate|unable to get local issuer certificate", "UNKNOWN_CA"),
    ],
)
def test_refusals(run, tmp_path, caplog, certificate, reason, alert) -> None:
    """One line with the peer and what is wrong, and an alert to the client; there is no session."""

    async def check() -> None:
        async with standing(tmp_path) as stand:
            shown = None
            if certificate == "expired":
                shown = stand.authority.issue("old", expired=True)
            elif certificate == "foreign":
                shown = Authority(tmp_path / "other", name="other").issue("foreign")

            reported = await stand.knock(shown)

            await stand.until(1)
            assert alert in reported
            assert stand.admitted == [] and stand.broker.writer is None

    run(check())
    (line,) = [each for each in caplog.messages if "TLS handshake failed" in each]
    assert "peer=127.0.0.1:" in line
    assert re.search(reason, line)


def test_a_client_without_tls_and_a_silent_one(run, tmp_path, caplog) -> None:
    """Plain Kafka, and a client that is silent until its time is over."""

    async def check() -> None:
        async with standing(tmp_path) as stand:
            with socket.create_connection(("127.0.0.1", stand.port)) as plain:
                plain.sendall(write_request(HEARTBEAT, 2, 7, "c", b"body"))
                await stand.until(1)
            assert stand.admitted == []
        # Apart: on a machine that stalls the short time would end the other handshake as well.
        async with standing(tmp_path, timeout_s=0.2) as stand:
            with socket.create_connection(("127.0.0.1", stand.port)):
                await stand.until(1)
            assert stand.admitted == []

    run(check())
    assert "reason=SSL handshake is taking longer than 0.2 seconds" in caplog.text
    assert caplog.text.count("TLS handshake failed") == 2


def test_too_many_open_files(run, tmp_path, caplog, monkeypatch) -> None:
    """The connection is closed, and its place is free again."""

    def full(_descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def check() -> None:
        async with standing(tmp_path) as stand:
            with monkeypatch.context() as patched:
                patched.setattr("keylane.proxy.net.security.tls_listener.os.dup", full)
                await stand.knock(None)
                await stand.until(1)

            assert stand.door._admission.count == 0
            assert await stand.talk(stand.authority.issue("client")) == b"answer"

    run(check())
    assert "Too many open files" in caplog.text


def test_handshakes_under_way_are_bounded(run, tmp_path, caplog) -> None:
    """The first one that stalls ends for each that comes: clients get in while strangers stall."""

    async def check() -> None:
        async with standing(tmp_path, per_address_max=2) as stand:
            place = ("127.0.0.1", stand.port)
            silent = [await asyncio.open_connection(*place) for _ in range(20)]

            assert await stand.talk(stand.authority.issue("client")) == b"answer"

            async with asyncio.timeout(WAIT_S):
                for reader, _ in silent[:19]:
                    assert await reader.read() == b""
            for _, writer in silent:
                writer.close()
            await stand.until(20)

            assert await stand.talk(stand.authority.issue("client")) == b"answer"
            stand.door._admission.check()
            assert stand.door._admission.count == 0

    run(check())
    assert "reason=too many connections" in caplog.text


def test_one_line_for_each_reason_in_a_while(tmp_path, caplog) -> None:
    """Refusals are all counted; those without a line are in the next one."""
    stand = Stand(tmp_path)
    for number in range(5):
        stand.door.failed(f"10.0.0.{number}:1", "expired")
    stand.door.failed("10.0.0.9:1", "no TLS")
    stand.now_s = LOG_INTERVAL_S
    stand.door.failed("10.0.0.7:1", "expired")

    assert stand.stats.tls_handshakes_failed == 7
    # asyncio logs what the garbage of other tests was about, whenever it is collected.
    records = [record for record in caplog.records if record.name == "keylane.tls"]
    assert [record.levelno for record in records] == [logging.WARNING] * 3
    assert [record.getMessage() for record in records] == [
        "TLS handshake failed peer=10.0.0.0:1 reason=expired count=1",
        "TLS handshake failed peer=10.0.0.9:1 reason=no TLS count=1",
        "TLS handshake failed peer=10.0.0.7:1 reason=expired count=5",
    ]
    for number in range(2 * REASONS_MAX):
        stand.door.failed("10.0.0.1:1", str(number))
    assert len(stand.door._paces) == REASONS_MAX


def test_listeners_without_tls(tmp_path) -> None:
    """Their sessions begin at once."""

    async def check() -> None:
        door = TlsDoor(
            None, stats=ProxyStats(), connections_max=1, per_address_max=1, timeout_s=1.0
        )
        stand = Stand(tmp_path)

        assert door.protocol(stand.accept) is stand.sessions[0]

    asyncio.run(check())
