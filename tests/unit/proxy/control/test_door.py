"""The control port on real sockets: strangers that connect, stall, smuggle, and take nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from keylane.config.security import SecurityConfig
from keylane.proxy.control.auth import ControlGuard
from keylane.proxy.control.door import make_door
from keylane.proxy.runtime.stats import ProxyStats
from tests.reference.control_port import ControlPort, control_port

WAIT_S = 20.0
"""A test that waits this long hangs."""
PROBE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: "
TOKEN = "0123456789abcdef"


def address_of(port: ControlPort) -> tuple[str, int]:
    host, _, number = port.server.address.rpartition(":")
    return host, int(number)


@asynccontextmanager
async def door(
    connections_max: int = 256, per_address_max: int = 64, **seconds: float
) -> AsyncIterator[tuple[ControlPort, ProxyStats]]:
    """A control port with these bounds; seconds: as `ControlBounds` has them."""
    stats = ProxyStats()
    connections = make_door(
        stats, connections_max=connections_max, per_address_max=per_address_max, **seconds
    )
    async with control_port(connections=connections) as port:
        yield port, stats


async def ask(port: ControlPort, data: bytes, *, source: str = "127.0.0.1") -> bytes:
    """All that is answered until the connection is closed."""
    reader, writer = await asyncio.open_connection(*address_of(port), local_addr=(source, 0))
    try:
        writer.write(data)
        return await rest_of(reader)
    finally:
        writer.close()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the end; nothing, where the system reset the connection.

    It does that when the server closes before it has read what the client sent.
    """
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    except ConnectionError:
        return b""


async def probe(port: ControlPort, source: str = "127.0.0.1") -> bytes:
    """The status line of /livez."""
    reader, writer = await asyncio.open_connection(*address_of(port), local_addr=(source, 0))
    try:
        writer.write(PROBE)
        async with asyncio.timeout(WAIT_S):
            return await reader.readline()
    finally:
        writer.close()


async def hold(port: ControlPort, data: bytes, source: str = "127.0.0.1") -> asyncio.StreamReader:
    """A connection that says this and no more."""
    reader, writer = await asyncio.open_connection(*address_of(port), local_addr=(source, 0))
    writer.write(data)
    held.append(writer)
    return reader


held: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """What `hold` has opened."""
    yield
    for writer in held:
        writer.close()
    held.clear()


@pytest.mark.parametrize("sources", [1, 20])
async def test_a_probe_gets_in_while_strangers_hold_all_connections(
    sources: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its own address or from many others; they are closed, the first ones first."""
    # Far beyond what 300 connections take: none is closed for its age, and one interval has all.
    long_s = 3600.0
    monkeypatch.setattr("keylane.proxy.control.door.LOG_INTERVAL_S", long_s)
    with caplog.at_level(logging.WARNING, "keylane.control"):
        async with door(connections_max=64, per_address_max=16, headers_s=long_s) as (port, stats):
            strangers = [
                await hold(port, HALF, f"127.0.0.{1 + number % sources}") for number in range(300)
            ]

            assert await probe(port) == b"HTTP/1.1 200 OK\r\n"
            assert await probe(port, "127.0.1.1") == b"HTTP/1.1 200 OK\r\n"

            assert await rest_of(strangers[0]) == b""
            assert stats.control_connections <= 64
            assert stats.control_connections_closed["too many"] >= 300 - 64
    assert caplog.text.count("control connections are closed") == 1, "one line in an interval"


async def test_half_a_header_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Nor nothing at all; the place is free again, and the counts say why."""
    async with door(headers_s=0.0) as (port, stats):
        for data in (b"", b"G", HALF):
            assert await rest_of(await hold(port, data)) == b""
        assert stats.control_connections == 0
        assert stats.control_connections_closed == {"slow request": 3}
    assert "reason=slow request" in caplog.text


async def test_an_answered_connection_that_is_silent_is_closed() -> None:
    """Without a line in the log: that is what clients do."""
    async with door(keep_alive_s=0.0) as (port, stats):
        assert (await ask(port, PROBE)).startswith(b"HTTP/1.1 200")
        assert stats.control_connections_closed == {"idle": 1}


async def test_a_reader_that_takes_nothing_is_closed() -> None:
    """Its answer is larger than all buffers on the way."""
    big = b"x" * 32 * 1024**2

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=big)

    stats = ProxyStats()
    connections = make_door(stats, connections_max=8, per_address_max=8, unread_s=0.0)
    port = ControlPort(connections=connections)
    port.server._runner.app.router.add_get("/big", answer)
    await port.server.start()
    client = socket.create_connection(address_of(port))
    try:
        client.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            while not stats.control_connections_closed:  # noqa: ASYNC110 (it has no event)
                await asyncio.sleep(0.05)
        assert stats.control_connections_closed == {"slow reader": 1}
    finally:
        client.close()
        await port.server.stop()


# -- what answers say ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /livez",
        "GET /readyz",
        "GET /healthz",
        "GET /metrics",
        "GET /openapi.json",
        "GET /assignments",
        "GET /nothing/here",
        "GET /groups/none",
        "DELETE /livez",
        "PUT /assignments",
        "HEAD /livez",
        "OPTIONS /",
        "BREW /livez",
        "",
    ],
)
async def test_every_answer_has_the_headers_and_none_has_a_banner(request_line: str) -> None:
    """Also what aiohttp answers by itself."""
    async with door() as (port, _):
        head = f"{request_line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await ask(port, head.encode())

    headers = answer.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
    assert "cache-control: no-store" in headers
    assert "x-content-type-options: nosniff" in headers
    assert "server: keylane" in headers
    assert not any(word in answer.lower() for word in (b"aiohttp", b"python", b"traceback"))


GUARDED = b"Host: localhost\r\nAuthorization: Bearer %s\r\n" % TOKEN.encode()
INNER = b"GET /assignments HTTP/1.1\r\n" + GUARDED + b"\r\n"
PUT = b"PUT /switches HTTP/1.1\r\n" + GUARDED + b"Content-Type: application/json\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /livez HTTP/9.9\r\n\r\n",
        b"GET  /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\nHost: localhost\n\n" + INNER,
        b"GET /livez HTTP/1.1\r\nHost : localhost\r\n\r\n" + INNER,
        b"GET /livez HTTP/1.1\r\n folded: x\r\n\r\n" + INNER,
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n" + INNER,
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n" + INNER,
        PUT + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}" + INNER,
        PUT + b"Content-Length: 2, 3\r\n\r\n{}" + INNER,
        PUT + b"Content-Length: +2\r\n\r\n{}" + INNER,
        PUT + b"Content-Length: -1\r\n\r\n{}" + INNER,
        PUT + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
        PUT + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n" + INNER,
        PUT + b"Transfer-Encoding: identity, chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n" + INNER,
        PUT + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + INNER,
        PUT + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
        b"GET /livez HTTP/1.1\r\nX: " + b"a" * 10_000 + b"\r\n\r\n" + INNER,
        b"GET /livez HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n" + INNER,
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n" + INNER,
    ],
    ids=lambda data: data[:60].decode("latin-1").encode("unicode_escape").decode(),
)
async def test_what_is_no_sound_http_is_answered_once_with_an_error(data: bytes) -> None:
    """And what stands behind it is not taken for a request, though it shows a good token."""
    async with guarded() as port:
        answer = await ask(port, data)

    assert answer.count(b"HTTP/1.") <= 1
    assert answer == b"" or answer.split(b" ")[1] in {b"400", b"401", b"404", b"405", b"505"}
    assert b'"assignments"' not in answer and TOKEN.encode() not in answer
    assert b"aaaa" not in answer, "nothing of the request comes back"


@asynccontextmanager
async def guarded() -> AsyncIterator[ControlPort]:
    """A port that wants TOKEN."""
    guard = ControlGuard(SecurityConfig())
    guard._admin = "a file"
    guard._tokens = lambda: [TOKEN]  # type: ignore[method-assign]
    async with control_port(guard=guard) as port:
        yield port


@pytest.mark.parametrize(
    "target",
    [
        "//assignments",
        "/livez/../assignments",
        "/livez/%2e%2e/assignments",
        "/livez%2f..%2fassignments",
        "/livez/..%2fassignments",
        "/%2e%2e/assignments",
        "/livez;/assignments",
        "/livez?/../assignments#",
        "/Livez/../assignments",
        "http://localhost/assignments",
        "http://localhost/livez/../assignments",
        "http://evil.example/assignments",
        "//localhost/livez/../assignments",
        "*",
        "assignments",
        "/livez\\..\\assignments",
    ],
)
async def test_no_spelling_of_a_path_leads_past_the_guard(target: str) -> None:
    """The path that the guard looks at is the one that is routed."""
    async with guarded() as port:
        head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await ask(port, head.encode())

    assert b'"assignments"' not in answer
    assert answer.count(b"HTTP/1.") == 1
    assert answer.split(b" ")[1] in {b"200", b"400", b"401", b"404", b"405"}
    if answer.split(b" ")[1] == b"200":
        assert answer.endswith(b"ok\n"), "the probe itself, which is open"


async def test_chunk_extensions_end_where_their_chunk_does() -> None:
    """One request, one answer; a bare LF in an extension begins none."""
    async with guarded() as port:
        body = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n"
        good = await ask(port, PUT + body)
        bad = await ask(port, PUT + body.replace(b";a=b\r\n", b";a\nb\r\n") + INNER)

    assert good.count(b"HTTP/1.1") == 1 and good.startswith(b"HTTP/1.1 2")
    assert b'"assignments"' not in bad


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b"[1e400]", b'"\xff"', b"\xff\xfe[\0]\0"]
)
async def test_a_body_that_is_too_deep_is_a_bad_request(body: bytes) -> None:
    """As is one that is no JSON in UTF-8."""
    async with door() as (port, _):
        head = (
            b"PUT /assignments HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"If-Match: *\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        answer = await ask(port, head + body)

    assert answer.startswith(b"HTTP/1.1 400")
    problem: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert problem["detail"] == "the body is no JSON"
