"""Listeners of brokers: there before clients get them, tried again where a port is taken."""

from __future__ import annotations

import asyncio
import logging

import pytest

from keylane.errors import ConfigInvalid
from keylane.proxy.net.listeners import Listeners
from keylane.proxy.runtime.stats import ProxyStats
from keylane.tasks import spawn
from tests.virtual_time import run_virtual


class Ports:
    """Binding takes a moment; of some brokers the port is taken."""

    def __init__(self, *taken: int) -> None:
        self.taken, self.tries, self.stats = set(taken), list[tuple[int, float]](), ProxyStats()
        self.bound = 0
        self.listeners = Listeners(self.bind, self.stats, on_bound=self.note)

    def note(self) -> None:
        self.bound += 1

    async def bind(self, broker_id: int) -> tuple[str, int]:
        self.tries.append((broker_id, asyncio.get_running_loop().time()))
        await asyncio.sleep(0.05)
        if broker_id in self.taken:
            raise ConfigInvalid("listen: 127.0.0.1:9101: address in use")
        return "keylane", 9093 + broker_id

    async def address_after(self, broker_id: int) -> tuple[str, int] | None:
        """The address for a client whose answer names the broker."""
        await self.listeners.learn([broker_id])
        return self.listeners.addresses.get(broker_id)


def test_all_that_learn_of_a_broker_wait_for_its_listener() -> None:
    """One of them binds; no client gets another address."""

    async def main() -> None:
        ports = Ports()
        asked = [spawn(ports.address_after(7), f"client {n}") for n in range(3)]
        asked[0].cancel()  # its client has gone; the others go on waiting
        reported = await asyncio.gather(*asked, return_exceptions=True)

        assert reported[1:] == [("keylane", 9100)] * 2
        assert len(ports.tries) == 1 and ports.bound == 1
        assert await ports.address_after(7) == ("keylane", 9100) and len(ports.tries) == 1

    run_virtual(main)


def test_a_port_that_is_taken_is_tried_again(caplog) -> None:
    """Clients get none meanwhile, and do not wait; when it is free, its address."""
    caplog.set_level(logging.ERROR)

    async def main() -> None:
        ports = Ports(8)
        assert await ports.address_after(8) is None
        assert await ports.address_after(8) is None and len(ports.tries) == 1
        assert ports.stats.brokers_unlistened == 1
        await asyncio.sleep(5)
        assert ports.stats.listener_binds_failed == 3
        ports.taken.clear()
        await asyncio.sleep(10)

        assert await ports.address_after(8) == ("keylane", 9101)
        assert [round(at_s) for _, at_s in ports.tries] == [0, 1, 3, 7]
        assert ports.stats.brokers_unlistened == 0 and ports.bound == 1

    run_virtual(main)
    # asyncio logs what the garbage of other tests was about, whenever it is collected.
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("keylane")]
    assert len(lines) == 3 and all("address in use" in line for line in lines)


def test_one_that_cannot_be_bound_keeps_no_other_back() -> None:
    """Brokers of one answer are bound side by side."""

    async def main() -> None:
        ports = Ports(1)
        await ports.listeners.learn([1, 2, 3])

        assert sorted(ports.listeners.addresses) == [2, 3]
        ports.listeners.stop()

    run_virtual(main)


def test_a_start_ends_with_the_reason() -> None:
    """Before the node serves, a port that is taken is somebody's mistake."""

    async def main() -> None:
        ports = Ports(1)
        with pytest.raises(ConfigInvalid, match="address in use"):
            await ports.listeners.learn([1], strict=True)
        ports.listeners.stop()
        await asyncio.sleep(100)
        assert len(ports.tries) == 1

    run_virtual(main)
