"""Clients that do not take their answers, over real sockets: closed in time, and for good."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from keylane.proxy.session import unread_answers as taking
from tests.transcript.loopback import World, running

HEARTBEAT = 12
LARGE = 16 << 20
"""More than the systems of both sides take."""


async def fill(world: World) -> None:
    """Have answers wait for a client that does not read."""
    world.client.send((HEARTBEAT, 0), (HEARTBEAT, 1))
    for number in range(2):
        await world.broker.request()
        world.broker.answer(number, bytes(LARGE))
    await world.until(lambda: world.session._is_client_full)


def transport_of(world: World) -> asyncio.Transport:
    """The session's side of the connection to its client."""
    transport = world.session._transport
    assert transport is not None
    return transport


@contextmanager
def still(world: World) -> Iterator[None]:
    """Within, the client takes nothing, as far as the session can see.

    Its system may take a last piece, or acknowledge one, between any two looks, even 200 ms late.
    """
    taken_bytes = taking.count_taken(transport_of(world))
    with mock.patch.object(taking, "count_taken", return_value=taken_bytes):
        yield


async def take_some(world: World, seen_bytes: int) -> None:
    """Have the client read until the session can see that: it has seen `seen_bytes` before."""
    await world.client.reader.readexactly(4 << 20)
    while taking.count_taken(transport_of(world)) == seen_bytes:
        await world.client.reader.readexactly(1 << 20)


async def test_a_client_that_takes_nothing_is_closed(caplog) -> None:
    """After the time-out, not before; with one line that says so, and what waited is dropped."""
    async with running() as world:
        await fill(world)
        session = world.session
        transport = transport_of(world)

        with still(world):
            session.check_timeouts(1000.0, frame_s=30, idle_s=1e9, unread_s=60)
            session.check_timeouts(1059.0, frame_s=30, idle_s=1e9, unread_s=60)
            assert not world.closed
            session.check_timeouts(1061.0, frame_s=30, idle_s=1e9, unread_s=60)

        assert world.closed == [session]
        assert transport.get_write_buffer_size() == 0
    said = [each.getMessage() for each in caplog.records if "not read" in each.getMessage()]
    assert len(said) == 1
    assert "client has not read responses for 61 s" in said[0]


@pytest.mark.parametrize("is_reported", [True, False])
async def test_a_client_that_takes_a_little_is_kept(is_reported: bool, monkeypatch) -> None:
    """The time counts from the last byte taken, where the system reports bytes and elsewhere."""
    if not is_reported:
        monkeypatch.setattr(taking, "acknowledged_bytes", lambda _: None)
    async with running() as world:
        await fill(world)
        session = world.session

        with still(world):
            seen_bytes = taking.count_taken(transport_of(world))
            session.check_timeouts(1000.0, frame_s=30, idle_s=1e9, unread_s=60)
        await take_some(world, seen_bytes)
        # Where systems have much room, the first answer is taken, and the second one is to come.
        await world.until(lambda: session._is_client_full)
        with still(world):
            session.check_timeouts(1050.0, frame_s=30, idle_s=1e9, unread_s=60)
            session.check_timeouts(1109.0, frame_s=30, idle_s=1e9, unread_s=60)

            assert not world.closed
            session.check_timeouts(1111.0, frame_s=30, idle_s=1e9, unread_s=60)
        assert world.closed == [session]


async def test_a_client_that_has_nothing_to_take_is_not_slow() -> None:
    """Long after its answers were taken it may ask again."""
    async with running() as world:
        await fill(world)
        world.session.check_timeouts(1000.0, frame_s=30, idle_s=1e9, unread_s=60)
        assert await world.client.answers(2) == [0, 1]
        await world.until(lambda: not world.session._is_client_full)

        world.session.check_timeouts(2000.0, frame_s=30, idle_s=1e9, unread_s=60)

        assert not world.closed


async def test_a_client_that_takes_its_last_answer_slowly_is_not_idle() -> None:
    """Nothing is asked and nothing begun, but bytes go on: neither now nor when it has them all."""
    async with running() as world:
        await fill(world)
        session = world.session
        session.check_timeouts(session.active_s + 599, frame_s=30, idle_s=600, unread_s=600)
        # The last answer comes when the first one has left keylane. Systems differ in their room.
        while not session.is_idle:
            await world.client.reader.readexactly(1 << 20)

        session.check_timeouts(session.active_s + 601, frame_s=30, idle_s=600, unread_s=600)

        assert session.is_idle
        assert not world.closed
        session.active_s = -1e9
        session.resume_writing()
        assert session.active_s > -1e9


async def test_last_answers_do_not_wait_for_ever(monkeypatch) -> None:
    """A closed connection sends what waits, as long as somebody takes of it."""
    later: list[Any] = []
    loop = asyncio.get_running_loop()
    async with running() as world:
        await fill(world)
        transport = transport_of(world)

        def come_back() -> None:
            delay_s, flush, *rest = later.pop()
            assert delay_s == taking.FLUSH_S
            with monkeypatch.context() as patched:
                patched.setattr(loop, "call_later", lambda *args: later.append(args))
                flush(*rest)

        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_later", lambda *args: later.append(args))
            world.session.close("maximum age")
        assert transport.get_write_buffer_size() > 0
        *_, seen_bytes = later[0]
        await take_some(world, seen_bytes)
        with still(world):
            come_back()

            assert transport.get_write_buffer_size() > 0
            come_back()
        assert transport.get_write_buffer_size() == 0
        assert not later
