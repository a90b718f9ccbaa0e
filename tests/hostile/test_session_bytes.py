"""Bytes on the listener that no client sends: one log line, and no other client notices."""

from __future__ import annotations

import asyncio
import logging
import random
import struct

import pytest

from keylane.proxy.apis import ROUTES
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.session.session import ClientSession
from keylane.wire.header import write_request
from tests.transcript.fake import FakeContext
from tests.transcript.loopback import running

LEGAL = 1 << 20


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


HOSTILE = {
    "negative size": struct.pack(">i", -1),
    "lowest size": struct.pack(">i", -(2**31)),
    "size zero": struct.pack(">i", 0),
    "size below a header": framed(b"abc"),
    "size above the bound": struct.pack(">i", LEGAL + 1),
    "http": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "header cut off": framed(b"\x00\x03\x00\x09\x00"),
    "client id cut off": framed(struct.pack(">hhih", 3, 9, 1, 500) + b"abc"),
    "client id of a wrong length": framed(struct.pack(">hhih", 3, 9, 1, -5)),
    "client id that is no text": framed(struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe"),
    "header tags without end": framed(struct.pack(">hhih", 3, 9, 1, -1) + b"\xff" * 12),
    "unknown key": framed(struct.pack(">hhih", 4711, 0, 1, -1)),
    "negative key": framed(struct.pack(">hhih", -1, 0, 1, -1)),
    "key between brokers": framed(struct.pack(">hhih", 4, 0, 1, -1)),
    "negative version": framed(struct.pack(">hhih", 3, -1, 1, -1)),
    "version of the future": framed(struct.pack(">hhih", 3, 999, 1, -1)),
    "count without end": write_request(3, 12, 1, "c", b"\xff\xff\xff\xff\x0f" + bytes(9)),
    "huge count": write_request(3, 1, 1, "c", struct.pack(">i", 2**31 - 1)),
    "negative count": write_request(3, 1, 1, "c", struct.pack(">i", -7)),
    "fetch of nothing": write_request(1, 12, 1, "c", b""),
    "fetch with a huge count": write_request(1, 11, 1, "c", bytes(25) + b"\x7f\xff\xff\xff"),
    "produce of nothing": write_request(0, 9, 1, "c", b""),
    "commit with bytes left over": write_request(8, 2, 1, "c", bytes(400)),
}


def serve_with_fake(session: ClientSession) -> FakeContext:
    """Handlers of the session meet a context without any broker."""
    context = FakeContext()
    session.context = context
    return context


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """keylane's own: the logger of asyncio also has what a collection finds of other tests."""
    return [record for record in caplog.records if record.name.startswith("keylane")]


def watch_loop() -> list[object]:
    """Exceptions in callbacks of this test's loop, as they come; asyncio would log them."""
    unhandled: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    return unhandled


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("is_known", [False, True], ids=["first bytes", "after a good request"])
async def test_hostile_bytes_close_with_one_log_line(name, is_known, caplog) -> None:
    """Closed at once, without a trace, whether or not the connection was used before."""
    unhandled = watch_loop()
    async with running(request_bytes_max=LEGAL) as world:
        if is_known:
            world.client.send((12, 1))
            await world.broker.request()
        await world.until(lambda: bool(world.sessions))
        serve_with_fake(world.session)
        with caplog.at_level(logging.INFO):
            world.client.writer.write(HOSTILE[name])
            await world.client.closed()

        (record,) = lines(caplog)
        assert unhandled == []
        assert record.levelno == logging.WARNING and record.exc_info is None
        assert "\n" not in record.getMessage() and len(record.getMessage()) < 300
        assert world.closed == [world.session]
        assert world.stats.sessions_refused == 1


@pytest.mark.parametrize("seed", range(40))
async def test_random_bytes_never_raise(seed, caplog) -> None:
    """Frames of served APIs with random bodies, then noise: refused, or waited for."""
    rng = random.Random(seed)
    stream = b"".join(
        write_request(
            rng.choice(list(ROUTES)), rng.randrange(14), n, "c", rng.randbytes(rng.randrange(80))
        )
        for n in range(5)
    )
    stream += rng.randbytes(rng.randrange(2000))

    unhandled = watch_loop()
    async with running(request_bytes_max=LEGAL) as world:
        await world.until(lambda: bool(world.sessions))
        serve_with_fake(world.session)
        with caplog.at_level(logging.INFO):
            world.client.writer.write(stream)
            world.client.writer.write_eof()
            await world.client.closed()
            await world.until(lambda: bool(world.closed))

    assert unhandled == []
    assert len(lines(caplog)) <= 1 and all(r.exc_info is None for r in lines(caplog))


async def test_a_hostile_connection_disturbs_no_other() -> None:
    """A good session beside a hundred that are refused goes on."""
    async with running(request_bytes_max=LEGAL) as good:
        good.client.send((12, 1))
        await good.broker.request()
        for data in [*HOSTILE.values()] * 4:
            async with running(request_bytes_max=LEGAL) as bad:
                bad.client.writer.write(data)
                bad.client.writer.write_eof()
                await bad.client.closed()

        good.broker.answer(1)

        assert await good.client.answers(1) == [1]


def test_stats_count_refusals_apart() -> None:
    """What the operator looks at when somebody scans ports."""
    names = {sample.name for sample in ProxyStats().samples()}

    assert "keylane_sessions_refused_total" in names
