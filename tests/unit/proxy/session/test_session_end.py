"""How a client connection ends: idle, too old, or since the proxy stops."""

from __future__ import annotations

from tests.transcript.loopback import running

HEARTBEAT = 12


async def test_an_idle_connection_is_closed() -> None:
    """Kafka's `connections.max.idle.ms`; an open request keeps the connection."""
    async with running() as world:
        world.client.send((HEARTBEAT, 1))
        await world.broker.request()
        world.session.check_timeouts(world.session.active_s + 700, frame_s=30, idle_s=600)
        assert not world.closed
        world.broker.answer(1)
        await world.client.answers(1)

        world.session.check_timeouts(world.session.active_s + 700, frame_s=30, idle_s=600)

        assert world.closed
        await world.client.closed()


async def test_drain_answers_what_is_under_way() -> None:
    """The proxy stops: the open request is answered, then the connection closes."""
    async with running() as world:
        world.client.send((HEARTBEAT, 1))
        await world.broker.request()

        world.session.drain("proxy stops")
        assert not world.closed
        world.broker.answer(1)

        assert await world.client.answers(1) == [1]
        await world.client.closed()


async def test_drain_closes_an_idle_connection_at_once() -> None:
    """Nothing is under way."""
    async with running() as world:
        world.client.send((HEARTBEAT, 1))
        world.broker.answer((await world.broker.request())[1])
        await world.client.answers(1)

        world.session.drain("proxy stops")

        await world.client.closed()


async def test_a_connection_ends_at_its_age_between_two_requests() -> None:
    """So that new nodes get their share; what is under way is answered first."""
    async with running(age_s_max=100) as world:
        world.client.send((HEARTBEAT, 1))
        await world.broker.request()
        now_s = world.session.clock()
        world.session.check_timeouts(now_s + 90, frame_s=30, idle_s=600)
        assert world.session._drain_reason is None

        world.session.check_timeouts(now_s + 101, frame_s=30, idle_s=600)
        assert not world.closed
        world.broker.answer(1)

        assert await world.client.answers(1) == [1]
        await world.client.closed()
