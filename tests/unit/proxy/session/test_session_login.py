"""Before and while a client logs in: what is passed on, what waits, how much is taken."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from keylane.proxy.apis import ROUTES, Route
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.session.session import LOGIN_BYTES_MAX
from keylane.wire.header import write_request
from tests.transcript.loopback import World, running

METADATA, OFFSET_COMMIT, HEARTBEAT = 3, 8, 12
AUTHENTICATED, REFUSED = struct.pack(">BhBBqB", 0, 0, 0, 1, 0, 0), b"\x00\x00\x3a"
HANDSHAKE, AUTHENTICATE = 17, 36


@pytest.mark.parametrize("key", [METADATA, HEARTBEAT, OFFSET_COMMIT, 1])
async def test_nothing_before_the_login(key) -> None:
    """Where a login is required, the broker is not even called for anything else."""
    async with running(is_login_required=True) as world:
        world.client.send((key, 1))

        await world.client.closed()

        assert world.broker.requests.empty()
        assert world.stats.sessions_refused == 1


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_login_opens_the_way(is_taken) -> None:
    """Once the broker took a token; a token that it refused opens nothing."""
    async with running(is_login_required=True) as world:
        world.client.send((AUTHENTICATE, 1))
        world.broker.answer(
            (await world.broker.request())[1], AUTHENTICATED if is_taken else REFUSED
        )
        assert await world.client.answers(1) == [1]

        world.client.send((HEARTBEAT, 2))

        if is_taken:
            assert await world.broker.request() == (HEARTBEAT, 2)
        else:
            await world.client.closed()


async def test_frames_before_the_login_are_small() -> None:
    """A client without a login gets little memory; afterwards the usual bound holds."""
    large = LOGIN_BYTES_MAX + 1
    async with running(is_login_required=True, request_bytes_max=2 * large) as world:
        world.client.send((AUTHENTICATE, 1), size_bytes=large)
        await world.client.closed()
    async with running(is_login_required=True, request_bytes_max=2 * large) as world:
        world.client.send((AUTHENTICATE, 1))
        world.broker.answer((await world.broker.request())[1], AUTHENTICATED)
        await world.client.answers(1)

        world.client.send((HEARTBEAT, 2), size_bytes=large)

        assert await world.broker.request() == (HEARTBEAT, 2)


@pytest.mark.parametrize(
    ("mechanism", "answer"),
    [
        (b"\x00\x0bOAUTHBEARER", b'{"status":"invalid_token"}'),
        (b"\x00\x0dSCRAM-SHA-256", b"r=nonce,s=salt,i=4096"),
        (b"\x00\x08OF-LATER", b"a challenge"),
    ],
)
async def test_a_login_under_way_opens_nothing(mechanism, answer) -> None:
    """What a broker answers on the way has no error code: the bound stays until the login is over.

    What is asked meanwhile is the broker's to refuse, as direct, and its answer proves nothing.
    """
    large = LOGIN_BYTES_MAX + 1
    async with running(is_login_required=True, request_bytes_max=2 * large) as world:
        await begin_login(world, mechanism, answer)
        world.client.send((HEARTBEAT, 3))
        world.broker.answer((await world.broker.request())[1], b"\x00\x22")
        assert await world.client.answers(1) == [3]

        world.client.send((HEARTBEAT, 4), size_bytes=large)

        await world.client.closed()
        assert world.broker.requests.empty()
        assert not world.session.is_proven


async def test_a_mechanism_that_does_not_say_when_it_is_over() -> None:
    """A broker answers one request before that, and closes: two answers mean that it is over."""
    large = LOGIN_BYTES_MAX + 1
    async with running(is_login_required=True, request_bytes_max=2 * large) as world:
        await begin_login(world, b"\x00\x08OF-LATER", b"the last word")
        for number in (3, 4):
            assert not world.session.is_proven
            world.client.send((HEARTBEAT, number))
            world.broker.answer((await world.broker.request())[1], b"\x00\x00")
            await world.client.answers(1)

        world.client.send((HEARTBEAT, 5), size_bytes=large)

        assert await world.broker.request() == (HEARTBEAT, 5)


async def begin_login(world: World, mechanism: bytes, answer: bytes) -> None:
    """Send a handshake and a token, to which the broker answers without an error code."""
    world.client.writer.write(write_request(HANDSHAKE, 1, 1, "c", mechanism))
    world.broker.answer((await world.broker.request())[1], struct.pack(">hi", 0, 0))
    world.client.writer.write(write_request(AUTHENTICATE, 1, 2, "c", b"\0\0\0\4\0a\0b"))
    body = struct.pack(">hhi", 0, -1, len(answer)) + answer + bytes(8)
    world.broker.answer((await world.broker.request())[1], body)
    assert await world.client.answers(2) == [1, 2]


async def test_the_first_answer_is_the_proof_where_there_is_no_login() -> None:
    """Until then each word of the client is noted; afterwards none is."""
    received: list[Any] = []
    proven: list[Any] = []
    async with running(on_received=received.append, on_proven=proven.append) as world:
        world.client.send((HEARTBEAT, 1))
        await world.broker.request()
        assert (received, proven) == ([world.session], [])

        world.broker.answer(1, b"\x00\x00")
        await world.client.answers(1)
        world.client.send((HEARTBEAT, 2))
        await world.broker.request()

        assert (received, proven) == ([world.session], [world.session])


async def test_a_handshake_waits_for_handlers(monkeypatch) -> None:
    """One that has released and may still ask the broker: it would ask among the tokens."""
    go = asyncio.Event()

    async def slow(request: Request, context: Any) -> Any:
        context.release()
        await go.wait()
        await context.send((request.frame,))
        return request.answer((b"own",))

    own = Route(api_key=METADATA, name="slow", version_min=0, version_max=9, handler=slow)
    monkeypatch.setitem(ROUTES, METADATA, own)
    async with running() as world:
        world.client.writer.write(write_request(METADATA, 2, 1, "c", b""))
        world.client.writer.write(write_request(HANDSHAKE, 1, 2, "c", b"\x00\x05PLAIN"))
        await world.until(lambda: world.stats.requests["SaslHandshake"] == 1)
        assert world.broker.requests.empty()

        go.set()

        keys = []
        for _ in range(2):
            key, correlation_id = await world.broker.request()
            keys.append(key)
            world.broker.answer(correlation_id)
        assert keys == [METADATA, HANDSHAKE]
        assert await world.client.answers(2) == [1, 2]


PLAIN = b"\x00\x05PLAIN"


async def log_in(world: World, name: str) -> None:
    """Send a handshake and a token, which the broker takes."""
    token = f"\0{name}\0password".encode()
    world.client.writer.write(write_request(HANDSHAKE, 1, 1, "c", PLAIN))
    world.broker.answer((await world.broker.request())[1], struct.pack(">hi", 0, 0))
    size = struct.pack(">i", len(token))
    world.client.writer.write(write_request(AUTHENTICATE, 1, 2, "c", size + token))
    body = struct.pack(">hhiq", 0, -1, 0, 0)
    world.broker.answer((await world.broker.request())[1], body)


async def test_a_principal_is_reported_once() -> None:
    """The first login counts; a client that logs in again is the same, whatever the token says."""
    reported: list[str] = []
    async with running(admit_principal=reported.append) as world:
        for name in ("alice", "bob"):
            await log_in(world, name)
            assert await world.client.answers(2) == [1, 2]

        assert (world.session.principal, reported) == ("User:alice", ["User:alice"])


async def test_a_principal_with_too_many_connections() -> None:
    """Its login is not answered; it has no principal."""
    async with running(admit_principal=lambda name: f"no {name}") as world:
        await log_in(world, "alice")

        assert await world.client.answers(1) == [1]
        await world.client.closed()

        assert world.session.principal is None


async def test_a_token_is_not_taken_for_one_of_the_next_login() -> None:
    """The next handshake waits for the answer to the token before it."""
    async with running() as world:
        world.client.writer.write(write_request(HANDSHAKE, 1, 1, "c", PLAIN))
        world.broker.answer((await world.broker.request())[1], struct.pack(">hi", 0, 0))
        world.client.writer.write(write_request(AUTHENTICATE, 1, 2, "c", b"\0\0\0\4\0a\0b"))
        world.client.writer.write(write_request(HANDSHAKE, 1, 3, "c", b"\x00\x05OTHER"))
        assert await world.broker.request() == (AUTHENTICATE, 2)
        await world.until(lambda: world.stats.requests["SaslHandshake"] == 2)
        assert world.broker.requests.empty()

        world.broker.answer(2, struct.pack(">hhiq", 0, -1, 0, 0))

        assert await world.broker.request() == (HANDSHAKE, 3)
        assert world.session.principal == "User:a"


async def test_what_a_connection_holds() -> None:
    """A request that is on its way, and answers that are not taken; nothing when both are quick."""
    size = 1 << 20
    async with running(request_bytes_max=2 * size) as world:
        world.client.send((HEARTBEAT, 1))
        await world.broker.request()
        assert world.session.held_bytes == 0
        frame = write_request(HEARTBEAT, 2, 2, "c", bytes(size))

        world.client.writer.write(frame[:-1])
        await world.until(lambda: world.session.held_bytes >= size - 1)
        world.client.writer.write(frame[-1:])

        assert await world.broker.request() == (HEARTBEAT, 2)
        assert world.session.held_bytes == 0
        answer_bytes = 32 * size
        world.broker.answer(1, bytes(answer_bytes))
        await world.until(lambda: world.session.held_bytes > answer_bytes // 2)
        assert await world.client.answers(1) == [1]
        await world.until(lambda: world.session.held_bytes == 0)
        world.session.close("test")
        assert world.session.held_bytes == 0


async def test_a_connection_that_is_not_admitted() -> None:
    """Closed before it costs a broker connection."""
    async with running(admit=lambda session: f"no {session.address}") as world:
        world.client.send((HEARTBEAT, 1))

        await world.client.closed()

        assert world.closed == [world.session] and world.broker.writer is None
