"""A broker that is away makes two lines of log, however many clients try to reach it."""

from __future__ import annotations

import logging

import pytest

from keylane.errors import BrokerUnreachable, UpstreamLost
from keylane.proxy.cluster.reachability import ADDRESSES_MAX, PAUSE_S, Reach

BROKER = ("kafka2", 9092)


class World:
    """Tries that end as the test says, at the time that it says."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.reach = Reach(
            lambda host, port: 2 if (host, port) == BROKER else None, lambda: self.now_s
        )

    async def fail(self, address: tuple[str, int] = BROKER, *, lasts_s: float = 0.0) -> None:
        """A client's try that fails."""

        async def opening() -> None:
            self.now_s += lasts_s
            raise BrokerUnreachable(f"broker at {address[0]}:{address[1]}: refused")

        with pytest.raises(BrokerUnreachable):
            await self.reach.watch(*address, opening())
        self.reach.turn_away(*address)

    async def succeed(self, address: tuple[str, int] = BROKER) -> None:
        async def opening() -> str:
            return "link"

        assert await self.reach.watch(*address, opening()) == "link"


@pytest.fixture
def world() -> World:
    return World()


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


async def test_a_loss_is_logged_once_and_its_end_once(world, caplog) -> None:
    """With the broker, why, for how long, and how many clients it has cost."""
    for _ in range(33 * 60):
        await world.fail()
        world.now_s += 1 / 33
    await world.succeed()
    await world.succeed()

    assert reported(caplog) == [
        "broker cannot be reached broker=2 address=kafka2:9092 reason=refused",
        "broker can be reached again broker=2 address=kafka2:9092 away_s=60 turned_away=1980",
    ]


async def test_brokers_are_logged_apart(world, caplog) -> None:
    """One that is there does not end the loss of another; an address may have no id yet."""
    await world.fail()
    await world.fail(("bootstrap", 9092))
    await world.succeed(("bootstrap", 9092))

    assert reported(caplog) == [
        "broker cannot be reached broker=2 address=kafka2:9092 reason=refused",
        "broker cannot be reached broker=? address=bootstrap:9092 reason=refused",
        "broker can be reached again broker=? address=bootstrap:9092 away_s=0 turned_away=1",
    ]


async def test_a_broker_that_comes_and_goes_is_logged_now_and_then(world, caplog) -> None:
    """One of two behind a balancer; clients turned away in between are in the next line."""
    for _ in range(300):
        await world.fail()
        await world.succeed()
        world.now_s += 0.1

    lines = reported(caplog)
    assert len(lines) == 2 * 30 / PAUSE_S
    assert lines[-1].endswith("turned_away=100")


async def test_a_loss_soon_after_another_is_logged_when_it_lasts(world, caplog) -> None:
    """It is not forgotten."""
    await world.fail()
    await world.succeed()
    await world.fail()
    assert len(reported(caplog)) == 2

    world.now_s += PAUSE_S
    await world.fail()
    await world.succeed()

    assert reported(caplog)[2:] == [
        "broker cannot be reached broker=2 address=kafka2:9092 reason=refused",
        "broker can be reached again broker=2 address=kafka2:9092 away_s=10 turned_away=2",
    ]


async def test_a_try_that_times_out_late_is_no_new_loss(world, caplog) -> None:
    """It began before one that has succeeded since."""

    async def opening() -> None:
        world.now_s += 5
        await world.succeed()
        world.now_s += 5
        raise BrokerUnreachable("broker at kafka2:9092: timed out")

    with pytest.raises(BrokerUnreachable):
        await world.reach.watch(*BROKER, opening())

    assert reported(caplog) == []


async def test_a_broker_that_refuses_a_login_is_not_away(world, caplog) -> None:
    """Other errors pass; they neither begin nor end a loss."""

    async def opening() -> None:
        raise UpstreamLost("an answer that is none")

    with pytest.raises(UpstreamLost):
        await world.reach.watch(*BROKER, opening())

    assert reported(caplog) == []


async def test_old_addresses_are_forgotten(world) -> None:
    """Brokers that get a new address at each start do not fill the memory."""
    for number in range(3 * ADDRESSES_MAX):
        await world.fail((f"host{number}", 9092))

    assert len(world.reach._states) <= ADDRESSES_MAX
