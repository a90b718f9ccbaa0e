"""One client connection over real sockets, with a broker that the test plays itself."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keylane.errors import FrameInvalid, UpstreamLost
from keylane.proxy.apis import Route, route_of
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.session import session as session_module
from keylane.proxy.session.session import PIPELINED_MAX
from keylane.wire.header import write_request
from tests.transcript.loopback import WAIT_S, running

HEARTBEAT, LEAVE, OFFSET_COMMIT, METADATA = 12, 13, 8, 3

Handler = Callable[[Request, Any], Awaitable[Any]]


@pytest.fixture
def serve(monkeypatch) -> Callable[[int, Handler], None]:
    """Have an API served by the test's own handler."""
    handlers: dict[int, Route] = {}

    def own_route_of(request: Request) -> Route:
        return handlers.get(request.api_key) or route_of(request)

    monkeypatch.setattr(session_module, "route_of", own_route_of)

    def install(key: int, handler: Handler, **kwargs: Any) -> None:
        handlers[key] = Route(
            api_key=key, name=f"api{key}", version_min=0, version_max=9, handler=handler, **kwargs
        )

    return install


def reply(request: Request) -> Any:
    return request.answer((b"own",))


async def test_a_relayed_request_passes_as_it_came() -> None:
    """The broker sees the client's bytes, the client the broker's."""
    async with running() as world:
        world.client.send((HEARTBEAT, 5), size_bytes=30)

        key, correlation_id = await world.broker.request()
        world.broker.answer(correlation_id, b"x" * 100)

        assert (key, await world.client.answers(1)) == (HEARTBEAT, [5])
        assert world.stats.requests == {"Heartbeat": 1}
        assert world.stats.requests_relayed == 1


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("relays", [True, False])
async def test_whether_a_request_is_relayed_is_asked_once(serve, *, relays, is_first) -> None:
    """The look reads the whole request; what is relayed is noted once."""
    asked: list[int] = []
    noted: list[int] = []

    async def handle(request: Request, _context: Any) -> Any:
        return reply(request)

    def look(request: Request, _context: Any) -> Handler | None:
        asked.append(request.api_key)
        return None if relays else handle

    def note(request: Request, _context: Any) -> None:
        noted.append(request.api_key)

    async with running() as world:
        if not is_first:
            world.client.send((HEARTBEAT, 1))
            world.broker.answer((await world.broker.request())[1], b"")
            assert await world.client.answers(1) == [1]
        serve(LEAVE, handle, look=look, note=note)
        world.client.send((LEAVE, 2))
        if relays:
            world.broker.answer((await world.broker.request())[1], b"")

        assert await world.client.answers(1) == [2]
        assert (asked, noted) == ([LEAVE], [LEAVE] if relays else [])


async def test_a_request_in_single_bytes_is_one_request() -> None:
    """The worst way to send it; it is whole with its last byte."""
    async with running() as world:
        frame = write_request(HEARTBEAT, 2, 9, "c", b"abc")

        for position in range(len(frame)):
            world.client.writer.write(frame[position : position + 1])
            await world.client.writer.drain()

        assert await world.broker.request() == (HEARTBEAT, 9)


async def test_answers_keep_the_order_of_requests(serve) -> None:
    """A handler released early ends last: later answers wait for its own."""
    go = asyncio.Event()

    async def slow(request: Request, context: Any) -> Any:
        context.release()
        await go.wait()
        return reply(request)

    serve(METADATA, slow)
    async with running() as world:
        world.client.send((METADATA, 1), (HEARTBEAT, 2), (HEARTBEAT, 3))
        for _ in range(2):
            world.broker.answer((await world.broker.request())[1])
        await world.until(lambda: world.stats.requests_relayed == 2)
        go.set()

        assert await world.client.answers(3) == [1, 2, 3]


async def test_a_request_does_not_overtake_one_that_has_not_released(serve) -> None:
    """LeaveGroup waits until the commit before it was sent."""
    sent = asyncio.Event()

    async def commit(request: Request, context: Any) -> Any:
        await sent.wait()
        pending = context.send((request.frame,))
        context.release()
        await pending
        return reply(request)

    serve(OFFSET_COMMIT, commit)
    async with running() as world:
        world.client.send((OFFSET_COMMIT, 1), (LEAVE, 2))
        await world.until(lambda: world.stats.requests["api8"] == 1)
        assert world.broker.requests.empty()

        sent.set()

        seen = [await world.broker.request(), await world.broker.request()]
        assert seen == [(OFFSET_COMMIT, 1), (LEAVE, 2)]


async def test_a_handler_that_ends_does_not_release_a_later_one(serve) -> None:
    """The first commit ends while the second waits for its lock: LeaveGroup still waits."""
    first_may_end, second_may_send = asyncio.Event(), asyncio.Event()

    async def commit(request: Request, context: Any) -> Any:
        if request.header.correlation_id == 1:
            context.release()
            await first_may_end.wait()
            return reply(request)
        await second_may_send.wait()
        pending = context.send((request.frame,))
        context.release()
        await pending
        return reply(request)

    serve(OFFSET_COMMIT, commit)
    async with running() as world:
        world.client.send((OFFSET_COMMIT, 1), (OFFSET_COMMIT, 2), (LEAVE, 3))
        await world.until(lambda: world.stats.requests["api8"] == 2)
        first_may_end.set()
        assert await world.client.answers(1) == [1]
        assert world.broker.requests.empty()

        second_may_send.set()

        seen = [await world.broker.request(), await world.broker.request()]
        assert seen == [(OFFSET_COMMIT, 2), (LEAVE, 3)]


async def test_pipelining_is_bounded_and_goes_on() -> None:
    """The broker sees at most 128 requests without an answer; each answer lets one in."""
    async with running() as world:
        total = 3 * PIPELINED_MAX
        world.client.send(*((HEARTBEAT, number) for number in range(total)))

        for number in range(PIPELINED_MAX):
            assert await world.broker.request() == (HEARTBEAT, number)
        assert world.broker.requests.empty()
        for number in range(PIPELINED_MAX, total):
            world.broker.answer(number - PIPELINED_MAX)
            assert await world.broker.request() == (HEARTBEAT, number)
        for number in range(total - PIPELINED_MAX, total):
            world.broker.answer(number)

        assert await world.client.answers(total) == list(range(total))


async def test_reading_goes_on_after_exactly_the_bound() -> None:
    """128 requests fill the bound with none behind them: answers still resume reading."""
    async with running() as world:
        world.client.send((HEARTBEAT, 0))
        world.broker.answer((await world.broker.request())[1])
        await world.client.answers(1)
        world.client.send(*((HEARTBEAT, number) for number in range(PIPELINED_MAX)))
        for _ in range(PIPELINED_MAX):
            world.broker.answer((await world.broker.request())[1])
        await world.client.answers(PIPELINED_MAX)

        world.client.send((HEARTBEAT, 777))

        assert await world.broker.request() == (HEARTBEAT, 777)


async def test_acks_0_has_no_answer(serve) -> None:
    """Its place in the order is given up; the next answer is not held."""

    async def produce(request: Request, context: Any) -> Any:
        context.send_unanswered((request.frame,))
        return ()

    serve(0, produce)
    async with running() as world:
        world.client.send((0, 1), (HEARTBEAT, 2))
        seen = [await world.broker.request(), await world.broker.request()]
        world.broker.answer(2)

        assert seen == [(0, 1), (HEARTBEAT, 2)]
        assert await world.client.answers(1) == [2]


async def test_a_client_that_does_not_read_holds_the_broker_back() -> None:
    """Answers of 64 MiB are not taken into memory: the broker's socket fills up instead."""
    async with running() as world:
        piece = bytes(1 << 20)
        world.client.send(*((HEARTBEAT, number) for number in range(64)))
        # All first: a request that comes when the client is full already would not be started.
        for _ in range(64):
            await world.broker.request()
        for number in range(64):
            world.broker.answer(number, piece)
        await world.until(lambda: world.session._is_link_paused)
        assert world.session._transport is not None and world.broker.writer is not None
        held = world.session._transport.get_write_buffer_size()
        assert held < 4 * len(piece)
        assert world.broker.writer.transport.get_write_buffer_size() > 32 * len(piece)

        assert await world.client.answers(64) == list(range(64))


async def test_no_request_is_started_while_the_client_does_not_read(serve) -> None:
    """Own answers are bounded as well: handlers wait until the client has taken what there is."""
    started = []

    async def large(request: Request, context: Any) -> Any:
        started.append(request.header.correlation_id)
        return request.answer((bytes(4 << 20),))

    serve(1, large)
    async with running() as world:
        world.client.send(*((1, number) for number in range(50)))
        await world.until(lambda: bool(world.sessions) and world.session._is_client_full)
        for _ in range(20):  # not pauses: turns of the loop, in which one that may start would
            await asyncio.sleep(0)
        assert len(started) < 10

        assert await world.client.answers(50) == list(range(50))


async def test_a_full_client_does_not_keep_a_handler_from_its_answer(serve) -> None:
    """The handler may hold its group's lock: other members must not wait for a stuck client."""
    done = asyncio.Event()

    async def commit(request: Request, context: Any) -> Any:
        context.release()
        await go.wait()
        await context.send((request.frame,))
        done.set()
        return reply(request)

    go = asyncio.Event()
    serve(OFFSET_COMMIT, commit)
    async with running() as world:
        world.client.send((HEARTBEAT, 0), (OFFSET_COMMIT, 1), (HEARTBEAT, 2))
        assert (await world.broker.request())[1] == 0
        assert (await world.broker.request())[1] == 2
        world.broker.answer(0, bytes(16 << 20))
        await world.until(lambda: world.session._is_client_full)
        world.broker.answer(2)

        go.set()
        assert (await world.broker.request())[1] == 1
        world.broker.answer(1)

        await asyncio.wait_for(done.wait(), WAIT_S)


async def test_a_broker_that_does_not_read_holds_the_client_back() -> None:
    """Requests are not taken into memory: the client's socket fills up instead."""
    async with running(request_bytes_max=1 << 24) as world:
        world.client.send((HEARTBEAT, 0))
        await world.broker.request()
        world.broker.reads.clear()
        world.client.send((HEARTBEAT, 1))
        world.client.send(*((HEARTBEAT, n) for n in range(2, 66)), size_bytes=1 << 20)
        await world.until(lambda: world.session._is_upstream_full)
        await world.until(lambda: world.session._is_reading_paused)
        assert world.client.writer.transport.get_write_buffer_size() > 32 << 20

        world.broker.reads.set()

        assert [(await world.broker.request())[1] for _ in range(65)] == list(range(1, 66))


async def test_an_unknown_api_closes_with_one_log_line(caplog) -> None:
    """The peer and the key are named; the broker is not even called."""
    async with running() as world:
        with caplog.at_level(logging.INFO, logger="keylane"):
            world.client.send((4711, 1), (HEARTBEAT, 2))
            await world.client.closed()

        (record,) = caplog.records
        assert record.levelno == logging.WARNING and "4711" in record.getMessage()
        assert world.broker.writer is None
        assert world.closed == [world.session] and world.stats.sessions_refused == 1


async def test_a_version_that_is_not_served_closes() -> None:
    """Metadata v99: ApiVersions has offered better ones."""
    async with running() as world:
        world.client.writer.write(write_request(METADATA, 99, 1, "c", b""))

        await world.client.closed()

        assert world.stats.sessions_refused == 1


async def test_a_relayed_request_that_cannot_be_read_closes_with_one_log_line(caplog) -> None:
    """The look whether a fetch names lanes meets garbage, on a connection that was fine."""
    async with running() as world:
        world.client.send((HEARTBEAT, 1))
        await world.broker.request()
        with caplog.at_level(logging.INFO):
            world.client.writer.write(write_request(1, 12, 2, "c", b"\xff" * 40))
            await world.client.closed()

        (record,) = caplog.records
        assert record.name == "keylane.session" and record.exc_info is None


async def test_a_handler_that_fails_closes_and_is_logged(serve, caplog) -> None:
    """Our bug: the client must not wait without end, and the trace must be there."""

    async def broken(request: Request, context: Any) -> Any:
        raise RuntimeError("a bug of ours")

    serve(METADATA, broken)
    async with running() as world:
        with caplog.at_level(logging.WARNING):
            world.client.send((METADATA, 1))
            await world.client.closed()
            await world.until(lambda: len(caplog.records) == 2)

        assert "internal error" in caplog.text and "a bug of ours" in caplog.text


@pytest.mark.parametrize("error", [FrameInvalid("bad count"), UpstreamLost("no leader")])
async def test_an_expected_error_of_a_handler_closes_without_a_trace(serve, caplog, error) -> None:
    """One line with the reason; the client connects again."""

    async def failing(request: Request, context: Any) -> Any:
        raise error

    serve(METADATA, failing)
    async with running() as world:
        with caplog.at_level(logging.INFO):
            world.client.send((METADATA, 1))
            await world.client.closed()

        (record,) = caplog.records
        assert str(error) in record.getMessage() and record.exc_info is None
        is_refused = isinstance(error, FrameInvalid)
        counts = (world.stats.sessions_refused, world.stats.sessions_failed)
        assert counts == (is_refused, not is_refused)


async def test_a_lost_broker_closes_the_client() -> None:
    """A client that is connected to a broker sees it go, as it would direct."""
    async with running() as world:
        world.client.send((HEARTBEAT, 1))
        await world.broker.request()
        assert world.broker.writer is not None

        world.broker.writer.transport.abort()

        await world.client.closed()


async def test_an_answer_without_a_request_closes() -> None:
    """The broker's stream is out of step: nothing that follows can be trusted."""
    async with running() as world:
        world.client.send((HEARTBEAT, 1))
        await world.broker.request()
        world.broker.answer(1)
        world.broker.answer(2)

        assert await world.client.answers(1) == [1]
        await world.client.closed()


async def test_no_broker_turns_the_client_away(caplog) -> None:
    """Its connection ends, and it is not one that keylane refuses; `reach` logs the broker."""
    async with running() as world:
        world.refuse_broker = True
        with caplog.at_level(logging.INFO, logger="keylane"):
            world.client.send((HEARTBEAT, 1))

            await world.client.closed()

        assert caplog.records == []
        stats = world.stats
        assert stats.sessions_turned_away == 1
        assert not stats.sessions_refused and not stats.sessions_failed


async def test_a_lost_client_closes_the_broker_connection(serve) -> None:
    """Handlers under way are cancelled; the session notifies its server once."""
    cancelled = asyncio.Event()

    async def endless(request: Request, context: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    serve(METADATA, endless)
    async with running() as world:
        world.client.send((HEARTBEAT, 1), (METADATA, 2))
        await world.broker.request()
        await world.until(lambda: world.stats.requests["api3"] == 1)

        world.client.writer.close()

        await asyncio.wait_for(cancelled.wait(), WAIT_S)
        await asyncio.wait_for(world.broker.lost.wait(), WAIT_S)
        assert world.closed == [world.session]


async def test_a_slow_request_times_out() -> None:
    """Nine bytes and then nothing: closed once the frame time-out is over, not before."""
    async with running() as world:
        world.client.writer.write(write_request(HEARTBEAT, 2, 1, "c", b"")[:9])
        await world.until(lambda: bool(world.sessions) and world.session._reader.is_partial)
        since_s = world.session.partial_since_s

        world.session.check_timeouts(since_s + 29, frame_s=30, idle_s=600)
        assert not world.closed
        world.session.check_timeouts(since_s + 31, frame_s=30, idle_s=600)

        assert world.closed == [world.session]
        await world.client.closed()


async def test_a_large_request_may_take_longer() -> None:
    """64 KiB/s is fast enough: 16 MiB get 256 s on top."""
    async with running(request_bytes_max=1 << 25) as world:
        world.client.writer.write(struct.pack(">i", 1 << 24) + bytes(100))
        await world.until(lambda: bool(world.sessions) and world.session._reader.is_partial)
        since_s = world.session.partial_since_s

        world.session.check_timeouts(since_s + 280, frame_s=30, idle_s=600)
        assert not world.closed
        world.session.check_timeouts(since_s + 290, frame_s=30, idle_s=600)

        assert world.closed


async def test_a_request_that_we_do_not_read_does_not_time_out(serve) -> None:
    """Half a request behind one that waits: keylane itself does not read on."""
    go = asyncio.Event()

    async def waits(request: Request, context: Any) -> Any:
        await go.wait()
        return reply(request)

    serve(METADATA, waits)
    async with running() as world:
        first, second, frame = (
            write_request(key, 2, number, "c", b"")
            for number, key in enumerate((METADATA, HEARTBEAT, HEARTBEAT), start=1)
        )
        # In one piece: once keylane has the second request it reads no more.
        world.client.writer.write(first + second + frame[:9])
        await world.until(lambda: bool(world.sessions) and world.session._is_reading_paused)
        await world.until(lambda: world.session._reader.is_partial)

        world.session.check_timeouts(world.session.clock() + 3600, frame_s=30, idle_s=60)

        assert not world.closed
        go.set()
        world.client.writer.write(frame[9:])
        assert [(await world.broker.request())[1] for _ in range(2)] == [2, 3]
