"""Connections to brokers: answers in order, clean ends, awaitable requests of our own."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse
from kio.static.primitive import i32Timedelta

from keylane.errors import LoginRefused, UpstreamLost
from keylane.proxy.net.answer_times import Address, Patience
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.security.service_login import ServiceLogin
from keylane.proxy.net.upstream import ServiceLink, UpstreamLink, answer_of
from keylane.wire.messages import write_message
from tests.transcript.loopback import WAIT_S, Broker

ANY_TOPIC = MetadataRequest(topics=None, include_topic_authorized_operations=False)
EMPTY_METADATA = b"\x00" + write_message(
    MetadataResponse(throttle_time=i32Timedelta.parse(timedelta(0)), brokers=(), topics=())
)
API_VERSIONS_BODY = struct.pack(">hi", 0, 1) + struct.pack(">hhh", 3, 0, 13)


class Unhurried(Patience):
    """A test is the broker here: a machine that stalls for five seconds is not its silence."""

    def seconds(self, address: Address) -> float:
        return 3600.0


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Broker, int]]:
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    try:
        yield broker, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if broker.writer is not None:
            broker.writer.transport.abort()
            await asyncio.wait_for(broker.lost.wait(), WAIT_S)


async def opened(broker: Broker, port: int, body: bytes = API_VERSIONS_BODY) -> ServiceLink:
    async with asyncio.TaskGroup() as group:
        link = group.create_task(
            ServiceLink.open(
                "127.0.0.1",
                port,
                client_id="keylane",
                response_bytes_max=1 << 20,
                patience=Unhurried(),
            )
        )
        _, correlation_id = await broker.request()
        broker.answer(correlation_id, body)
    return link.result()


async def test_a_service_link_knows_what_the_broker_speaks() -> None:
    """It asks with ApiVersions v0, which every broker answers."""
    async with listening() as (broker, port):
        link = await opened(broker, port)

        assert link.version_max == {3: 13} and link.is_open
        link.close()
        assert not link.is_open


async def test_answers_go_to_their_callers() -> None:
    """Two requests under way: the first answer is the first one's."""
    async with listening() as (broker, port):
        link = await opened(broker, port)
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(link.request_raw(12, 0, b"")) for _ in range(2)]
            for body in (b"one", b"two"):
                broker.answer((await broker.request())[1], body)

        assert [bytes(task.result()) for task in both] == [b"one", b"two"]
        link.close()


async def test_a_typed_request() -> None:
    """kio in, kio out."""
    async with listening() as (broker, port):
        link = await opened(broker, port)
        throttle = i32Timedelta.parse(timedelta(milliseconds=7))
        answer = MetadataResponse(throttle_time=throttle, brokers=(), topics=())
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(link.request(ANY_TOPIC))
            broker.answer((await broker.request())[1], b"\x00" + write_message(answer))

        assert asked.result() == answer
        link.close()


async def test_an_answer_that_cannot_be_read_is_a_lost_broker() -> None:
    """A typed request ends with UpstreamLost, not with a decoding error."""
    async with listening() as (broker, port):
        link = await opened(broker, port)
        asked = asyncio.gather(link.request(ANY_TOPIC))
        broker.answer((await broker.request())[1], b"\x00nonsense")

        with pytest.raises(UpstreamLost, match="request 3"):
            await asked
        link.close()


async def test_a_broker_that_answers_nonsense_first() -> None:
    """The opening fails, and the connection is closed."""
    async with listening() as (broker, port):
        with pytest.raises(ExceptionGroup) as caught:
            await opened(broker, port, b"\x00")

        assert isinstance(caught.value.exceptions[0], UpstreamLost)
        await asyncio.wait_for(broker.lost.wait(), WAIT_S)


async def test_requests_under_way_end_when_the_broker_goes() -> None:
    """All of them, and later ones at once."""
    async with listening() as (broker, port):
        link = await opened(broker, port)
        waiting = asyncio.gather(
            *(link.request_raw(12, 0, b"") for _ in range(3)), return_exceptions=True
        )
        await broker.request()
        assert broker.writer is not None
        broker.writer.transport.abort()

        assert [type(result) for result in await waiting] == [UpstreamLost] * 3
        with pytest.raises(UpstreamLost):
            await link.request_raw(12, 0, b"")


async def test_a_request_without_an_answer_in_time_ends_the_connection() -> None:
    """A late answer would be taken for the next one's."""
    async with listening() as (broker, port):
        link = await opened(broker, port)

        with pytest.raises(UpstreamLost, match="no answer to request 12"):
            await link.request_raw(12, 0, b"", timeout_s=0.0)

        assert not link.is_open


async def test_a_closed_port_is_a_lost_broker() -> None:
    """With the address in the message."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and not listening: no other process gets the port
        port = silent.getsockname()[1]
        with pytest.raises(UpstreamLost, match=f"127.0.0.1:{port}"):
            await UpstreamLink.open("127.0.0.1", port, response_bytes_max=1 << 20)


@pytest.mark.parametrize("data", [struct.pack(">i", -1), struct.pack(">i", 1 << 30)])
async def test_a_broker_that_sends_nonsense_is_dropped(data) -> None:
    """A size out of bounds; the owner of the link is notified once."""
    async with listening() as (broker, port):
        link = await UpstreamLink.open("127.0.0.1", port, response_bytes_max=1 << 20)
        lost: asyncio.Queue[str] = asyncio.Queue()
        link.on_lost = lost.put_nowait
        link.send((struct.pack(">ihhih", 10, 12, 0, 1, -1),), lambda frame: None)
        await broker.request()
        assert broker.writer is not None
        broker.writer.write(data)

        assert "nonsense" in await asyncio.wait_for(lost.get(), WAIT_S)
        await asyncio.wait_for(broker.lost.wait(), WAIT_S)
        assert lost.empty()


async def test_an_answer_to_a_caller_that_no_longer_waits_is_dropped() -> None:
    """The request was cancelled, the order of the others is kept."""
    future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
    future.cancel()

    answer_of(future)(b"late")

    assert future.cancelled()


class Login:
    """Stands for `ServiceLogin`: one question, and how long it holds."""

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s, self.count = lifetime_s, 0

    async def log_in(self, ask: Any) -> float:
        self.count += 1
        await ask(ANY_TOPIC)
        return self.lifetime_s


async def test_a_login_is_renewed_before_it_ends() -> None:
    """The next caller logs in; the others wait, and nothing is sent in between."""
    async with listening() as (broker, port):
        login, now_s = Login(100.0), 0.0
        link = await opened(broker, port)
        link._login, link._clock = cast("ServiceLogin", login), lambda: now_s
        async with asyncio.TaskGroup() as group:
            group.create_task(link.log_in())
            broker.answer((await broker.request())[1], EMPTY_METADATA)
        now_s = 84.9
        async with asyncio.TaskGroup() as group:
            group.create_task(link.request_raw(12, 0, b""))
            broker.answer((await broker.request())[1])
        assert login.count == 1
        now_s = 85.0

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(link.request_raw(12, 0, b""))
            key, correlation_id = await broker.request()
            assert (key, broker.requests.empty()) == (3, True)
            broker.answer(correlation_id, EMPTY_METADATA)
            for _ in range(2):
                key, correlation_id = await broker.request()
                assert key == 12
                broker.answer(correlation_id)

        assert login.count == 2
        link.close()


async def test_a_login_that_is_refused_when_it_is_renewed() -> None:
    """The connection ends: half an exchange cannot be taken up again."""

    class Refused(Login):
        async def log_in(self, ask: Any) -> float:
            raise LoginRefused("login as keylane: no")

    async with listening() as (broker, port):
        link = await opened(broker, port)
        link._login, link._renew_s = cast("ServiceLogin", Refused(1.0)), 0.0

        with pytest.raises(LoginRefused):
            await link.request_raw(12, 0, b"")

        assert not link.is_open


async def test_a_first_login_that_is_refused_leaves_no_connection() -> None:
    """The caller that opens a link gets the reason, and nothing to close."""

    class Refused(Login):
        async def log_in(self, ask: Any) -> float:
            raise LoginRefused("login as keylane: no")

    async with listening() as (broker, port):
        opening = ServiceLink.open(
            "127.0.0.1",
            port,
            client_id="keylane",
            response_bytes_max=1 << 20,
            login=cast("ServiceLogin", Refused(1.0)),
            patience=Unhurried(),
        )
        task = asyncio.ensure_future(opening)  # noqa: TID251 - the test awaits it itself
        broker.answer((await broker.request())[1], API_VERSIONS_BODY)

        with pytest.raises(LoginRefused):
            await task

        await asyncio.wait_for(broker.lost.wait(), WAIT_S)
