"""The byte gate lets in what fits, in order, and large work alone."""

from __future__ import annotations

import asyncio

from keylane.proxy.lanes.read_memory import ByteGate, Ticket
from keylane.tasks import spawn


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_work_waits_until_its_bytes_are_free_in_the_order_it_came() -> None:
    """A small piece does not overtake a large one that waits."""

    async def main() -> None:
        gate = ByteGate(10)
        first = await gate.enter(8)
        large = spawn(gate.enter(9), "large")
        small = spawn(gate.enter(1), "small")
        await settle()
        assert not large.done() and not small.done()

        first.leave()
        await settle()

        assert large.done() and small.done() and gate.bytes_used == 10

    asyncio.run(main())


def test_what_is_larger_than_the_bound_goes_alone() -> None:
    """It waits for everybody before it, and everybody after it waits."""

    async def main() -> None:
        gate = ByteGate(10)
        ticket = await gate.enter(3)
        large = spawn(gate.enter(1_000), "large")
        other = spawn(gate.enter(1), "other")
        await settle()
        assert not large.done() and gate.bytes_used == 3
        ticket.leave()
        await settle()
        assert large.done() and gate.bytes_used == 10 and not other.done()

        large.result().shrink(3)
        await settle()

        assert other.done() and gate.bytes_used == 4

    asyncio.run(main())


def test_a_cancelled_waiter_gives_its_place_up() -> None:
    """Neither a place in the row nor bytes just granted are lost."""

    async def main() -> None:
        gate = ByteGate(10)
        first = await gate.enter(10)
        waiting: list[asyncio.Task[Ticket]] = [
            spawn(gate.enter(10), "a"), spawn(gate.enter(4), "b"), spawn(gate.enter(4), "c"),
        ]  # fmt: skip
        await settle()

        waiting[0].cancel()
        first.leave()
        waiting[1].cancel()
        await asyncio.wait(waiting)

        assert gate.bytes_used == 4 and waiting[2].done()
        waiting[2].result().leave()
        waiting[2].result().leave()
        assert gate.bytes_used == 0

    asyncio.run(main())
